"""Fills the cache of compiled kernels, so that a server with the same flags starts without
compiling any."""

from __future__ import annotations

import time

from stentor.engine.running.device import pick_device
from stentor.errors import InvalidRequest
from stentor.server.config import ServerConfig
from stentor.server.engines.launch import EngineFactory
from stentor.server.engines.process import load_model
from stentor.server.model_hosts import names


def compile_kernels(config: ServerConfig) -> None:
    """Load each model as its engine's process does, with every graph, and print how long it took.
    StentorError if one cannot be loaded. InvalidRequest without a GPU."""
    if any(pick_device(device) == "cpu" for device in config.device):
        raise InvalidRequest("device", "must be a GPU: a CPU has no kernels to compile")
    models = [place.model for place in config.engines]
    for number, (name, model) in enumerate(names(config)):
        started = time.monotonic()
        at = models.index(number)  # its engines launch the same kernels
        factory = EngineFactory(name, model, config, at)
        tts, _ = load_model(factory.load({}, None, warm_up=True))
        with tts:
            graphs = sum(len(runner.graphs) for runner in tts.engine.side.graph_runners)
            seconds = time.monotonic() - started
            print(f"{name}: {graphs} graphs, {seconds:.1f} s", flush=True)
