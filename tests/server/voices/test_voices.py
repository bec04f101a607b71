"""Uploaded voices: stored whole or not at all, shared by servers, kept over restarts."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec
import numpy as np
import pytest

import stentor
from stentor.server.errors import ApiError
from stentor.server.limits import LIMITS
from stentor.server.schemas import Ignored, SpeechBody
from stentor.server.voices.store import VoiceStore
from tests.fixtures.qwen3_tts import tiny_qwen3_tts
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import Live, assert_same_speech, process, serving, tone_wav

TEXT = "Hello there, you."
TONE = (np.sin(np.arange(16_000) / 9).astype(np.float32) * 0.3, 16_000)


def upload(live: Live, name: str, **more: object) -> httpx.Response:
    data = {"name": name, "consent": "speaker agreed, record 7", **more}
    return live.http.post(
        "/v1/audio/voices",
        data=data,
        files={"audio_sample": ("v.wav", tone_wav(hz=300.0), "audio/wav")},
    )


def test_a_voice_is_uploaded_listed_spoken_with_and_deleted(live: Live) -> None:
    answer = upload(live, "Anna", ref_text="la la la", speaker_description="a tone")
    assert answer.status_code == 200
    body = answer.json()
    assert body["object"] == "audio.voice"
    assert (body["id"], body["name"], body["type"]) == ("anna", "anna", "uploaded")
    assert body["consent"] == "speaker agreed, record 7"
    assert body["duration"] == pytest.approx(1.5)
    assert (body["embedding_source"], body["mime_type"], body["success"]) == (
        "audio",
        "audio/wav",
        True,
    )
    assert body["message"] == "Voice 'anna' uploaded"
    assert "anna" in live.voice_names()
    assert live.http.get("/v1/audio/voices/anna").json()["ref_text"] == "la la la"
    ask = {"input": TEXT, "seed": 5, "response_format": "pcm", "guard": False}
    plain, spoken = live.speech(**ask), live.speech(**ask, voice={"id": "ANNA"})
    assert spoken.status_code == 200
    assert spoken.content != plain.content
    gone = live.http.delete("/v1/audio/voices/anna")
    assert gone.json()["deleted"] is True
    assert live.http.delete("/v1/audio/voices/anna").status_code == 404
    assert live.http.get("/v1/audio/voices/anna").status_code == 404
    assert live.speech(**ask, voice="anna").status_code == 400


def test_a_voice_cloned_at_once_and_a_stored_one_sound_the_same(live: Live) -> None:
    upload(live, "twin", ref_text="la")
    ask = {"input": TEXT, "seed": 5, "response_format": "pcm", "guard": False}
    now = live.speech(
        **ask,
        ref_audio="data:audio/wav;base64," + base64.b64encode(tone_wav(hz=300.0)).decode(),
        ref_text="la",
    )
    assert_same_speech(live.speech(**ask, voice="twin").content, now.content)
    live.http.delete("/v1/audio/voices/twin")


def test_an_upload_replaced_under_its_name_is_heard_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as live:
        ask = {"input": TEXT, "seed": 5, "response_format": "pcm", "guard": False, "voice": "x"}
        upload(live, "x")
        first = live.speech(**ask).content
        other = {"audio_sample": ("v.wav", tone_wav(hz=90.0), "audio/wav")}
        again = live.http.post(
            "/v1/audio/voices", data={"name": "x", "consent": "yes"}, files=other
        )
        assert again.status_code == 200
        assert live.speech(**ask).content != first


def test_a_voice_that_is_replaced_while_it_is_looked_up_has_its_own_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model would take one speaker's audio for another's words."""
    with serving(tmp_path) as live:
        upload(live, "x", ref_text="la")
        voices = live.server.voices
        known, get = [voices.get("x")], voices.get
        other = {"audio_sample": ("v.wav", tone_wav(hz=90.0), "audio/wav")}
        data = {"name": "x", "consent": "yes", "ref_text": "other words"}
        live.http.post("/v1/audio/voices", data=data, files=other)
        monkeypatch.setattr(voices, "get", lambda name: known.pop() if known else get(name))
        body, host = SpeechBody(input=TEXT, voice="x"), live.server.hosts.all[0]
        looked = live.server.planner.voices.resolve(host, body, Ignored())
        found = asyncio.run_coroutine_threadsafe(looked, live.loop).result(STUCK_S).references
    assert [r.text for r in found] == ["other words"]


