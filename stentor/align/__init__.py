"""Find when words are spoken from the audio itself, for models that do not report it
(docs/word_times.md)."""
