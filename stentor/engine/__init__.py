"""The engine: it owns every buffer, every stream and every decision."""
