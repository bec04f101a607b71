"""Long text, spoken piece by piece: the Python API, the command line and the server share this."""
