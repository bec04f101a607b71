"""The engine on the toy family: same audio whatever happens around a request, and nothing is ever lost."""

import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from stentor import TTS, BatchError, EngineError, InvalidRequest, Overloaded, Reference, Speech
from stentor.config import Policy
from stentor.engine.requests import OpenRequests
from stentor.engine.scheduling.scheduler import Scheduler
from stentor.engine.scheduling.sequence import Place, Sequence
from stentor.engine.seeds import MAX_SEED
from stentor.models.base import Prompt
from stentor.models.toy.model import BROKEN
from tests.helpers.invariants import check
from tests.helpers.patience import STUCK_S
from tests.helpers.stepped_engine import hold, stepped_engines

LONG = {"max_frames": 40, "min_frames": 40, "retries": 1}
PLAYED = Policy(max_ahead=0.5)  # a stream is generated as it plays, so it stays under way
COUNT = 16  # more than twice the slots
VOICE = Reference((np.sin(np.arange(1200) / 30).astype(np.float32), 6000))


def toy(**engine: object) -> TTS:
    # float64: batches of other sizes round differently, and 1e-6 then still shows any real difference
    return TTS("dummy:toy", dtype="float64", **{"max_num_seqs": 6, "memory_gb": 0.002, **engine})


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of every engine checks the scheduler's invariants."""
    plain = Scheduler.release

    def release(self: Scheduler, complete: list[Sequence]) -> None:
        plain(self, complete)
        check(self)

    monkeypatch.setattr(Scheduler, "release", release)


def assert_equal(a: Speech, b: Speech) -> None:
    assert a.frames.shape == b.frames.shape
    np.testing.assert_allclose(a.frames, b.frames, atol=1e-6)
    np.testing.assert_allclose(a.samples, b.samples, atol=1e-6)
    assert a.finish_reason == b.finish_reason


def wait_for(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + STUCK_S
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.001)


def assert_all_free(tts: TTS) -> None:
    """Slots and pages come back in the step that hands out the last chunk, and a cancel is read in the next step: the
    caller may be a moment early."""
    wait_for(lambda: (h := tts.engine.health()).running == h.queued == 0)
    health = tts.engine.health()
    assert health.free_slots == tts.engine.sizes.slots
    assert health.free_pages == health.pages


def requests(count: int, seed: int = 0) -> list[tuple[str, dict[str, object]]]:
    """Requests that differ in everything a request can differ in."""
    r = random.Random(seed)
    made = []
    for i in range(count):
        options: dict[str, object] = {
            "seed": r.randrange(2**31),
            "temperature": r.choice([0.0, 0.5, 0.9, 1.3]),
            "top_k": r.choice([0, 3, 10]),
            "top_p": r.choice([1.0, 0.8]),
            "cfg": r.choice([1.0, 2.0, 3.5]),
            "flow_steps": r.choice([1, 2, 3, 5]),
            "min_frames": r.choice([0, 2, 10]),
            "max_frames": r.randrange(1, 30),
            "voice": r.choice([None, "low", "high"]),
            "reference": r.choice([None, VOICE]),
            "retries": 1,
        }
        made.append(("request number " * r.randrange(1, 3) + str(i), options))
    return made


@pytest.fixture(scope="module")
def solo() -> list[Speech]:
    """Audio of each of COUNT requests when it has the engine for itself."""
    with toy(max_num_seqs=1) as tts:
        return [tts.generate(text, **options) for text, options in requests(COUNT)]


def in_threads(
    tts: TTS, work: list[tuple[str, dict[str, object]]], streamed: bool = False
) -> list[Speech]:
    """All requests at once, each from its own thread. The engine sees none before all are there."""
    results: list[Speech | None] = [None] * len(work)
    all_there = threading.Event()
    hold(tts)(all_there)

    def speak(i: int) -> None:
        text, options = work[i]
        if not streamed:
            results[i] = tts.generate(text, **options)
            return
        plain = {k: v for k, v in options.items() if k != "retries"}
        chunks = list(tts.stream(text, **plain))
        samples, frames = (
            np.concatenate([getattr(c, n) for c in chunks]) for n in ("samples", "frames")
        )
        results[i] = Speech(
            samples, tts.sample_rate, frames, chunks[-1].finish_reason, chunks[0].seed
        )

    threads = [threading.Thread(target=speak, args=(i,)) for i in range(len(work))]
    for t in threads:
        t.start()
    wait_for(lambda: tts.engine.health().queued >= len(work))
    all_there.set()
    for t in threads:
        t.join()
    return [r for r in results if r is not None]


