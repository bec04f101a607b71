"""The OpenAPI description: current in docs/, true to the routes, and no request made from it is a 5xx."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from stentor.server.app import create_app
from stentor.server.config import ServerConfig
from stentor.server.http.titles import TITLES
from tests.helpers.patience import STUCK_S
from tests.helpers.server_live import Live

ROOT = Path(__file__).parents[2]
DESCRIPTION = ROOT / "docs" / "openapi.json"


def described() -> dict:
    made: dict = create_app(ServerConfig()).openapi()
    made["info"]["version"] = "0"  # a release changes nothing else
    return made


def test_the_description_in_the_docs_is_current() -> None:
    """After a change of the API: python -m tests.server.test_openapi"""
    assert json.loads(DESCRIPTION.read_text()) == json.loads(json.dumps(described()))


def test_every_endpoint_has_a_title_of_its_own() -> None:
    paths = described()["paths"]
    titles = [operation["summary"] for path in paths.values() for operation in path.values()]
    assert len(titles) == len(set(titles))
    assert set(TITLES) == {(method.upper(), path) for path in paths for method in paths[path]}


def test_every_route_is_described(live: Live) -> None:
    served = live.http.get("/openapi.json").json()
    assert set(served["paths"]) == set(described()["paths"])
    for path in (
        "/v1/audio/speech",
        "/v1/audio/speech/batch",
        "/v1/audio/voices",
        "/v1/models",
        "/health",
        "/metrics",
    ):
        assert path in served["paths"]
    for path, operations in served["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description") or operation.get("summary"), (method, path)
            assert "422" not in operation["responses"]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed"
)
def test_no_request_made_from_the_description_is_a_5xx(live: Live, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-c",
        "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())",
    ]
    words += [
        "run",
        f"{live.url}/openapi.json",
        "--checks",
        "not_a_server_error",
        "--max-examples",
        "5",
        "--max-time",
        "8",
    ]
    words += [
        "--seed",
        "1",
        "--request-timeout",
        str(STUCK_S),
        "--phases",
        "examples,coverage,fuzzing",
        "--no-color",
    ]
    run = subprocess.run(
        words, capture_output=True, text=True, timeout=2 * STUCK_S, check=False, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert live.idle()


if __name__ == "__main__":
    DESCRIPTION.write_text(json.dumps(described(), indent=1, sort_keys=True) + "\n")
