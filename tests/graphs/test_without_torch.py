"""The built-in voice speaks where torch is not installed: Python, `say`, `batch`, `serve` and its page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import soundfile

from stentor.host.installed import pip_install
from tests.helpers.child import python
from tests.helpers.server_live import process

HIDING = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "helpers" / "hidden_packages"),
    "STENTOR_TEST_HIDDEN": "torch,triton,tokenizers,huggingface_hub,transformers",
    "OMP_NUM_THREADS": "1",
}
MARK = "import sys; sys.path.insert(0, 'tests/helpers/hidden_packages'); import sitecustomize\n"


def stentor(*words: str) -> subprocess.CompletedProcess[str]:
    return python(
        "-c", f"{MARK}from stentor.cli import main\nsys.exit(main({list(words)!r}))", **HIDING
    )


def seconds(file: Path) -> float:
    return float(soundfile.info(file).duration)


def test_torch_cannot_be_imported_here() -> None:
    assert "ModuleNotFoundError" in python("-c", MARK + "import torch", **HIDING).stderr


def test_python_speaks_streams_and_knows_when_words_sound(tmp_path: Path) -> None:
    code = f"""{MARK}
import stentor
with stentor.TTS(threads=1) as tts:
    speech = tts.generate("Two words.", seed=1, word_timestamps=True)
    assert [w.text for w in speech.words] == ["Two", "words."]
    assert sum(len(c.samples) for c in tts.stream("Two words.", seed=1)) == len(speech.samples)
assert "torch" not in sys.modules
"""
    done = python("-c", code, **HIDING)
    assert done.returncode == 0, done.stderr


def test_say_and_batch_write_audio(tmp_path: Path) -> None:
    done = stentor("say", "Hello there.", "-o", str(tmp_path / "a.wav"))
    assert done.returncode == 0, done.stderr
    assert seconds(tmp_path / "a.wav") > 0.4
    lines = tmp_path / "lines.txt"
    lines.write_text("One.\nTwo.\n", encoding="utf-8")
    done = stentor("batch", str(lines), str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").rglob("*.wav"))) == 2


def test_the_server_speaks_and_has_its_page() -> None:
    command = (sys.executable, "-c", f"{MARK}from stentor.cli import main; sys.exit(main())")
    with (
        process(command=command, env=HIDING, model=()) as (_, url),
        httpx.Client(base_url=url) as http,
    ):
        assert "<html" in http.get("/").text
        answer = http.post(
            "/v1/audio/speech", json={"input": "Hello.", "response_format": "wav"}, timeout=60
        )
        assert answer.status_code == 200
        assert answer.content.startswith(b"RIFF")


@pytest.mark.parametrize(
    ("flags", "field", "extra"),
    [
        (["--model", "openbmb/VoxCPM2"], "model", "torch"),
        (["--model", "dummy:toy"], "model", "torch"),
        (["--device", "cuda"], "device", "cuda"),
        (["--dtype", "bfloat16"], "dtype", "torch"),
        (["--quantization", "int8"], "quantization", "torch"),
        (["--runtime", "torch"], "runtime", "torch"),
    ],
)
def test_an_argument_that_needs_torch_names_its_extra(
    flags: list[str], field: str, extra: str
) -> None:
    done = stentor("say", "Hello.", *flags)
    assert done.returncode == 2
    assert f"{field}: " in done.stderr
    assert pip_install(extra) in done.stderr


def test_doctor_says_what_torch_is_for() -> None:
    done = stentor("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert pip_install("torch") in done.stdout


def test_compiling_kernels_names_the_extra_for_gpus() -> None:
    done = stentor("compile")
    assert done.returncode == 2
    assert f"install what it needs: {pip_install('cuda')}" in done.stderr
