"""Jobs that tools/gpu_jobs.py starts and leaves out, and that nothing waits for what cannot come."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "gpu_jobs.py"


def job(name: str, command: str, **more: object) -> str:
    fields = {"seconds": 60.0, "decides": "d", "predicted": "p"} | more
    return f'[[job]]\nname = "{name}"\ncommand = """{command}"""\n' + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in fields.items()
    )


def run(
    folder: Path, *jobs: str, imports: tuple[str, ...] = (), more: tuple[str, ...] = ()
) -> tuple[int, dict, str]:
    """Exit status, verdicts by name, and the output of a run whose results lie in folder/out."""
    file = folder / "jobs.toml"
    file.write_text(f"imports = {json.dumps(list(imports))}\n" + "".join(jobs))
    command = [sys.executable, str(SCRIPT), str(file), "--out", str(folder / "out"), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    kept = folder / "out" / "jobs.json"
    verdicts = (
        {o["name"]: o["verdict"] for o in json.loads(kept.read_text())} if kept.exists() else {}
    )
    return done.returncode, verdicts, done.stdout + done.stderr


def test_a_job_whose_need_failed_is_not_run_and_others_are(tmp_path: Path) -> None:
    jobs = [
        job("first", "echo broken; false"),
        job("second", "touch {out}/ran", needs=["first"], gpu=1),
        job("third", "echo fine", gpu=1),
    ]
    code, verdicts, output = run(tmp_path, *jobs, more=("--gpus", "2"))
    assert code == 0
    assert verdicts == {
        "first": "FAILED (1)",
        "second": "not run: first has not passed",
        "third": "passed",
    }
    assert not (tmp_path / "out" / "second").exists()
    assert "first: broken" in output


def test_a_job_waits_for_its_need_on_another_gpu(tmp_path: Path) -> None:
    jobs = [
        job("slow", "sleep 0.3; touch {out}/made"),
        job("reader", "ls {out}/../slow/made", needs=["slow"], gpu=1),
    ]
    assert run(tmp_path, *jobs, more=("--gpus", "2"))[1] == {"slow": "passed", "reader": "passed"}


def test_each_job_sees_its_gpu_and_fewer_gpus_share_them(tmp_path: Path) -> None:
    jobs = [job(f"g{n}", "echo gpu=$CUDA_VISIBLE_DEVICES", gpu=n) for n in (0, 1)]
    for gpus, seen in (("2", ["0", "1"]), ("1", ["0", "0"])):
        folder = tmp_path / gpus
        folder.mkdir()
        assert re.findall(r"gpu=(\d)", run(folder, *jobs, more=("--gpus", gpus))[2]) == seen


def test_what_a_job_leaves_running_is_killed_when_its_time_is_over(tmp_path: Path) -> None:
    command = "sleep 1000 & echo $! > {out}/pid; wait"
    assert run(tmp_path, job("stuck", command, seconds=0.5))[1] == {"stuck": "out of time"}
    pid = int((tmp_path / "out" / "stuck" / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    # nobody has read its status yet
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_job_that_would_not_end_in_time_is_not_begun(tmp_path: Path) -> None:
    jobs = [job("long", "touch {out}/ran", seconds=50.0), job("short", "true", seconds=5.0)]
    verdicts = run(tmp_path, *jobs, more=("--seconds", "20"))[1]
    assert verdicts["long"].startswith("not run: ")
    assert verdicts["short"] == "passed"


def test_a_second_call_goes_on_and_packs_the_results_of_both(tmp_path: Path) -> None:
    jobs = [
        job("one", "echo run >> {out}/times"),
        job("two", "echo run >> {out}/times", seconds=50.0),
    ]
    run(tmp_path, *jobs, more=("--seconds", "55", "--only", "one"))
    pack = tmp_path / "all.tar.gz"
    assert run(tmp_path, *jobs, more=("--pack", str(pack)))[1] == {"one": "passed", "two": "passed"}
    assert (tmp_path / "out" / "one" / "times").read_text() == "run\n"
    with tarfile.open(pack) as tar:
        assert {"./one/times", "./two/log.txt", "./jobs.json"} <= set(tar.getnames())


def test_nothing_starts_where_a_module_is_missing(tmp_path: Path) -> None:
    code, verdicts, output = run(tmp_path, job("any", "true"), imports=("json", "no_such_module"))
    assert code == 1
    assert verdicts == {}
    assert "no_such_module" in output
    assert "json:" not in output


def test_a_name_that_no_job_has_is_refused(tmp_path: Path) -> None:
    code, _, output = run(tmp_path, job("any", "true"), more=("--only", "other"))
    assert code == 2
    assert "no job is named other; there are any" in output


@pytest.mark.parametrize("file", ["tools/gpu_jobs.toml", "tools/training_jobs.toml"])
def test_the_jobs_of_the_project_name_programs_that_exist(file: str) -> None:
    spec = importlib.util.spec_from_file_location("gpu_jobs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    _, jobs = module.read(ROOT / file)
    for each in jobs:
        programs = re.findall(r"(?:benchmarks|tests|tools)/[\w/]+\.py", each.command)
        programs += [
            f"{name.replace('.', '/')}.py"
            for name in re.findall(r"-m (training\.\w+)", each.command)
        ]
        assert programs, each.name
        assert all((ROOT / program).exists() for program in programs), each.name
