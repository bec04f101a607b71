"""Description of models and voices for Wyoming clients."""

from __future__ import annotations

from wyoming.info import Attribution, Info, TtsProgram, TtsVoice

import stentor
from stentor.server.model_hosts import ModelHost
from stentor.server.speech.languages import code_of, codes
from stentor.server.state import Server
from stentor.server.voices.voice import own_voices

SOURCE = Attribution("stentor", "")


def info(server: Server) -> Info:
    """A program for each model. ApiError 503 while one has not been loaded yet. It reads the folder of voices."""
    return Info(tts=[_program(server, host) for host in server.hosts.all])


def _program(server: Server, host: ModelHost) -> TtsProgram:
    spec = host.spec
    names = dict.fromkeys(own_voices(spec.voices, server.config.aliases), "")
    if spec.takes_reference or spec.speaker_size:
        names |= {v.name: v.description or "" for v in server.voices.list() if v.name not in names}
    languages = [code_of(name) for name in spec.languages] or codes()  # without a list, the model takes any
    voices = [
        TtsVoice(name, SOURCE, True, about or name, stentor.__version__, languages) for name, about in names.items()
    ]
    return TtsProgram(
        host.name,
        SOURCE,
        True,
        f"stentor {spec.family}",
        stentor.__version__,
        voices,
        supports_synthesize_streaming=True,
    )
