"""LiteLLM's SDK: whole, streamed to a file, async. Prints what came as JSON."""

import asyncio
import importlib.metadata
import json
import sys
import tempfile

import litellm

URL = sys.argv[1] + "/v1"
HERE = {"api_base": URL, "api_key": "any", "model": "openai/tts-1", "voice": "alloy"}
got = {"version": importlib.metadata.version("litellm")}
whole = litellm.speech(**HERE, input="Good morning.")
got["default"] = whole.content[:4].hex()
with tempfile.NamedTemporaryFile(suffix=".wav") as file:
    litellm.speech(**HERE, input="Good morning.", response_format="wav", speed=1.5).stream_to_file(
        file.name
    )
    got["wav"] = file.read()[:4].hex()
later = asyncio.run(
    litellm.aspeech(**HERE, input="Good morning.", response_format="pcm", instructions="Slowly.")
)
got["pcm"] = len(later.content)
print(json.dumps(got))
