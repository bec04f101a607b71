"""Starting an engine in a process of its own: the arguments of TTS for each model of a server, as
plain data."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from stentor.errors import EngineError
from stentor.host.machine import cpus
from stentor.server.config import EnginePlace, ServerConfig, Value, value_at
from stentor.server.engines import messages as m
from stentor.server.engines.client import RECORDINGS_BYTES, EngineLink
from stentor.server.engines.open_requests import OpenRequests
from stentor.server.engines.process import Load
from stentor.server.limits import LIMITS, Limits
from stentor.server.load_options import load_options

CONNECT_SECONDS = 0.01  # until it is tried again to send an engine a descriptor


def start_module(
    connection: socket.socket,
    *descriptors: int,
    module: str,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Run a module of this package in a process of its own, whose standard input is
    `connection`. environment: variables in addition to those of this process."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=connection.fileno(),
        env={**os.environ, "PYTHONPATH": path, **environment},
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C in a terminal is for the first process alone
    )


def end_of(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
    """The exit code of a process, once it has ended. A thread of its own waits: a pool has few."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def note(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def wait() -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(note, code)

    threading.Thread(target=wait, daemon=True, name=f"stentor-wait-{process.pid}").start()
    return ended


def restart_pause(crashes: int, limits: Limits = LIMITS) -> float:
    """Seconds to wait after so many crashes in a row."""
    doublings = min(crashes, 30)  # 2.0 ** 1024 overflows
    return min(limits.restart_seconds, 0.1 * 2.0**doublings)


