"""Messages between processes: what is decoded is what was encoded."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stentor
from stentor.engine.health import Health, Stats
from stentor.engine.once import CacheCounts
from stentor.errors import (
    BatchError,
    CheckpointError,
    EngineError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    StentorError,
    WatermarkError,
)
from stentor.models.info import Adapter, AlignmentHeads, ModelInfo, Option
from stentor.server.engines import messages as m
from stentor.server.engines.process import ready
from stentor.text.marks import TextMarks
from tests.helpers.wire import transmitted

INFO = ModelInfo(
    family="toy",
    sample_rate=600,
    hop=6,
    options={
        "temperature": Option(0.9, 0.0, 2.0, float, "how much varies"),
        "top_k": Option(None, 0, 1000, int, "candidates"),
        "ignore_eos": Option(False, 0, 1, bool, "whether it goes on"),
    },
    reference_seconds=(0.5, 60.0),
    voices=("low", "high"),
    languages=("English",),
    takes_instructions=False,
    max_references=3,
    live_text=True,
    speaker_size=192,
    marks=TextMarks(),
    alignment=AlignmentHeads((3, 7), 2, 4, 0.125, 0.1, (8, 16)),
)
ADAPTER = Adapter("one", 2, b"\x00\xff", "/adapters/one")
HEALTH = Health(
    alive=False,
    error="the device is gone",
    queued=1,
    running=2,
    free_slots=3,
    free_pages=4,
    pages=5,
    preemptions=6,
    evictions=7,
    eager_calls=8,
    ready=False,
    stats=Stats(submitted=9, step_seconds=0.25),
    references=CacheCounts(1, 2, 3, 4.5),
    working=1.5,
    gpu_bytes=1 << 40,
)
ERROR = m.Error("invalid", "must be at most 2, got 9", "temperature")
COMMANDS: list[m.Command] = [
    m.Submit(
        id=(3 << m.API_BITS) + 1,
        text="Grüße, 世界 🎵",
        voice="low",
        language="auto",
        instructions=None,
        recordings=[
            m.SentRecording("key 8000", 8000, "key", True, 0),
            m.SentRecording("x 600", 600, "x", False, 5),
        ],
        references=[m.SentReference(1, "said"), m.SentReference(0, None)],
        prompt=m.SentReference(0, "before"),
        speaker_embedding=b"\x00\x01\x02\x03",
        live=True,
        seed=2**63 - 1,
        options={"temperature": 0.5, "top_k": 7, "ignore_eos": True, "length": None},
        adapter=2,
        streaming=True,
        place="new",
        check_only=False,
    ),
    m.Append(1, " and more.", True),
    m.Cancel(2),
    m.Connect(1),
    m.Speakable(4, ["One.", "..."]),
    m.LoadLora(5, "one", "/adapters/one"),
    m.UnloadLora(6, "one"),
    m.ReleaseLora(1, 2),
    m.AskHealth(7),
    m.Stop(),
]
EVENTS: list[m.Event] = [
    m.Ready(
        INFO, ((4,), "int64"), 11, [ADAPTER], {"max_loras": 2, "lora_targets": ["q_proj"]}, ["two"]
    ),
    m.Broken(ERROR),
    m.Accepted(1, 20, 3, None, [(0, 4), (4, 9)]),
    m.Unspeakable(2),
    m.Resend(3),
    m.Audio(4, 12, 2, True, "stop", 20, 900),
    m.Ended(6, ERROR),
    m.Result(7, ERROR, [True, False]),
    m.Beat(HEALTH),
    m.Adapters([ADAPTER]),
]


def plain(value: Any) -> Any:
    """A message as plain data. Adapters have identities of their own."""
    return msgspec.to_builtins(value, enc_hook=str)


@pytest.mark.parametrize("message", COMMANDS, ids=lambda c: type(c).__name__)
def test_a_command_is_what_was_sent(message: m.Command) -> None:
    (received,), data = m.commands(m.encode([message], ()))
    assert (type(received), plain(received)) == (type(message), plain(message))
    assert len(data) == 0


@pytest.mark.parametrize("message", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_is_what_was_sent(message: m.Event) -> None:
    (received,), data = m.events(m.encode([message], ()))
    assert (type(received), plain(received)) == (type(message), plain(message))
    assert len(data) == 0


def test_every_kind_of_message_is_tried_here() -> None:
    assert {type(c) for c in COMMANDS} == set(get_args(m.Command))
    assert {type(e) for e in EVENTS} == set(get_args(m.Event))


def test_numbers_of_options_keep_their_kinds() -> None:
    """A whole number is no float, and true is no number: a family may look."""
    (command,), _ = m.commands(m.encode(COMMANDS[:1], ()))
    assert isinstance(command, m.Submit)
    assert [type(v) for v in command.options.values()] == [float, int, bool, type(None)]


def test_facts_about_a_model_are_the_same_with_the_kinds_of_its_options() -> None:
    with stentor.TTS("dummy:toy", memory_gb=0.01, threads=1) as tts:
        sent = ready(tts, [])
        (event,), _ = m.events(m.encode([sent], ()))
    assert isinstance(event, m.Ready)
    assert event.info == tts.spec.info
    kinds = {name: option.kind for name, option in event.info.options.items()}
    assert kinds == {name: option.kind for name, option in tts.spec.options.items()}
    assert {option.kind for option in INFO.options.values()} == {int, float, bool}
    (example,), _ = m.events(m.encode(EVENTS[:1], ()))
    assert isinstance(example, m.Ready)
    assert example.info == INFO


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["float32", "int64", "uint8"]), st.integers(0, 5), st.integers(1, 3)
        )
    )
)
def test_arrays_come_back_in_their_order(shapes: list[tuple[str, int, int]]) -> None:
    random = np.random.default_rng(len(shapes))
    arrays = [random.integers(0, 200, (n, width)).astype(dtype) for dtype, n, width in shapes]
    _, data = m.commands(transmitted([m.Stop()], arrays))
    reader = m.Reader(data)
    for array in arrays:
        received = reader.take(len(array), array.dtype, array.shape[1:])
        assert (received.dtype, received.shape) == (array.dtype, array.shape)
        assert np.array_equal(received, array)


def test_an_array_that_is_a_view_of_another_is_sent_as_it_looks() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    _, data = m.commands(transmitted([m.Stop()], [base[::2, 1:3], base.T[:2]]))
    reader = m.Reader(data)
    assert np.array_equal(reader.take(2, base.dtype, (2,)), base[::2, 1:3])
    assert np.array_equal(reader.take(2, base.dtype, (4,)), base.T[:2])


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("voice", "'x' is unknown"),
        Overloaded("the queue is full"),
        ModelNotFound("it is nowhere"),
        CheckpointError("a tensor is missing"),
        EngineError("the engine has stopped"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_error_is_raised_on_the_other_side_as_it_was(error: StentorError) -> None:
    (sent,), _ = m.events(m.encode([m.Ended(1, m.error(error))], ()))
    assert isinstance(sent, m.Ended)
    raised = m.exception(sent.error)
    assert (type(raised), str(raised), vars(raised)) == (type(error), str(error), vars(error))


def subclasses(kind: type[StentorError]) -> set[type[StentorError]]:
    return {kind}.union(*(subclasses(sub) for sub in kind.__subclasses__()))


def test_every_error_of_stentor_crosses() -> None:
    """A new class would arrive as an error of the engine, and its caller would get another answer."""
    ours = {kind for kind in subclasses(StentorError) if kind.__module__ == StentorError.__module__}
    elsewhere = {BatchError, WatermarkError}  # raised in the caller's own process only
    errors = [
        InvalidRequest("a", "b"),
        *(kind("c") for kind in ours - {InvalidRequest, StentorError, *elsewhere}),
    ]
    assert [type(m.exception(m.error(e))) for e in errors] == [type(e) for e in errors]
    assert len(errors) == 5


def test_what_was_not_raised_on_purpose_is_an_error_of_the_engine() -> None:
    raised = m.exception(m.error(ZeroDivisionError("division by zero")))
    assert (type(raised), str(raised)) == (EngineError, "division by zero")


@pytest.mark.parametrize("wrong", [b"", b"\x90\x00", msgspec.msgpack.encode([["Cancel"]])])
def test_a_message_of_another_version_is_refused(wrong: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        m.commands([wrong])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40))),
    st.lists(st.integers(1, 100), min_size=1),
)
def test_messages_are_cut_from_a_stream_however_it_is_split(
    sizes: list[tuple[int, int]], steps: list[int]
) -> None:
    sent = [
        ([m.Cancel(i)] * count, np.full(n, i % 200, np.uint8)) for i, (count, n) in enumerate(sizes)
    ]
    stream = b"".join(m.pack(m.encode(messages, [a])) for messages, a in sent)
    assert len(stream) % 8 == 0
    unpacker, received, at = m.Unpacker(), [], 0
    for step in itertools.cycle(steps):
        if at >= len(stream):
            break
        for parts in unpacker.feed(stream[at : at + step]):
            messages, data = m.commands(parts)
            received.append((messages, m.Reader(data).take(len(data), np.dtype(np.uint8))))
        at += step
    assert [messages for messages, _ in received] == [messages for messages, _ in sent]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(received, sent, strict=True))
