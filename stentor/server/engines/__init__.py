"""Engines of a server: each in a process of its own, and the client of the API process that talks
to it."""
