"""Every deadline, byte budget and count limit of the server. docs/serving/limits.md prints them as
a table.

Those with a flag are the defaults of `config.ServerConfig`. The others are the same for every
server, and tests make a server with smaller ones. After a change: python -m
tests.server.test_limits
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any

from stentor.text.pauses import LONGEST_PAUSE, MAX_SILENCE

MIB = 1 << 20


def limit(default: float, unit: str, what: str, beyond: str, flag: bool = False) -> Any:
    """A limit: its value in `unit`, what it limits, what happens beyond it, and whether a flag of
    its name sets it."""
    return field(
        default=default, metadata={"unit": unit, "what": what, "beyond": beyond, "flag": flag}
    )


@dataclass(frozen=True)
class Limits:
    """The limits of a server. Each name that ends in a unit holds a number in this unit (MiB for
    `_mb`)."""

    # connections and bodies
    request_seconds: float = limit(
        60.0, "s", "headers and body of a request, from its first byte", "408"
    )
    keep_alive_seconds: float = limit(30.0, "s", "a connection without a request", "it is closed")
    handshake_seconds: float = limit(10.0, "s", "a TLS handshake", "the connection is closed")
    max_connections: int = limit(
        2048, "", "connections, or what descriptors allow", "the longest idle one is closed"
    )
    backlog: int = limit(
        1024, "", "connections waiting to be accepted", "the system makes clients retry"
    )
    accepted_at_once: int = limit(64, "", "connections accepted in one go", "the next wait")
    spare_descriptors: int = limit(
        256, "", "descriptors for files, voices and the engine", "fewer connections"
    )
    max_head_kib: int = limit(64, "KiB", "headers of a request", "431")
    max_body_mb: float = limit(
        32.0, "MiB", "a request body", "413, and the connection is closed", flag=True
    )
    bodies_mb: float = limit(
        256.0,
        "MiB",
        "bodies of all requests, at most half of it still arriving from one address",
        "503 `bodies_in_flight`",
    )
    free_body_kib: int = limit(
        64, "KiB", "part of a body that `bodies_mb` does not count", "the rest counts"
    )
    bodies: int = limit(256, "", "bodies still arriving, in each API process", "429 for the oldest")
    address_bodies: int = limit(
        64, "", "bodies still arriving from one address (IPv6: /64)", "429 for the oldest"
    )
    json_values: int = limit(
        300_000, "", "values of a JSON body (commas in its texts count too)", "400"
    )
    inline_json_kib: int = limit(
        64, "KiB", "JSON that is parsed on the event loop", "it is parsed in a thread"
    )
    # requests
    retry_seconds: float = limit(10.0, "s", "`Retry-After`", "shortened to this")
    max_active_requests: int = limit(
        512, "", "requests with a complete body in progress", "429", flag=True
    )
    max_queued_requests: int = limit(
        256, "", "requests waiting for a slot, per model", "503 `queue_full`", flag=True
    )
    request_timeout: float = limit(600.0, "s", "a request", "504, or a broken stream", flag=True)
    max_buffered_mb: float = limit(
        8.0, "MiB", "audio that a client leaves unread", "it is disconnected", flag=True
    )
    drain_seconds: int = limit(
        30, "s", "requests still running after SIGTERM", "they are ended", flag=True
    )
    max_input_chars: int = limit(
        20_000, "characters", "`input`, or one WebSocket utterance", "400", flag=True
    )
    max_instructions_chars: int = limit(500, "characters", "`instructions`", "400", flag=True)
    batch_items: int = limit(32, "", "texts of one batch", "400")
    error_chars: int = limit(400, "characters", "the message of an error", "cut")
    ignored_items: int = limit(
        32, "", "ignored fields and pieces of text that an answer names", "`+n` counts the rest"
    )
    ignored_bytes: int = limit(1024, "bytes", "`X-Ignored`", "`+n` counts the rest")
    param_chars: int = limit(80, "characters", "the name of a field in an error", "cut")
    known_voices: int = limit(
        10, "", "uploaded voices that an error names", "a count of the others"
    )
    piece_chars: int = limit(40, "characters", "an ignored piece of text in an answer", "cut")
    text_chars: int = limit(1_000_000, "characters", "any text in a JSON body", "400")
    name_chars: int = limit(
        500, "characters", "the name of a model, a language or a voice in a request", "400"
    )
    lora_path_chars: int = limit(4096, "characters", "the path of an adapter to load", "400")
    request_id_chars: int = limit(
        128, "characters", "`X-Request-Id` of a client", "replaced by the server's own"
    )
    pause_seconds: float = limit(LONGEST_PAUSE, "s", "a pause mark in a text", "shortened to this")
    all_pauses_seconds: float = limit(MAX_SILENCE, "s", "all pause marks of a text", "400")
    segments: int = limit(8, "", "pieces of one text spoken at once", "the next wait")
    silent_seconds: float = limit(5.0, "s", "silence inside speech, with `guard`", "the piece ends")
    outcomes: int = limit(
        1024, "", "outcomes of requests, kept for clients to ask", "the oldest is forgotten"
    )
    # WebSocket
    ws_max_sessions: int = limit(
        256, "", "WebSocket sessions, in half of all connections at most", "503", flag=True
    )
    ws_config_seconds: float = limit(
        10.0, "s", "waiting for `session.config`, or Wyoming's first event", "1008 `config_timeout`"
    )
    ws_idle_seconds: float = limit(
        30.0,
        "s",
        "silence of a session while nothing is generated",
        "1008 `idle_timeout`",
        flag=True,
    )
    ws_quiet_seconds: float = limit(
        1.0,
        "s",
        "no audio of live text",
        "the session counts as waiting for text, and may become idle",
    )
    flush_seconds: float = limit(
        5.0, "s", "sending the last events of a session or a stream", "the connection is dropped"
    )
    end_seconds: float = limit(
        1.0,
        "s",
        "notifying clients whose requests `drain_seconds` ended",
        "their connections are closed",
    )
    ws_config_mb: int = limit(4, "MiB", "`session.config`", "1009")
    ws_message_kib: int = limit(128, "KiB", "any other message", "1009 `message_too_large`")
    ws_ahead_kib: int = limit(
        1024,
        "KiB",
        "messages during `session.config`, each of at least 1 KiB",
        "the next are read after it",
    )
    ws_turn_frames: int = limit(
        32, "", "frames of a WebSocket in a turn of the event loop", "the others wait for the next"
    )
    ws_turn_kib: int = limit(
        64, "KiB", "large frames of a WebSocket in a turn of the event loop", "the rest waits"
    )
    ws_fragments: int = limit(1024, "", "fragments of one WebSocket message", "1008")
    ws_controls: int = limit(64, "a second", "pings and pongs of a WebSocket's client", "1008")
    ws_waiting: int = limit(8, "", "utterances waiting in a session", "429 `too_many_utterances`")
    ws_errors: int = limit(32, "", "refused messages of a session", "1008 `too_many_errors`")
    # other protocols (doors/). Their sessions count with those of WebSocket, and have their limits
    # too
    contexts: int = limit(8, "", "open contexts of an ElevenLabs socket", "429 `too_many_contexts`")
    schedule_items: int = limit(16, "", "numbers of a `chunk_length_schedule`", "400")
    client_idle_seconds: float = limit(
        180.0,
        "s",
        "`inactivity_timeout` of an ElevenLabs socket, at most",
        "the socket is closed",
    )
    conversation_items: int = limit(
        128, "", "items of a Realtime session", "the oldest is forgotten"
    )
    wyoming_voices: int = limit(
        2000,
        "",
        "voices that Wyoming lists once for each language",
        "each is listed once, for all languages",
    )
    metadata_items: int = limit(16, "", "pairs of the metadata of a Realtime response", "400")
    # voices and reference audio
    max_voices: int = limit(1000, "", "uploaded voices", "409", flag=True)
    max_upload_mb: float = limit(10.0, "MiB", "reference audio", "400 or 413", flag=True)
    voice_min_seconds: float = limit(1.0, "s", "audio of an uploaded voice, at least", "400")
    voice_max_seconds: float = limit(30.0, "s", "audio of an uploaded voice, at most", "400")
    embedding_values: int = limit(8192, "", "numbers of a speaker embedding", "400")
    note_chars: int = limit(2000, "characters", "`consent`, or `speaker_description`", "400")
    transcript_chars: int = limit(5000, "characters", "`ref_text` of an uploaded voice", "400")
    stale_seconds: float = limit(
        600.0, "s", "a half-written voice of a server that died", "it is deleted"
    )
    references: int = limit(8, "", "references of one request. A model may take fewer", "400")
    reference_mb: int = limit(64, "MiB", "reference audio in a field of JSON, as text", "400")
    min_audio_hz: int = limit(1000, "Hz", "sample rate of reference audio, at least", "400")
    max_audio_hz: int = limit(192_000, "Hz", "sample rate of reference audio, at most", "400")
    audio_channels: int = limit(8, "", "channels of reference audio", "400")
    media_timeout: float = limit(10.0, "s", "fetching reference audio", "400", flag=True)
    dns_threads: int = limit(16, "", "host names of URLs looked up at once", "the next wait")
    redirects: int = limit(5, "", "redirects of one URL", "400")
    voice_look_seconds: float = limit(
        0.5,
        "s",
        "a voice in use that another server replaced or deleted",
        "it is used for this long",
    )
    voice_keep_seconds: float = limit(
        60.0, "s", "checking a voice that nobody uses", "its name is read again"
    )
    voice_cache_mb: int = limit(
        256, "MiB", "decoded reference audio in memory", "the least recently used is dropped"
    )
    voice_cache_seconds: float = limit(
        300.0, "s", "decoded reference audio in memory", "it is decoded again"
    )
    # engines
    prepare_threads: int = limit(4, "", "threads per model for prompts", "requests wait")
    reference_threads: int = limit(
        2, "", "threads per model for decoding references", "requests wait"
    )
    encoding_threads: int = limit(
        2, "", "threads per model for encoding references. A GPU has 1", "their requests wait"
    )
    load_seconds: float = limit(
        120.0, "s", "a request waiting for its model to be loaded again", "503 `model_loading`"
    )
    load_waiting: int = limit(
        256, "", "requests waiting for one model to be loaded again", "503 `model_loading`"
    )
    trim_seconds: float = limit(
        30.0, "s", "freed memory kept by the process", "it goes back to the system"
    )
    parse_threads: int = limit(1, "", "threads that parse large JSON", "bodies wait")
    encoded_references: int = limit(
        64, "", "encoded references kept by an engine", "the least recently used is dropped"
    )
    codec_states_mb: float = limit(
        256.0,
        "MiB",
        "codec states after references, kept by an engine",
        "the least recently used is dropped",
    )
    parked_mb: float = limit(
        256.0,
        "MiB",
        "state of streams that wait for text without a slot, per model",
        "later ones keep their slots",
    )
    unready_after: int = limit(5, "", "failed requests in a row", "`/ready` returns 503")
    process_seconds: float = limit(
        1.0, "s", "an answer from another of `--api-processes`", "it is left out"
    )
    process_stuck_seconds: float = limit(
        60.0, "s", "an API process whose event loop is blocked", "it is killed and replaced"
    )
    unsent_mb: int = limit(64, "MiB", "unread requests of a blocked engine", "503 `queue_full`")
    stuck_seconds: float = limit(
        180.0, "s", "a step of an engine, or its process not answering", "it is restarted"
    )
    restart_seconds: float = limit(
        10.0, "s", "longest pause before a crashed engine is restarted", "it stops growing"
    )
    settled_seconds: float = limit(
        60.0, "s", "uptime of a restarted engine", "the next pause starts from the shortest"
    )
    restarts: int = limit(
        3, "", "failed loads of a crashed engine in a row", "`/health` reports `failed`"
    )
    stop_seconds: float = limit(5.0, "s", "stopping an engine's process", "it is killed")
    exit_seconds: float = limit(
        15.0,
        "s",
        "ending the server, once its requests have ended",
        "it is killed with all its processes, exit code 70",
    )
    health_seconds: float = limit(
        0.5, "s", "asking an engine for `/health` or `/metrics`", "they report the last known state"
    )


LIMITS = Limits()


def table(limits: Limits = LIMITS) -> str:
    """The limits as the Markdown table of docs/serving/limits.md."""
    head = "| limit | value | of | beyond it |\n|---|---|---|---|\n"
    return head + "".join(_row(f, getattr(limits, f.name)) for f in fields(limits))


def _row(f: Field[Any], value: float) -> str:
    if f.metadata["flag"]:
        name = f"`--{f.name.replace('_', '-')}`"
    else:
        name = f"`{f.name}`"
    amount = f"{value:.12g} {f.metadata['unit']}".strip()
    return f"| {name} | {amount} | {f.metadata['what']} | {f.metadata['beyond']} |\n"
