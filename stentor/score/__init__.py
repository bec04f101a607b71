"""Measures of speech against its text: word errors, predicted opinion, likeness of a voice."""
