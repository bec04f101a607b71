"""Titles of the endpoints on the page `/docs`: what each does, in a few words."""

from __future__ import annotations

CONSENTS = "/v1/audio/voice_consents"
ELEVENLABS = "/v1/text-to-speech/{voice_id}"
DIALOGUE = "/v1/text-to-dialogue"

TITLES = {
    ("POST", "/v1/audio/speech"): "Speak a text",
    ("POST", "/v1/audio/speech/batch"): "Speak up to 32 texts at once",
    ("GET", "/v1/audio/speech/{request_id}"): "Look up a recent request",
    ("GET", "/v1/audio/speech/{request_id}/timestamps"): "Get subtitles of a recent request",
    ("GET", "/v1/audio/voices"): "List voices",
    ("POST", "/v1/audio/voices"): "Upload a voice",
    ("GET", "/v1/audio/voices/{name}"): "Describe a voice",
    ("DELETE", "/v1/audio/voices/{name}"): "Delete an uploaded voice",
    ("GET", CONSENTS): "List consents of speakers",
    ("POST", CONSENTS): "Record a speaker's consent",
    ("GET", CONSENTS + "/{consent_id}"): "Describe a consent",
    ("POST", CONSENTS + "/{consent_id}"): "Rename a consent",
    ("DELETE", CONSENTS + "/{consent_id}"): "Delete a consent",
    ("GET", "/v1/models"): "List models with their voices and options",
    ("GET", "/v1/models/{name}"): "Describe a model",
    ("GET", "/v1/audio/models"): "List models for Open WebUI",
    ("POST", "/v1/load_lora_adapter"): "Load a LoRA adapter",
    ("POST", "/v1/unload_lora_adapter"): "Unload a LoRA adapter",
    ("POST", ELEVENLABS): "Speak a text, as one file (ElevenLabs)",
    ("POST", ELEVENLABS + "/stream"): "Speak a text, as a stream (ElevenLabs)",
    ("POST", ELEVENLABS + "/with-timestamps"): "Speak a text with character times (ElevenLabs)",
    ("POST", ELEVENLABS + "/stream/with-timestamps"): (
        "Speak a text with character times, as a stream (ElevenLabs)"
    ),
    ("POST", DIALOGUE): "Speak a dialogue, as one file (ElevenLabs)",
    ("POST", DIALOGUE + "/stream"): "Speak a dialogue, as a stream (ElevenLabs)",
    ("POST", DIALOGUE + "/with-timestamps"): "Speak a dialogue with character times (ElevenLabs)",
    ("POST", DIALOGUE + "/stream/with-timestamps"): (
        "Speak a dialogue with character times, as a stream (ElevenLabs)"
    ),
    ("GET", "/v1/voices"): "List voices (ElevenLabs)",
    ("GET", "/v1/voices/{voice_id}"): "Describe a voice (ElevenLabs)",
    ("GET", "/v2/voices"): "List voices by page (ElevenLabs)",
    ("GET", "/health"): "Check that every engine is alive",
    ("GET", "/ready"): "Check that every model can speak",
    ("GET", "/metrics"): "Read metrics for Prometheus",
    ("GET", "/version"): "Read the version of stentor",
}
"""A title of each endpoint, by its method and path."""
