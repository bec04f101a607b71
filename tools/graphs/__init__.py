"""Makes the graphs of the built-in voice that onnxruntime runs: `python -m tools.graphs`."""
