"""A Ray that somebody else has started: `serve run`, `serve deploy`, and replicas that change under load."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from benchmarks.replicas import streams
from benchmarks.replicas.cluster import Cluster, NotReady, application, cluster, program, wait
from tests.helpers.replicas import NEEDS_RAY, PATIENT

pytestmark = NEEDS_RAY

ROOT = Path(__file__).parents[2]
TOY = {"models": ["dummy:toy"], "max-num-seqs": 4, "memory-gb": 0.01, "threads": 1}


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with cluster(PATIENT) as running:
        yield running


def test_serve_run_names_a_wrong_argument_and_a_missing_variable(node: Cluster) -> None:
    wrong = node.serve("run", "--non-blocking", "stentor.ray:app", "model=dummy:toy", "max-seqs=4")
    assert wrong.returncode != 0
    assert "max-seqs: is not an option" in wrong.stdout + wrong.stderr
    node.env["RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"] = "1"
    try:
        wrong = node.serve("run", "--non-blocking", "stentor.ray:app", "model=dummy:toy")
    finally:
        node.env["RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD"] = "0"
    assert wrong.returncode != 0
    assert (
        "start Ray on every node with RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD=0"
        in wrong.stdout + wrong.stderr
    )


def test_serve_run_serves_until_it_is_told_to_end(node: Cluster) -> None:
    words = [
        "run",
        "--name",
        "run",
        "stentor.ray:app",
        "model=dummy:toy",
        "max-num-seqs=4",
        "guard=false",
    ]
    with subprocess.Popen(
        [*program("serve"), *words], env=node.env, cwd=ROOT, stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait(
                lambda: "RUNNING" in node.replicas("run").values(), lambda: str(node.applications())
            )
        finally:
            process.send_signal(signal.SIGINT)
        process.wait(120)
    wait(lambda: not node.applications(), lambda: str(node.applications()))


def test_a_deployment_that_cannot_be_says_why(node: Cluster) -> None:
    node.deploy(application({**TOY, "port": 9000}))
    with pytest.raises(NotReady, match="port: belongs to Serve"):
        node.running("stentor", 1)


def test_the_file_for_kuberay_is_deployed(node: Cluster) -> None:
    """With the toy model, on the CPU, on this machine's ports."""
    spec = yaml.safe_load(
        (ROOT / "deploy" / "kuberay" / "rayservice.yaml").read_text(encoding="utf-8")
    )["spec"]
    config = yaml.safe_load(spec["serveConfigV2"])
    (served,) = config["applications"]
    served["args"] |= {**TOY, "device": "cpu", "gpus-per-replica": 0, "require-graphs": False}
    node.deploy({"applications": [served]})
    node.running("stentor", served["deployments"][0]["num_replicas"])
    done = asyncio.run(streams.load(node.url, 2, streams.toy(20), lambda begun: begun < 4))
    assert [s.fault for s in done] == [""] * 4


def test_a_changed_number_keeps_the_replicas(node: Cluster) -> None:
    node.deploy(application(TOY, num_replicas=2))
    node.running("stentor", 2)
    before = set(node.replicas("stentor"))
    node.deploy(application(TOY, num_replicas=3))
    node.running("stentor", 3)
    assert before < set(node.replicas("stentor"))
