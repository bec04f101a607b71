"""Each metric against a server whose timings are known. Time is virtual, so figures are exact."""

import base64
import json

import numpy as np
import pytest

from stentor.bench.load.backends import BACKENDS, RequestDefaults
from stentor.bench.load.client import ServerTarget
from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Spool
from tests.bench.fake_server import (
    WARM_UP,
    Abort,
    FakeServer,
    Head,
    Send,
    Wait,
    chunks,
    paced,
    pcm,
    silence,
    tone,
    wav_header,
)
from tests.bench.unix_client import URL, UnixClient, result_of
from tests.helpers import virtual_time

TOLERANCE = 1e-9
RATE = 24000


async def ask(
    server, backend="openai-audio-speech", timeout_s=10.0, assumed_rate=RATE, silence_is_audio=False
):
    """One request through the real client, on an open connection; gives its Result and the server's Log."""
    spool = Spool()
    target = ServerTarget(
        URL, BACKENDS[backend], RequestDefaults(model="fake"), timeout_s=timeout_s
    )
    warm_up, prompt = TextItem(0, WARM_UP), TextItem(1, "Hello there.")
    async with UnixClient(target, spool, server.path) as client:
        client.prepare([warm_up, prompt])
        await client.send(warm_up)
        reply = await client.send(prompt)
    result = result_of(prompt, reply, spool, target.backend.framing, assumed_rate, silence_is_audio)
    spool.close()
    return result, server.logs[-1] if server.logs else None


def near(value, truth, what):
    assert abs(value - truth) <= TOLERANCE, (
        f"{what}: measured {value * 1000:.2f} ms, the server did {truth * 1000:.2f} ms"
    )


def playback_truth(sends, rate=RATE):
    """Both underrun rules, as a loop over the server's own log: the definition, not the implementation."""
    stalls, lateness, clock, received = [], 0.0, None, 0.0
    first = sends[0][0]
    for at, samples in sends:
        if clock is None:
            clock = at
        if at > clock:
            stalls.append(at - clock)
            clock = at
        lateness = max(lateness, at - first - received)
        clock += samples / rate
        received += samples / rate
    return stalls, lateness


def check_times(result, log):
    """Everything that any complete answer has."""
    metrics, sends = result.metrics, log.sends
    near(metrics["ttfb"], log.head - log.received, "ttfb")
    near(metrics["audio_ttfp"], log.payloads[0] - log.received, "audio_ttfp")
    near(metrics["first_pcm"], sends[0][0] - log.received, "first_pcm")
    near(metrics["e2el"], log.ended - log.received, "e2el")
    duration = sum(samples for _, samples in sends) / result.sample_rate
    assert metrics["audio_duration"] == pytest.approx(duration)
    near(metrics["audio_rtf"] * duration, log.ended - log.received, "audio_rtf")
    # Chunks written back to back arrive in one read: together they are the first chunk.
    first = sum(samples for at, samples in sends if at == sends[0][0]) / result.sample_rate
    assert metrics["first_chunk"] == pytest.approx(first)
    if duration > first:
        near(metrics["rtf_gen"] * (duration - first), log.ended - sends[0][0], "rtf_gen")
    stalls, lateness = playback_truth(sends, result.sample_rate)
    near(metrics["start_buffer"], lateness, "start_buffer")
    near(metrics["audio_underrun"], lateness, "audio_underrun")
    near(metrics["stall_max"], max(stalls, default=0.0), "stall_max")
    near(metrics["stall_total"], sum(stalls), "stall_total")


def test_a_steady_stream_is_timed_and_never_stalls():
    async def check(_):
        script = [Wait(0.03), Head(), Wait(0.02), *paced(chunks(tone(1.2), 0.1), 0.02)]
        async with FakeServer(script).running() as server:
            result, log = await ask(server)
        assert result.completed
        check_times(result, log)
        assert result.stalls == 0
        assert result.metrics["start_buffer"] == 0.0
        assert result.metrics["first_chunk"] == pytest.approx(0.1)
        gaps = np.diff([at for at, _ in log.sends])
        assert np.allclose(result.gaps, gaps, atol=TOLERANCE)

    virtual_time.run(check)


def test_stalls_are_counted_by_the_resetting_and_the_non_resetting_rule():
    async def check(_):
        # Lead 0.1 s, then 0.2 s late, then 0.15 s late again: one rule adds the stalls, the other the lateness.
        audio = chunks(tone(0.6), 0.1)
        script = [
            Head(),
            audio[0],
            audio[1],
            Wait(0.4),
            audio[2],
            Wait(0.25),
            audio[3],
            audio[4],
            audio[5],
        ]
        async with FakeServer(script).running() as server:
            result, log = await ask(server)
        check_times(result, log)
        stalls, lateness = playback_truth(log.sends)
        assert result.stalls == len(stalls) == 2
        assert sum(stalls) == pytest.approx(0.35)
        assert lateness == pytest.approx(0.35)
        near(result.metrics["stall_max"], max(stalls), "stall_max")

    virtual_time.run(check)


