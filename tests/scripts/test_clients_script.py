"""scripts/clients.py: where it writes versions, and that each client it names is on the page and has a driver."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from scripts import clients

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("id", clients.CLIENTS)
def test_a_client_has_a_payload_a_driver_and_a_row(id: str) -> None:
    payload = yaml.safe_load((clients.PAYLOADS / f"{id}.yaml").read_text(encoding="utf-8"))
    assert (clients.PAYLOADS / "sdks" / clients.CLIENTS[id][1]).is_file()
    page = clients.PAGE.read_text(encoding="utf-8")
    assert clients.with_row(page, payload["name"], {1: payload["version"]}) == page


@pytest.mark.parametrize("name", clients.DOORS)
def test_a_door_has_a_row(name: str) -> None:
    page = clients.PAGE.read_text(encoding="utf-8")
    assert "| 0.0.1 |" in clients.with_row(page, name, {1: "0.0.1"})


@pytest.mark.parametrize("heading", clients.SECTIONS)
def test_a_section_of_a_door_has_a_line_of_versions(heading: str) -> None:
    page = clients.PAGE.read_text(encoding="utf-8")
    assert "\nSeen with x 0.0.1.\n" in clients.with_seen(page, f"### {heading}", "x 0.0.1")


def test_versions_replace_names_in_braces() -> None:
    assert clients.filled("ai {node ai}, {x}", {"node ai": "7.0", "x": "1"}) == "ai 7.0, 1"


def test_fields_of_a_payload_are_replaced_and_nothing_else() -> None:
    payload = 'name: A\nversion: "1"\nrun: by hand\ncannot: Nothing.\nsteps:\n  - {run: x}\n'
    written = clients.with_fields(payload, {"version": "2: new", "run": "by a script"})
    assert yaml.safe_load(written) == {
        **yaml.safe_load(payload),
        "version": "2: new",
        "run": "by a script",
    }
