"""The log: text or JSON, request ids, and the lines of requests."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stentor.server import logs
from stentor.server.http.middleware import AccessLog, RequestIds
from tests.helpers.patience import until
from tests.helpers.server_live import Live
from tests.helpers.ws_talk import talk

HERE = logging.getLogger("tests.server.test_logs")
CLIENT = "1.2.3.4:5"


class Log(io.StringIO):
    """Lines that a handler of `logs` wrote.

    The root logger is one for the process. Threads of engines and what the collector finds write to it too. A test asks
    for the lines of the loggers that only it uses.
    """

    def lines(self) -> list[str]:
        """The lines of a text log from HERE."""
        return [line for line in self.getvalue().splitlines() if HERE.name in line]

    def objects(self, *loggers: str) -> list[dict[str, Any]]:
        """The lines of a JSON log from these loggers, in their order. Of the access log those of CLIENT."""
        all_lines = map(json.loads, self.getvalue().splitlines())
        return [
            one
            for one in all_lines
            if one["logger"] in loggers and one.get("client", CLIENT) == CLIENT
        ]


@pytest.fixture
def log() -> Iterator[Log]:
    """An empty log. The handlers of the test session come back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", message="old")
        yield Log()
        logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def of_requests(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [r.request for r in caplog.records if r.name == "stentor.access"]  # type: ignore[attr-defined]


def handled(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Lines that `handle` sent: a server of another test may log its last request late."""
    return [request for request in of_requests(caplog) if request["client"] == CLIENT]


def handle(scope: dict[str, Any], *answers: dict[str, Any], fails: bool = False) -> None:
    """Send a request through the middleware to an app that answers so."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        HERE.warning("inside")
        for answer in answers:
            await send(answer)
        if fails:
            raise RuntimeError("broken")

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    both = RequestIds(AccessLog(app), lambda route, status: None)
    full = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "client": ("1.2.3.4", 5),
        **scope,
    }
    asyncio.run(both(full, receive, send))


def test_each_line_of_a_json_log_is_an_object_with_the_id_of_its_request(log: Log) -> None:
    logs.configure("info", "json", log)
    headers = [(b"x-request-id", b"mine-1")]
    handle(
        {"path": "/v1/models", "headers": headers},
        {"type": "http.response.start", "status": 200, "headers": []},
    )
    try:
        raise ValueError("two\nlines")
    except ValueError:
        HERE.exception("outside %s", "of requests")
    warnings.warn("old", stacklevel=1)
    inside, asked, outside, warned = log.objects(HERE.name, "stentor.access", "py.warnings")
    assert (inside["level"], inside["logger"], inside["message"]) == (
        "warning",
        HERE.name,
        "inside",
    )
    assert inside["request_id"] == asked["request_id"] == "mine-1"
    assert inside["time"].endswith("+00:00")
    assert (asked["method"], asked["path"], asked["status"], asked["client"]) == (
        "GET",
        "/v1/models",
        200,
        CLIENT,
    )
    assert "request_id" not in outside
    assert outside["error"].endswith("ValueError: two\nlines")
    assert "UserWarning: old" in warned["message"]


def test_a_text_log_ends_a_line_with_the_id_of_its_request(log: Log) -> None:
    logs.configure("warning", "text", log)
    handle(
        {"headers": [(b"x-request-id", b"mine-2")]},
        {"type": "http.response.start", "status": 200, "headers": []},
    )
    HERE.warning("outside")
    inside, outside = log.lines()
    assert inside.endswith("WARNING tests.server.test_logs: inside [mine-2]")
    assert outside.endswith("WARNING tests.server.test_logs: outside")


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/api/health"])
def test_probes_are_not_in_the_access_log(caplog: pytest.LogCaptureFixture, path: str) -> None:
    caplog.set_level(logging.INFO)
    start = {"type": "http.response.start", "status": 200, "headers": []}
    handle({"path": path, "root_path": "/api"}, start)
    assert handled(caplog) == []
    handle({"path": path + "s", "root_path": "/api"}, start)
    assert len(handled(caplog)) == 1


@pytest.mark.parametrize(
    ("kind", "answers", "status"),
    [
        ("http", [], None),  # the client has left
        ("http", [{"type": "http.response.start", "status": 503, "headers": []}], 503),
        (
            "websocket",
            [{"type": "websocket.accept"}, {"type": "websocket.close", "code": 1000}],
            101,
        ),
        ("websocket", [{"type": "websocket.close", "code": 1008}], 403),
        (
            "websocket",
            [{"type": "websocket.http.response.start", "status": 401, "headers": []}],
            401,
        ),
    ],
)
def test_the_access_log_has_what_the_client_saw(
    caplog: pytest.LogCaptureFixture, kind: str, answers: list[dict[str, Any]], status: int | None
) -> None:
    caplog.set_level(logging.INFO)
    handle({"type": kind, "path": "/a b\n", "query_string": b"secret=1"}, *answers)
    [asked] = handled(caplog)
    assert (asked["path"], asked["status"]) == ("/a%20b%0A", status)
    assert "secret" not in caplog.text


def test_an_error_that_nobody_handles_is_logged_as_500(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(RuntimeError):
        handle({}, fails=True)
    assert [r["status"] for r in handled(caplog)] == [500]


def test_a_server_logs_requests_and_no_probes(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert live.http.get("/ready").status_code == 200
    answer = live.speech(input="Hello there.", response_format="pcm")
    assert answer.status_code == 200
    assert until(lambda: of_requests(caplog))  # a request is logged after its client has its answer
    assert live.http.get("/nothing").status_code == 404
    assert until(lambda: len(of_requests(caplog)) >= 2)
    asked = [(r["method"], r["path"], r["status"]) for r in of_requests(caplog)]
    assert asked == [("POST", "/v1/audio/speech", 200), ("GET", "/nothing", 404)]


def softened(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.msg for r in caplog.records if r.msg in logs.NOT_OUR_ERRORS]


def test_mistakes_of_clients_of_a_websocket_are_no_errors_in_the_log(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    uvicorn = logging.getLogger(logs.HTTP_SERVER)
    uvicorn.addFilter(logs.soften)
    try:
        with pytest.raises(InvalidStatus):
            connect(live.url.replace("http", "ws") + "/nothing").close()
        with talk(live, configure=False) as t:
            t.socket.send(b"\xff\xfe", text=True)
            assert t.close_code()[0] == 1007
        assert until(lambda: len(softened(caplog)) == 2)
        lines = [r for r in caplog.records if r.name == uvicorn.name]
        wrong = [r.getMessage() for r in lines if r.levelno > logging.WARNING or r.exc_info]
        assert wrong == []
    finally:
        uvicorn.removeFilter(logs.soften)
