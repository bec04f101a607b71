"""Command line without torch: help, versions and everything that is wrong with flags."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys

import pytest

from stentor.cli import main
from tests.helpers.child import ROOT, python

PROGRAM = """
import contextlib, io, json, sys
from stentor.cli import main
found = {}
for words in json.loads(sys.argv[1]):
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as e:
            code = e.code
    found[" ".join(words)] = [code, sorted({"torch", "numpy", "fastapi"} & set(sys.modules)), err.getvalue()]
print(json.dumps(found))
"""
HELP = (
    "--help",
    "--version",
    "say --help",
    "voices --help",
    "batch --help",
    "serve --help",
    "compile --help",
    "bench --help",
    "bench serve --help",
    "doctor --help",
)
WRONG = {  # command line: what the error says
    "sya hello": "no command 'sya'; did you mean say?",
    "say hello --speeed 2": "stentor say: error: unrecognized arguments: --speeed 2 (did you mean --speed?)",
    "say hello --model /nowhere": "no such directory",
    "say hello --model embeded": "not a Hub id of the form owner/name",
    "say hello --model tests": "no config.json",
    "say hello --device tpu": "device: must be auto, cpu, cuda or cuda:N, got 'tpu'",
    "say hello --dtype int4": "dtype: must be one of auto, float32",
    "say hello --threads 0": "threads: must be at least 1",
    "say hello -o song.xyz": "output: cannot write",
    "say hello -o /nowhere/song.wav": "output: folder '/nowhere' does not exist",
    "say hello --speed 9": "speed: must be from 0.25 to 4",
    "say hello --reference /nowhere.wav": "reference: audio file '/nowhere.wav' does not exist",
    "say hello --reference tests": "reference: 'tests' is a directory; name an audio file",
    f"say hello --reference {'x' * 5000}": "' does not exist",
    "say hello --reference-text words": "reference_text: needs --reference",
    "say hello --lora /nowhere.safetensors": "lora: file '/nowhere.safetensors' does not exist",
    "say hello --aligner nowhere": "aligner: must be package:function, got 'nowhere'",
    "batch in.jsonl out --aligner nowhere:here": "aligner: 'nowhere:here' cannot be imported: ModuleNotFoundError",
    "say": "text: give a text",
    "say hello --file /nowhere.txt": "text: give a text",
    "voices --model /nowhere": "no such directory",
    "batch": "required: INPUT, OUTPUT",
    "batch in.jsonl out --model /nowhere": "no such directory",
    "batch in.jsonl out --max-num-seqs 0": "max_num_seqs: must be at least 1",
    "batch in.jsonl out --shards 0": "shards: must be at least 1",
    "batch in.jsonl out --loras anna": "loras: must be NAME=PATH, where the path exists, got 'anna'",
    "batch in.jsonl out --prompt tests": "prompt: 'tests' is a directory; name an audio file",
    "batch in.jsonl README.md": "output: 'README.md' is a file",
    "batch /nowhere.jsonl out": "input: cannot read '/nowhere.jsonl'",
    "batch README.md out --input-format csv": "input: line 1: the header must name text, input or text_file",
    "batch CHANGELOG.md out": "input: line 1: is not JSON",
    "serve --prot 80": "stentor serve: error: unrecognized arguments: --prot",
    "serve /nowhere": "stentor serve: model '/nowhere': no such directory",
    "serve dummy:voxcmp": "known: dummy:cosyvoice3",
    "compile /nowhere": "stentor compile: model '/nowhere': no such directory",
    "compile --port 70000": "stentor compile: --port must be from 0 to 65535",
    "serve --device tpu": "--device must be auto, cpu, cuda or cuda:N, got 'tpu'",
    "serve --dtype int4": "invalid choice: 'int4'",
    "serve --port 70000": "--port must be from 0 to 65535",
    "serve --config /nowhere.yaml": "--config '/nowhere.yaml' does not exist",
    "bench offline --model /nowhere": "no such directory",
    "bench compare": "required: A.json",
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, list]:
    words = [line.split() for line in (*HELP, *WRONG)]
    done = python("-c", PROGRAM, json.dumps(words))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("line", HELP)
def test_help_needs_no_torch(outcomes: dict[str, list], line: str):
    assert outcomes[line] == [0, [], ""]


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_ends_with_code_2_before_torch_is_imported(
    outcomes: dict[str, list], line: str
):
    code, imported, err = outcomes[line]
    assert (code, imported) == (2, [])
    assert WRONG[line] in err


def completed(words: str) -> str:
    """Words that bash offers after `words`, the last of which is being written."""
    with contextlib.redirect_stdout(io.StringIO()) as script:
        assert main(["completion", "bash"]) == 0
    ask = f"COMP_LINE='{words}'; COMP_POINT={len(words)}; COMP_TYPE=9; _python_argcomplete stentor; echo ${{COMPREPLY[@]}}"
    named = f"stentor() {{ '{sys.executable}' -m stentor \"$@\"; }}"
    done = subprocess.run(
        ["bash", "-c", f"{script.getvalue()}\n{named}\n{ask}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout.strip()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("stentor ser", "serve"),
        ("stentor serve --por", "--port"),
        ("stentor serve --voice-policy over", "overwrite"),
        ("stentor say --reference READ", "README.md"),
        ("stentor batch READ", "README.md"),
        ("stentor batch --res", "--resume"),
        ("stentor say --voice ge", "george"),
        ("stentor say --seed ", ""),
    ],
)
def test_bash_completes_commands_flags_choices_and_files(words: str, offers: str):
    assert completed(words) == offers


def test_say_imports_nothing_of_servers_pages_and_terminals() -> None:
    code = """
import sys
from stentor.cli import main
main(["say", "Hello there.", "-o", sys.argv[1]])
unused = "stentor.server stentor.bench yaml markdown_it tqdm torch asyncio"
assert not set(unused.split()) & set(sys.modules), sorted(set(unused.split()) & set(sys.modules))
"""
    done = python("-c", code, os.devnull)
    assert done.returncode == 0, done.stderr
