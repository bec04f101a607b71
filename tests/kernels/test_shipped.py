"""Kernels that an image ships reach the caches of the process that needs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stentor.engine.running.device import Device
from stentor.kernels import shipped


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """Caches of Triton and of our compiler, empty, beside a folder of shipped kernels."""
    image = tmp_path / "image"
    (image / "triton" / "HASH").mkdir(parents=True)
    (image / "triton" / "HASH" / "kernel.cubin").write_bytes(b"triton")
    (image / "stentor" / "cubins").mkdir(parents=True)
    (image / "stentor" / "cubins" / "one.cubin").write_bytes(b"shipped")
    monkeypatch.setenv("STENTOR_KERNELS", str(image))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setattr(shipped, "CACHE", tmp_path / "cubins")
    return tmp_path / "triton", tmp_path / "cubins"


def test_a_gpu_finds_shipped_kernels_and_a_cpu_copies_none(caches: tuple[Path, Path]) -> None:
    triton, cubins = caches
    cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cuda.cudnn_sdp_enabled()
    Device("cpu")
    assert not triton.exists()
    try:
        Device("cuda:0")
    finally:
        torch.backends.cudnn.allow_tf32 = cudnn[0]
        torch.backends.cuda.enable_cudnn_sdp(cudnn[1])
    assert (triton / "HASH" / "kernel.cubin").read_bytes() == b"triton"
    assert [file.name for file in cubins.iterdir()] == ["one.cubin"]


def test_kernels_of_the_cache_stay(caches: tuple[Path, Path]) -> None:
    triton, cubins = caches
    cubins.mkdir()
    (cubins / "one.cubin").write_bytes(b"newer")
    for _ in range(2):
        shipped.install_shipped_kernels()
    assert (cubins / "one.cubin").read_bytes() == b"newer"
    assert [folder.name for folder in triton.iterdir()] == ["HASH"]


def test_triton_finds_a_kernel_whose_first_folder_is_gone(
    caches: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = pytest.importorskip("triton.runtime.cache")
    triton, _ = caches
    compiled = tmp_path / "compiled"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(compiled))
    files = cache.FileCacheManager("KEY")
    paths = {name: files.put(name, name) for name in ("add.json", "add.cubin")}
    files.put_group("add.json", paths)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(triton))
    moved = tmp_path / "moved"
    moved.mkdir()
    compiled.rename(moved / "triton")
    monkeypatch.setenv("STENTOR_KERNELS", str(moved))
    shipped.install_shipped_kernels()
    group = cache.FileCacheManager("KEY").get_group("add.json")
    assert group.keys() == paths.keys()
    for name, path in group.items():
        assert Path(path).read_text() == name
        assert Path(path).is_relative_to(triton)


@pytest.mark.parametrize("image", ["", "nowhere"])
def test_without_shipped_kernels_caches_are_left_alone(
    image: str, caches: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STENTOR_KERNELS", image)
    shipped.install_shipped_kernels()
    assert not any(cache.exists() for cache in caches)


def test_a_cache_that_cannot_be_written_costs_nothing(
    caches: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    triton, cubins = caches
    triton.write_text("a file where the folder would be")
    shipped.install_shipped_kernels()
    assert [file.name for file in cubins.iterdir()] == ["one.cubin"]
