"""Reading English: written text to words, and words to the phonemes of the built-in voice."""
