"""The API of ElevenLabs: speech, its character times, lists, and text over WebSocket."""
