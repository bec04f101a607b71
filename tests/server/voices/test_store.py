"""The voice store under load, beside other uploads and deletions, and on a disk that is full or cannot be written."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor.server.errors import ApiError
from stentor.server.voices.store import VoiceStore
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live, serving, tone_wav

VECTOR = np.ones(4, np.float32)


def filled(folder: Path, count: int) -> VoiceStore:
    """A store of so many voices, all known."""
    store = VoiceStore(folder, 10_000, False)
    store.add("v0", "yes", embedding=VECTOR)
    data = (folder / "v0.safetensors").read_bytes()
    for i in range(1, count):
        (folder / f"v{i}.safetensors").write_bytes(data)
    assert len(store.list()) == count
    return store


def calls(work: Callable[[], Any]) -> int:
    """How many Python functions `work` calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_listing_is_linear_in_the_number_of_voices(tmp_path: Path) -> None:
    few, many = filled(tmp_path / "few", 50), filled(tmp_path / "many", 200)
    assert calls(many.list) < 5 * calls(few.list)


def test_an_upload_looks_into_no_other_voice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 20)
    looked: list[str] = []
    describe = store._describe
    monkeypatch.setattr(store, "_describe", lambda path: looked.append(path) or describe(path))
    store.add("new", "yes", embedding=VECTOR)
    assert len(looked) <= 1


def test_voices_are_listed_while_others_come_and_go(tmp_path: Path) -> None:
    store = filled(tmp_path, 30)
    failures: list[BaseException] = []
    ended = threading.Event()

    def lists() -> None:
        try:
            while not ended.is_set():
                store.list()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=lists) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        for i in range(60):
            store.add(f"other{i}", "yes", embedding=VECTOR)
            assert store.get(f"other{i}") is not None
            store.delete(f"other{i}")
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        for t in threads:
            t.join(STUCK_S)
    assert not failures


def test_an_upload_that_is_deleted_at_once_was_still_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, link = VoiceStore(tmp_path, 9, False), os.link

    def link_and_lose(source: Any, target: Any) -> None:
        link(source, target)
        os.unlink(target)

    monkeypatch.setattr(os, "link", link_and_lose)
    voice = store.add("brief", "yes", embedding=VECTOR, text="said")
    assert (voice.name, voice.kind, voice.text) == ("brief", "embedding", "said")
    assert store.get("brief") is None


def test_a_file_system_without_hard_links_keeps_names_unique(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: Any, target: Any) -> None:
        raise OSError(errno.ENOTSUP, "no hard links here")

    monkeypatch.setattr(os, "link", no_link)
    store = VoiceStore(tmp_path, 9, False)
    store.add("anna", "yes", embedding=VECTOR, text="first")
    with pytest.raises(ApiError, match="exists"):
        VoiceStore(tmp_path, 9, False).add("anna", "yes", embedding=VECTOR, text="second")
    found = store.get("anna")
    assert found is not None
    assert found.text == "first"
    assert [p.name for p in tmp_path.iterdir() if "partial" in p.name] == []


def test_what_add_returns_is_what_the_file_says(tmp_path: Path) -> None:
    stored = VoiceStore(tmp_path, 9, False).add(
        "a", "yes", audio=(np.ones(800, np.float32), 8000), text="t"
    )
    assert VoiceStore(tmp_path, 9, False).get("a") == stored


def test_uploads_at_the_same_time_do_not_exceed_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers on one directory. All uploads have written their bytes before the first gets its name."""
    stores = [VoiceStore(tmp_path, 2, False) for _ in range(2)]
    ready, passed, fsync = threading.Barrier(8), threading.local(), os.fsync
    codes: list[str | None] = []

    def fsync_together(handle: int) -> None:
        if not getattr(passed, "yes", False):
            passed.yes = True
            ready.wait(STUCK_S)
        fsync(handle)

    def add(i: int) -> None:
        try:
            stores[i % 2].add(f"v{i}", "yes", embedding=VECTOR)
        except ApiError as e:
            codes.append(e.code)

    monkeypatch.setattr(os, "fsync", fsync_together)
    threads = [threading.Thread(target=add, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(STUCK_S)
    assert codes == ["too_many_voices"] * 6
    assert len(list(tmp_path.iterdir())) == 2


def upload(live: Live, name: str) -> Any:
    files = {"audio_sample": ("v.wav", tone_wav(), "audio/wav")}
    return live.http.post("/v1/audio/voices", data={"name": name, "consent": "yes"}, files=files)


def failing(code: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_507_and_leaves_nothing_behind(
    live: Live, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "fsync", failing(code))
    answer = upload(live, "large")
    assert answer.status_code == 507
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("audio_sample", "voices_full")
    assert not [
        f for f in os.listdir(live.voices_folder) if "large" in f or f.startswith(".upload")
    ]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_directory_that_cannot_be_written_is_a_503(
    live: Live, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    assert upload(live, "kept").status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkstemp", failing(code))
        patch.setattr(Path, "unlink", failing(code))
        stored, deleted = upload(live, "other"), live.http.delete("/v1/audio/voices/kept")
    for answer, param in ((stored, "audio_sample"), (deleted, "name")):
        assert answer.status_code == 503
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, "voices_not_writable")
    assert live.http.delete("/v1/audio/voices/kept").status_code == 200


def test_a_directory_that_is_a_file_is_a_503(tmp_path: Path) -> None:
    (tmp_path / "voices").write_text("")
    with serving(tmp_path / "voices") as live:
        answer = upload(live, "anna")
        assert (answer.status_code, answer.json()["error"]["param"]) == (503, "audio_sample")
        assert live.http.get("/v1/audio/voices").json()["uploaded_voices"] == []


def test_an_unknown_voice_is_answered_shortly_however_many_there_are(tmp_path: Path) -> None:
    filled(tmp_path, 200)
    with serving(tmp_path) as live:
        answer = live.speech(input="Hello.", voice="nobody")
        assert answer.status_code == 400
        assert len(answer.content) < 500
        assert "v0, v1, v10" in answer.json()["error"]["message"]