@pytest.mark.parametrize("lead", [0.0, 0.13, 0.307])
def test_silent_lead_in_delays_audible_ttfa_but_not_ttfp(lead):
    async def check(_):
        audio = np.concatenate([silence(lead), tone(0.4)])
        script = [Wait(0.04), Head(), *chunks(audio, 0.08)]
        async with FakeServer(script).running() as server:
            result, log = await ask(server)
        check_times(result, log)
        near(result.metrics["leading_silence"], lead, "leading_silence")
        near(result.metrics["audible_ttfa"], log.sends[0][0] - log.received + lead, "audible_ttfa")

    virtual_time.run(check)


def test_silence_is_audio_where_the_caller_says_so():
    async def check(_):
        script = [Wait(0.04), Head(), *chunks(silence(0.4), 0.08)]
        async with FakeServer(script).running() as server:
            plain, _ = await ask(server)
            result, log = await ask(server, silence_is_audio=True)
        assert not plain.audible
        assert result.audible
        near(result.metrics["audible_ttfa"], log.sends[0][0] - log.received, "audible_ttfa")

    virtual_time.run(check)


def test_a_stall_inside_the_silence_delays_audible_ttfa_too():
    async def check(_):
        audio = chunks(np.concatenate([silence(0.2), tone(0.3)]), 0.1)
        script = [Head(), audio[0], Wait(0.25), audio[1], audio[2], *audio[3:]]
        async with FakeServer(script).running() as server:
            result, log = await ask(server)
        stall = playback_truth(log.sends)[0][0]
        assert stall == pytest.approx(0.15)
        near(
            result.metrics["audible_ttfa"],
            log.sends[0][0] - log.received + 0.2 + stall,
            "audible_ttfa",
        )

    virtual_time.run(check)


def test_a_late_head_and_a_late_body_are_told_apart():
    async def check(_):
        late_head = [Wait(0.2), Head(), *chunks(tone(0.2), 0.1)]
        late_body = [Head(), Wait(0.2), *chunks(tone(0.2), 0.1)]
        async with FakeServer(late_head, late_body).running() as server:
            first, first_log = await ask(server)
            second, second_log = await ask(server)
        check_times(first, first_log)
        check_times(second, second_log)
        assert first.metrics["ttfb"] == pytest.approx(0.2)
        assert second.metrics["ttfb"] == pytest.approx(0.0, abs=TOLERANCE)
        assert second.metrics["first_pcm"] == pytest.approx(0.2)

    virtual_time.run(check)


def test_a_wav_header_is_a_packet_but_not_yet_pcm():
    async def check(_):
        head = Head(headers=(("Content-Type", "audio/wav"),))
        script = [head, Wait(0.05), wav_header(RATE), Wait(0.12), *chunks(tone(0.3), 0.1)]
        async with FakeServer(script).running() as server:
            result, log = await ask(server)
        check_times(result, log)
        assert result.metrics["first_pcm"] - result.metrics["audio_ttfp"] == pytest.approx(0.12)
        assert result.sample_rate_source == "wav header"

    virtual_time.run(check)


@pytest.mark.parametrize(
    ("headers", "source"),
    [
        ((("Content-Type", "audio/pcm"), ("X-Sample-Rate", "48000")), "x-sample-rate"),
        ((("Content-Type", "audio/L16;rate=48000;channels=1"),), "content-type"),
        ((("Content-Type", "audio/pcm"), ("X-Audio-Sample-Rate", "48000")), "x-audio-sample-rate"),
    ],
)
def test_the_sample_rate_of_the_answer_decides_duration_and_underruns(headers, source):
    async def check(_):
        # 0.1 s of audio every 0.14 s at 48 kHz; read as 24 kHz it would seem to keep up.
        script = [Head(headers=headers), *paced(chunks(tone(0.5, 48000), 0.1, 48000), 0.14)]
        async with FakeServer(script).running() as server:
            result, log = await ask(server)
        assert (result.sample_rate, result.sample_rate_source) == (48000, source)
        check_times(result, log)
        assert result.metrics["audio_duration"] == pytest.approx(0.5)
        assert result.stalls == 4

    virtual_time.run(check)


def test_a_header_that_contradicts_the_wav_file_is_noted_and_the_file_believed():
    async def check(_):
        head = Head(headers=(("Content-Type", "audio/wav"), ("X-Sample-Rate", "24000")))
        async with FakeServer([head, wav_header(48000), pcm(tone(0.2, 48000))]).running() as server:
            return await ask(server)

    result, _ = virtual_time.run(check)
    assert result.sample_rate == 48000
    assert "24000" in result.notes[0]
    assert "48000" in result.notes[0]


