"""What the benchmark's tests share."""

import pytest

pytest.importorskip("aiohttp", reason="the extra `bench` is not installed")
