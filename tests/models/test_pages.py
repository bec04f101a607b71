"""The models' pages follow one template and name every option."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from stentor.models.codec_timing import CAUSAL
from stentor.models.cosyvoice3 import config as cosy_config
from stentor.models.cosyvoice3 import dummy as cosy_dummy
from stentor.models.cosyvoice3 import loader as cosy_loader
from stentor.models.cosyvoice3 import spec as cosy_spec
from stentor.models.fish_s2 import config as fish_config
from stentor.models.fish_s2 import dummy as fish_dummy
from stentor.models.fish_s2 import loader as fish_loader
from stentor.models.fish_s2 import spec as fish_spec
from stentor.models.info import Option
from stentor.models.qwen3_omni_talker import dummy as omni_dummy
from stentor.models.qwen3_omni_talker import loader as omni_loader
from stentor.models.qwen3_omni_talker import spec as omni_spec
from stentor.models.qwen3_tts import dummy as qwen_dummy
from stentor.models.qwen3_tts import loader as qwen_loader
from stentor.models.qwen3_tts import spec as qwen_spec
from stentor.models.voxcpm2 import config as vox_config
from stentor.models.voxcpm2 import dummy as vox_dummy
from stentor.models.voxcpm2 import loader as vox_loader
from stentor.models.voxcpm2 import spec as vox_spec

PAGES = Path(__file__).parents[2] / "docs" / "models"
TEMPLATE = ["Hardware and speed", "Memory", "Use", "Options", "Differences", "Facts of the architecture"]
LAST = "How it was checked"


def fish_s2() -> Mapping[str, Option]:
    c = fish_config.parse(fish_dummy.RELEASED)
    return fish_spec.make_spec(c, fish_dummy.RELEASED_CODEC.hop, torch.float32, {}).options


def qwen3_tts() -> Mapping[str, Option]:
    name = "qwen3-tts-1.7b-customvoice"
    return qwen_spec.make_spec(
        qwen_dummy.config(name), qwen_dummy.codec_config(), qwen_dummy.GENERATION, torch.float32
    ).options


def qwen3_omni() -> Mapping[str, Option]:
    return omni_spec.make_spec(omni_dummy.config(), {}, torch.float32).options


def voxcpm2() -> Mapping[str, Option]:
    return vox_spec.make_spec(vox_config.parse(vox_dummy.RELEASED), torch.float32, {}).options


def cosyvoice3() -> Mapping[str, Option]:
    return cosy_spec.make_spec(cosy_config.parse({}, cosy_dummy.TEXT_MODEL), (), torch.float32, True, CAUSAL).options


FAMILIES = {
    "cosyvoice3": (cosyvoice3, cosy_loader),
    "fish_s2": (fish_s2, fish_loader),
    "qwen3_omni": (qwen3_omni, omni_loader),
    "qwen3_tts": (qwen3_tts, qwen_loader),
    "voxcpm2": (voxcpm2, vox_loader),
}


def sections(page: Path) -> dict[str, str]:
    """Text below each heading of the second level."""
    parts = re.split(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def numbers(cell: str) -> list[float]:
    return [float(n) for n in re.findall(r"\d+(?:\.\d+)?", cell.replace(",", ""))]


@pytest.mark.parametrize("name", [*FAMILIES, "voice"])
def test_a_page_has_the_sections_of_the_template_in_their_order(name: str):
    found = list(sections(PAGES / f"{name}.md"))
    wanted = TEMPLATE[:-1] if name == "voice" else TEMPLATE  # the voice is a small model of another page's shape
    assert found == [*wanted, LAST]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_page_has_a_row_for_every_request_option_with_its_default_and_range(name: str):
    lines = re.findall(r"^\|.*\|$", sections(PAGES / f"{name}.md")["Options"], re.MULTILINE)
    cells = [line.split("|")[1:4] for line in lines]
    rows = {
        option: (default, low_high) for first, default, low_high in cells for option in re.findall(r"`(\w+)`", first)
    }
    for option, facts in FAMILIES[name][0]().items():
        assert option in rows
        default, low_high = (numbers(cell) for cell in rows[option])
        if facts.kind is bool:
            continue
        if "as above" not in rows[option][1]:
            assert low_high == [facts.low, facts.high], option
        if facts.default is not None:
            assert facts.default in default, option


@pytest.mark.parametrize("name", FAMILIES)
def test_a_page_names_every_load_option(name: str):
    text = sections(PAGES / f"{name}.md")["Options"]
    assert [o for o in FAMILIES[name][1].LOAD_OPTIONS if f"`{o}`" not in text] == []
