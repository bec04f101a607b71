"""Fixtures of the benchmark's tests."""

import pytest

pytest.importorskip("aiohttp", reason="the extra `bench` is not installed")
