"""Rays of tests and benchmarks run beside each other and beside those of others. No Ray is needed."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from benchmarks.replicas.apart import apart, free


def test_two_places_share_no_port_no_folder_and_no_token() -> None:
    with apart() as one, apart() as two:
        assert not set(one.ports) & set(two.ports)
        assert one.folder != two.folder
        differ = {name for name, value in one.environment.items() if two.environment[name] != value}
        own = {name for name in one.environment if name.startswith("RAY_")}
        own -= {"RAY_AUTH_MODE", "RAY_raylet_start_wait_time_s"}
        assert differ == own | {"STENTOR_CLUSTER"}
    assert not one.folder.exists()


def test_the_ray_of_the_user_is_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    with apart() as place:
        assert "RAY_ADDRESS" not in place.environment


def test_a_port_at_which_somebody_listens_is_not_free() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        assert not free(s.getsockname()[1])


def test_the_ends_of_all_logs_are_read() -> None:
    with apart() as place:
        folder = place.folder / "ray" / "session_2026" / "logs" / "serve"
        folder.mkdir(parents=True)
        (folder / "controller.log").write_text("first" + "x" * 5000 + "last words")
        (folder.parent / "empty.out").touch()
        told = place.logs()
    assert told.startswith("== controller.log\nxxx")
    assert told.endswith("last words")
    assert "first" not in told


def test_a_socket_in_the_folder_has_a_path_that_the_system_takes() -> None:
    with apart() as place:
        session = Path("ray/session_2026-11-22_21-15-05_218995_222290/sockets/plasma_store")
        assert len(str(place.folder / session)) < 107