def test_a_silent_answer_about_the_rate_is_marked_as_assumed():
    async def check(_):
        head = Head(headers=(("Content-Type", "audio/pcm"),))
        async with FakeServer([head, pcm(tone(0.2))]).running() as server:
            return await ask(server, assumed_rate=16000)

    result, _ = virtual_time.run(check)
    assert (result.sample_rate, result.sample_rate_source) == (16000, "assumed")


def test_an_early_end_is_a_failure_that_keeps_what_arrived():
    async def check(_):
        script = [Head(), *paced(chunks(tone(0.3), 0.1), 0.02), Abort()]
        async with FakeServer(script).running() as server:
            result, log = await ask(server)
        assert result.failure.kind == "disconnected"
        assert result.samples == sum(samples for _, samples in log.sends)
        near(result.metrics["e2el"], log.ended - log.received, "e2el")

    virtual_time.run(check)


def sse(event: dict) -> Send:
    return Send(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())


def delta(send: Send) -> Send:
    event = sse({"type": "speech.audio.delta", "audio": base64.b64encode(send.data).decode()})
    return Send(event.data, send.samples)


SSE_HEAD = Head(headers=(("Content-Type", "text/event-stream"), ("X-Sample-Rate", "24000")))


def test_server_sent_events_give_the_same_figures_and_the_token_counts():
    async def check(_):
        done = sse({"type": "speech.audio.done", "usage": {"input_tokens": 7, "output_tokens": 30}})
        stream = [delta(send) for send in chunks(tone(0.5), 0.1)]
        script = [Wait(0.03), SSE_HEAD, *paced(stream[:3], 0.02), Wait(0.4), *stream[3:], done]
        async with FakeServer(script).running() as server:
            result, log = await ask(server, "openai-audio-speech-sse")
        assert result.completed
        check_times(result, log)
        assert result.stalls == 1
        assert (result.input_tokens, result.output_tokens) == (7, 30)

    virtual_time.run(check)


def test_an_error_event_in_mid_stream_is_a_failure_with_its_message():
    async def check(_):
        error = sse(
            {"type": "speech.audio.error", "error": {"message": "engine died", "code": 500}}
        )
        script = [SSE_HEAD, delta(pcm(tone(0.1))), error]
        async with FakeServer(script).running() as server:
            return await ask(server, "openai-audio-speech-sse")

    result, _ = virtual_time.run(check)
    assert result.failure == ("server_error", "engine died")
    assert result.samples == 2400


def test_an_event_stream_without_its_done_is_incomplete():
    async def check(_):
        async with FakeServer([SSE_HEAD, delta(pcm(tone(0.1)))]).running() as server:
            return await ask(server, "openai-audio-speech-sse")

    assert virtual_time.run(check)[0].failure.kind == "incomplete"


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_a_refusal_is_named_by_its_status_and_keeps_the_servers_words(status):
    async def check(_):
        body = Send(json.dumps({"error": {"message": "the queue is full"}}).encode())
        async with FakeServer(
            [Head(status, (("Content-Type", "application/json"),)), body]
        ).running() as server:
            return await ask(server)

    result, _ = virtual_time.run(check)
    assert result.failure.kind == f"http_{status}"
    assert "the queue is full" in result.failure.message


def test_a_server_that_falls_silent_is_a_timeout_after_the_time_given():
    async def check(_):
        async with FakeServer([Head(), pcm(tone(0.1)), Wait(30)]).running() as server:
            return await ask(server, timeout_s=0.3)

    result, _ = virtual_time.run(check)
    assert result.failure.kind == "timeout"
    assert result.metrics["e2el"] == pytest.approx(0.3)


def test_nobody_listening_is_a_connect_failure():
    async def check(_):
        async with FakeServer([Head()]).running() as server:
            pass
        return await ask(server)

    assert virtual_time.run(check)[0].failure.kind == "connect"


def test_an_answer_that_ends_well_without_audio_is_a_failure():
    async def check(_):
        async with FakeServer([Head()]).running() as server:
            return await ask(server)

    assert virtual_time.run(check)[0].failure.kind == "no_audio"


def test_compressed_audio_is_refused_with_advice_instead_of_timed_wrongly():
    async def check(_):
        head = Head(headers=(("Content-Type", "audio/mpeg"),))
        async with FakeServer([head, Send(b"\xff\xfb" * 500)]).running() as server:
            return await ask(server)

    failure = virtual_time.run(check)[0].failure
    assert failure.kind == "format"
    assert "pcm or wav" in failure.message
