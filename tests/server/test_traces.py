"""Spans of requests, as a collector gets them from a server whose engine is a process of its own."""

from __future__ import annotations

import base64
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from stentor.engine.requests import Marks
from stentor.models.toy.model import BROKEN
from stentor.server.engines.service import _Open
from stentor.server.speech.outcomes import Timing
from tests.helpers.patience import STUCK_S, until
from tests.helpers.server_live import process
from tests.helpers.ws_talk import PATH, Talk

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from websockets.sync.client import connect

from stentor.server.traces import PARTS, parts

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
SPEECH = {
    "input": "Hello there, you.",
    "response_format": "pcm",
    "max_frames": 30,
    "min_frames": 30,
}


class Collector:
    """Takes OTLP over HTTP and keeps the spans."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []

    def named(self, id: str) -> list[Any]:
        """The spans of the request with this id, the whole first. Waits until they have come."""
        found: list[Any] = []

        def come() -> bool:
            roots = [s for s in self.spans if attribute(s, "stentor.request_id") == id]
            found[:] = [
                *roots,
                *(s for s in self.spans if roots and s.parent_span_id == roots[0].span_id),
            ]
            return bool(roots)

        assert until(come)
        return found


def attribute(span: Any, name: str) -> Any:
    values = [a.value for a in span.attributes if a.key == name]
    return getattr(values[0], values[0].WhichOneof("value")) if values else None


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            sent = ExportTraceServiceRequest.FromString(body)
            collector.spans += [
                s for r in sent.resource_spans for scope in r.scope_spans for s in scope.spans
            ]
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield collector
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    log: list[str] = []
    flags = ("--voices-dir", str(tmp_path_factory.mktemp("voices")), "--log-format", "json")
    with (
        collecting() as collector,
        process(
            "--otlp-traces-endpoint",
            collector.url,
            *flags,
            log=log,
            env={"OTEL_BSP_SCHEDULE_DELAY": "100"},
        ) as (
            _,
            url,
        ),
        httpx.Client(base_url=url, timeout=STUCK_S, trust_env=False) as client,
    ):
        yield SimpleNamespace(http=client, url=url, collector=collector, log=log)


def speak(traced: SimpleNamespace, id: str, **body: Any) -> list[Any]:
    answer = traced.http.post(
        "/v1/audio/speech", json={**SPEECH, **body}, headers={**HEADERS, "X-Request-Id": id}
    )
    assert answer.status_code == 200, answer.text
    return traced.collector.named(id)


def assert_sums(spans: list[Any]) -> None:
    """The parts follow each other from the beginning of the whole on, without gaps of a microsecond."""
    whole, *rest = spans
    assert sorted(s.name for s in rest) == sorted(PARTS)
    ordered = sorted(rest, key=lambda s: PARTS.index(s.name))
    edges = [whole.start_time_unix_nano, *(s.end_time_unix_nano for s in ordered)]
    for span, edge in zip(ordered, edges, strict=False):
        assert abs(span.start_time_unix_nano - edge) < 1e3
    first_byte = ordered[-1].end_time_unix_nano - whole.start_time_unix_nano
    assert (
        abs(sum(s.end_time_unix_nano - s.start_time_unix_nano for s in ordered) - first_byte) < 1e6
    )
    assert ordered[-1].end_time_unix_nano <= whole.end_time_unix_nano + 1000


@pytest.mark.parametrize(
    "body", [{"stream": True}, {"stream": False}, {"stream_format": "sse"}], ids=str
)
def test_parts_of_a_request_sum_to_its_first_byte_and_belong_to_the_callers_trace(
    traced: SimpleNamespace, body: dict
):
    spans = speak(traced, f"req-{len(traced.collector.spans)}-{next(iter(body.values()))}", **body)
    assert_sums(spans)
    assert {s.trace_id.hex() for s in spans} == {TRACE}
    assert spans[0].parent_span_id.hex() == PARENT
    assert attribute(spans[0], "stentor.model") == "dummy:toy"
    assert attribute(spans[0], "stentor.frames") == 30


def test_items_of_a_batch_and_utterances_of_a_session_have_spans(traced: SimpleNamespace):
    body = {"items": ["One.", "Two."], "response_format": "pcm", "max_frames": 4}
    answer = traced.http.post(
        "/v1/audio/speech/batch", json=body, headers={**HEADERS, "X-Request-Id": "both"}
    )
    assert [base64.b64decode(r["audio"]) != b"" for r in answer.json()["results"]] == [True, True]
    for id in ("both-0", "both-1"):
        assert_sums(traced.collector.named(id))
    with connect(
        traced.url.replace("http", "ws") + PATH,
        additional_headers={**HEADERS, "X-Request-Id": "talk"},
    ) as ws:
        talk = Talk(ws)
        talk.send("session.config", response_format="pcm", max_frames=4)
        talk.say("One.")
    spans = traced.collector.named("talk-0")
    assert_sums(spans)
    assert spans[0].trace_id.hex() == TRACE


def test_requests_of_other_protocols_have_spans(traced: SimpleNamespace):
    answer = traced.http.post(
        "/v1/text-to-speech/default/stream",
        json={"text": "One."},
        headers={**HEADERS, "X-Request-Id": "eleven"},
    )
    assert answer.status_code == 200, answer.text
    headers, socket = {**HEADERS, "X-Request-Id": "written"}, traced.url.replace("http", "ws")
    with connect(
        f"{socket}/v1/text-to-speech/default/stream-input", additional_headers=headers
    ) as ws:
        for text in (" ", "One. ", ""):
            ws.send(json.dumps({"text": text}))
        assert [m for m in ws if json.loads(m).get("audio")]
    with connect(
        f"{socket}/v1/realtime", additional_headers={**headers, "X-Request-Id": "real"}
    ) as ws:
        said = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "One."}],
        }
        ws.send(json.dumps({"type": "response.create", "response": {"input": [said]}}))
        id = next(
            e["response"]["request_id"]
            for m in ws
            if (e := json.loads(m))["type"] == "response.done"
        )
    for request in ("eleven", "written-0", id):
        spans = traced.collector.named(request)
        assert_sums(spans)
        assert spans[0].trace_id.hex() == TRACE


def test_a_request_without_a_trace_begins_one(traced: SimpleNamespace):
    answer = traced.http.post("/v1/audio/speech", json=SPEECH, headers={"X-Request-Id": "alone"})
    assert answer.status_code == 200
    spans = traced.collector.named("alone")
    assert spans[0].parent_span_id == b""
    assert spans[0].trace_id.hex() != TRACE


def test_a_failure_is_an_error_in_the_trace_and_has_its_id_in_the_logs_of_both_processes(
    traced: SimpleNamespace,
):
    headers = {**HEADERS, "X-Request-Id": "fails"}
    answer = traced.http.post(
        "/v1/audio/speech", json={**SPEECH, "input": BROKEN, "stream": True}, headers=headers
    )
    assert answer.status_code == 500
    whole, *rest = traced.collector.named("fails")
    assert whole.status.code == 2
    assert [s.name for s in rest] == []
    lines = [json.loads(line) for line in traced.log if '"fails"' in line]
    assert {line["logger"] for line in lines} >= {"stentor.engine", "stentor.access"}


def test_parts_that_were_not_reached_are_left_out():
    timing = Timing(received=1.0)
    assert list(parts(timing)) == []
    timing.engine = (2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
    assert [name for name, _, _ in parts(timing)] == list(PARTS[:6])
    timing.encoded, timing.flushed = 8.0, 9.0
    assert [(b - a) for _, a, b in parts(timing)] == [1.0] * 8


def test_moments_of_an_engine_are_in_order_whichever_it_saw_first():
    request = _Open(None, SimpleNamespace(id=1, traced=True))  # type: ignore[arg-type]
    request.prepared, request.marks = (
        2.0,
        Marks(admitted=3.0),
    )  # its audio came before the report of its first frame
    assert request.moments(5.0) == [2.0, 3.0, 3.0, 3.0, 5.0]
    assert request.moments(6.0) == []


def test_a_server_without_traces_loads_no_exporter(tmp_path: Path):
    code = """
import sys
from stentor.server.app import create_app
from stentor.server.config import ServerConfig
app = create_app(ServerConfig(models=("dummy:toy",)))
assert app.state.server.traces is None
assert not [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=STUCK_S)