def test_a_speaker_embedding_is_refused_by_models_that_take_none(live: Live) -> None:
    data = {"name": "vector", "consent": "yes", "speaker_embedding": json.dumps([0.5] * 192)}
    answer = live.http.post("/v1/audio/voices", data=data)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "speaker_embedding")
    stored = live.server.voices.add(
        "vector", "yes", embedding=np.full(192, 0.5)
    ).as_dict()  # for another model
    assert (stored["embedding_source"], stored["embedding_dim"]) == ("direct", 192)
    assert stored["mime_type"] == "application/x-safetensors"
    spoken = live.speech(input=TEXT, voice="vector")
    assert (spoken.status_code, spoken.json()["error"]["param"]) == (400, "voice")
    assert "dummy:toy takes no speaker embedding" in spoken.json()["error"]["message"]
    spoken = live.speech(input=TEXT, speaker_embedding=[0.5] * 192)
    assert (spoken.status_code, spoken.headers["x-ignored"]) == (200, "speaker_embedding")
    live.http.delete("/v1/audio/voices/vector")


def test_a_model_that_cannot_clone_refuses_an_upload_and_speaks_with_its_own_voices(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(live, "kept")
    upload(live, "alloy")
    ask = {"input": TEXT, "seed": 5, "response_format": "pcm", "guard": False}
    assert live.speech(**ask, voice="alloy").content != live.speech(**ask, voice="low").content
    host = live.server.hosts.all[0]
    (engine,) = host.engines
    assert engine.ready is not None
    told = msgspec.structs.replace(engine.ready, info=replace(host.spec, takes_reference=False))
    monkeypatch.setattr(engine, "ready", told)
    answer = upload(live, "other")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "audio_sample")
    assert "no model here can clone a voice: dummy:toy" in answer.json()["error"]["message"]
    assert "other" not in live.voice_names()
    spoken = live.speech(**ask, voice="kept")
    assert (spoken.status_code, spoken.json()["error"]["param"]) == (400, "voice")
    assert live.speech(**ask, voice="alloy").content == live.speech(**ask, voice="low").content
    for name in ("kept", "alloy"):
        live.http.delete(f"/v1/audio/voices/{name}")


def test_a_speaker_embedding_speaks_as_its_reference_does(tmp_path: Path) -> None:
    """A model that takes them: the vector in the request or stored as a voice, or the audio it was made of."""
    checkpoint = tiny_qwen3_tts.write("base", tmp_path / "base")

    def load(name: str, model: str | None) -> Callable[[], stentor.TTS]:
        return lambda: stentor.TTS(
            checkpoint, device="cpu", max_num_seqs=4, memory_gb=0.05, threads=1
        )

    sound = tone_wav(rate=24_000)
    with serving(tmp_path / "voices", load) as live:
        vector = live.tts.speaker_embedding(stentor.Reference(sound)).tolist()
        told = live.http.get("/v1/models").json()["data"][0]
        assert told["speaker_size"] == len(vector)
        ask = {"input": TEXT, "seed": 5, "response_format": "pcm", "guard": False, "max_frames": 4}
        uri = "data:audio/wav;base64," + base64.b64encode(sound).decode()
        heard = live.speech(**ask, ref_audio=uri, ref_text="said", x_vector_only_mode=True)
        assert heard.status_code == 200, heard.text
        assert live.speech(**ask, speaker_embedding=vector).content == heard.content
        data = {"name": "vector", "consent": "yes", "speaker_embedding": json.dumps(vector)}
        assert live.http.post("/v1/audio/voices", data=data).status_code == 200
        assert live.speech(**ask, voice="vector").content == heard.content
        other = live.speech(**ask, voice="vector", speaker_embedding=[-v for v in vector])
        assert other.content != heard.content  # what the request gives wins over the voice's
        for wrong, param in (
            ({"speaker_embedding": vector, "ref_audio": uri}, "speaker_embedding"),
            ({"speaker_embedding": vector[1:]}, "speaker_embedding"),
            ({"speaker_embedding": [1e300] * len(vector)}, "speaker_embedding"),
            ({"speaker_embedding": ["1"] * len(vector)}, "speaker_embedding"),
        ):
            answer = live.speech(**ask, **wrong)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        data = {"name": "short", "consent": "yes", "speaker_embedding": json.dumps(vector[1:])}
        assert live.http.post("/v1/audio/voices", data=data).status_code == 200  # for another model
        assert live.speech(**ask, voice="short").json()["error"]["param"] == "voice"
        parts = live.speech(
            **{**ask, "input": "One is here. Two is here."},
            voice="vector",
            split_granularity="sentence",
        )
        assert parts.status_code == 200