class ProcessEngine:
    """An engine in a process of its own. `client` reaches it. `ended` has its exit code once it is
    gone."""

    def __init__(
        self,
        name: str,
        load: Load,
        environment: Mapping[str, str],
        open_requests: OpenRequests | None = None,
    ) -> None:
        """environment: variables of its process in addition to those of this one. open_requests: to
        it, of all API processes."""
        self._loop = asyncio.get_running_loop()
        self.link = EngineLink(name, 0, open_requests=open_requests)
        self.client = self.link.client
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = start_module(
                theirs, module="stentor.server.engines.process", environment=environment
            )
        self.pid = self._process.pid
        self._ours.sendall(msgspec.json.encode(load) + b"\n")
        connecting = self._loop.create_connection(lambda: self.link, sock=self._ours)
        self._connecting = asyncio.create_task(connecting, name=f"engine {name}")
        self.ended = end_of(self._process)
        self.ended.add_done_callback(self._note_end)

    def _note_end(self, ended: asyncio.Future[int]) -> None:
        code = ended.result()
        if code < 0:
            how = f"signal {-code}"
        else:
            how = f"exit code {code}"
        self.client.lose(EngineError(f"the engine's process has ended ({how})"))
        self.link.close()

    async def connect(self, api: int) -> socket.socket:
        """A socket to the engine for another API process, once the model is ready. EngineError if
        it is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            while self.client.lost is None:
                if self.link.drained:  # not inside a message
                    with contextlib.suppress(OSError):  # it is full, or the engine is gone
                        socket.send_fds(
                            self._ours, [m.pack(m.encode([m.Connect(api)], ()))], [theirs.fileno()]
                        )
                        return ours
                await asyncio.sleep(CONNECT_SECONDS)
        ours.close()
        raise self.client.lost

    def kill(self) -> None:
        """End it at once, as it may be stuck."""
        self._process.kill()

    async def close(self) -> None:
        """End it. What runs on it fails."""
        await self._connecting
        self.client.send(m.Stop())
        try:
            async with asyncio.timeout(LIMITS.stop_seconds if self.client.ready.done() else 0):
                await asyncio.shield(self.ended)
        except TimeoutError:  # it may be loading, which nothing can stop
            self.kill()
            await self.ended


@dataclass(frozen=True)
class EngineGpu:
    """Settings with which an engine shares its GPU: variables of its process, and whether its
    streams have priorities."""

    environment: Mapping[str, str] = field(default_factory=dict)
    stream_priorities: bool = True


@dataclass(frozen=True)
class EngineFactory:
    """Starts an engine of a model: calling it runs a process. at: its place among the server's
    engines. open_requests: to it, of all API processes."""

    name: str
    model: str | None
    config: ServerConfig
    at: int = 0
    gpu: EngineGpu = EngineGpu()
    open_requests: OpenRequests | None = None

    def __call__(
        self, adapters: Mapping[str, str], last: m.Ready | None, warm_up: bool
    ) -> ProcessEngine:
        """Start it with these adapters. The first start has all that the flags name, or fails. A
        later one has slots as the first, and what cannot be loaded again is left out."""
        load = self.load(adapters, last, warm_up)
        return ProcessEngine(self.name, load, self.gpu.environment, self.open_requests)

    def load(self, adapters: Mapping[str, str], last: m.Ready | None, warm_up: bool) -> Load:
        """The order to its process."""
        return Load(
            options=self.options(last),
            if_taken=self.if_taken(last),
            policy=self.policy(),
            adapters=dict(adapters),
            warm_up=warm_up,
            recordings_bytes=RECORDINGS_BYTES,
            trim_seconds=LIMITS.trim_seconds,
            log_level=self.config.uvicorn_log_level,
            log_format=self.config.log_format,
        )

    @property
    def place(self) -> EnginePlace:
        """Its model and its device."""
        return self.config.engines[self.at]

    def _own(self, values: Sequence[Value]) -> Value | None:
        """The value for this model, or the one for all models. None without any."""
        if values:
            return value_at(values, self.place.model)
        return None

    def _part(self, memory_gb: float | None) -> float | None:
        """The part of an engine of what its model may take on a device."""
        if memory_gb is None:
            return None
        return memory_gb / self.config.engines_like(self.place)

    def options(self, last: m.Ready | None) -> dict[str, Any]:
        """Arguments of TTS."""
        c = self.config
        models = max(1, len(c.models))
        adapted: dict[str, Any] = {"loras": c.loras_of(self.name)}
        if adapted["loras"] or models == 1:
            adapted |= self._slots
        if adapted["loras"] and last is not None:  # those of the start need not be there any more
            adapted = {"loras": None, **last.lora_options}
        return {
            "model": self.model,
            "name": self.name,
            "device": self.place.device,
            "dtype": c.dtype,
            "quantization": self._own(c.quantization) or "auto",
            "runtime": c.runtime,
            "lora": c.lora,
            "lexicon": c.lexicon,
            "max_num_seqs": c.max_num_seqs,
            "memory_gb": self._part(c.memory_gb),
            # equal shares of a device, one after another
            "gpu_memory_utilization": c.gpu_memory_utilization / self._left_on_device(),
            "max_memory_gb": self._part(self._own(c.max_memory_gb)),
            "deterministic": c.deterministic,
            "require_graphs": c.require_graphs,
            "stream_priorities": self.gpu.stream_priorities,
            "threads": c.threads,
            "max_threads": cpu_share(len(c.engines)),
            "encoded_references": LIMITS.encoded_references,
            "codec_states_mb": LIMITS.codec_states_mb,
            **load_options(c.load_options),
            **adapted,
        }

    def _left_on_device(self) -> int:
        """Engines of its device that have not been loaded when it is, itself among them."""
        device = self.place.shared_device
        return sum(place.shared_device == device for place in self.config.engines[self.at :])

    def if_taken(self, last: m.Ready | None) -> dict[str, Any]:
        """Slots for adapters at run time, beside other models: this one may be of a family that has
        none."""
        if len(self.config.models) < 2 or self.config.loras_of(self.name):
            return {}
        if last is None:
            return {k: v for k, v in self._slots.items() if v is not None}
        return dict(last.lora_options)

    @property
    def _slots(self) -> dict[str, Any]:
        return {"max_loras": self.config.max_loras, "max_lora_rank": self.config.max_lora_rank}

    def policy(self) -> dict[str, Any]:
        """Fields of the engine's Policy."""
        engines = sum(place.model == self.place.model for place in self.config.engines)
        return {
            "max_queue": math.ceil(self.config.max_queued_requests / engines),
            "parked_mb": LIMITS.parked_mb,
            "unready_after": LIMITS.unready_after,
        }


def cpu_share(engines: int) -> int | None:
    """CPU threads that each of several engines takes at most. None: there is one, which may take
    all."""
    if engines <= 1:
        return None
    return max(1, cpus() // engines)
