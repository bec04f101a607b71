"""Protocols of other services: ElevenLabs, OpenAI Realtime, Wyoming. A door translates, and speaks
by `speech/`."""