@pytest.mark.parametrize(
    "embedding",
    ["", "[]", "{}", "[true]", '["1"]', "[NaN]", "[1e400]", "[[1]]", "[" * 5000, "x" * 10**6],
)
def test_embeddings_that_are_none_are_refused(live: Live, embedding: str) -> None:
    answer = live.http.post(
        "/v1/audio/voices", data={"name": "v", "consent": "yes", "speaker_embedding": embedding}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("speaker_embedding", "audio_sample")


def test_a_field_in_place_of_the_file_is_told_what_to_send(live: Live) -> None:
    """`curl -F audio_sample=me.wav`, without the @."""
    form = {"name": "anna", "consent": "yes", "audio_sample": "me.wav"}
    answer = live.http.post("/v1/audio/voices", data=form)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("audio_sample: must be a file of the form")


def test_what_an_upload_lacks_is_named(live: Live) -> None:
    sample = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
    post = live.http.post
    assert (
        post("/v1/audio/voices", data={"name": "n"}, files=sample).json()["error"]["param"]
        == "consent"
    )
    blank = post("/v1/audio/voices", data={"name": "n", "consent": "  "}, files=sample)
    assert blank.json()["error"]["param"] == "consent"
    assert (
        post("/v1/audio/voices", data={"consent": "y"}, files=sample).json()["error"]["param"]
        == "name"
    )
    none = post("/v1/audio/voices", data={"name": "n", "consent": "y"})
    assert (none.status_code, none.json()["error"]["param"]) == (400, "audio_sample")
    both = post(
        "/v1/audio/voices",
        data={"name": "n", "consent": "y", "speaker_embedding": "[1]"},
        files=sample,
    )
    assert both.status_code == 400
    for wrong in (b"", b"not audio", tone_wav(0.3), tone_wav(31.0), bytes(44) + b"RIFF"):
        files = {"audio_sample": ("v.wav", wrong, "audio/wav")}
        answer = post("/v1/audio/voices", data={"name": "n", "consent": "y"}, files=files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "audio_sample")
    silent = tone_wav()[:44] + bytes(len(tone_wav()) - 44)
    answer = post(
        "/v1/audio/voices",
        data={"name": "n", "consent": "y"},
        files={"audio_sample": ("v.wav", silent)},
    )
    assert answer.status_code == 400
    assert live.http.get("/v1/audio/voices/n").status_code == 404


HOSTILE = [
    "", ".", "..", "../x", "..\\x", "/etc/passwd", "a/b", "a\\b", "a\x00b", ".hidden", "-rf", "a b", "a\r\nX-Evil: 1",
    "x" * 65, "~root", "%2e%2e%2fx", "con:", "a?b", "a*b", "\u202eabc", "..%c0%af", "x/../../y", "${HOME}", "`id`",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_could_be_paths_or_worse_are_refused(live: Live, name: str) -> None:
    before = sorted(live.voices_folder.parent.rglob("*"))
    answer = upload(live, name)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "name"
    assert "x-evil" not in answer.headers
    assert sorted(live.voices_folder.parent.rglob("*")) == before
    spoken = live.speech(input=TEXT, voice=name or ".")
    assert spoken.status_code == 400
    assert live.http.delete("/v1/audio/voices/" + quote(name, safe="")).status_code in (
        307,
        404,
        405,
    )


@pytest.mark.parametrize("name", ["名前", "zoë", "a.b-c_d", "7of9", "anna.safetensors"])
def test_names_in_any_script_are_fine(live: Live, name: str) -> None:
    assert upload(live, name).status_code == 200
    assert live.speech(input=TEXT, voice=name).status_code == 200
    assert live.http.delete(f"/v1/audio/voices/{name}").status_code == 200


def test_names_that_are_taken_are_conflicts(live: Live) -> None:
    assert upload(live, "low").status_code == 409
    assert upload(live, "default").status_code == 409
    assert upload(live, "once").status_code == 200
    again = upload(live, "ONCE").json()
    assert (again["success"], again["warning"]) == (True, "Voice 'once' overwritten")
    gone = live.http.delete("/v1/audio/voices/once").json()
    assert (gone["success"], gone["message"]) == (True, "Voice 'once' deleted successfully")


def test_of_uploads_at_the_same_time_one_wins(tmp_path: Path) -> None:
    stores = [VoiceStore(tmp_path, 100, False) for _ in range(2)]
    results: list[str] = []

    def add(i: int) -> None:
        try:
            stores[i % 2].add("same", "yes", audio=TONE, text=str(i))
            results.append("stored")
        except ApiError as e:
            results.append(str(e.status))

    threads = [threading.Thread(target=add, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(results) == ["409"] * 7 + ["stored"]
    assert [p.name for p in tmp_path.iterdir()] == ["same.safetensors"]


def test_voices_survive_restarts_and_are_shared_by_servers_on_one_directory(tmp_path: Path) -> None:
    ask = {"input": TEXT, "seed": 5, "response_format": "pcm", "guard": False, "voice": "shared"}
    with serving(tmp_path, voice_policy="immutable") as one:
        upload(one, "shared")
        before = one.speech(**ask).content
        with serving(tmp_path, voice_policy="immutable") as two:
            assert "shared" in two.voice_names()
            assert two.speech(**ask).content == before
            refused = upload(two, "shared")
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "voice_exists")
            two.http.delete("/v1/audio/voices/shared")
        assert until(
            lambda: one.speech(**ask).status_code == 400
        )  # soon: it looks at the file now and then
        upload(one, "shared")
    with serving(tmp_path) as again:
        assert again.speech(**ask).content == before


def test_there_are_only_so_many_voices(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, 2, True)
    for name in ("a", "b", "a"):
        store.add(name, "yes", audio=TONE)
    with pytest.raises(ApiError) as e:
        store.add("c", "yes", audio=TONE)
    assert e.value.code == "too_many_voices"


def test_files_that_are_not_voices_are_left_out(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path, 9, False)
    store.add("good", "yes", audio=TONE)
    (tmp_path / "torn.safetensors").write_bytes((tmp_path / "good.safetensors").read_bytes()[:500])
    (tmp_path / "empty.safetensors").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("hi")
    assert [v.name for v in store.list()] == ["good"]
    assert store.get("torn") is None
    assert store.audio("torn") is None


BLOCKING = """
import os, sys, time
from stentor.server.voices import store

def fsync(handle):
    print("WRITING", flush=True)
    time.sleep(60)

if os.environ.get("BLOCK"):
    store.os = type("os", (), {**vars(os), "fsync": staticmethod(fsync)})
sys.argv[0] = "stentor"
from stentor.cli import main
sys.exit(main())
"""


def test_kill_9_in_the_middle_of_an_upload_leaves_no_half_voice(tmp_path: Path) -> None:
    VoiceStore(tmp_path, 9, False).add("kept", "yes", audio=TONE)
    command = [sys.executable, "-c", BLOCKING]
    with process("--voices-dir", str(tmp_path), command=command, env={"BLOCK": "1"}) as (
        running,
        url,
    ):

        def post() -> None:
            files = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
            data = {"name": "half", "consent": "y"}
            with suppress(httpx.HTTPError):
                httpx.post(
                    f"{url}/v1/audio/voices",
                    data=data,
                    files=files,
                    timeout=STUCK_S,
                    trust_env=False,
                )

        thread = threading.Thread(target=post)
        thread.start()
        assert until(lambda: list(tmp_path.glob(".upload-*")))
        os.kill(running.pid, signal.SIGKILL)
        running.wait(STUCK_S)
        thread.join(STUCK_S)
    with serving(tmp_path) as live:
        listed = live.http.get("/v1/audio/voices").json()
        assert [v["name"] for v in listed["uploaded_voices"]] == ["kept"]
        assert live.speech(input=TEXT, voice="half").status_code == 400
        assert live.speech(input=TEXT, voice="kept").status_code == 200
        assert upload(live, "half").status_code == 200  # the name is free
    left = list(tmp_path.glob(".upload-*"))
    assert len(left) == 1  # fresh: it might be another server's
    os.utime(left[0], (time.time() - 2 * LIMITS.stale_seconds,) * 2)
    VoiceStore(tmp_path, 9, False)
    assert not list(tmp_path.glob(".upload-*"))


def test_a_voice_that_is_being_written_outlasts_a_clock_that_is_set_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, looked = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(handle: int) -> None:
        written.set()
        assert looked.wait(STUCK_S)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    store, real = VoiceStore(tmp_path, 9, False), time.time
    with ThreadPoolExecutor(1) as pool:
        added = pool.submit(store.add, "slow", "yes", audio=TONE)
        assert written.wait(STUCK_S)
        os.mkfifo(tmp_path / ".upload-x.partial")  # which nobody opens
        (tmp_path / ".upload-y.partial").touch()
        monkeypatch.setattr(time, "time", lambda: real() + 100 * LIMITS.stale_seconds)
        VoiceStore(tmp_path, 9, False)
        left = {path.name for path in tmp_path.glob(".upload-*")}
        looked.set()
        assert added.result(STUCK_S).name == "slow"
    assert len(left) == 2  # the slow one and the FIFO
    assert ".upload-y.partial" not in left
    assert [v.name for v in store.list()] == ["slow"]


def test_a_voice_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path / "voices", 9, False)
    store.add("a", "yes", audio=TONE)
    assert (tmp_path / "voices").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "voices" / "a.safetensors").stat().st_mode & 0o077 == 0
