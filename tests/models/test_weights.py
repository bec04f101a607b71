"""Checkpoints that are not what they should be are refused with the name of what is wrong."""

import gc
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from stentor.errors import CheckpointError
from stentor.models import weights

CPU = torch.device("cpu")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Module()
        self.attn.qkv_proj = nn.Linear(4, 8, bias=False)
        self.norm = nn.Linear(4, 2)


def parts() -> dict[str, torch.Tensor]:
    return {
        "attn.q_proj.weight": torch.randn(4, 4),
        "attn.k_proj.weight": torch.randn(2, 4),
        "attn.v_proj.weight": torch.randn(2, 4),
        "norm.weight": torch.randn(2, 4),
        "norm.bias": torch.randn(2),
    }


def test_projections_are_fused_in_order():
    tensors, module = parts(), Small()
    weights.load_weights(module, tensors, "test", CPU)
    expected = torch.cat([tensors[f"attn.{p}_proj.weight"] for p in "qkv"])
    torch.testing.assert_close(module.attn.qkv_proj.weight.data, expected)


def test_a_module_on_the_meta_device_is_filled():
    with torch.device("meta"):
        module = Small()
    weights.load_weights(module, parts(), "test", CPU)
    assert module.norm.weight.device == CPU


def test_a_missing_tensor_is_named():
    tensors = parts()
    del tensors["attn.k_proj.weight"]
    with pytest.raises(CheckpointError, match=r"model: tensor attn\.k_proj\.weight is missing"):
        weights.load_weights(Small(), tensors, "model", CPU)


def test_an_extra_tensor_is_named_unless_it_is_expected():
    tensors = {**parts(), "old.thing": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"old\.thing is not part"):
        weights.load_weights(Small(), tensors, "model", CPU)
    weights.load_weights(Small(), tensors, "model", CPU, ignore=("old.",))


def test_a_wrong_shape_is_named_with_both_shapes():
    tensors = {**parts(), "norm.bias": torch.zeros(3)}
    with pytest.raises(
        CheckpointError, match=r"norm\.bias has shape \[3\], config\.json asks for \[2\]"
    ):
        weights.load_weights(Small(), tensors, "model", CPU)


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(2, 5), torch.zeros(()), torch.zeros(2, 4).to(torch.float8_e4m3fn)],
    ids=lambda t: str(t.dtype),
)
def test_parts_that_cannot_be_stacked_are_named(wrong: torch.Tensor) -> None:
    kind = re.escape(f"attn.k_proj.weight {list(wrong.shape)} of {wrong.dtype}")
    with pytest.raises(CheckpointError, match=rf"model: .*{kind}.* cannot be stacked"):
        weights.load_weights(Small(), {**parts(), "attn.k_proj.weight": wrong}, "model", CPU)


def test_a_truncated_file_is_named(tmp_path: Path):
    file = tmp_path / "model.safetensors"
    save_file(parts(), file)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        weights.read_safetensors(file)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        weights.read_safetensors(file)


def test_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = {
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 3),
        "odd": torch.tensor(
            [True, False, True]
        ),  # what follows does not begin at a multiple of its size
        "half": torch.randn(2, 3).bfloat16(),
        "eight": torch.randn(3).to(torch.float8_e4m3fn),
        "wide": torch.randn(2, 2, dtype=torch.float64),
        "whole": torch.arange(5, dtype=torch.int8),
    }
    save_file(written, tmp_path / "model.safetensors")
    read = weights.read_safetensors(tmp_path / "model.safetensors")
    assert set(read) == set(written)
    for name, tensor in written.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        torch.testing.assert_close(read[name], tensor, rtol=0, atol=0)


