"""`stentor new-family NAME DIR`: a package with a family of its own that speaks, to be changed into
another model.

It is a copy of the toy family under another name, with what a package needs around it
(docs/families.md).
"""

from __future__ import annotations

import re
from pathlib import Path

import stentor
from stentor.errors import InvalidRequest
from stentor.models.families import SEAM

TEMPLATE = "toy"
SOURCE = Path(stentor.__file__).parent / "models" / TEMPLATE

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "stentor-{dashed}"
version = "0.1.0"
description = "{title} for stentor"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["stentor"]

[project.optional-dependencies]
test = ["pytest>=8"]

[project.entry-points."stentor.families"]
{name} = "{package}"

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""
README = """\
# {title} for stentor

A model family for stentor, as a package of its own.

```bash
pip install -e '.[test]'
stentor say --model dummy:{name} "Hello there."
python -m pytest tests
```

It begins as a copy of stentor's toy, which speaks noise. stentor's docs/families.md says what each file holds and how
to replace it. The order that works: `config.py`, `builder.py` and the weights, `prompt.py`, one step, the codec, then
`released.json`. Put what the reference gives into `tests/` first.
"""
TEST = '''\
"""{title} in every mode of the engine."""

import numpy as np
import pytest
from stentor import TTS
from stentor.testing import MODES, Given, Parity, Tolerance

LOAD = {{"device": "cpu", "dtype": "float64"}}
OPTIONS = {{"seed": 1, "max_frames": 24, "min_frames": 24}}
TEXTS = ("Hello there, this is one.", "And another.")


@pytest.fixture(scope="module")
def parity():
    """The values are this package's own, so that the first run passes. Load those of the reference in their place, and
    compare codes exactly."""
    with TTS("dummy:{name}", max_num_seqs=1, memory_gb=0.05, **LOAD) as tts:
        spoken = [(text, tts.generate(text, retries=1, **OPTIONS)) for text in TEXTS]
    given = [Given(text, np.array(s.frames), np.array(s.samples), OPTIONS) for text, s in spoken]
    return Parity("dummy:{name}", given, Tolerance(frames=1e-6), load=LOAD)


@pytest.mark.parametrize("mode", MODES)
def test_it_gives_the_expected_values_in_every_mode(parity, mode):
    parity.check(mode)
'''


def write(name: str, folder: Path) -> list[Path]:
    """Write the package, and return its files. InvalidRequest: `name` is no name of a family, or
    `folder` has files."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name == TEMPLATE:
        raise InvalidRequest(
            "NAME", f"must be small letters, digits and _, such as my_model, got {name!r}"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidRequest("DIR", f"{str(folder)!r} exists and is not empty")
    words = {"name": name, "package": f"stentor_{name}", "dashed": name.replace("_", "-")}
    words["title"] = "".join(part.capitalize() for part in name.split("_"))
    files = {
        "pyproject.toml": PYPROJECT.format(**words),
        "README.md": README.format(**words),
        f"tests/test_{name}.py": TEST.format(**words),
    }
    for source in sorted([*SOURCE.glob("*.py"), *SOURCE.glob("*.json")]):
        files[f"{words['package']}/{source.name}"] = _renamed(
            source.read_text(encoding="utf-8"), words
        )
    files[f"{words['package']}/__init__.py"] += f"SEAM = {SEAM}\n"
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return [folder / path for path in files]


def _renamed(source: str, words: dict[str, str]) -> str:
    """The template's code with the names of the package."""
    source = source.replace(f"stentor.models.{TEMPLATE}", words["package"])
    source = re.sub(rf'(["`]|dummy:){TEMPLATE}\b', rf"\g<1>{words['name']}", source)
    return re.sub(r"\bToy(?=Codec\b|\b)", words["title"], source)
