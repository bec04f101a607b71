"""scripts/replica_tests.py names tests. Names that no test has would leave nothing out, or run what cannot pass."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from tests.helpers.server_remote import OTHERWISE

ROOT = Path(__file__).parents[2]


def functions(folder: Path) -> set[str]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("test_*.py")]
    return {
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }


def test_what_is_left_out_is_there() -> None:
    spec = importlib.util.spec_from_file_location(
        "replica_tests", ROOT / "scripts" / "replica_tests.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    there = functions(ROOT / "tests" / "ray")
    for test in module.LEFT_OUT:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file()
        assert not name or name in there
    assert all(
        (ROOT / word.removeprefix("--ignore=")).exists()
        for word in (*module.OF_RAY, *module.OF_SERVER)
    )


def test_what_replicas_do_otherwise_is_tested_of_a_plain_server() -> None:
    assert {name.partition("[")[0] for name in OTHERWISE} <= functions(ROOT / "tests" / "server")
