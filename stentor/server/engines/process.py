"""The process of an engine: `python -m stentor.server.engines.process`, with what to load on its
standard input.

Its standard input is a socket to the API process, and it ends with that, however the API process
went.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from stentor.audio import Recording
from stentor.errors import EngineError, InvalidRequest, StentorError
from stentor.layers.types import dtype_name
from stentor.models.info import ATTENDED_WIDTH, ModelInfo, ReferenceAudio
from stentor.server import logs
from stentor.server.engines import messages as m
from stentor.server.stop_signals import CRASHED

log = logging.getLogger("stentor.engine")

BEAT_SECONDS = 0.5
READ_BYTES = 1 << 18  # at once
MAX_BUFFERS = 1024  # that a socket takes at once: IOV_MAX of Linux and macOS
WARM_UP_TEXT = "Hello there."
GPU_SECONDS = 28.0
CPU_SECONDS = 1.0
"""Seconds of reference audio. A GPU encodes a long one, so that the graphs of a long voice have
been launched."""
NOISE_HZ = 24_000


class Load(msgspec.Struct):
    """Order to load a model. `options`: arguments of TTS. `if_taken`: further ones, which a model
    that does not take them is loaded without. `policy`: fields of its Policy. `adapters`: names and
    paths, of which those that `options` does not name may be lost."""

    options: dict[str, Any]
    if_taken: dict[str, Any]
    policy: dict[str, Any]
    adapters: dict[str, str]
    warm_up: bool
    recordings_bytes: int
    trim_seconds: float
    log_level: str
    log_format: str


class Peer:
    """An API process at the other end of a stream socket. Its engine never waits for it: what the
    socket does not take at once is sent by a thread."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._left: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards `_behind`
        self._behind = 0  # messages that wait for the thread
        threading.Thread(target=self._send_left, daemon=True, name="stentor-send").start()

    def send(self, events: Sequence[m.Event], arrays: Sequence[np.ndarray]) -> None:
        """Send events and their arrays, which may be freed at once. For one thread at a time."""
        buffers = m.frame(m.encode(events, arrays))
        sent = 0
        with self._lock:
            if not self._behind:
                try:
                    sent = self.socket.sendmsg(buffers[:MAX_BUFFERS], (), socket.MSG_DONTWAIT)
                except BlockingIOError:
                    sent = 0
                except OSError:  # it is gone, which whoever reads from it sees
                    return
            if sent == sum(map(len, buffers)):
                return
            self._behind += 1
        rest = memoryview(b"".join(buffers))[sent:]
        self._left.put(rest)

    def _send_left(self) -> None:
        while (data := self._left.get()) is not None:
            try:
                self.socket.sendall(data)
            except OSError:
                return
            with self._lock:
                self._behind -= 1

    def end(self) -> None:
        """Nothing more comes, whoever still has the other end."""
        with contextlib.suppress(OSError):  # it is gone
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Free the socket and the thread, once nobody sends any more."""
        self.end()
        self._left.put(None)
        self.socket.close()

    def messages(self) -> Iterator[tuple[list[m.Command], m.Reader, list[int]]]:
        """Commands and their arrays as they come, with descriptors that came beside them, until the
        end."""
        unpacker = m.Unpacker()
        descriptors = list[int]()
        while True:
            try:
                data, received, _, _ = socket.recv_fds(self.socket, READ_BYTES, 8)
            except OSError:
                return
            if not data:
                return
            descriptors += received
            for parts in unpacker.feed(data):
                messages, arrays = m.commands(parts)
                yield messages, m.Reader(arrays), descriptors


def main() -> None:
    """Load the model, report it, and serve it until the API process is gone or the engine stops."""
    # The API process ends this one. Ctrl-C reaches all processes of a terminal, SIGTERM all of a
    # systemd unit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    peer = Peer(socket.socket(fileno=os.dup(0)))
    load = msgspec.json.decode(peer.socket.makefile("rb", 0).readline(), type=Load)
    logs.configure(load.log_level, load.log_format)
    try:
        EngineProcess(load, peer, os._exit).run()
    except BaseException as e:
        if not isinstance(e, StentorError):
            log.exception("the engine's process failed")
        peer.socket.sendall(m.pack(m.encode([m.Broken(m.error(e))], ())))
    os._exit(CRASHED)  # torch's own end may wait for a device that no longer answers


class EngineProcess:
    """The process: one thread reads the commands of each API process, the main thread watches the
    engine.

    end: ends the process with an exit code.
    """

    def __init__(self, load: Load, peer: Peer, end: Callable[[int], None]) -> None:
        self.load = load
        self.peers = {0: peer}
        self.end = end
        self._readers: dict[int, threading.Thread] = {}
        self._loaded = threading.Event()
        self._start_reader(0, peer)

    def run(self) -> None:
        """Load the model and watch its engine. EngineError when it has stopped."""
        from stentor.server.engines.service import EngineService
        from stentor.server.memory import collect, trim

        load = self.load
        self.tts, self.lost = load_model(load)
        collect()
        gc.freeze()  # later collections skip the model: visiting it takes 130 ms without audio
        self.service = EngineService(self.tts, self._send, load.recordings_bytes)
        self._loaded.set()
        self._greet(0)

        trimmed = time.monotonic()
        while (health := self.tts.engine.health()).error is None:
            self.service.beat()
            if time.monotonic() - trimmed >= load.trim_seconds:
                trim()
                trimmed = time.monotonic()
            time.sleep(BEAT_SECONDS)
        raise EngineError(f"the engine has stopped: {health.error}")

    def _send(self, api: int, events: Sequence[m.Event], arrays: Sequence[np.ndarray]) -> None:
        peer = self.peers.get(api)
        if peer is not None:
            peer.send(events, arrays)

    def _greet(self, api: int) -> None:
        self.service.connect(api)
        self._send(api, [ready(self.tts, self.lost)], ())

    def _start_reader(self, api: int, peer: Peer) -> None:
        reader = threading.Thread(
            target=self._read, args=(api, peer), daemon=True, name="stentor-commands"
        )
        self._readers[api] = reader
        reader.start()

    def _read(self, api: int, peer: Peer) -> None:
        """Handle the commands of an API process until it is gone. The engine's process ends with
        the first one."""
        code = 0
        try:
            self._handle_all(peer)
        except Exception:
            # Nobody would read on, while the engine still beats: this link must end, or the
            # process.
            log.exception("commands of API process %d can no longer be read", api)
            code = CRASHED
        if not api:
            self.end(code)
            return
        self.service.disconnect(api)
        del self.peers[api]
        peer.close()

    def _handle_all(self, peer: Peer) -> None:
        for count, (commands, arrays, descriptors) in enumerate(peer.messages()):
            if not count:  # read during the load too, which ends with the API process
                self._loaded.wait()
                self.tts.engine.side.set_up_thread()  # short prompts are made here
            for command in commands:
                match command:
                    case m.Stop():
                        self.service.close(EngineError("the engine has stopped: closed"))
                        return
                    case m.Connect():
                        connection = socket.socket(fileno=descriptors.pop(0))
                        self._connect(command.api, Peer(connection))
                    case _:
                        self.service.handle(command, arrays)

    def _connect(self, api: int, peer: Peer) -> None:
        """Serve another API process, or the one that takes its place."""
        previous = self.peers.get(api)
        if previous is not None:  # its end may not have been seen yet
            previous.end()
            self._readers[api].join()
        self.peers[api] = peer
        self._greet(api)
        self._start_reader(api, peer)


def load_model(load: Load) -> tuple[Any, list[str]]:
    """Load and optionally warm up a TTS. Returns it and the names of adapters that could
    not be loaded."""
    from stentor.api import TTS
    from stentor.config import Policy

    try:
        tts = TTS(**load.options, **load.if_taken, policy=Policy(**load.policy))
    except InvalidRequest as e:  # before any weights are read
        if e.param not in load.if_taken:
            raise
        options = ", ".join(load.if_taken)
        logging.getLogger("stentor.server").warning(
            "%s is loaded without %s", load.options["name"], options
        )
        tts = TTS(**load.options, policy=Policy(**load.policy))
    # The warm-up makes prompts of voices, which are kept: in a thread with the engine's settings.
    with ThreadPoolExecutor(1, "stentor-load", tts.engine.side.set_up_thread) as pool:
        return pool.submit(adapted, tts, load.adapters, load.warm_up).result()


def adapted(tts: Any, adapters: Mapping[str, str], warm: bool) -> tuple[Any, list[str]]:
    """Load the adapters of a `TTS`, have it speak if it is to, and return it with the names that
    were lost."""
    lost = []
    for name in [name for name in adapters if name not in tts.loras]:
        try:
            tts.load_lora(name, adapters[name])
        except StentorError as e:
            logging.getLogger("stentor.server").error("adapter %s is lost: %s", name, e)
            lost.append(name)
    if warm:
        warm_up(tts)
    return tts, lost


def warm_up(tts: Any) -> None:
    """Generate a short utterance as a request would, and one in the voice of a reference where the
    model takes one."""
    options: dict[str, Any] = {"max_frames": 8} if "max_frames" in tts.spec.options else {}
    voices: list[dict[str, Any]] = [{}]
    if tts.spec.speaker_size:
        voices = [{"speaker_embedding": [0.0] * tts.spec.speaker_size}]
    if tts.spec.takes_reference:
        if tts.engine.side.on_gpu:
            seconds = GPU_SECONDS
        else:
            seconds = CPU_SECONDS
        voices.append({"reference": ReferenceAudio(noise(tts.spec, seconds), WARM_UP_TEXT)})
    for voice in voices:
        try:
            tts.generate(WARM_UP_TEXT, retries=1, **options, **voice)
        except InvalidRequest as e:
            logging.getLogger("stentor.server").info("warm-up skipped: %s", e)


def noise(spec: ModelInfo, seconds: float) -> Recording:
    """Noise of about so many seconds, as long as the model takes, which no cache keeps."""
    shortest, longest = spec.reference_seconds
    count = int(min(max(shortest, seconds), longest) * NOISE_HZ)
    samples = 0.1 * np.random.default_rng(0).standard_normal(count)
    return Recording(samples.astype(np.float32), NOISE_HZ, cacheable=False)


def ready(tts: Any, lost: Sequence[str]) -> m.Ready:
    """Describe a loaded model to an API process."""
    frame = tts.spec.frame
    return m.Ready(
        tts.spec.info,
        (frame.shape, dtype_name(frame.dtype)),
        ATTENDED_WIDTH,
        list(tts.adapters),
        dict(tts.lora_options),
        list(lost),
    )


if __name__ == "__main__":
    main()