def test_a_dtype_that_is_not_known_is_named(tmp_path: Path) -> None:
    save_file({"norm.bias": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"tensor norm\.bias has dtype C64; known: F64, F32"):
        weights.read_safetensors(tmp_path / "model.safetensors")


def test_reading_a_file_again_and_again_leaves_nothing_behind(tmp_path: Path) -> None:
    """The library's own reader left two blocks of memory for each tensor, 4,000 here."""
    save_file({f"layer.{i}": torch.zeros(300) for i in range(200)}, tmp_path / "model.safetensors")
    held = []
    for times in (2, 10):
        for _ in range(times):
            weights.read_safetensors(tmp_path / "model.safetensors")
        gc.collect()
        held.append(sys.getallocatedblocks())
    assert held[1] - held[0] < 1000


def test_a_missing_shard_is_named(tmp_path: Path):
    index = {
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    save_file({"a": torch.zeros(1)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors does not exist"):
        weights.read_sharded(tmp_path)


def test_an_index_that_names_no_files_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "x", "b": 0}})
    )
    with pytest.raises(CheckpointError, match="has no weight_map of file names"):
        weights.read_sharded(tmp_path)


def test_a_shard_outside_the_directory_is_refused(tmp_path: Path):
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../secret.safetensors"}})
    )
    with pytest.raises(CheckpointError, match="outside the model directory"):
        weights.read_sharded(tmp_path)


def test_a_pickle_with_code_in_it_is_refused(tmp_path: Path):
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return print, ("run",)

    torch.save({"state_dict": Evil()}, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match="not a plain tensor file"):
        weights.read_pickle(tmp_path / "x.pth")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([torch.zeros(1)], "got list"),
        ({"a": torch.zeros(1), "epoch": 3}, "'epoch' is of type int"),
        ({"state_dict": {"a": torch.zeros(1), 7: torch.zeros(1)}}, "7 is of type Tensor"),
        ({"model": {"a": torch.zeros(1)}}, "'model' is of type dict"),
    ],
)
def test_a_pickle_of_something_else_than_tensors_is_refused(
    data: object, message: str, tmp_path: Path
) -> None:
    torch.save(data, tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=rf"x\.pth must hold a dict of tensors.* {message}"):
        weights.read_pickle(tmp_path / "x.pth")


def test_weight_norm_folds_to_what_torch_computes():
    conv = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 5, 4))
    g, v = conv.parametrizations.weight.original0, conv.parametrizations.weight.original1
    folded = weights.fold_weight_norm(
        {"c.weight_g": g.data, "c.weight_v": v.data, "c.bias": conv.bias.data}
    )
    torch.testing.assert_close(folded["c.weight"], conv.weight.data)
    assert set(folded) == {"c.weight", "c.bias"}


def test_a_weight_norm_of_integers_needs_no_scale():
    v = torch.randint(
        -127, 128, (5, 3, 4), dtype=torch.int8, generator=torch.Generator().manual_seed(0)
    )
    g = torch.rand(5, 1, 1).half()
    folded = weights.fold_weight_norm({"c.weight_g": g, "c.weight_v": v})["c.weight"]
    assert folded.dtype == torch.float16
    wide = v.float()
    torch.testing.assert_close(
        folded, (g * wide / wide.flatten(1).norm(dim=1).view(-1, 1, 1)).half()
    )


@pytest.mark.parametrize("shape", [(), (5,), (1, 1, 1), (5, 1), (3, 1, 1)])
def test_a_weight_norm_that_does_not_fit_is_named_with_its_file(shape: tuple[int, ...]):
    tensors = {"c.weight_g": torch.ones(shape), "c.weight_v": torch.ones(5, 3, 4)}
    message = f"x.pth: tensors c.weight_g {list(shape)} and c.weight_v [5, 3, 4] are no weight norm"
    with pytest.raises(CheckpointError, match=re.escape(message)), weights.errors_name("x.pth"):
        weights.fold_weight_norm(tensors)


@pytest.mark.parametrize("kept", ["c.weight_g", "c.weight_v"])
def test_half_a_weight_norm_is_named(kept: str):
    with pytest.raises(CheckpointError, match=r"c\.weight_[gv] is missing"):
        weights.fold_weight_norm({kept: torch.ones(2, 2, 2)})
