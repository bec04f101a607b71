"""The texts of a run: built-in sets, Seed-TTS by path, custom JSONL.

Built-in sets are our own sentences, so that a benchmark needs no download.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

BUILTIN_SETS = ("short", "medium", "long", "questions")
LANGUAGES = ("en", "zh", "mixed")
DATASETS = (*BUILTIN_SETS, "seed-tts", "seed-tts-text", "custom")
_TEXT_KEYS = ("text", "input", "prompt")
_CUSTOM_KEYS = (
    *_TEXT_KEYS,
    "id",
    "language",
    "voice",
    "instructions",
    "ref_audio",
    "ref_text",
    "extra_body",
)


@dataclass(frozen=True)
class TextItem:
    """One request's text and other fields. None: not sent."""

    index: int
    text: str
    language: str | None = None
    voice: str | None = None
    instructions: str | None = None
    ref_audio: Path | None = None
    ref_text: str | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


def load(name: str, language: str = "en", path: Path | None = None) -> list[TextItem]:
    """The prompts of a data set, in its own order.

    Args:
        name: one of `DATASETS`.
        language: `en`, `zh` or `mixed` for built-in sets, the locale folder for Seed-TTS.
        path: the Seed-TTS directory (the one that holds `en/meta.lst`) or the custom JSONL file.

    Raises:
        ValueError: unknown set, missing path, or a line that cannot be used. It names the flag or
        line.
    """
    if name not in DATASETS:
        raise ValueError(
            f"--dataset-name: {name!r} is unknown; choose one of {', '.join(DATASETS)}"
        )
    if name in BUILTIN_SETS:
        if path is not None:
            raise ValueError(
                f"--dataset-path: {name} is a built-in set; it needs --dataset-name custom or seed-tts"
            )
        return _builtin(name, language)
    if path is None:
        raise ValueError(f"--dataset-path is required with --dataset-name {name}")
    if name == "custom":
        prompts = _custom(path)
    else:
        prompts = _seed_tts(path, language, with_audio=name == "seed-tts")
    if not prompts:
        raise ValueError(f"--dataset-path: {path} holds no prompts")
    return prompts


def select(prompts: Sequence[TextItem], count: int, seed: int) -> list[TextItem]:
    """`count` prompts: shuffled by `seed`, and the whole set again (same order) when it is too
    small.

    Indices are renumbered by position, so that index i is the same text in every run with the same
    seed.
    """
    order = list(prompts)
    random.Random(seed).shuffle(order)
    return [replace(order[i % len(order)], index=i) for i in range(count)]


def _builtin(name: str, language: str) -> list[TextItem]:
    file = resources.files("stentor.bench.load") / "data" / f"{name}.{language}.txt"
    if not file.is_file():
        raise ValueError(f"--dataset-language: the set {name!r} has no {language!r} prompts")
    lines = file.read_text(encoding="utf-8").splitlines()
    return [TextItem(i, text) for i, text in enumerate(lines)]


def _lines(path: Path) -> list[str]:
    try:
        # Not splitlines(): a text may hold U+2028 and others at which it would cut.
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--dataset-path: cannot read {path}: {error}") from None


def _seed_tts(root: Path, locale: str, *, with_audio: bool) -> list[TextItem]:
    """`meta.lst` lines: `id|reference text|reference wav|text[|true wav]`, paths relative to the
    file."""
    meta = root / locale / "meta.lst"
    prompts: list[TextItem] = []
    for number, line in enumerate(_lines(meta), 1):
        if not line.strip():
            continue
        parts = line.split("|")
        if len(parts) not in (4, 5):
            raise ValueError(
                f"{meta}:{number}: expected 4 or 5 fields separated by '|', got {len(parts)}"
            )
        if with_audio:
            audio = meta.parent / parts[2]
        else:
            audio = None
        if audio and not audio.is_file():
            raise ValueError(f"{meta}:{number}: reference audio {audio} does not exist")
        if with_audio:
            ref_text = parts[1]
        else:
            ref_text = None
        prompts.append(TextItem(len(prompts), parts[3].strip(), ref_audio=audio, ref_text=ref_text))
    return prompts


def _custom(path: Path) -> list[TextItem]:
    prompts: list[TextItem] = []
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            prompts.append(_custom_line(path, number, line, len(prompts)))
    return prompts


def _custom_line(path: Path, number: int, line: str, index: int) -> TextItem:
    where = f"{path}:{number}"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected an object with one of {', '.join(_TEXT_KEYS)}")
    if unknown := sorted(set(row) - set(_CUSTOM_KEYS)):
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; allowed: {', '.join(_CUSTOM_KEYS)}")
    text = next((row[key] for key in _TEXT_KEYS if key in row), None)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: needs a non-empty string under one of {', '.join(_TEXT_KEYS)}")
    extra = row.get("extra_body", {})
    if not isinstance(extra, dict):
        raise ValueError(f"{where}: extra_body must be an object")
    strings = {key: row.get(key) for key in ("language", "voice", "instructions", "ref_text")}
    for key, value in strings.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{where}: {key} must be a string")
    if row.get("ref_audio"):
        audio = path.parent / str(row["ref_audio"])
    else:
        audio = None
    if audio and not audio.is_file():
        raise ValueError(f"{where}: ref_audio {audio} does not exist")
    return TextItem(index, text, ref_audio=audio, extra_body=extra, **strings)
