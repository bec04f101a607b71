"""Audio that lines name is read once for all of them, and kept within a budget."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import stentor
from stentor.audio import Recording
from stentor.batch.speaker import ReferenceFiles
from stentor.models.info import ReferenceAudio
from tests.batch.runs import CUT, SOME_FAILED, TOY, manifest, speak
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import tone_wav


def four_bytes(reference: stentor.Reference) -> ReferenceAudio:
    return ReferenceAudio(Recording(np.ones(1, np.float32), 600), reference.text)


def test_each_file_is_read_once_for_all_lines_and_the_defaults_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, spoken = [], []
    load, generate = stentor.TTS.load_reference, stentor.TTS.generate

    def counted(self: stentor.TTS, reference: stentor.Reference) -> object:
        read.append(Path(str(reference.audio)).name)
        return load(self, reference)

    def heard(self: stentor.TTS, text: str, **options: object) -> object:
        spoken.append((text, options["reference"][0].text))
        return generate(self, text, **options)

    monkeypatch.setattr(stentor.TTS, "load_reference", counted)
    monkeypatch.setattr(stentor.TTS, "generate", heard)
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(tone_wav(0.5))
    items = [{"text": f"{name} {n}", "reference": f"{name}.wav", "reference_text": str(n)} for n in range(4) for name in "ab"]  # fmt: skip
    own = [{"text": "default"}, {"text": "none", "reference": "none.wav"}]
    flags = ("--reference", str(tmp_path / "a.wav"), "--reference-text", "words")
    assert speak(tmp_path, [*items, *own], *flags, toy=(*TOY[:-1], "4")) == SOME_FAILED
    assert sorted(read) == ["a.wav", "b.wav", "none.wav"]
    assert sorted(spoken) == sorted(
        [(i["text"], i["reference_text"]) for i in items] + [("default", "words")]
    )
    assert manifest(tmp_path / "out")[-1]["error"]["field"] == "reference"


def test_a_model_that_takes_no_reference_says_so_and_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stentor.TTS, "load_reference", None)
    (tmp_path / "a.wav").write_bytes(tone_wav(0.5))
    assert speak(tmp_path, [{"text": "x", "prompt": "a.wav"}, {"text": "y"}]) == SOME_FAILED
    assert manifest(tmp_path / "out")[0]["error"] == {
        "field": "prompt",
        "message": "dummy:toy takes none",
    }
    assert speak(tmp_path, [{"text": "x"}, {"text": "y"}], "--resume") == CUT


def test_what_is_kept_has_a_budget() -> None:
    files = ReferenceFiles(four_bytes, kept_bytes=8)
    for name in ("a", "b", "a", "c", "a", "b"):
        files.load("reference", Path(name), None)
    counts = files.counts()
    files.close()
    assert (counts.hits, counts.misses, counts.entries, counts.size) == (2, 4, 2, 8)


def test_those_who_want_one_file_at_the_same_time_wait_for_one_reading() -> None:
    go = threading.Event()

    def load(reference: stentor.Reference) -> ReferenceAudio:
        assert go.wait(STUCK_S)
        return four_bytes(reference)

    files = ReferenceFiles(load)
    with ThreadPoolExecutor(3) as pool:
        wanted = [pool.submit(files.load, "reference", Path("a"), str(n)) for n in range(3)]
        assert until(lambda: files.counts().hits == 2)
        go.set()
        found = [each.result() for each in wanted]
    files.close()
    assert [each.text for each in found] == ["0", "1", "2"]
    assert len({id(each.recording) for each in found}) == 1
    assert files.counts().misses == 1


def test_a_file_that_cannot_be_read_is_named_by_its_field_and_tried_again(tmp_path: Path) -> None:
    with stentor.TTS("dummy:toy", memory_gb=0.01, max_num_seqs=1) as tts:
        files = ReferenceFiles(tts.load_reference)
        with pytest.raises(stentor.InvalidRequest, match=r"prompt: audio file .* does not exist"):
            files.load("prompt", tmp_path / "late.wav", None)
        with pytest.raises(
            stentor.InvalidRequest, match=r"prompt: .* is a directory; name an audio file"
        ):
            files.load("prompt", tmp_path, None)
        (tmp_path / "late.wav").write_bytes(tone_wav(0.5))
        assert len(files.load("prompt", tmp_path / "late.wav", None).samples) == 4000
        files.close()
