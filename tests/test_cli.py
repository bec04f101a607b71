"""The command line as a user meets it."""

import importlib.metadata
import io
import sys
from pathlib import Path

import pytest
import soundfile
import torch

import stentor
from stentor.cli import main
from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.server.cli import NO_OPS
from stentor.server.config import typed

SAY = [
    "say",
    "hello",
    "--model",
    "dummy:toy",
    "--max-frames",
    "20",
    "--min-frames",
    "20",
    "--seed",
    "3",
]


def test_say_writes_the_file_and_tells_how_fast(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "a.wav"
    assert main([*SAY, "-v", "-o", str(out)]) == 3  # cut by --max-frames
    assert soundfile.info(out).frames == 120
    said = capsys.readouterr()
    assert said.out.startswith(f"Saved {out} (0.2 s).")
    for words in ("0.20 s of audio", "length, seed 3", "first audio", "RTF"):
        assert words in said.err


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "speak text to a file" in capsys.readouterr().out


def test_say_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert main(["say", "-", *SAY[2:], "-o", str(tmp_path / "a.wav")]) == 3


def test_the_same_seed_writes_the_same_file(tmp_path: Path):
    for name in ("a.wav", "b.wav"):
        main([*SAY, "-o", str(tmp_path / name)])
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (["--temperature", "9"], "temperature: must be from 0 to 2"),
        (["--voice", "nobody"], "known: low, high"),
        (["--reference", "/nowhere.wav"], "does not exist"),
        (["--reference-text", "words"], "reference_text: needs --reference"),
        (["--prompt-text", "words"], "prompt_text: needs --prompt"),
        (["-o", "/nowhere/at/all.wav"], "output: folder"),
        (["-o", "song.xyz"], "output: cannot write '.xyz'"),
        (["--model", "/nowhere"], "no such directory"),
        (["--device", "tpu"], "device: must be auto, cpu, cuda"),
        (["--threads", "0"], "threads: must be at least 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    extra: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    assert main([*SAY, *extra]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as e:
        main(["--version"])
    assert e.value.code == 0
    assert capsys.readouterr().out.strip() == f"stentor {stentor.__version__}"


@pytest.mark.parametrize("device", ["cpu", "auto", "cuda"])
def test_compile_says_at_once_that_it_needs_a_gpu(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if device != "cpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["compile", "dummy:voxcpm2", "--device", device]) == 2
    assert "device: " in capsys.readouterr().err


def test_doctor_says_what_would_run_and_how_fast(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--model", "dummy:toy"]) == 0  # in Python, and through a server
    out = capsys.readouterr().out
    for words in ("torch", "device", "measured on H200", "1 slot (", "RTF", "in a whole answer"):
        assert words in out


def test_doctor_names_what_is_missing_for_what_and_the_line_that_adds_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def absent(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("stentor.doctor._speak", lambda model: 0)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for purpose, line in (
        ("cuda", f"pip uninstall -y torch && {pip_install('cuda')}"),
        ("play", pip_install("play")),
        ("serve", pip_install("server")),
        ("mp3, opus", pip_install("audio")),
        ("replicas", pip_install("ray")),
        ("traces", pip_install("traces")),
    ):
        assert [said for said in lines if said.startswith(purpose) and said.endswith(line)], purpose


def test_doctor_says_why_a_model_does_not_run(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor", "--model", "/nowhere"]) == 2
    assert "speech    no: model '/nowhere'" in capsys.readouterr().out


def test_the_help_of_serve_fits_120_lines_and_has_no_flag_without_effect(
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) <= 120
    assert "--[no-]warmup" in printed
    assert not [flag for flag in NO_OPS if flag in printed]


def test_a_wrong_key_of_the_configuration_names_the_nearest():
    with pytest.raises(InvalidRequest, match=r"is not an option; did you mean max_num_seqs\?"):
        typed({"max-num-seq": 4})
