"""`stentor say` as a process: outputs that cannot be sought, signals, and standard streams that are closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile

from stentor.output.encode import wav_header
from stentor.say.signals import Terminated, terminated_by_signals
from tests.helpers.patience import STUCK_S

TOY = ("--model", "dummy:toy", "--min-frames", "8", "--max-frames", "8", "--seed", "3")
CUT = 3
SAMPLES = 8 * 6


def say(folder: Path, *flags: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "stentor", "say", "Hello.", *flags, *TOY]
    return subprocess.run(command, check=False, cwd=folder, timeout=STUCK_S, **more)


def stream(format: str) -> bytes:
    return wav_header(600, None) if format == "wav" else b""


@pytest.mark.parametrize("format", ["wav", "raw"])
def test_an_output_that_cannot_be_sought_is_written_as_a_stream(
    format: str, tmp_path: Path
) -> None:
    to_stdout = say(tmp_path, "-o", "/dev/stdout", "--format", format, capture_output=True)
    assert (to_stdout.returncode, to_stdout.stderr.count(b"Traceback")) == (CUT, 0)
    assert to_stdout.stdout.startswith(stream(format))
    assert len(to_stdout.stdout) == len(stream(format)) + 2 * SAMPLES

    pipe = tmp_path / f"pipe.{format}"
    os.mkfifo(pipe)
    contents: list[bytes] = []
    reader = threading.Thread(target=lambda: contents.append(pipe.read_bytes()))
    reader.start()
    to_pipe = say(tmp_path, "-o", pipe.name, capture_output=True)
    reader.join(STUCK_S)
    assert (to_pipe.returncode, to_pipe.stdout) == (CUT, b"")
    assert contents == [to_stdout.stdout]


def test_the_null_device_needs_no_format(tmp_path: Path) -> None:
    done = say(tmp_path, "-o", "/dev/null", capture_output=True)
    assert (done.returncode, done.stdout) == (CUT, b"")


def test_a_format_that_goes_back_is_refused_for_a_pipe(tmp_path: Path) -> None:
    done = say(tmp_path, "-o", "/dev/null", "--format", "m4a", capture_output=True)
    assert done.returncode == 2
    assert b"format: m4a cannot be written to a pipe" in done.stderr


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_closed_standard_streams_change_nothing(closed: tuple[int, ...], tmp_path: Path) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    done = say(tmp_path, "-o", "a.wav", preexec_fn=close)
    assert done.returncode == CUT
    assert soundfile.info(tmp_path / "a.wav").frames == SAMPLES
    assert (tmp_path / "a.wav").stat().st_size == 44 + 2 * SAMPLES  # no message is in it


def test_audio_is_not_written_to_a_standard_output_that_is_closed(tmp_path: Path) -> None:
    done = say(tmp_path, "-o", "-", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert done.returncode == 2
    assert b"output: standard output is closed" in done.stderr


@pytest.fixture
def without_nohup() -> Iterator[None]:
    """The tests may themselves run under nohup, which would leave SIGHUP ignored here too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_raises_as_ctrl_c_does_and_has_its_exit_code(number: signal.Signals) -> None:
    with pytest.raises(Terminated) as raised, terminated_by_signals():
        signal.raise_signal(number)
    assert isinstance(raised.value, KeyboardInterrupt)
    assert raised.value.exit_code == 128 + number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminated_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_a_complete_file(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("One is here. " * 4000)
    command = [sys.executable, "-m", "stentor", "say", "--file", "book.txt", "-o", "a.wav", *TOY]
    audio = tmp_path / "a.wav"
    with subprocess.Popen(
        [*command, "--split", "sentence"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not (audio.exists() and audio.stat().st_size > 44):
            time.sleep(0.01)
        process.send_signal(number)
        _, message = process.communicate(timeout=STUCK_S)
    assert process.returncode == 128 + number
    assert "stentor: interrupted; a.wav has the first " in message
    assert soundfile.info(audio).frames * 2 + 44 == audio.stat().st_size


def test_a_user_without_a_home_gets_a_private_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stentor.host import environment

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(environment.Path, "home", no_home)
    monkeypatch.setattr(environment.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", "")
    environment.ensure_home()
    first = Path(os.environ["HOME"])
    environment.ensure_home()
    assert Path(os.environ["HOME"]) == first
    assert first.parent == tmp_path
    assert first.stat().st_mode & 0o077 == 0
    first.chmod(0o777)  # somebody else may write there
    environment.ensure_home()
    assert Path(os.environ["HOME"]) != first
