"""Marks that end sentences and clauses, of many scripts."""

from __future__ import annotations

END_MARKS = "。！？｡।॥۔؟‼⁇⁈⁉။៕។։።፧፨།༎᠃᠉᱾᱿꯫෴܀"
"""End a sentence whatever follows."""
CLOSERS = "\"'”’»」』】）)]›〉》"
CLAUSE = ",;:，、；：،؛—–"
WIDE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff\uac00-\ud7af"
"""Letters of scripts that write sentences without spaces, as part of a pattern, and Hangul."""
