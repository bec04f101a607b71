"""The rooms of the server: http and ws stand side by side, and what they share knows neither of them. The doors of
other protocols stand on both, and none knows another."""

from __future__ import annotations

from pathlib import Path

import pytest

import stentor
from tests.helpers.import_graph import ImportGraph

ROOMS = ("doors", "http", "ws", "speech", "voices")
MAY_IMPORT = {
    "doors": {"http", "ws", "speech", "voices"},
    "http": {"speech", "voices"},
    "ws": {"speech", "voices"},
    "speech": {"voices"},
    "voices": set(),
}


@pytest.fixture(scope="module")
def graph() -> ImportGraph:
    """Given back after these tests, as that of tests/test_architecture.py."""
    return ImportGraph(Path(stentor.__file__).parent)


def room(module: str) -> str | None:
    parts = module.split(".")
    return (
        parts[2]
        if parts[:2] == ["stentor", "server"] and len(parts) > 2 and parts[2] in ROOMS
        else None
    )


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_rooms_below_it(graph: ImportGraph, name: str) -> None:
    imports = [i for i in graph.imports if room(i.source) == name]
    assert imports
    found = [str(i) for i in imports if room(i.target) not in {None, name, *MAY_IMPORT[name]}]
    assert not found, "\n".join(found)


def test_no_door_imports_another(graph: ImportGraph) -> None:
    def door(module: str) -> str | None:
        parts = module.split(".")
        return parts[3] if parts[:3] == ["stentor", "server", "doors"] and len(parts) > 3 else None

    found = [
        str(i)
        for i in graph.imports
        if door(i.source) and door(i.target) not in (None, door(i.source))
    ]
    assert not found, "\n".join(found)


def test_no_route_imports_another(graph: ImportGraph) -> None:
    routes = "stentor.server.http.routes_"
    imports = [i for i in graph.imports if i.target.startswith(routes)]
    assert {i.source for i in imports} == {"stentor.server.app"}


def test_only_processes_know_the_app(graph: ImportGraph) -> None:
    """The server's own, and a replica, which is one in a process of Ray's."""
    users = {i.source for i in graph.imports if i.target == "stentor.server.app"}
    assert users == {"stentor.server.main", "stentor.ray.replica"}
