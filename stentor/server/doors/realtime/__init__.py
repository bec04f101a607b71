"""The Realtime API of OpenAI, for speech from text."""