@pytest.mark.parametrize("overlap_steps", [0, 1, 2])
def test_a_request_sounds_the_same_alone_and_in_any_batch_with_any_overlap(
    solo: list[Speech], overlap_steps: int
):
    with toy(overlap_steps=overlap_steps) as tts:
        for alone, together in zip(solo, in_threads(tts, requests(COUNT)), strict=True):
            assert_equal(alone, together)
        assert_all_free(tts)


def test_padding_rows_change_nothing(solo: list[Speech]):
    with toy(batch_sizes=(4, 8)) as tts:
        for alone, padded in zip(solo, in_threads(tts, requests(COUNT)), strict=True):
            assert_equal(alone, padded)


def test_streamed_chunks_joined_equal_the_whole(solo: list[Speech]):
    with toy() as tts:
        for whole, streamed in zip(
            solo, in_threads(tts, requests(COUNT), streamed=True), strict=True
        ):
            assert_equal(whole, streamed)


def test_preemption_and_resume_leave_the_audio_as_it_was(solo: list[Speech]):
    policy = Policy(reserve_tokens=4)
    with toy(page_size=4, memory_gb=60 * 4 * 2 * 2 * 2 * 8 * 8 / 2**30, policy=policy) as tts:
        results = in_threads(tts, requests(COUNT))
        assert tts.engine.health().preemptions > 0
        for alone, resumed in zip(solo, results, strict=True):
            assert_equal(alone, resumed)
        assert_all_free(tts)


def test_a_list_is_decoded_together_and_equals_one_by_one():
    with toy() as tts:
        texts = ["one", "another text", "a third"]
        batch = tts.generate(texts, seed=5, **LONG)
        steps = tts.engine.health().stats.steps
        assert steps < 3 * 40
        for text, speech in zip(texts, batch, strict=True):
            assert_equal(tts.generate(text, seed=5, **LONG), speech)


def test_the_same_seed_gives_the_same_audio_and_another_seed_does_not():
    with toy() as tts:
        a, b, c = (tts.generate("hello", seed=s, **LONG) for s in (1, 1, 2))
        assert_equal(a, b)
        assert not np.allclose(a.samples, c.samples)


def test_temperature_zero_needs_no_seed():
    with toy() as tts:
        a, b = (tts.generate("hello", seed=s, temperature=0.0, **LONG) for s in (1, 2))
        assert_equal(a, b)


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancelling_frees_slot_and_pages_and_leaves_others_alone(after: int):
    with toy(max_num_seqs=2, policy=PLAYED) as tts:
        other = tts.submit(tts.request("other", seed=3, max_frames=40, min_frames=40))
        stream = tts.submit(tts.request("cancel me", seed=1, max_frames=200, min_frames=200))
        count = 0
        if after:
            for _ in stream:
                count += 1
                if count == after:
                    break
        stream.cancel()
        last = list(stream)[-1]
        assert last.finish == "cancelled"
        rest = tts.speech(list(other), 3)
        assert_equal(tts.generate("other", seed=3, **LONG), rest)
        assert_all_free(tts)


def test_a_queued_request_can_be_cancelled():
    with stepped_engines(), toy(max_num_seqs=1) as tts:
        running = tts.submit(tts.request("running", seed=1, max_frames=60, min_frames=60))
        queued = tts.submit(tts.request("queued", seed=1, max_frames=60, min_frames=60))
        tts.engine.step(5)
        queued.cancel()
        tts.engine.gate.open()
        assert [c.finish for c in queued] == ["cancelled"]
        assert list(running)[-1].finish == "length"
        assert_all_free(tts)


def test_leaving_a_stream_early_cancels_the_rest():
    with toy(policy=PLAYED) as tts:
        for _ in tts.stream("hello", seed=1, max_frames=500, min_frames=500):
            break
        tts.generate("next", seed=1, **LONG)
        assert_all_free(tts)
        assert tts.engine.health().stats.cancelled == 1


