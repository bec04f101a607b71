"""Flags, environment and shared outcomes of replicas. No Ray is needed."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stentor
from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.host.local_ray import VARIABLES, own_ray
from stentor.ray import configured, environment
from stentor.server.config import ServerConfig, build, typed


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"replicas": 0}, "replicas"),
        ({"replicas": 2, "max_replicas": 4}, "replicas"),
        ({"min_replicas": 2}, "min_replicas"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas"),
        ({"replicas": 2, "uds": "/tmp/x"}, "uds"),
        ({"replicas": 2, "ssl_keyfile": "k", "ssl_certfile": "c"}, "ssl_keyfile"),
        ({"replicas": 2, "port": 0}, "port"),
        ({"replicas": 2, "session_header": "x session"}, "session_header"),
        ({"replicas": 2, "gpus_per_replica": -1.0}, "gpus_per_replica"),
        ({"replicas": 2, "gpus_per_replica": 0.5}, "max_memory_gb"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_by_name(
    given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as e:
        ServerConfig(**given)
    assert e.value.param == field


def test_a_plain_server_is_not_scaled() -> None:
    assert not ServerConfig().scaled
    assert ServerConfig(replicas=1).scaled
    assert ServerConfig(max_replicas=3).scaled
    assert [
        ServerConfig(**given).most_replicas for given in ({}, {"replicas": 2}, {"max_replicas": 3})
    ] == [1, 2, 3]


def test_yaml_arguments_are_the_flags() -> None:
    config = build(
        typed({"models": ["dummy:toy"], "max-num-seqs": "8", "api_key": "secret"}), env={}
    )
    assert (config.models, config.max_num_seqs, config.api_key) == (("dummy:toy",), 8, ("secret",))
    with pytest.raises(InvalidRequest, match="is not an option"):
        typed({"max-seqs": 8})


def test_the_environment_that_streams_need() -> None:
    config = ServerConfig(replicas=2, request_timeout=900, session_header="x-session-id")
    wanted = environment.wanted(config)
    environment.check(wanted, config)
    assert wanted["RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"] == "hdr(x-session-id)"
    assert int(wanted["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) > 900
    assert int(wanted["RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"]) > 900
    listening = environment.wanted(ServerConfig(replicas=2, ws_idle_seconds=2000))
    assert int(listening["RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"]) > 2000
    for name in (*environment.REQUIRED, environment.BALANCE, environment.HARD_STOP):
        with pytest.raises(environment.WrongEnvironment, match=name):
            environment.check({**wanted, name: "2"}, config)
        with pytest.raises(environment.WrongEnvironment, match=name):
            environment.check({k: v for k, v in wanted.items() if k != name}, config)


def test_replicas_beside_gpus_that_ray_was_not_asked_for_are_refused() -> None:
    """All of them would take the first one."""
    with pytest.raises(InvalidRequest) as e:
        environment.check_gpus(ServerConfig(replicas=2), visible_gpus=True)
    assert e.value.param == "gpus_per_replica"
    environment.check_gpus(ServerConfig(replicas=2), visible_gpus=False)
    environment.check_gpus(ServerConfig(replicas=2, device=("cpu",)), visible_gpus=True)
    environment.check_gpus(ServerConfig(replicas=2, gpus_per_replica=1), visible_gpus=True)


def test_what_a_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.wanted(ServerConfig()):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    environment.prepare(ServerConfig())
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    environment.check(os.environ, ServerConfig())


def needed(monkeypatch: pytest.MonkeyPatch, config: ServerConfig) -> None:
    for name, value in environment.wanted(config).items():
        monkeypatch.setenv(name, value)


def test_words_of_serve_run_are_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve run stentor.ray:app model=dummy:toy guard=false max-num-seqs=8` gives text for everything."""
    needed(monkeypatch, ServerConfig())
    two = '["dummy:toy", "voice"]'
    config = configured(
        {"models": two, "guard": "false", "max-num-seqs": "8", "max_memory_gb": "6,4"}
    )
    assert (config.guard, config.max_num_seqs, config.max_memory_gb) == (False, 8, (6.0, 4.0))
    assert config.models == ("dummy:toy", "voice")
    assert config.scaled


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"port": 9000}, "port"),
        ({"host": "0.0.0.0"}, "host"),
        ({"ssl-keyfile": "k", "ssl-certfile": "c"}, "ssl_keyfile"),
        ({"uds": "/tmp/x"}, "uds"),
        ({"allow-runtime-lora-updating": True, "api-key": ["k"]}, "allow_runtime_lora_updating"),
        ({"guard": "perhaps"}, "guard"),
        ({"max-seqs": 8}, "max-seqs"),
    ],
)
def test_arguments_that_a_cluster_has_no_use_for_are_refused(
    args: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed(monkeypatch, ServerConfig())
    with pytest.raises(InvalidRequest) as e:
        configured({"model": "dummy:toy", **args})
    assert e.value.param == field


def test_the_app_says_what_ray_was_started_without(monkeypatch: pytest.MonkeyPatch) -> None:
    needed(monkeypatch, ServerConfig())
    with pytest.raises(environment.WrongEnvironment, match=r"HARD_STOP_AFTER_S=1230"):
        configured({"model": "dummy:toy", "request-timeout": 1200})


def test_without_ray_the_flag_names_the_extra() -> None:
    hide = "import sys; sys.modules['ray'] = None; from stentor.cli import main; sys.exit(main())"
    words = [sys.executable, "-c", hide, "serve", "dummy:toy", "--replicas", "2"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert pip_install("ray") in ended.stderr


def test_ray_is_imported_after_its_variables_are_set() -> None:
    for name in ("cli.py", "ray/__init__.py", "server/cli.py", "batch/command.py"):
        body = ast.parse((Path(stentor.__file__).parent / name).read_text(encoding="utf-8")).body
        early = [
            alias.name for node in body if isinstance(node, ast.Import) for alias in node.names
        ]
        early += [node.module for node in body if isinstance(node, ast.ImportFrom)]
        assert not [
            module
            for module in early
            if module.split(".")[0] == "ray" or module.endswith(("over_ray", "ray.local"))
        ]
    assert environment.wanted(ServerConfig()).items() >= VARIABLES.items()


def test_replicas_start_where_cores_and_shared_memory_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray would wait for a core for each, and refuse to start where /dev/shm has less than 30 % of much memory."""
    monkeypatch.setattr("stentor.host.local_ray.cpus", lambda: 2)
    assert own_ray(4)["num_cpus"] == 4
    assert own_ray(1)["num_cpus"] == 2
    assert own_ray(1)["object_store_memory"] < 1e9


def test_a_server_keeps_outcomes_of_its_own() -> None:
    from stentor.server.speech.outcomes import Outcome, Outcomes

    outcomes = Outcomes()
    outcomes.add(Outcome("a", "model"))
    assert asyncio.run(outcomes.find("a")) is not None
    assert asyncio.run(outcomes.find("b")) is None
