"""The rules of test_architecture.py see lazy, type-only and attribute imports: a package that breaks them is found out."""

from pathlib import Path

import pytest

from tests.helpers.import_graph import ImportGraph, circles, longest_chain

FILES = {
    "__init__.py": "",
    "top.py": "from house import kitchen\n\n\ndef cook():\n    return kitchen.oven.bake()\n",
    "kitchen/__init__.py": "from house.kitchen.table import lay\n",
    "kitchen/oven.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from house.cellar import Wine\n",
    "kitchen/table.py": "def lay():\n    from . import oven\n    return oven\n",
    "cellar.py": "def light():\n    from house.kitchen import lay\n    return lay\n",
}


@pytest.fixture
def graph(tmp_path: Path) -> ImportGraph:
    for name, text in FILES.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return ImportGraph(tmp_path / "house")


def test_an_attribute_of_a_package_is_an_import(graph):
    assert graph.edges()["house.top"] == {"house.kitchen", "house.kitchen.oven"}


def test_a_circle_of_lazy_and_type_only_imports_is_found(graph):
    assert circles(graph.edges()) == [
        ["house.cellar", "house.kitchen", "house.kitchen.oven", "house.kitchen.table"]
    ]
    assert circles(graph.edges(lambda i: not i.lazy and not i.typing)) == []


def test_a_user_of_a_name_is_a_user_of_the_module_that_defines_it(graph):
    assert graph.users["house.kitchen.table"] == {"house.cellar"}
    assert graph.users["house.kitchen.oven"] == {"house.top", "house.kitchen.table"}


def test_depth_counts_the_longest_chain_and_a_circle_once(graph):
    at_load = longest_chain(graph.edges(lambda i: not i.lazy and not i.typing))
    assert at_load == ["house.top", "house.kitchen", "house.kitchen.table"]
    assert longest_chain(graph.edges()) == ["house.top", "house.cellar"]
