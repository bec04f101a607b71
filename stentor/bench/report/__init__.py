"""How results are written, drawn and described."""
