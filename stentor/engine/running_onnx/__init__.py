"""The running side over onnxruntime: rows are objects, each run by itself on a worker thread."""
