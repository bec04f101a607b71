"""The speech server: OpenAI's speech API and its extensions over HTTP and WebSocket, and a web
page."""
