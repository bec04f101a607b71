"""Graphs of model families for onnxruntime: their weights from a checkpoint, and their sessions."""
