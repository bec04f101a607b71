"""The rules that keep the small shape: who may know what. See docs/architecture.md."""

import re
from pathlib import Path

import stentor

ROOT = Path(stentor.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
FAMILY = re.compile(r"voxcpm|qwen|fish", re.IGNORECASE)
HOST_READ = re.compile(r"\.item\(|\.tolist\(|\.cpu\(|torch\.cuda\b")
BOUNDARY = {"model_runner.py", "inflight.py", "device.py", "cuda_graphs.py", "sizing.py"}
# Tools that talk to other servers name their protocols; they are not part of the engine.
OUTSIDE = {ROOT / "bench"}


def inside(path: Path, folders: set[Path]) -> bool:
    return any(folder in path.parents for folder in folders)


def lines(path: Path, pattern: re.Pattern[str]) -> list[str]:
    text = path.read_text(encoding="utf-8").splitlines()
    return [f"{path.relative_to(ROOT)}:{n}: {line.strip()}" for n, line in enumerate(text, 1) if pattern.search(line)]


def test_no_family_is_named_outside_its_folder():
    families = {p for p in (ROOT / "models").iterdir() if p.is_dir()}
    found = [hit for p in SOURCES if not inside(p, families | OUTSIDE) for hit in lines(p, FAMILY)]
    assert not found, "\n".join(found)


def test_no_family_names_another():
    found = []
    for folder in (ROOT / "models").iterdir():
        others = [p.name for p in (ROOT / "models").iterdir() if p.is_dir() and p != folder and "__" not in p.name]
        pattern = re.compile(r"stentor\.models\.(" + "|".join(others) + r")\b")
        found += [hit for p in folder.glob("*.py") for hit in lines(p, pattern)]
    assert not found, "\n".join(found)


def test_only_the_boundary_reads_from_the_device():
    engine = [p for p in SOURCES if inside(p, {ROOT / "engine", ROOT / "kernels", ROOT / "layers", ROOT / "models"})]
    found = [hit for p in [*engine, *ROOT.glob("*.py")] if p.name not in BOUNDARY for hit in lines(p, HOST_READ)]
    assert not found, "\n".join(found)


def test_policy_is_plain_python():
    for name in ("scheduler.py", "sequence.py", "page_allocator.py"):
        assert not lines(ROOT / "engine" / name, re.compile(r"^\s*(import|from) (torch|numpy)")), name


def test_the_engine_knows_nothing_of_http():
    engine = [p for p in SOURCES if inside(p, {ROOT / "engine", ROOT / "kernels", ROOT / "layers", ROOT / "models"})]
    found = [hit for p in engine for hit in lines(p, re.compile(r"fastapi|uvicorn|stentor\.(server|cli|api)\b"))]
    assert not found, "\n".join(found)


def test_nothing_probes_attributes_or_keeps_globals():
    pattern = re.compile(r"\bhasattr\(|^\s*global\s")
    found = [hit for p in SOURCES for hit in lines(p, pattern)]
    assert not found, "\n".join(found)


def test_every_module_says_what_it_is():
    bare = [str(p.relative_to(ROOT)) for p in SOURCES if not p.read_text(encoding="utf-8").lstrip().startswith('"""')]
    assert not bare, bare
