"""When words are spoken, found in the audio itself, for models that do not say so
(docs/word_times.md)."""