def test_a_request_whose_row_cannot_be_written_touches_no_other(solo: list[Speech]):
    with toy() as tts:
        bad = [tts.submit(tts.request(BROKEN, seed=1), streaming=False) for _ in range(2)]
        good = in_threads(tts, requests(COUNT))
        for stream in bad:
            with pytest.raises(EngineError, match="failed while it was being served"):
                list(stream)
        for alone, together in zip(solo, good, strict=True):
            assert_equal(alone, together)
        assert_all_free(tts)


def test_a_frame_that_is_not_finite_fails_its_own_request_only():
    with toy() as tts:
        prompt = tts.prompt(tts.request("hot", seed=1, max_frames=40, min_frames=40))
        prompt.columns["cfg"] = float("nan")
        broken = tts.engine.submit(prompt, 1, streaming=True)
        with pytest.raises(EngineError, match="not finite"):
            list(broken)
        assert tts.generate("fine", seed=2, **LONG).finish_reason == "length"
        assert_all_free(tts)


def test_a_full_queue_is_refused_at_once():
    with stepped_engines(), toy(max_num_seqs=1, policy=Policy(max_queue=2)) as tts:
        req = tts.request("hello", seed=1, max_frames=1500, min_frames=1500)
        streams = [tts.submit(req)]
        tts.engine.step()  # the only slot is taken
        streams += [tts.submit(req) for _ in range(2)]
        with pytest.raises(Overloaded, match="2 requests are waiting"):
            tts.submit(req)
        for stream in streams:
            stream.cancel()


def test_closing_fails_what_is_running_and_refuses_what_comes():
    tts = toy()
    stream = tts.submit(tts.request("hello", seed=1, max_frames=1000, min_frames=1000))
    tts.close()
    with pytest.raises(EngineError, match="stopped"):
        list(stream)
    with pytest.raises(EngineError, match="stopped"):
        tts.generate("again")
    tts.close()


def test_a_crash_of_the_engine_is_told_to_everybody(monkeypatch: pytest.MonkeyPatch):
    tts = toy()
    stream = tts.submit(tts.request("hello", seed=1, max_frames=1000, min_frames=1000))

    def crash(*_: object) -> None:
        raise MemoryError("gone")

    monkeypatch.setattr(tts.engine.scheduler, "plan", crash)
    with pytest.raises(EngineError, match="gone"):
        list(stream)
    assert not tts.engine.health().alive
    tts.close()


def test_a_run_on_is_tried_again_with_the_next_seed():
    with toy() as tts:
        once = tts.generate("ab", seed=7, min_frames=12, max_frames=12, retries=1)
        thrice = tts.generate("ab", seed=7, min_frames=12, max_frames=12)
        assert once.seed == thrice.seed == 7  # which repeats all tries
        assert_equal(thrice, tts.generate("ab", seed=9, min_frames=12, max_frames=12, retries=1))


def test_prompts_that_cannot_fit_are_refused_before_they_are_queued():
    with (
        toy(memory_gb=0.00005) as tts,
        pytest.raises(InvalidRequest, match=r"text: is too long .*: about \d+ % of it fits"),
    ):
        tts.generate("x" * 500)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("silent", [0, 1, 2, 4])
def test_first_frames_that_are_silent_are_trimmed_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch, streaming: bool, silent: int
):
    with toy() as tts:
        codec, hop = tts.engine.model.codec, tts.spec.hop
        plain = codec.decode

        def quiet_start(frames, state, call):
            samples, new = plain(frames, state, call)
            at = state["count"][:, None] + torch.arange(frames.shape[1] * hop)[None] // hop
            return torch.where(at < silent, 0.0, samples), new

        monkeypatch.setattr(codec, "decode", quiet_start)
        req = tts.request("hello", seed=1, max_frames=20, min_frames=20)
        whole = tts.speech(list(tts.submit(req)), 1)
        prompt = tts.prompt(req)
        prompt.trim_silent_frames = 3
        cut = tts.speech(list(tts.engine.submit(prompt, 1, streaming)), 1)
        dropped = min(silent, 3)
        np.testing.assert_allclose(cut.samples, whole.samples[dropped * hop :], atol=1e-6)
        np.testing.assert_allclose(cut.frames, whole.frames[dropped:], atol=1e-6)


