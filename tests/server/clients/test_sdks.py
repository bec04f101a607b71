"""The SDKs themselves, each in a process of its own, since they need packages that do not fit together.

One that is not installed here is skipped: scripts/clients.py installs it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.other_pythons import run_node, run_python
from tests.helpers.recorded import check_json
from tests.helpers.server_live import Live

SDKS = Path(__file__).parent / "sdks"
RIFF = b"RIFF".hex()
PYTHON: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": (
        "openai",
        {
            "models": "<list>",
            "streamed": "<int>",
            "events": ["speech.audio.delta", "speech.audio.done"],
            "cancelled": True,
        },
    ),
    "litellm": ("litellm", {"wav": RIFF, "pcm": "<int>"}),
    "pipecat": ("pipecat", {"errors": [], "rate": 24000, "bytes": "<int>"}),
    "livekit": (
        "livekit.plugins.openai",
        {
            "tts-1 mp3": "<int>",
            "gpt-4o-mini-tts mp3": "<int>",
            "gpt-4o-mini-tts pcm": "<int>",
            "cancelled": "<int>",
        },
    ),
    "wyoming_openai": (
        "wyoming_openai",
        {
            "voices": "<list>",
            "whole.bytes": "<int>",
            "in pieces.bytes": "<int>",
            "cancelled.bytes": "<int>",
            "realtime.whole.bytes": "<int>",
            "realtime.in pieces.bytes": "<int>",
            "realtime.cancelled.bytes": "<int>",
        },
    ),
}


@pytest.mark.parametrize("sdk", PYTHON)
def test_a_python_sdk_lists_speaks_streams_and_cancels(live: Live, sdk: str) -> None:
    module, wanted = PYTHON[sdk]
    said = run_python(module, SDKS / f"drive_{sdk}.py", live.url)
    check_json(json.loads(said.splitlines()[-1]), {"version": "<str>", **wanted})
    assert live.idle()


def test_the_node_sdks_list_speak_stream_and_cancel(live: Live, tmp_path: Path) -> None:
    got = json.loads(run_node(SDKS / "drive_node.mjs", live.url, cwd=tmp_path).splitlines()[-1])
    wanted = {"models": "<list>", "streamed": "<int>", "cancelled": True, "vercelWav.start": RIFF}
    check_json(got, {**wanted, "vercel.type": "audio/mpeg"})
    assert live.idle()
