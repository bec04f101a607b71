"""The API process and the command line do without torch, which an engine's process needs seconds to import."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.child import python

SEEN = """
import json, sys
print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "triton"))))
"""
APP = """
from stentor.server import main
from stentor.server.config import ServerConfig
main.create_app(ServerConfig(("dummy:toy",), voices_dir=VOICES))
"""
SERVED = """
import asyncio, httpx
from stentor.server import main
from stentor.server.config import ServerConfig

app = main.create_app(ServerConfig(("dummy:toy",), voices_dir=VOICES, memory_gb=0.01, threads=1))

async def speak():
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        while (await http.get("/ready")).status_code != 200:
            await asyncio.sleep(0.05)
        body = {"input": "Hello there. [pause 1s] You.", "voice": "low", "max_frames": 4}
        assert (await http.post("/v1/audio/speech", json=body)).status_code == 200
        assert (await http.post("/v1/audio/speech", json={**body, "speed": 9})).status_code == 400
        assert (await http.get("/metrics")).status_code == 200

asyncio.run(speak())
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import stentor.cli", id="the-command-line"),
        pytest.param("import stentor.api", id="the-library"),
        pytest.param("import stentor.server.main", id="the-server"),
        pytest.param(APP, id="its-app"),
        pytest.param(SERVED, id="requests"),
    ],
)
def test_torch_is_not_imported(code: str, tmp_path: Path) -> None:
    done = python("-c", code.replace("VOICES", repr(str(tmp_path))) + SEEN)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_an_import_of_torch_would_be_seen() -> None:
    code = "import stentor\nstentor.TTS('dummy:toy', device='cpu').close()"
    assert "torch" in json.loads(python("-c", code + SEEN).stdout)
