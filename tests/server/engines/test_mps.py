"""Engines that share a GPU under CUDA MPS: who does, the daemon's start, its end and its clients' environment.

A script takes the place of `nvidia-cuda-mps-control`. The engines run on the CPU.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stentor import doctor
from stentor.engine.running import device as device_module
from stentor.engine.running.device import BACKGROUND, LANGUAGE_MODEL, Device
from stentor.errors import InvalidRequest
from stentor.host.machine import MPS_CONTROL
from stentor.server.config import build
from stentor.server.engines import mps, mps_daemon
from stentor.server.engines.launch import EngineFactory, EngineGpu
from stentor.server.engines.mps_policy import GpuUse, policy
from tests.helpers.descendants import alive, engines
from tests.helpers.fake_mps import FakeMps
from tests.helpers.patience import STUCK_S

PIPE = "CUDA_MPS_PIPE_DIRECTORY"
SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: addresses of sockets have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        yield Path(name)


@pytest.fixture
def machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU and without the program, whose temporary folder is this one."""
    empty = folder / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(mps, "has_nvidia_gpu", lambda: True)
    for name in (PIPE, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def fake(machine: Path) -> FakeMps:
    """The program on PATH."""
    return FakeMps(machine / "bin")


def config(models: int = 2, **options: Any) -> Any:
    names = [f"m{i}" for i in range(models)]
    return build(
        {"models": ("dummy:toy",) * models, "served_model_name": tuple(names), **options}, env={}
    )


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + STUCK_S
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


# -- the policy


@pytest.mark.parametrize(
    ("devices", "flags", "under_mps"),
    [
        (("auto",), {}, (True, True)),
        (("cuda", "cuda:0"), {}, (True, True)),
        (("cuda:0", "cuda:1"), {}, (False, False)),
        (("cuda:1", "cuda:0", "cuda:1"), {}, (True, False, True)),
        (("auto", "cpu"), {}, (False, False)),
        (("cpu",), {}, (False, False)),
        (("auto",), {"mps": "off"}, (False, False)),
        (("cuda:0", "cuda:1"), {"mps": "on"}, (True, True)),
        (("cuda", "cpu"), {"mps": "on"}, (True, False)),
        (("cuda:0", "cuda:1"), {"gpu_share": (50.0,)}, (True, True)),
    ],
)
def test_models_that_share_a_gpu_run_under_mps_unless_a_flag_has_it_otherwise(
    devices: tuple[str, ...], flags: dict[str, Any], under_mps: tuple[bool, ...]
) -> None:
    uses = policy(config(len(under_mps), device=devices, **flags), has_gpu=True)
    assert tuple(use.mps for use in uses) == under_mps


def test_auto_is_a_cpu_on_a_machine_without_a_gpu() -> None:
    assert policy(config(), has_gpu=False) == [GpuUse(), GpuUse()]


def test_a_single_model_takes_no_turns_and_needs_no_mps() -> None:
    assert policy(config(1), has_gpu=True) == [GpuUse()]


def test_each_model_has_its_share_of_the_gpu() -> None:
    uses = policy(config(gpu_share=(60.0, 40.0)), has_gpu=True)
    assert [use.share for use in uses] == [60, 40]


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"gpu_share": (0.0,)}, "gpu_share: must be above 0 and at most 100, got 0"),
        ({"gpu_share": (60.0, 140.0)}, "gpu_share: must be above 0 and at most 100, got 140"),
        ({"gpu_share": (1.0, 2.0, 3.0)}, "gpu_share: give one value, or one per model (2)"),
        ({"gpu_share": (50.0,), "mps": "off"}, "gpu_share: does not go with mps off"),
        ({"mps": "yes"}, "mps: must be one of auto, on, off, got 'yes'"),
    ],
)
def test_wrong_flags_are_refused_by_name(flags: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as e:
        config(**flags)
    assert str(e.value) == field


# -- the engines


def test_an_engine_gets_its_environment_and_its_priorities() -> None:
    engine = EngineGpu({SHARE: "60"}, stream_priorities=False)
    factory = EngineFactory("m0", "dummy:toy", config(), 0, engine)
    assert factory.options(None)["stream_priorities"] is False
    assert EngineFactory("m0", "dummy:toy", config()).options(None)["stream_priorities"] is True


@pytest.mark.parametrize(
    ("enabled", "expected"), [(True, LANGUAGE_MODEL), (False, BACKGROUND)], ids=["with", "without"]
)
def test_streams_have_priorities_unless_an_engine_has_none(
    enabled: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "CudaStream", lambda device, priority: priority)
    assert Device("cpu", enabled).stream(LANGUAGE_MODEL) == expected


@pytest.mark.parametrize(
    ("of_daemon", "of_clients"),
    [
        (None, {}),
        ("", {}),
        ("3", {"CUDA_VISIBLE_DEVICES": "0"}),
        ("2, 0,1", {"CUDA_VISIBLE_DEVICES": "0,1,2"}),
        ("5,-1,2", {"CUDA_VISIBLE_DEVICES": "0"}),
        ("GPU-33d63e60,GPU-91711a6e", {}),
        ("MIG-8f1c", {}),
    ],
)
def test_clients_see_the_gpus_of_a_daemon_by_its_numbers(
    of_daemon: str | None, of_clients: dict[str, str]
) -> None:
    """Measured with driver 580: to a client of a daemon on GPU 1, `1` is no GPU, and `0` is GPU 1."""
    assert mps.client_devices(of_daemon) == of_clients


# -- the daemon


def test_a_server_starts_a_private_daemon_and_ends_it(
    fake: FakeMps, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    devices = ("cuda:0", "cuda:1", "cuda:0")
    with caplog.at_level(logging.INFO, "stentor.server"):
        sharing = mps.begin(config(3, device=devices, gpu_share=(60.0,)))
    [(pid, pipe, visible)] = fake.daemons
    assert visible == "3,1"
    client = {PIPE: str(pipe), "CUDA_VISIBLE_DEVICES": "0,1", SHARE: "60"}
    assert [engine.environment for engine in sharing.engines] == [client] * 3
    assert [line.getMessage() for line in caplog.records] == ["GPU: 3 engines under CUDA MPS"]
    for private in (pipe.parent, pipe, pipe.parent / "log"):
        assert private.stat().st_mode & 0o777 == 0o700

    sharing.close()
    assert not alive(pid)
    assert not pipe.parent.exists()
    assert fake.record[-1] == ["quit", "-t", "5"]


def test_an_engine_that_shares_no_gpu_is_no_client(fake: FakeMps) -> None:
    sharing = mps.begin(config(3, device=("cuda:0", "cuda:1", "cuda:0")))
    with contextlib.closing(sharing):
        assert [PIPE in engine.environment for engine in sharing.engines] == [True, False, True]
        assert [e.stream_priorities for e in sharing.engines] == [False, True, False]


def test_a_daemon_that_does_not_end_is_killed(
    fake: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.stick()
    folder, lock = mps_daemon.create_folder()
    environment = {**os.environ, **mps_daemon.variables(folder)}
    with subprocess.Popen([MPS_CONTROL, "-f"], env=environment, process_group=0) as daemon:
        until(lambda: mps_daemon.answers(environment))
        monkeypatch.setattr(mps_daemon, "EXIT_SECONDS", 0.2)
        mps_daemon._end(daemon, environment)
        assert daemon.returncode == -signal.SIGKILL
    os.close(lock)


@pytest.mark.parametrize(
    ("visible", "flags", "message"),
    [
        (None, {"mps": "on"}, f"mps: cannot be on: {MPS_CONTROL} is not on PATH"),
        (None, {"gpu_share": (50.0,)}, f"gpu_share: needs CUDA MPS: {MPS_CONTROL} is not on PATH"),
        ("", {"mps": "on"}, "mps: cannot be on: no engine runs on a GPU"),
        ("-1", {"gpu_share": (50.0,)}, "gpu_share: needs CUDA MPS: no engine runs on a GPU"),
    ],
)
def test_a_flag_that_needs_mps_is_refused_where_it_cannot_run(
    visible: str | None,
    flags: dict[str, Any],
    message: str,
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(InvalidRequest) as e:
        mps.begin(config(**flags))
    assert str(e.value) == message


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_a_daemon_that_fails_is_reported_with_its_last_line(
    mode: str, fake: FakeMps, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fail("starting\nMPS is not permitted here")
    problem = f"{MPS_CONTROL} has failed: MPS is not permitted here"
    if mode == "on":
        with pytest.raises(InvalidRequest) as e:
            mps.begin(config(mps=mode))
        assert str(e.value) == f"mps: cannot be on: {problem}"
    else:
        assert list(mps.begin(config(mps=mode)).engines) == [EngineGpu({})] * 2
        expected = f"GPU: 2 engines take turns, as CUDA MPS cannot start: {problem}"
        assert [line.getMessage() for line in caplog.records] == [expected]
    assert not list(Path(tempfile.gettempdir()).glob("*stentor-mps-*"))


@pytest.mark.parametrize("how", ["variable", "default folder"])
def test_the_daemon_of_an_operator_is_used_as_it_is(
    how: str, fake: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        if how == "variable":
            monkeypatch.setenv(PIPE, "/run/mps")
        else:
            (fake.folder / "nvidia-mps").mkdir()
            operators = stack.enter_context(subprocess.Popen([MPS_CONTROL, "-f"]))
            stack.callback(operators.kill)
            until(lambda: mps_daemon.answers(os.environ))
        sharing = mps.begin(config(gpu_share=(60.0, 40.0)))
        sharing.close()
        assert [e.environment for e in sharing.engines] == [{SHARE: "60"}, {SHARE: "40"}]
        assert len(fake.daemons) == (how == "default folder")
        assert all(words[0] == "daemon" for words in fake.record)


def test_a_start_removes_stale_folders_and_ends_their_daemons(fake: FakeMps) -> None:
    """The server, the process that watches it and the daemon were killed, or the daemon was not."""
    dead, lock = mps_daemon.create_folder()
    os.close(lock)
    left, lock = mps_daemon.create_folder()
    os.close(lock)
    used, lock = mps_daemon.create_folder()
    environments = [{**os.environ, **mps_daemon.variables(folder)} for folder in (left, used)]
    daemons = [
        subprocess.Popen([MPS_CONTROL, "-f"], env=environment, process_group=0)
        for environment in environments
    ]
    try:
        until(lambda: all(mps_daemon.answers(environment) for environment in environments))
        mps.begin(config()).close()
        assert daemons[0].wait(STUCK_S) == 0
        assert daemons[1].poll() is None
        assert [folder.exists() for folder in (dead, left, used)] == [False, False, True]
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.wait()
        os.close(lock)


def test_a_folder_of_another_kind_is_left_as_it_is(fake: FakeMps) -> None:
    target = fake.folder / "target"
    target.mkdir()
    link = Path(tempfile.gettempdir()) / "stentor-mps-link"
    link.symlink_to(target)
    file = Path(tempfile.gettempdir()) / "stentor-mps-file"
    file.touch()
    mps_daemon.remove_stale()
    assert link.is_symlink()
    assert target.is_dir()
    assert file.exists()


def test_doctor_shows_whether_models_can_share_a_gpu(machine: Path) -> None:
    assert doctor._mps().startswith(f"not installed: {MPS_CONTROL}")
    FakeMps(machine / "bin")
    assert doctor._mps().startswith("ready: ")


# -- a server

SERVER = """
import sys
from stentor.server.engines import mps

mps.has_nvidia_gpu = lambda: True
from stentor.cli import main

sys.argv[0] = "stentor"
sys.exit(main())
"""


def variables_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    words = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and MPS needs Linux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_the_daemon_ends_with_its_server_however_that_ends(
    number: signal.Signals, fake: FakeMps, folder: Path
) -> None:
    """SIGTERM reaches every process, as systemd sends it: engines and their daemon last until the server has drained."""
    words = [
        "serve",
        "dummy:toy",
        "dummy:toy",
        "--port",
        "0",
        "--memory-gb",
        "0.01",
        "--threads",
        "1",
        "--no-warmup",
    ]
    names = ["--served-model-name", "a", "--served-model-name", "b", "--gpu-share", "60,40"]
    log = folder / "log"
    with log.open("w") as sink:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, *words, *names, "--voices-dir", str(folder)],
            stderr=sink,
            stdout=sink,
        )
    try:
        until(lambda: "Ready." in log.read_text() or server.poll() is not None)
        [(pid, pipe, _)] = fake.daemons
        clients = [variables_of(engine) for engine in engines(server.pid)]
        assert sorted((c[PIPE], c[SHARE]) for c in clients) == [
            (str(pipe), "40"),
            (str(pipe), "60"),
        ]
        if number == signal.SIGTERM:
            watcher = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            for other in (pid, watcher):
                os.kill(other, signal.SIGTERM)
        server.send_signal(number)
        code = server.wait(STUCK_S)
        if number == signal.SIGTERM:
            assert code == 0, log.read_text()
            assert not alive(pid)
        until(lambda: not alive(pid) and not pipe.parent.exists())
        assert "GPU: 2 engines under CUDA MPS" in log.read_text()
    finally:
        server.kill()
        server.wait()
