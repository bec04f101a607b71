"""Tests of `live` run unchanged against replicas (scripts/replica_tests.py): what they do as clients, and no more."""

from __future__ import annotations

import pytest

from tests.helpers.patience import until
from tests.helpers.server_live import Live, count
from tests.helpers.server_remote import remote

DONE = "requests_success_total"


def test_a_running_server_is_asked_like_one_of_this_process(live: Live) -> None:
    with remote(live.url) as there:
        assert (
            there.speech(input="Hello.", seed=5).content
            == live.speech(input="Hello.", seed=5).content
        )
        assert there.idle()
        assert there.voice_names() == live.voice_names()
        assert until(lambda: count(there, DONE) == count(live, DONE) > 0)


@pytest.mark.parametrize("inside", ["server", "loop", "tts"])
def test_what_looks_into_the_process_skips_and_says_so(live: Live, inside: str) -> None:
    with (
        remote(live.url) as there,
        pytest.raises(pytest.skip.Exception, match="looks into the server's process"),
    ):
        getattr(there, inside)
