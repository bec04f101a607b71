"""GET /v1/audio/voices: what clients of Open WebUI, Kokoro, OpenAI and vLLM-Omni read of it."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import serving, tone_wav


def test_a_list_has_the_default_own_voices_aliases_and_uploads(tmp_path: Path) -> None:
    with serving(tmp_path, voice_alias=("deep=low",), api_key=("key",), open_lists=True) as live:
        sample = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
        stored = {"name": "Anna", "consent": "record 7", "ref_text": "la"}
        assert live.http.post("/v1/audio/voices", data=stored, files=sample).status_code == 200
        found = live.http.get("/v1/audio/voices").json()
        assert [(v["id"], v["name"], v["type"]) for v in found["voices"]] == [
            ("default", "default", "default"), ("low", "low", "built_in"), ("high", "high", "built_in"),
            ("deep", "deep", "alias"), ("anna", "anna", "uploaded"),
        ]  # fmt: skip
        assert [v["id"] for v in found["data"]] == [v["id"] for v in found["voices"]]
        assert found["data"][3]["voice"] == "low"
        assert [v["ref_text"] for v in found["uploaded_voices"]] == ["la"]
        names = live.http.get("/v1/audio/voices", params={"format": "names"}).json()
        assert names == {"voices": ["default", "low", "high", "deep", "anna"]}
        for voice in found["voices"]:
            assert live.http.get(f"/v1/audio/voices/{voice['id']}").json()["type"] == voice["type"]
            assert live.speech(input="Hello.", voice=voice["id"]).status_code == 200
        with httpx.Client(base_url=live.url, timeout=STUCK_S, trust_env=False) as anyone:
            open_list = anyone.get("/v1/audio/voices")
            assert open_list.json() == {
                "object": "list",
                "voices": found["voices"],
            }  # no consent, no words
            assert anyone.get("/v1/audio/models").json()["models"][0]["id"] == "dummy:toy"
            for path in (
                "/v1/models",
                "/v1/audio/voices/anna",
                "/v1/audio/voices/",
                "/v1/audio/models/x",
            ):
                assert anyone.get(path).status_code == 401
            assert anyone.post("/v1/audio/voices", data=stored, files=sample).status_code == 401


def test_without_the_flag_no_list_is_open(tmp_path: Path) -> None:
    with (
        serving(tmp_path, api_key=("key",)) as live,
        httpx.Client(base_url=live.url, timeout=STUCK_S, trust_env=False) as anyone,
    ):
        for path in ("/v1/audio/voices", "/v1/audio/models"):
            assert anyone.get(path).status_code == 401
