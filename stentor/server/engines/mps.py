"""Engines that share a GPU run on it at the same time under CUDA MPS, through a daemon that ends
with the server. Without MPS the driver runs one process at a time."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType

from stentor.errors import InvalidRequest
from stentor.host.machine import MPS_CONTROL, has_nvidia_gpu
from stentor.server.config import ServerConfig
from stentor.server.engines import mps_daemon
from stentor.server.engines.launch import EngineGpu, start_module
from stentor.server.engines.mps_policy import GpuUse, policy

log = logging.getLogger("stentor.server")

START_SECONDS = mps_daemon.START_SECONDS + 10  # for the process that starts the daemon too
END_SECONDS = mps_daemon.CLIENT_SECONDS + 2 * mps_daemon.EXIT_SECONDS


class NoMps(Exception):
    """A reason why no daemon can run."""


class MpsDaemon:
    """A control daemon, in a process that ends it when this process is gone."""

    def __init__(self) -> None:
        """Start it. NoMps if that fails."""
        if shutil.which(MPS_CONTROL) is None:
            raise NoMps(f"{MPS_CONTROL} is not on PATH")
        mps_daemon.remove_stale()
        self.folder, self._lock = mps_daemon.create_folder()
        self._server, theirs = socket.socketpair()
        with theirs:
            self._process = start_module(
                theirs, self._lock, module="stentor.server.engines.mps_daemon"
            )
        problem = self._start()
        if problem:
            self.close()
            raise NoMps(f"{MPS_CONTROL} has failed: {problem}")

    def _start(self) -> str:
        """Wait until the daemon runs. Returns the problem, or an empty string."""
        self._server.settimeout(START_SECONDS)
        try:
            self._server.sendall(f"{self.folder}\n".encode())
            line = self._server.makefile().readline()
        except OSError as e:
            return str(e)
        if line:
            return line.rstrip("\n")
        return "its process has ended"

    def variables(self) -> dict[str, str]:
        """Environment variables of clients."""
        pipe = "CUDA_MPS_PIPE_DIRECTORY"
        visible = client_devices(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return {pipe: mps_daemon.variables(self.folder)[pipe], **visible}

    def close(self) -> None:
        """End the daemon, and wait until it has ended."""
        self._server.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            log.error("the CUDA MPS daemon in %s does not end", self.folder)
        os.close(self._lock)


def client_devices(visible: str | None) -> dict[str, str]:
    """The variable that selects the GPUs of a daemon's clients. visible: that of the daemon.

    A daemon numbers its GPUs from 0, so indices would select other ones. UUIDs stay valid."""
    words = (visible or "").split(",")
    indices = list(takewhile(str.isdigit, (word.strip() for word in words)))
    if not indices:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(i) for i in range(len(indices)))}


class GpuSharing:
    """Settings of a server's engines, in the order of their numbers, and its daemon. Close it once
    they have ended."""

    def __init__(self, engines: Sequence[EngineGpu], daemon: MpsDaemon | None = None) -> None:
        self.engines = engines
        self._daemon = daemon

    def close(self) -> None:
        """End the daemon of this server, if it has one."""
        if self._daemon is not None:
            self._daemon.close()


def begin(config: ServerConfig) -> GpuSharing:
    """Start a daemon if engines run under MPS and the operator runs none. InvalidRequest if it
    fails and a flag requires MPS."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    uses = policy(config, has_nvidia_gpu() and visible not in ("", "-1"))
    count = sum(use.mps for use in uses)
    if not count:
        _check_required(config, "no engine runs on a GPU")
        return GpuSharing([_engine(use) for use in uses])
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or mps_daemon.answers(os.environ):
        log.info("GPU: %d engines under the CUDA MPS daemon of this machine", count)
        return GpuSharing([_engine(use) for use in uses])

    try:
        daemon = MpsDaemon()
    except NoMps as e:
        _check_required(config, str(e))
        log.warning("GPU: %d engines take turns, as CUDA MPS cannot start: %s", count, e)
        return GpuSharing([_engine(GpuUse()) for _ in uses])
    log.info("GPU: %d engines under CUDA MPS", count)
    return GpuSharing([_engine(use, daemon.variables()) for use in uses], daemon)


def _check_required(config: ServerConfig, problem: str) -> None:
    """InvalidRequest if a flag requires MPS, which a problem prevents."""
    if config.gpu_share:
        raise InvalidRequest("gpu_share", f"needs CUDA MPS: {problem}")
    if config.mps == "on":
        raise InvalidRequest("mps", f"cannot be on: {problem}")


def _engine(use: GpuUse, variables: Mapping[str, str] = MappingProxyType({})) -> EngineGpu:
    environment: dict[str, str] = {}
    if use.mps:
        environment |= variables
    if use.share is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{use.share:g}"
    return EngineGpu(environment, use.stream_priorities)
