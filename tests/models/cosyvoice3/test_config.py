"""cosyvoice3.yaml is data: nothing in it is executed, and what says another model is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor.errors import CheckpointError
from stentor.models.cosyvoice3 import checkpoint, config
from tests.helpers.released import released

TEXT_MODEL = released("cosyvoice3", "cosyvoice3").json("CosyVoice-BlankEN/config.json")


def read(tmp_path: Path, text: str) -> dict:
    file = tmp_path / "cosyvoice3.yaml"
    file.write_text(text)
    return checkpoint.read_hyper_yaml(file)


def test_tags_give_their_arguments_and_references_their_values(tmp_path):
    data = read(
        tmp_path,
        """
        rate: 24000
        ratio: 2
        a: !new:os.system
            command: touch made
            rate: !ref <rate>
        b: !apply:os.system [touch made]
        c: !name:some.function
        d: !ref <rate> * <ratio>
        e: !ref <unknown>
        f: [!ref <ratio>, {g: !ref <ratio>}]
        """,
    )
    assert data["a"] == {"command": "touch made", "rate": 24000}
    assert data["b"] == ["touch made"]
    assert (data["d"], data["e"]) == (48000, None)
    assert data["f"] == [2, {"g": 2}]
    assert not Path("made").exists()


@pytest.mark.parametrize("text", ["a: [", "- 1", "a: !!python/object/apply:os.system [ls]"])
def test_what_is_no_mapping_of_data_is_refused(tmp_path, text):
    with pytest.raises(CheckpointError, match=r"cosyvoice3\.yaml"):
        read(tmp_path, text)


def test_aliases_are_not_taken(tmp_path):
    """Twenty levels of nine each would be too many to visit one by one."""
    lines = [
        "a0: &a0 [1]",
        *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 21)),
    ]
    with pytest.raises(CheckpointError, match=r"cosyvoice3.yaml has an alias on line 2"):
        read(tmp_path, "\n".join(lines))


def test_what_is_left_out_has_its_released_value():
    c = config.parse({}, TEXT_MODEL)
    assert (c.language.codes, c.language.ras.top_k, c.flow.dim, c.flow.depth, c.vocoder.base) == (
        6561,
        25,
        1024,
        22,
        512,
    )
    assert c.language.stack.head_dim == 64


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"sample_rate": 22050}, "sample_rate"),
        ({"hift": {"upsample_rates": [8, 8]}}, "hift.upsample_rates"),
        ({"flow": {"decoder": {"estimator": {"heads": 15}}}}, "heads"),
        ({"flow": {"vocab_size": 4096}}, "vocab_size"),
        ({"llm": {"llm_input_size": 1024}}, "llm_input_size"),
        ({"llm": {"speech_token_size": "many"}}, "speech_token_size"),
    ],
)
def test_a_file_of_another_model_is_refused(data, name):
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        config.parse(data, TEXT_MODEL)
