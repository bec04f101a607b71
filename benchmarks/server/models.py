"""Several models in one server, models that are unloaded and loaded again, and how long a load takes. No GPU.

Run: python benchmarks/server/models.py [mixed] [lost] [unload] [voice] [reload] [--requests N] [--times N] [--json F]
Needs: stentor[server] and the checkpoints of the tests.

mixed   three models answer so many requests that many clients send in random order. Each answer is compared with the
        audio that its model gives alone, in the same dtype.
lost    the engine of one of them raises and does not start again, while the others speak.
unload  a model is unloaded and loaded again so many times, with requests that arrive while it is away. What the process
        takes is compared with what it took after a quarter as many.
voice   the same with the embedded voice.
reload  the embedded voice is unloaded and loaded again: seconds of the load, and until the answer that waited for it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this tree, also where none is installed
import stentor
from tests.helpers.server_live import Live, pcm, serving, until
from tests.helpers.tiny import FIXTURES
from tests.server.test_idle_unload import again_and_again

MODELS = {
    "toy": "dummy:toy",
    "fish": str(FIXTURES / "fish_s2" / "checkpoint"),
    "vox": str(FIXTURES / "voxcpm2"),
}
TEXTS = ("Hello there.", "One two three.", "Yes.", "A text of seven words for them all.")
SEEDS = (5, 6, 7)
OPTIONS = {"response_format": "pcm", "max_frames": 4, "guard": False}
CLIENTS = 12
IDLE_SECONDS = 0.2
RELOADS = 10
TINY = {"memory_gb": 0.02, "max_num_seqs": 4, "threads": 1, "dtype": "float32"}


def load(name: str, model: str | None) -> Callable[[], stentor.TTS]:
    return lambda: stentor.TTS(model, name=name, **(TINY if model is not None else {"max_num_seqs": 2}))


def alone() -> dict[tuple[str, str, int], np.ndarray]:
    found = {}
    for name, model in MODELS.items():
        with load(name, model)() as tts:
            for seed in SEEDS:
                spoken = tts.generate(TEXTS, seed=seed, max_frames=4, retries=1)
                found |= {(name, text, seed): s.samples for text, s in zip(TEXTS, spoken, strict=True)}
    return found


def three(folder: Path, **settings: Any) -> Any:
    return serving(
        folder, load=load, model=tuple(MODELS.values()), served_model_name=tuple(MODELS), warmup=False, **settings
    )


def ask(live: Live, key: tuple[str, str, int]) -> Any:
    return live.speech(model=key[0], input=key[1], seed=key[2], **OPTIONS)


def mixed(folder: Path, requests: int) -> dict[str, Any]:
    expected = alone()
    keys = list(expected)
    asked = [random.Random(n).choice(keys) for n in range(requests)]
    began = time.perf_counter()
    with three(folder) as live, ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda key: ask(live, key), asked))
    worst = dict.fromkeys(MODELS, 0.0)
    for key, answer in zip(asked, answers, strict=True):
        if answer.status_code == 200:
            got, want = pcm(answer.content), np.clip(expected[key], -1, 1)
            same = len(got) == len(want)
            worst[key[0]] = max(worst[key[0]], float(np.abs(got - want).max()) if same else 2.0)
    return {
        "requests": dict(Counter(key[0] for key in asked)),
        "status": dict(Counter(answer.status_code for answer in answers)),
        "largest_difference": worst,
        "seconds": time.perf_counter() - began,
    }


def lost(folder: Path, requests: int) -> dict[str, Any]:
    def fault(*_: object) -> None:
        raise RuntimeError("the device is gone")

    def broken() -> stentor.TTS:
        raise stentor.EngineError("it does not start again")

    keys = [(name, text, seed) for name in MODELS for text in TEXTS for seed in SEEDS]
    asked = [random.Random(n).choice(keys) for n in range(requests)]
    with three(folder) as live, ThreadPoolExecutor(CLIENTS) as pool:
        hosts = {host.name: host for host in live.server.hosts.all}
        engine: Any = hosts["fish"].tts.engine
        begun = [pool.submit(ask, live, key) for key in asked[: requests // 4]]
        with mock.patch.object(hosts["fish"], "_make", broken), mock.patch.object(engine.scheduler, "plan", fault):
            begun += [pool.submit(ask, live, key) for key in asked[requests // 4 :]]
            answers = [(key, each.result().status_code) for key, each in zip(asked, begun, strict=True)]
            gone = until(lambda: hosts["fish"].phase == "failed" and hosts["fish"].restarts > 3)
    of = {name: Counter(code for key, code in answers if key[0] == name) for name in MODELS}
    return {"status": {name: dict(codes) for name, codes in of.items()}, "one_is_lost": gone}


def unload(folder: Path, times: int, model: str | None = "dummy:toy") -> dict[str, Any]:
    found = again_and_again(folder, times, load, model)
    kept = {"engines_in_memory": found.still, "more_objects": dict(found.more), "lost_requests": 0}
    return {"before": found.before, "after": found.after, "unloads": found.unloads, **kept}


def reload(folder: Path, times: int = RELOADS) -> dict[str, Any]:
    loads, answers, cpu = [], [], []
    with serving(folder, load=load, model=None, idle_unload_seconds=IDLE_SECONDS) as live:
        host = live.server.hosts.all[0]
        for _ in range(times):
            assert until(lambda: host.phase == "unloaded")
            began, used = time.perf_counter(), time.process_time()
            while_loading = ThreadPoolExecutor(1).submit(live.speech, input="Yes.", seed=1, response_format="pcm")
            assert until(lambda: host.phase == "ready")
            cpu.append(time.process_time() - used)
            assert while_loading.result().status_code == 200
            answers.append(time.perf_counter() - began)
            loads.append(host.residency.load_seconds)
    named = {"load_seconds": loads, "cpu_seconds_until_ready": cpu, "answer_seconds": answers}
    return {name: {"median": statistics.median(v), "most": max(v), "least": min(v)} for name, v in named.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["mixed", "lost", "unload", "reload"])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    run = {
        "mixed": lambda folder: mixed(folder, args.requests),
        "lost": lambda folder: lost(folder, args.requests // 5),
        "unload": lambda folder: unload(folder, args.times),
        "voice": lambda folder: unload(folder, args.times, None),
        "reload": reload,
    }
    found: dict[str, Any] = json.loads(args.json.read_text()) if args.json is not None and args.json.exists() else {}
    for part in args.parts:
        with tempfile.TemporaryDirectory() as folder:
            found[part] = {**run[part](Path(folder)), "load_average": os.getloadavg()[0]}
        print(part, json.dumps(found[part]), flush=True)
        if args.json is not None:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
