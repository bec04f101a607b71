"""Facts about the machine and its GPUs."""

import stat

from stentor.bench.report.facts import client_facts, gpu_watch, is_local
from tests.helpers.patience import until


def test_the_client_states_its_machine_without_names_of_hosts_or_users():
    facts = client_facts()
    assert facts["cores"] >= 1
    assert facts["packages"]["aiohttp"]
    assert set(facts) == {"platform", "python", "processor", "cores", "memory_gb", "packages"}


def test_only_loopback_addresses_are_this_machine():
    assert is_local("http://127.0.0.1:8000")
    assert is_local("http://[::1]:8000")
    assert not is_local("http://10.0.0.1:8000")


def test_gpu_samples_are_folded_into_ranges_per_gpu(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        "echo '0, NVIDIA H200, 580.1, 143771, 1000, 1980, 3201, 300.5, 40'\n"
        "echo '1, NVIDIA H200, 580.1, 143771, 10, 345, 3201, [N/A], 30'\n"
        "echo '0, NVIDIA H200, 580.1, 143771, 25000, 1755, 3201, 690.0, 61'\n"
        "exec sleep 1000\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with gpu_watch(program=str(program)) as gpus:
        last = {"min": 1000, "max": 25000}  # of the first one's memory, once the last line is there
        assert until(lambda: gpus().get("gpus", [{}])[0].get("memory_used_mib") == last)
        first, second = gpus()["gpus"]
    assert (first["name"], first["driver"], first["memory_total_mib"]) == (
        "NVIDIA H200",
        "580.1",
        143771,
    )
    assert first["memory_used_mib"] == last
    assert first["sm_clock_mhz"] == {"min": 1755, "max": 1980}
    assert "power_w" not in second


def test_no_gpu_program_means_no_gpu_facts():
    with gpu_watch(program="no-such-program") as gpus:
        assert gpus() == {}
    with gpu_watch(local=False) as gpus:
        assert gpus() == {}