def test_forty_random_requests_are_all_served_and_all_is_free_after():
    with toy(
        max_num_seqs=5,
        page_size=4,
        memory_gb=80 * 4 * 2 * 2 * 2 * 8 * 8 / 2**30,
        overlap_steps=1,
        policy=Policy(reserve_tokens=4),
    ) as tts:
        r = random.Random(1)
        streams = [
            tts.submit(
                tts.request(text, **{k: v for k, v in o.items() if k != "retries"}),
                r.random() < 0.5,
            )
            for text, o in requests(40, seed=2)
        ]
        victims = set(r.sample(range(40), 10))
        for i in victims:
            streams[i].cancel()
        for i, stream in enumerate(streams):
            last = list(stream)[-1]
            assert last.finish in (
                {"cancelled", "stop", "length"} if i in victims else {"stop", "length"}
            )
        assert_all_free(tts)


def test_the_next_prompt_of_a_request_goes_before_the_whole_queue(monkeypatch: pytest.MonkeyPatch):
    with toy(max_num_seqs=1, policy=Policy(max_queue=3)) as tts:
        ended: list[str] = []
        options = {"max_frames": 9, "min_frames": 9, "seed": 0}
        first, second = (tts.prompt(tts.request(t, **options)) for t in ("one", "two"))
        streams = {}

        def then(frames: np.ndarray):
            for i in range(3):  # the queue is full when the next prompt enters it
                streams[f"other {i}"] = tts.submit(tts.request("other", **options))
            tts.engine._read_messages()  # this is the engine's thread: they are queued before the next prompt is
            return second

        first.continuation = then
        streams["turns"] = tts.engine.submit(first, 5, streaming=True)
        end = OpenRequests.end
        monkeypatch.setattr(
            OpenRequests, "end", lambda self, r: (ended.append(r.outbox), end(self, r))
        )
        chunks = list(streams["turns"])
        assert sum(len(c.frames) for c in chunks) == 18
        for stream in list(streams.values())[1:]:
            list(stream)
        assert_all_free(tts)
        assert ended[0] is streams["turns"].outbox


def test_a_request_may_go_on_with_further_prompts_in_one_stream():
    with toy(max_num_seqs=1) as tts:
        seen: list[int] = []
        prompts = [
            tts.prompt(tts.request(t, max_frames=9, min_frames=9, seed=0))
            for t in ("one", "two", "three")
        ]

        def then(i: int):
            def make(frames: np.ndarray):
                seen.append(len(frames))
                return prompts[i] if i < 3 else None

            return make

        for i, prompt in enumerate(prompts):
            prompt.continuation = then(i + 1)
        joined = tts.speech(list(tts.engine.submit(prompts[0], 5, streaming=True)), 5)
        parts = [
            tts.generate(t, seed=5 + i, max_frames=9, min_frames=9, retries=1)
            for i, t in enumerate(["one", "two", "three"])
        ]
        np.testing.assert_allclose(
            joined.samples, np.concatenate([p.samples for p in parts]), atol=1e-6
        )
        assert seen == [9, 9, 9]
        assert joined.finish_reason == "length"
        assert_all_free(tts)


def test_a_further_prompt_that_cannot_be_made_fails_its_request_only():
    with toy() as tts:
        prompt = tts.prompt(tts.request("one", max_frames=9, min_frames=9, seed=0))
        prompt.continuation = lambda frames: 1 / 0
        with pytest.raises(EngineError, match="division"):
            list(tts.engine.submit(prompt, 5, streaming=True))
        assert tts.generate("fine", seed=2, **LONG).finish_reason == "length"
        assert_all_free(tts)


def test_a_further_prompt_without_a_sequence_fails_its_request_only(
    monkeypatch: pytest.MonkeyPatch,
):
    """The engine's thread computes the keys of its pages, so what goes wrong there must not end the thread."""

    def full(
        prompt: Prompt, streaming: bool, place: Place, last: Sequence | None = None
    ) -> Sequence:
        if last is not None:
            raise MemoryError("no room for keys")
        return plain(prompt, streaming, place)

    with toy() as tts:
        plain = tts.engine.sequences.new
        monkeypatch.setattr(tts.engine.sequences, "new", full)
        prompt = tts.prompt(tts.request("hello", max_frames=9, min_frames=9, seed=0))
        prompt.continuation = lambda frames: prompt
        with pytest.raises(EngineError, match="no room for keys"):
            list(tts.engine.submit(prompt, 1, streaming=True))
        assert tts.generate("fine", seed=2, **LONG).finish_reason == "length"
        assert_all_free(tts)


