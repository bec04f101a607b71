"""The models' pages follow one template and name every option."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from stentor.models.codec_timing import CAUSAL
from stentor.models.cosyvoice3 import builder as cosy_builder
from stentor.models.cosyvoice3 import config as cosy_config
from stentor.models.cosyvoice3 import spec as cosy_spec
from stentor.models.fish_s2 import builder as fish_builder
from stentor.models.fish_s2 import codec as fish_codec
from stentor.models.fish_s2 import config as fish_config
from stentor.models.fish_s2 import spec as fish_spec
from stentor.models.info import Option
from stentor.models.qwen3_omni_talker import builder as omni_builder
from stentor.models.qwen3_omni_talker import config as omni_config
from stentor.models.qwen3_omni_talker import spec as omni_spec
from stentor.models.qwen3_tts import builder as qwen_builder
from stentor.models.qwen3_tts import config as qwen_config
from stentor.models.qwen3_tts import spec as qwen_spec
from stentor.models.voxcpm2 import builder as vox_builder
from stentor.models.voxcpm2 import config as vox_config
from stentor.models.voxcpm2 import spec as vox_spec
from tests.helpers.released import released

PAGES = Path(__file__).parents[2] / "docs" / "models"
TEMPLATE = [
    "Hardware and speed",
    "Memory",
    "Use",
    "Options",
    "Differences",
    "Facts of the architecture",
]
LAST = "How it was checked"


def fish_s2() -> Mapping[str, Option]:
    c = fish_config.parse(released("fish_s2", "fish-s2-pro").config)
    return fish_spec.make_spec(c, fish_codec.RELEASED.hop, torch.float32, {}).options


def qwen3_tts() -> Mapping[str, Option]:
    source = released("qwen3_tts", "qwen3-tts-1.7b-customvoice")
    c, codec = qwen_config.parse(source.config, source.name), qwen_config.read_codec(source)
    return qwen_spec.make_spec(c, codec, source.json(qwen_spec.GENERATION), torch.float32).options


def qwen3_omni() -> Mapping[str, Option]:
    source = released("qwen3_omni_talker", "qwen3-omni-talker")
    return omni_spec.make_spec(
        omni_config.parse(source.config, source.name), {}, torch.float32
    ).options


def voxcpm2() -> Mapping[str, Option]:
    c = vox_config.parse(released("voxcpm2", "voxcpm2").config)
    return vox_spec.make_spec(c, torch.float32, {}).options


def cosyvoice3() -> Mapping[str, Option]:
    text_model = released("cosyvoice3", "cosyvoice3").json("CosyVoice-BlankEN/config.json")
    return cosy_spec.make_spec(
        cosy_config.parse({}, text_model), (), torch.float32, True, CAUSAL
    ).options


FAMILIES = {
    "cosyvoice3": (cosyvoice3, cosy_builder),
    "fish_s2": (fish_s2, fish_builder),
    "qwen3_omni": (qwen3_omni, omni_builder),
    "qwen3_tts": (qwen3_tts, qwen_builder),
    "voxcpm2": (voxcpm2, vox_builder),
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
    # the voice is a small model of another page's shape
    wanted = TEMPLATE[:-1] if name == "voice" else TEMPLATE
    assert found == [*wanted, LAST]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_page_has_a_row_for_every_request_option_with_its_default_and_range(name: str):
    lines = re.findall(r"^\|.*\|$", sections(PAGES / f"{name}.md")["Options"], re.MULTILINE)
    cells = [line.split("|")[1:4] for line in lines]
    rows = {
        option: (default, low_high)
        for first, default, low_high in cells
        for option in re.findall(r"`(\w+)`", first)
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
    builder = FAMILIES[name][1]
    assert [o for o in (*builder.LOAD_OPTIONS, *builder.FILE_OPTIONS) if f"`{o}`" not in text] == []
