"""Draws of talker and predictor follow the probabilities that the official package's own filters leave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from stentor.kernels.types import RowRef
from stentor.layers.configs import StackConfig
from stentor.layers.rng import uniform
from stentor.models.base import Rows
from stentor.models.dummy import DummyTokenizer, initialize_dummy_weights
from stentor.models.qwen3_tts.builder import make_weights
from stentor.models.qwen3_tts.codec import Decoder
from stentor.models.qwen3_tts.config import Config, parse, read_codec
from stentor.models.qwen3_tts.model import Qwen3TTS
from stentor.models.talker_config import TransformerConfig
from stentor.models.weights import on_meta
from tests.helpers.released import released

SOURCE = released("qwen3_tts", "qwen3-tts-1.7b-voicedesign")
FIXTURE = Path(__file__).parents[2] / "fixtures" / "qwen3_tts" / "sampling.npz"
DRAWS = 8_000
CODES, HIDDEN = 64, 8
SHIFT = 1  # the predictor has the talker's settings of the row after
LEAST_LIKELY = 1e-4  # p-value; the seeds are fixed, so this is not a matter of luck from run to run


class Table(dict[str, Tensor]):
    """Slot-table rows for `emit`."""

    work = 0

    def lookup(self, name: str, index: Tensor) -> Tensor:
        return self[name].gather(1, index[:, None])[:, 0]

    def column(self, name: str) -> RowRef:
        return RowRef(self[name], torch.arange(len(self[name])))

    def recent(self, count: int) -> tuple[Tensor, Tensor]:
        raise AssertionError("not used by this family")


def small_config(eos: int) -> Config:
    stack = StackConfig(HIDDEN, 8, 1, 2, 1, 4, 1e-6, qk_norm=True)
    c = parse(SOURCE.config, SOURCE.name)
    tower = TransformerConfig(stack, CODES + 1024, 1e6, 64)
    return replace(
        c,
        talker=tower,
        predictor=replace(tower, vocab=CODES),
        text_vocab=16,
        text_hidden=8,
        ids=replace(c.ids, eos=eos, tts_pad=1, tts_bos=2, tts_eos=3),
    )


def fixed_model(talker: np.ndarray, predictor: np.ndarray, eos: int) -> Qwen3TTS:
    """A model whose logits are these tables whatever it hears: one-hot states, and blocks that add nothing."""
    c, cpu = small_config(eos), torch.device("cpu")
    weights = make_weights(c, torch.float32, torch.float32)
    initialize_dummy_weights(weights, cpu, 0, constants=SOURCE.constants)
    with torch.no_grad():
        weights.talker.codec_head.weight.zero_()[:, 0] = torch.from_numpy(talker)
        depth = weights.talker.code_predictor
        for block in depth.model.layers:
            block.get_parameter("self_attn.o_proj.weight").zero_()
            block.get_parameter("mlp.down_proj.weight").zero_()
        for table in (weights.talker.model.codec_embedding, *depth.model.codec_embedding):
            table.get_parameter("weight").zero_()[:, 0] = 1.0
        for head in depth.lm_head:  # RMS norm of a one-hot vector is sqrt(HIDDEN) there
            head.get_parameter("weight").zero_()[:, 0] = torch.from_numpy(predictor) / HIDDEN**0.5
    codec = read_codec(SOURCE)
    small = replace(codec.decoder, latent=8, codebook_dim=8, codebook_size=CODES, width=16)
    decoder = on_meta(lambda: Decoder(small), torch.float32)
    initialize_dummy_weights(decoder, cpu, 1, constants=SOURCE.constants)
    decoder.process_weights_after_loading()
    return Qwen3TTS(
        c,
        replace(codec, decoder=small),
        weights,
        decoder,
        None,
        DummyTokenizer(16, {"<|x|>": 0}),
        {},
    )


def rows(settings: list[dict[str, float]], drawn: list[np.ndarray], vocab: int, per: int) -> Rows:
    """`per` rows of each setting, interleaved."""
    seen = torch.zeros(len(settings), vocab, dtype=torch.bool)
    for mask, ids in zip(seen, drawn, strict=True):
        mask[torch.from_numpy(ids)] = True

    def column(name: str, dtype: torch.dtype, shift: int = 0) -> Tensor:
        shifted = settings[shift:] + settings[:shift]
        return torch.tensor([s[name] for s in shifted], dtype=dtype).repeat(per)

    made = Table(
        step=torch.tensor([len(ids) for ids in drawn]).repeat(per),
        min_frames=torch.full((per * len(settings),), 2),
        seen=seen.repeat(per, 1),
        repetition_penalty=column("repetition_penalty", torch.float32),
    )
    for prefix, shift in (("", 0), ("subtalker_", SHIFT)):
        made[f"{prefix}temperature"] = column("temperature", torch.float32, shift)
        made[f"{prefix}top_k"] = column("top_k", torch.int64, shift)
        made[f"{prefix}top_p"] = column("top_p", torch.float32, shift)
    return made


def assert_distributed(draws: Tensor, probabilities: np.ndarray) -> None:
    counts = np.bincount(draws.numpy(), minlength=len(probabilities))
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], probabilities[possible] * len(draws)).pvalue > LEAST_LIKELY


@pytest.fixture(scope="module")
def drawn() -> tuple[Tensor, Tensor, dict[str, np.ndarray], int]:
    """Frames of DRAWS rows of each setting, all settings mixed in every batch."""
    with np.load(FIXTURE) as file:
        want = {name: file[name] for name in file.files}
    settings = json.loads(str(want["settings"]))["settings"]
    count = len(settings)
    eos = int(want["eos"])
    model = fixed_model(want["talker"], want["predictor"], eos)
    histories = [want[f"drawn_{n}"] for n in range(count)]
    frames, stops = [], []
    per = 2000
    with torch.inference_mode():
        table = rows(settings, histories, CODES + 1024, per)
        h = torch.zeros(per * count, HIDDEN)
        h[:, 0] = 1.0
        for start in range(0, DRAWS, per):
            # Rows of one batch are as many utterances: seeds differ, the step is the same.
            seeds = torch.arange(start * count, (start + per) * count)
            out = model.emit((h,), table, uniform(seeds, table["step"], model.spec.draws))
            frames.append(out.frame.view(per, count, 16))
            stops.append(out.stop.view(per, count))
            assert torch.equal(
                out.columns["seen"].sum(-1), (table["seen"].sum(-1) + ~_had(table, out.frame))
            )
    return torch.cat(frames), torch.cat(stops), want, count


def _had(table: Rows, frame: Tensor) -> Tensor:
    return table["seen"].gather(1, frame[:, :1].long())[:, 0]


def test_talker_draws_follow_the_filtered_probabilities(
    drawn: tuple[Tensor, Tensor, dict[str, np.ndarray], int],
) -> None:
    frames, _, want, count = drawn
    assert len(frames) == DRAWS
    for n in range(count):
        assert_distributed(frames[:, n, 0], want[f"talker_{n}"])


def test_predictor_draws_follow_the_filtered_probabilities_in_every_codebook(
    drawn: tuple[Tensor, Tensor, dict[str, np.ndarray], int],
) -> None:
    frames, _, want, count = drawn
    for n in range(count):
        for codebook in range(1, 16):
            assert_distributed(frames[:, n, codebook], want[f"predictor_{(n + SHIFT) % count}"])


def test_codebooks_are_drawn_independently(
    drawn: tuple[Tensor, Tensor, dict[str, np.ndarray], int],
) -> None:
    frames, _, _, count = drawn
    for n in range(count):
        correlation = np.corrcoef(frames[:, n].numpy().T.astype(float)) - np.eye(16)
        assert np.abs(correlation).max() < 5.5 / DRAWS**0.5  # 120 pairs: 5.5 sigma


def test_stop_is_drawing_eos_and_never_comes_before_two_frames(
    drawn: tuple[Tensor, Tensor, dict[str, np.ndarray], int],
) -> None:
    frames, stops, want, count = drawn
    for n in range(count):
        assert torch.equal(stops[:, n], frames[:, n, 0] == int(want["eos"]))
        assert bool(stops[:, n].any()) == (len(want[f"drawn_{n}"]) >= 2)


def test_temperature_zero_takes_the_argmax_everywhere() -> None:
    random = np.random.RandomState(4)
    talker, predictor = random.standard_normal(CODES + 1024), random.standard_normal(CODES)
    model = fixed_model(talker, predictor, eos=70)
    settings = [{"temperature": 0.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}]
    h = torch.zeros(50, HIDDEN)
    h[:, 0] = 1.0
    with torch.inference_mode():
        u = torch.rand(50, 16, generator=torch.Generator().manual_seed(0))
        frames = model.emit(
            (h,), rows(settings, [np.zeros(0, np.int64)], CODES + 1024, 50), u
        ).frame
    assert (frames[:, 0] == talker[:CODES].argmax()).all()
    assert (frames[:, 1:] == predictor.argmax()).all()
