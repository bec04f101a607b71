"""Tests mirror the package. Helpers are imported from the root: `from tests.helpers.tiny import Bench`."""
