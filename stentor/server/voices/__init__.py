"""Reference audio: uploaded, inline or fetched."""
