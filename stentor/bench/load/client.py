"""The HTTP and WebSocket clients: send one request and record when every byte arrived.

They decode nothing. JSON bodies and reference audio, which cost time, are built before the run.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace, TracebackType
from typing import Self

import aiohttp

from stentor.bench.load.backends import RequestDefaults, ServerBackend, request_body
from stentor.bench.load.generator import Clock
from stentor.bench.load.prompts import TextItem
from stentor.bench.load.record import Arrival, ArrivalKind, Failure, Reply, Spool


@dataclass(frozen=True)
class ServerTarget:
    """Address and settings of the server under test."""

    base_url: str
    backend: ServerBackend
    defaults: RequestDefaults
    endpoint: str | None = None
    headers: Mapping[str, str] | None = None
    timeout_s: float = 900.0
    insecure: bool = False
    text_rate: float | None = None
    """WebSocket: characters of text per second, sent word by word. None: the whole text at once."""

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/") + (self.endpoint or self.backend.endpoint)


class Client:
    """Sends requests to one target and takes time stamps with `clock`. The bytes of replies go to
    `spool`.

    It is an async context manager.
    """

    def __init__(
        self, target: ServerTarget, spool: Spool, clock: Clock = time.perf_counter
    ) -> None:
        self.target = target
        self.clock = clock
        self._spool = spool
        self._bodies: dict[int, bytes] = {}
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(self._note_request)
        self._session = aiohttp.ClientSession(
            connector=self._connector(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Accept-Encoding": "identity"} | dict(self.target.headers or {}),
            trace_configs=[trace],
        )
        return self

    def _connector(self) -> aiohttp.BaseConnector:
        # No limit: a pool that queues would hide the load. The load generator decides how many
        # requests run at once.
        return aiohttp.TCPConnector(limit=0, ssl=not self.target.insecure)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """For side requests such as readiness and server facts."""
        return self._session

    def prepare(self, prompts: Sequence[TextItem]) -> None:
        """Build the bodies of all prompts that will be sent (reference audio is read here, not
        under load)."""
        defaults = self.target.defaults
        backend = self.target.backend
        self._bodies = {
            p.index: json.dumps(request_body(backend, p, defaults)).encode() for p in prompts
        }

    async def send(self, prompt: TextItem) -> Reply:
        """Send one prepared request and wait for its end. A failure is part of the reply, never an
        exception."""
        body = self._bodies[prompt.index]
        reply = Reply(sent=self.clock())
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self.target.timeout_s):
                if self.target.backend.framing == "websocket":
                    await self._talk(prompt.text, body.decode(), reply, chunks)
                else:
                    await self._post(body, reply, chunks)
        except TimeoutError:
            reply.failure = Failure(
                "timeout", f"no complete answer within {self.target.timeout_s:g} s"
            )
        except aiohttp.WSServerHandshakeError as error:
            reply.status = error.status
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            reply.failure = Failure("connect", str(error))
        except (aiohttp.ClientError, OSError) as error:
            reply.failure = Failure("disconnected", f"{type(error).__name__}: {error}")
        reply.ended = reply.ended or self.clock()
        reply.body = self._spool.put(chunks)
        return reply

    async def _post(self, body: bytes, reply: Reply, chunks: list[bytes]) -> None:
        headers = {"Content-Type": "application/json"}
        timing = SimpleNamespace(requested=None)
        reply.sent = self.clock()
        async with self._session.post(
            self.target.url, data=body, headers=headers, trace_request_ctx=timing
        ) as response:
            reply.headers_at = self.clock()
            reply.requested = timing.requested
            reply.status = response.status
            reply.headers = {name.lower(): value for name, value in response.headers.items()}
            async for data in response.content.iter_any():
                reply.arrivals.append(Arrival(self.clock(), ArrivalKind.BODY, len(data)))
                chunks.append(data)
            reply.ended = self.clock()

    async def _talk(self, text: str, config: str, reply: Reply, chunks: list[bytes]) -> None:
        started = self.clock()
        async with self._session.ws_connect(self.target.url, max_msg_size=0) as socket:
            reply.setup_s = self.clock() - started
            reply.status = 200
            await socket.send_str(config)
            reply.sent = self.clock()
            speaking = asyncio.create_task(self._speak(socket, text, reply))
            try:
                await self._listen(socket, reply, chunks)
            finally:
                speaking.cancel()
            reply.ended = self.clock()  # the closing handshake below is not the answer's
            if not socket.closed:
                await socket.send_str('{"type": "session.close"}')

    async def _speak(
        self, socket: aiohttp.ClientWebSocketResponse, text: str, reply: Reply
    ) -> None:
        rate = self.target.text_rate
        sent = 0
        for piece in [text] if rate is None else _words(text):
            if rate is not None:
                await asyncio.sleep(reply.sent + sent / rate - self.clock())
            await socket.send_str(json.dumps({"type": "input.text", "text": piece}))
            sent += len(piece)
        await socket.send_str('{"type": "input.done"}')
        reply.text_done = self.clock()

    async def _listen(
        self, socket: aiohttp.ClientWebSocketResponse, reply: Reply, chunks: list[bytes]
    ) -> None:
        async for message in socket:
            if message.type not in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT):
                break
            binary = message.type is aiohttp.WSMsgType.BINARY
            if binary:
                data = message.data
            else:
                data = message.data.encode()
            reply.arrivals.append(
                Arrival(self.clock(), ArrivalKind.BINARY if binary else ArrivalKind.TEXT, len(data))
            )
            if reply.headers_at is None:
                reply.headers_at = reply.arrivals[0].time
            chunks.append(data)
            if not binary and _ENDS.search(data):
                break

    async def _note_request(
        self,
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        params: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        del session, params
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.requested = self.clock()


_ENDS = re.compile(rb'"type"\s*:\s*"(session\.done|response\.done|error)"')


def _words(text: str) -> list[str]:
    """Pieces as a language model would emit them: words with the space after them, or single
    ideographs."""
    return re.findall(r"[\u3400-\u9fff]|[^\s\u3400-\u9fff]+\s*|\s+", text)
