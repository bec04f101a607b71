"""WebSocket: sessions, utterances and messages."""
