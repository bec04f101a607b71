"""A voices directory that others write to: what is no voice is left out of the list, and a 4xx when it is named."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from stentor.server.voices.store import VoiceStore
from tests.helpers.server_live import Live, serving, tone_wav

SAMPLES = (0.3 * np.sin(np.arange(32_000) / 9)).astype(np.float32)
FACTS = {
    "format": "stentor.voice/1",
    "consent": "yes",
    "created_at": "1",
    "rate": "16000",
    "seconds": "2.0",
}


def stored(facts: Mapping[str, str] = FACTS, **tensors: np.ndarray) -> bytes:
    return safetensors.numpy.save(tensors, dict(facts))


def in_torch(kind: torch.dtype) -> bytes:
    return safetensors.torch.save({"samples": torch.from_numpy(SAMPLES).to(kind)}, FACTS)


def sparse(path: Path, values: int) -> None:
    """So many samples of zeros, which take no room on the disk."""
    header = json.dumps(
        {
            "__metadata__": FACTS,
            "samples": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]},
        }
    ).encode()
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + 4 * values)


ODD: dict[str, bytes] = {
    "rate-zero": stored({**FACTS, "rate": "0"}, samples=SAMPLES),
    "rate-missing": stored({k: v for k, v in FACTS.items() if k != "rate"}, samples=SAMPLES),
    "rate-long": stored({**FACTS, "rate": "1" * 5000}, samples=SAMPLES),
    "rate-word": stored({**FACTS, "rate": "fast"}, samples=SAMPLES),
    "bfloat16": in_torch(torch.bfloat16),
    "float8": in_torch(torch.float8_e4m3fn),
    "integers": stored(samples=SAMPLES.astype(np.int16)),
    "scalar": stored(samples=np.array(1, np.float32)),
    "two-dimensions": stored(samples=SAMPLES.reshape(2, -1)),
    "empty": stored(samples=SAMPLES[:0]),
    "neither": stored(other=SAMPLES),
    "no-metadata": safetensors.numpy.save({"embedding": np.ones(0, np.float32)}),
    "wide-embedding": stored(embedding=np.ones(100_000, np.float32)),
    "other-dim": stored({**FACTS, "dim": "7"}, embedding=np.ones(4, np.float32)),
    "endless": stored({**FACTS, "seconds": "inf"}, samples=SAMPLES),
    "nan": stored({**FACTS, "seconds": "nan"}, samples=SAMPLES),
    "far-future": stored({**FACTS, "created_at": "9" * 30}, samples=SAMPLES),
    "long-consent": stored({**FACTS, "consent": "x" * 10**6}, samples=SAMPLES),
    "noise": bytes(range(256)) * 10,
    "header": struct.pack("<Q", 2**62),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("voices")
    for name, data in ODD.items():
        (folder / f"{name}.safetensors").write_bytes(data)
    sparse(folder / "huge.safetensors", 16 << 30)
    os.mkfifo(folder / "fifo.safetensors")
    (folder / "folder.safetensors").mkdir()
    (folder / "loop.safetensors").symlink_to(folder / "loop.safetensors")
    (folder / "nowhere.safetensors").symlink_to(folder / "nothing")
    (folder / "UPPER.safetensors").write_bytes(stored(samples=SAMPLES))
    (folder / "with space.safetensors").write_bytes(stored(samples=SAMPLES))
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.safetensors")).write_bytes(
        stored(samples=SAMPLES)
    )
    (folder / "good.safetensors").write_bytes(stored(samples=SAMPLES))
    with serving(folder) as running:
        yield running


NAMES = [*ODD, "huge", "fifo", "folder", "loop", "nowhere", "with space"]


def test_the_list_has_what_can_be_spoken_with(live: Live) -> None:
    for more in ({}, {"format": "names"}):
        answer = live.http.get("/v1/audio/voices", params=more)
        assert answer.status_code == 200
    body = live.http.get("/v1/audio/voices").json()
    assert [v["id"] for v in body["uploaded_voices"]] == ["good"]
    assert live.speech(input="Hello.", voice="good").status_code == 200


@pytest.mark.parametrize("name", [*NAMES, "%FF%FE"])
def test_what_is_no_voice_is_a_4xx_when_it_is_named(name: str, live: Live) -> None:
    assert live.http.get(f"/v1/audio/voices/{name}").status_code == 404
    answer = live.speech(input="Hello.", voice=name)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "voice_not_found")


def test_an_upload_beside_them_works(live: Live) -> None:
    for _ in range(6):  # more than there are threads, were any of them held by the FIFO
        files: Any = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
        answer = live.http.post(
            "/v1/audio/voices", data={"name": "anna", "consent": "yes"}, files=files
        )
        assert answer.status_code == 200, answer.text
        assert live.http.delete("/v1/audio/voices/anna").status_code == 200
    taken = live.http.post(
        "/v1/audio/voices", data={"name": "folder", "consent": "yes"}, files=files
    )
    assert taken.status_code == 409
    assert live.http.delete("/v1/audio/voices/folder").status_code == 404


def test_each_file_that_is_left_out_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scalar.safetensors").write_bytes(ODD["scalar"])
    os.mkfifo(tmp_path / "fifo.safetensors")
    store = VoiceStore(tmp_path, 10, False)
    for _ in range(3):
        assert store.list() == []
        assert store.get("scalar") is None
        assert store.audio("scalar") is None
    told = [r.getMessage() for r in caplog.records]
    assert [sum(name in line for line in told) for name in ("scalar", "fifo")] == [1, 1]
    assert all(" is not a voice: " in line for line in told)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_other_floats_are_spoken_with(kind: type[np.floating[Any]], tmp_path: Path) -> None:
    (tmp_path / "v.safetensors").write_bytes(stored(samples=SAMPLES.astype(kind)))
    found = VoiceStore(tmp_path, 10, False).audio("v")
    assert found is not None
    assert found[0].dtype == np.float32
    assert np.abs(found[0] - SAMPLES).max() < 1e-3