def test_a_list_longer_than_the_queue_is_served_whole():
    with toy(max_num_seqs=2, policy=Policy(max_queue=3)) as tts:
        speeches = tts.generate(
            [f"text {i}" for i in range(20)], seed=1, max_frames=5, min_frames=5, retries=1
        )
        assert len(speeches) == 20
        assert_equal(
            speeches[19], tts.generate("text 19", seed=1, max_frames=5, min_frames=5, retries=1)
        )
        assert_all_free(tts)


def test_one_bad_text_in_a_list_is_named_before_any_is_queued():
    with toy() as tts:
        with pytest.raises(InvalidRequest, match="text: must not be empty"):
            tts.generate(["fine", " "], seed=1)
        assert tts.engine.health().stats.submitted == 0


def test_when_one_of_a_list_fails_the_others_have_their_results():
    with toy() as tts:
        with pytest.raises(
            BatchError, match="1 of 3 texts failed, the first with: the request failed"
        ) as failed:
            tts.generate(["one", BROKEN, "two"], seed=1, **LONG)
        first, broken, last = failed.value.results
        assert isinstance(broken, EngineError)
        assert [len(first.frames), len(last.frames)] == [40, 40]
        with pytest.raises(EngineError, match="the request failed"):
            tts.generate(BROKEN, seed=1, **LONG)
        assert_all_free(tts)


def test_an_engine_whose_every_decode_fails_is_not_ready_until_a_request_finishes(
    monkeypatch: pytest.MonkeyPatch,
):
    with toy() as tts:
        plain = tts.engine.runner.decode

        def broken(*_: object) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(tts.engine.runner, "decode", broken)
        for _ in range(tts.engine.config.policy.unready_after):
            assert tts.engine.health().ready
            with pytest.raises(EngineError, match="broken"):
                tts.generate("hello", seed=1, **LONG)
        assert tts.engine.health().alive
        assert not tts.engine.health().ready
        monkeypatch.setattr(tts.engine.runner, "decode", plain)
        tts.generate("hello", seed=1, **LONG)
        assert tts.engine.health().ready


def test_a_thread_that_cannot_be_set_up_is_an_error_and_not_a_wait(monkeypatch: pytest.MonkeyPatch):
    found: list[Exception] = []

    def refuse(count: int) -> None:
        raise RuntimeError("set_num_threads")

    def load() -> None:
        monkeypatch.setattr(torch, "set_num_threads", refuse)
        try:
            toy(threads=1)
        except EngineError as e:
            found.append(e)

    loading = threading.Thread(target=load, daemon=True)  # the test ends, even if the load does not
    loading.start()
    loading.join(STUCK_S)
    assert "could not start: set_num_threads" in str(found)


def test_the_largest_seed_is_followed_by_0():
    with toy() as tts:
        thrice = tts.generate("ab", seed=MAX_SEED, min_frames=12, max_frames=12)
        assert thrice.seed == MAX_SEED
        last = tts.generate("ab", seed=1, min_frames=12, max_frames=12, retries=1)
        assert_equal(thrice, last)


def test_a_stream_that_is_dropped_before_its_first_chunk_is_cancelled():
    with toy(max_num_seqs=1, policy=PLAYED) as tts:
        stream = tts.stream("hello", seed=1, max_frames=900, min_frames=900)
        del stream
        assert tts.generate("next", seed=1, **LONG).finish_reason == "length"
        assert_all_free(tts)
        assert tts.engine.health().stats.cancelled == 1


def test_another_try_of_a_run_on_keeps_its_place_and_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    with toy() as tts:
        plain, places = tts.engine.submit, []

        def noted(prompt, seed, streaming, place):
            places.append(place)
            return plain(prompt, seed, streaming, place)

        monkeypatch.setattr(tts.engine, "submit", noted)
        speeches = tts.generate(["ab", "a longer text"], seed=7, min_frames=12, max_frames=12)
        assert [len(s.frames) for s in speeches] == [12, 12]
        assert speeches[0].seed == 7
        assert places == [Place.NEW, Place.NEW, Place.NEXT, Place.NEXT]
