"""Qwen3-Omni's talker equals the official modules on a tiny checkpoint (tests/fixtures/qwen3_omni), in every mode."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from stentor import TTS, CheckpointError, InvalidRequest, Speech
from stentor.config import Policy
from stentor.layers.quantized import dequantize, quantize
from stentor.layers.types import State
from stentor.models import hub
from stentor.models.base import PromptRows
from stentor.models.frame_prompt import TEXT_CAPACITY
from stentor.models.qwen3_omni_talker.config import parse
from stentor.models.weights import read_sharded
from tests.fixtures.qwen3_omni import tiny_qwen3_omni as tiny
from tests.helpers import peft
from tests.helpers.released import released
from tests.helpers.stepped_engine import read_at_once

E = tiny.expected()
CASES = list(tiny.CASES)
ROWS = [name for name in CASES if f"{name}.prompt" in E]
AUDIO = 1e-3
SHARED = Policy(min_cached_tokens=4, min_cached_voice_tokens=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("qwen3_omni"))


def opened(folder: Path, **options: Any) -> TTS:
    tts = TTS(
        folder, device="cpu", **{"dtype": "float32", "max_num_seqs": 8, "threads": 1, **options}
    )
    tiny.give_official_uniforms(tts)
    return tts


@pytest.fixture(scope="module")
def tts(folder: Path) -> Iterator[TTS]:
    with opened(folder) as made:
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A copy of the checkpoint's small files, to be changed."""
    made = tiny.checkpoint(tmp_path / "made")
    for file in made.iterdir():
        if file.suffix in (".json", ".txt"):
            shutil.copy(file, tmp_path)
    return tmp_path


def samples_of(frames: int, spec: Any) -> int:
    return frames * spec.hop - spec.codec_skip if frames else 0


def check(name: str, speech: Speech, tts: TTS) -> None:
    codes = E[f"{name}.codes"]
    assert speech.frames.tolist() == codes.tolist(), name
    assert speech.finish_reason == (
        "stop" if len(codes) < tiny.CASES[name]["kw"]["max_new_tokens"] - 1 else "length"
    )
    assert len(speech.samples) == samples_of(len(codes), tts.spec)
    if f"{name}.audio" in E:
        want = E[f"{name}.audio"]
        assert np.abs(speech.samples[:: tiny.EVERY] - want).max() <= AUDIO * np.abs(want).max(), (
            name
        )


def submit(tts: TTS, name: str, streaming: bool = False) -> Any:
    case = tiny.CASES[name]
    return tts.submit(tts.request(case["text"], **tiny.arguments(case)), streaming)


def spoken(tts: TTS, name: str) -> Speech:
    stream = submit(tts, name)
    return tts.speech(list(stream), stream.seed)


# -- every mode --


@pytest.mark.parametrize("name", CASES)
def test_a_request_alone_equals_the_official_modules(name: str, tts: TTS) -> None:
    check(name, spoken(tts, name), tts)


def test_requests_batched_with_strangers_equal_the_official_modules(tts: TTS) -> None:
    strangers = [
        tts.request(f"Stranger {i} speaks.", voice="aiden", seed=90 + i, max_frames=4 + i)
        for i in range(4)
    ]
    others = [tts.submit(request, i % 2 == 0) for i, request in enumerate(strangers)]
    streams = {name: submit(tts, name, streaming=i % 3 == 0) for i, name in enumerate(CASES)}
    for name, stream in streams.items():
        check(name, tts.speech(list(stream), stream.seed), tts)
    assert all(list(stream) for stream in others)


@pytest.mark.parametrize("name", ["greedy_strong_penalty_voice", "sampled_defaults"])
def test_streamed_chunks_joined_equal_the_official_modules(name: str, tts: TTS) -> None:
    stream = submit(tts, name, streaming=True)
    parts = list(stream)
    assert len(parts) > 2
    assert len(parts[0].samples) == samples_of(len(parts[0].frames), tts.spec)
    assert [len(p.samples) for p in parts[1:]] == [len(p.frames) * tts.spec.hop for p in parts[1:]]
    check(name, tts.speech(parts, stream.seed), tts)


def test_preempted_requests_equal_the_official_modules(folder: Path) -> None:
    names = ["greedy_penalty", "greedy_strong_penalty_voice", "sampled_defaults", "batch.0"]
    policy = Policy(reserve_tokens=1, prefix_cache=False, max_prefill_delay=0)
    with opened(folder, page_size=4, memory_gb=0.05, policy=policy) as poor:
        pool = poor.engine.scheduler.pages
        lengths = [
            poor.prompt(poor.request("Hello", **tiny.arguments(tiny.CASES[n]))).length
            for n in names
        ]
        most = max(length + len(E[f"{n}.codes"]) for length, n in zip(lengths, names, strict=True))
        pool.allocate(pool.available - pool.pages_for(most) - 8)  # nobody frees these
        with read_at_once(poor):
            streams = [(name, submit(poor, name)) for name in names]
        for name, stream in streams:
            check(name, poor.speech(list(stream), stream.seed), poor)
        assert poor.engine.health().preemptions > 0


def test_a_prompt_in_pages_of_another_request_equals_the_official_modules(folder: Path) -> None:
    with opened(folder, page_size=4, policy=SHARED) as shared:
        for name in ("greedy_penalty", "long_text", "greedy_penalty"):
            check(name, spoken(shared, name), shared)
        turn = len(tiny.CASES["long_text"]["prompt_ids"])  # which both have in common, and the role
        assert shared.engine.health().stats.cached_tokens >= 2 * (turn // 4 * 4)


def test_weights_in_8_bits_speak_as_the_weights_that_they_stand_for(
    own: Path, folder: Path
) -> None:
    tensors = read_sharded(folder)
    ends = (
        ".gate_proj.weight",
        ".up_proj.weight",
        ".down_proj.weight",
        *(f"{p}_proj.weight" for p in "qkvo"),
    )
    for name, value in tensors.items():
        if name.startswith("talker.") and ".layers." in name and name.endswith(ends):
            tensors[name] = dequantize(*quantize(value, torch.int8), torch.float64)
    tiny.save(tensors, own)
    names = ["greedy_penalty", "sampled_defaults"]
    with (
        opened(folder, dtype="float64", quantization="int8") as eight,
        opened(own, dtype="float64") as wide,
    ):
        for name in names:
            one, other = spoken(eight, name), spoken(wide, name)
            assert one.frames.tolist() == other.frames.tolist()
            np.testing.assert_allclose(one.samples, other.samples, atol=1e-5)
        experts = eight._model._stack.layers[0].mlp  # type: ignore[attr-defined]
        assert experts.experts.down_proj.weight.dtype == torch.int8
        assert experts.gate.weight.dtype == torch.float64


def test_the_same_request_gives_the_same_bytes(tts: TTS) -> None:
    first, second = (spoken(tts, "sampled_tight") for _ in range(2))
    assert first.samples.tobytes() == second.samples.tobytes()


def test_adapters_of_a_request_change_what_every_token_takes_and_merged_ones_the_experts_too(
    own: Path, folder: Path
) -> None:
    before, targets = "talker.model.layers.1.mlp.", ("gate_proj", "up_proj", "down_proj")
    every = peft.weights(folder, targets, before, 3, seed=1)
    shared = {n: w for n, w in every.items() if "shared_expert" in n}
    some = peft.store(own / "some", shared, r=3, lora_alpha=6, target_modules=list(targets))
    all_of_them = peft.store(own / "all", every, r=3, lora_alpha=6, target_modules=list(targets))
    arguments = {**tiny.arguments(tiny.CASES["greedy_penalty"]), "ignore_eos": True}
    with opened(folder, lora=some) as merged, opened(folder, lora=all_of_them) as wide:
        want, other = (tts.generate("Hello world!", **arguments).frames for tts in (merged, wide))
    with opened(folder, loras={"a": some}) as tts:
        assert tts.generate("Hello world!", lora="a", **arguments).frames.tolist() == want.tolist()
        plain = tts.generate("Hello world!", **arguments).frames.tolist()
        with pytest.raises(
            CheckpointError,
            match=r"mlp\.experts\.\d+\.\w+_proj.* belongs to no layer that takes adapters",
        ):
            tts.load_lora("b", all_of_them)
    assert plain != want.tolist() != other.tolist() != plain


# -- rows and states --


def prompt_rows(tts: TTS, name: str) -> tuple[torch.Tensor, Any]:
    case = tiny.CASES[name]
    prompt = tts.prompt(tts.request(case["text"], **tiny.arguments(case)))
    rows = {n: torch.as_tensor(np.asarray(v)) for n, v in prompt.rows.items()}
    none = (
        torch.zeros(0, len(E[f"{name}.codes"][0]), dtype=torch.int32),
        torch.zeros(0, dtype=torch.int64),
    )
    return tts._model.embed_prompt(PromptRows(rows, *none), None)[0], prompt


@pytest.mark.parametrize("name", ROWS)
@torch.inference_mode()
def test_prompt_and_trailing_rows_equal_the_official_ones(name: str, tts: TTS) -> None:
    rows, prompt = prompt_rows(tts, name)
    np.testing.assert_allclose(rows.numpy(), E[f"{name}.prompt"], atol=1e-5)
    texts = tts._model._tables.text  # type: ignore[attr-defined]
    np.testing.assert_allclose(
        texts[prompt.columns["text"]].numpy(), E[f"{name}.trailing"], atol=1e-5
    )


@pytest.mark.parametrize("name", ROWS)
def test_states_of_prompt_and_frames_equal_the_official_ones(name: str, tts: TTS) -> None:
    """The state that draws frame 0, and those of all later steps: after the final norm."""
    states: list[torch.Tensor] = []
    model: Any = tts._model
    emit = model.emit
    model.emit = lambda h, rows, u: (states.append(h[0][0].clone()), emit(h, rows, u))[1]
    try:
        spoken(tts, name)
    finally:
        model.emit = emit
    length = len(E[f"{name}.prompt"])
    want = E[f"{name}.hidden"][length - 1 :]
    np.testing.assert_allclose(
        torch.stack(states[: len(want)]).numpy(), want[: len(states)], atol=2e-4
    )
    assert len(states) >= len(E[f"{name}.codes"])


# -- live text --


@pytest.mark.parametrize("name", ["long_text", "sampled_defaults", "greedy_penalty"])
def test_text_that_arrives_letter_by_letter_is_spoken_the_same(name: str, tts: TTS) -> None:
    case = tiny.CASES[name]
    text = case["text"]
    stream = tts.submit(tts.request(text[:6], live=True, **tiny.arguments(case)), True)
    for letter in text[6:]:
        stream.append(letter)
    stream.append("", last=True)
    check(name, tts.speech(list(stream), stream.seed), tts)


def test_a_row_waits_for_text_and_hears_no_padding_before_the_end(tts: TTS) -> None:
    case = tiny.CASES["long_text"]
    prompt = tts.prompt(tts.request(case["text"][:20], live=True, **tiny.arguments(case)))
    assert prompt.live is not None
    known = [*prompt.columns["text"], *prompt.live.more(case["text"][20:], True)]
    assert known == [*case["text_ids"][1:], end_of_text(tts)]


def end_of_text(tts: TTS) -> int:
    found: int = tts.prompt(tts.request("a", temperature=0.0)).columns["text"][-1]
    return found


# -- traps --


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_row_of_a_batch_is_what_it_is_alone_and_not_what_the_official_batch_gives(
    row: int, tts: TTS
) -> None:
    streams = [submit(tts, f"batch.{i}") for i in range(3)]
    made = [tts.speech(list(stream), 0).frames for stream in streams]
    assert made[row].tolist() == E[f"batch.{row}.codes"].tolist()
    official = [E[f"batch.{i}.official_batch_codes"].tolist() for i in range(3)]
    assert official != [
        frames.tolist() for frames in made
    ]  # padding before the end, and draws without a penalty


def test_an_end_drawn_first_gives_a_frame(folder: Path) -> None:
    with opened(folder) as tts:
        model: Any = tts._model
        name = ROWS[0]
        state = torch.from_numpy(E[f"{name}.hidden"][len(E[f"{name}.prompt"]) - 1])
        model._head.weight.data[model._eos] = 9 * state  # the likeliest by far
        case = tiny.CASES[name]
        made = tts.generate(case["text"], **tiny.arguments(case))
        assert len(made.frames) >= 1
        assert len(tts.generate(case["text"], **tiny.arguments(case), min_frames=0).frames) == 0


def test_text_without_a_token_is_refused(tts: TTS) -> None:
    with pytest.raises(InvalidRequest, match="text"):
        tts.request("")


@pytest.mark.parametrize("name", CASES)
def test_every_text_token_is_heard_and_then_the_end(name: str, tts: TTS) -> None:
    """The official thinker with a limit of tokens leaves out the last one."""
    case = tiny.CASES[name]
    prompt = tts.prompt(tts.request(case["text"], **tiny.arguments(case)))
    assert prompt.rows["text"][-1] == case["text_ids"][0]
    assert prompt.columns["text"].tolist() == [*case["text_ids"][1:], end_of_text(tts)]
    assert prompt.streamed_text_tokens == len(case["text_ids"])


def test_after_the_text_all_rows_are_padding(tts: TTS, folder: Path) -> None:
    column = tts.spec.columns["text"]
    assert column.shape == (TEXT_CAPACITY,)
    assert column.fill == json.loads((folder / "config.json").read_text())["tts_pad_token_id"]


def test_a_leading_newline_is_the_texts_own(tts: TTS) -> None:
    """Read with the role, it would join the role's newline."""
    rows = [
        tts.prompt(tts.request(text, voice="Ethan", temperature=0.0)).rows["text"]
        for text in ("a", "\n\na")
    ]
    assert rows[1][:-1].tolist() == rows[0][:-1].tolist()


@pytest.mark.parametrize("name", ["greedy_penalty", "system_and_history", "empty_user_turn"])
def test_the_talker_hears_the_users_turns_and_neither_the_system_nor_earlier_answers(
    name: str, tts: TTS
) -> None:
    case = tiny.CASES[name]
    ids: list[int] = case["prompt_ids"]
    starts = [i for i, token in enumerate(ids) if token == ids[-3]] + [len(ids)]
    turns = [ids[a:b] for a, b in pairwise(starts)]
    user = tiny.CASES["greedy_penalty"]["prompt_ids"][1]
    heard = [token for turn in turns if turn[1] == user for token in turn] + ids[-3:]
    prompt = tts.prompt(tts.request(case["text"], **tiny.arguments(case)))
    assert prompt.rows["text"][: len(heard)].tolist() == heard
    assert prompt.length == len(heard) + 6


def test_sampling_of_the_predictor_is_that_of_the_code_and_not_of_config_json(
    own: Path, folder: Path
) -> None:
    config = json.loads((own / "config.json").read_text())
    config["talker_config"]["code_predictor_config"] |= {
        "top_k": 10,
        "temperature": 0.3,
        "top_p": 0.5,
    }
    (own / "config.json").write_text(json.dumps(config))
    tiny.save(read_sharded(folder), own)
    with opened(own) as tts:
        options = tts.spec.options
        assert [options[f"subtalker_{n}"].default for n in ("temperature", "top_k", "top_p")] == [
            1.0,
            50,
            0.8,
        ]
        assert [options[n].default for n in ("temperature", "top_k", "top_p")] == [0.9, 50, 1.0]
        assert (options["repetition_penalty"].default, options["max_frames"].default) == (
            1.05,
            4095,
        )
        assert options["min_frames"].default == 1


READ = (
    "enable_audio_output",
    "tts_pad_token_id",
    "talker_config.codec_eos_token_id",
    "talker_config.speaker_id",
    "talker_config.num_code_groups",
    "talker_config.text_config.num_experts_per_tok",
    "talker_config.text_config.norm_topk_prob",
    "talker_config.text_config.head_dim",
    "talker_config.text_config.shared_expert_intermediate_size",
    "talker_config.text_config.rope_theta",
    "talker_config.code_predictor_config.rope_theta",
    "talker_config.code_predictor_config.num_hidden_layers",
    "code2wav_config.sliding_window",
    "code2wav_config.rope_theta",
    "code2wav_config.upsample_rates",
    "thinker_config.text_config.vocab_size",
)


def without(config: dict[str, Any], path: str) -> dict[str, Any]:
    *sections, key = path.split(".")
    part = config
    for section in sections:
        part = part[section]
    del part[key]
    return config


@pytest.mark.parametrize("path", READ)
def test_a_value_that_is_not_there_is_asked_for_since_defaults_are_not_the_released_values(
    path: str, folder: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match=path.replace(".", r"\.")):
        parse(without(config, path), "config.json")


def test_ropes_base_stands_in_either_place(folder: Path) -> None:
    old = json.loads((folder / "config.json").read_text())
    new = json.loads((folder / "config.json").read_text())
    for part in (
        new["talker_config"]["text_config"],
        new["talker_config"]["code_predictor_config"],
        new["code2wav_config"],
    ):
        scaling = part.pop("rope_scaling", None) or {}
        part["rope_parameters"] = {**scaling, "rope_theta": part.pop("rope_theta")}
    assert parse(new, "config.json") == parse(old, "config.json")


def test_a_checkpoint_without_a_talker_is_refused_with_that_reason(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match="has no talker, so it cannot speak"):
        parse({**config, "enable_audio_output": False}, "config.json")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"voice": "vivian"}, "voice"), ({"language": "english"}, "language"),
     ({"instructions": "Read.", "empty_user_turn": True}, "empty_user_turn")],
)  # fmt: skip
def test_what_the_model_cannot_do_is_refused(
    arguments: dict[str, Any], field: str, tts: TTS
) -> None:
    with pytest.raises(InvalidRequest, match=field):
        tts.prompt(tts.request("Hello", **arguments))


def test_voices_are_the_three_names_in_any_case_and_ethan_by_default(tts: TTS) -> None:
    assert tts.spec.voices == ("chelsie", "ethan", "aiden")
    code = [
        tts.prompt(tts.request("a", **v)).rows["code"].tolist()
        for v in ({}, {"voice": "Ethan"}, {"voice": "AIDEN"})
    ]
    assert code[0] == code[1] != code[2]


# -- files --


def test_only_shards_with_tensors_that_speech_needs_are_opened(own: Path, folder: Path) -> None:
    tiny.save(read_sharded(folder), own)
    (own / "model-00002-of-00003.safetensors").unlink()  # the thinker's layers
    assert hub._unread_shards(own) == ["model-00002-of-00003.safetensors"]
    with opened(own) as tts:
        check("greedy_penalty", spoken(tts, "greedy_penalty"), tts)


def test_of_a_hub_id_only_those_shards_are_downloaded(
    own: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.save(read_sharded(folder), own)
    ignored: list[str] = []

    def download(
        name: str, allow_patterns: list[str] | None, ignore_patterns: tuple[str, ...] = ()
    ) -> str:
        assert bool(allow_patterns) != bool(ignore_patterns)
        ignored.extend(ignore_patterns)
        return str(own)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert hub.directory("Qwen/Qwen3-Omni-30B-A3B-Instruct") == own
    assert "model-00002-of-00003.safetensors" in ignored
    assert not {"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"} & set(
        ignored
    )


def test_nothing_else_of_the_thinker_and_no_hidden_projection_is_used(
    own: Path, folder: Path
) -> None:
    tensors = read_sharded(folder)
    for name, value in tensors.items():
        if (
            name.startswith("thinker.") and "embed_tokens" not in name
        ) or "hidden_projection" in name:
            tensors[name] = torch.randn_like(value)
    tiny.save(tensors, own)
    with opened(own) as tts:
        check("greedy_penalty", spoken(tts, "greedy_penalty"), tts)


@pytest.mark.parametrize(
    ("name", "message"),
    [("talker.model.layers.1.mlp.experts.3.up_proj.weight", "experts.3.up_proj.weight is missing"),
     ("talker.model.layers.1.mlp.experts.99.up_proj.weight", "experts.99.up_proj.weight is not part of this model"),
     ("talker.model.norm.weight", "talker.model.norm.weight is missing"),
     ("talker.model.extra", "talker.model.extra is not part of this model"),
     ("code2wav.decoder.0.conv.bias", "decoder.0.bias is missing")],
)  # fmt: skip
def test_a_tensor_too_few_or_too_many_is_named(
    name: str, message: str, own: Path, folder: Path
) -> None:
    tensors = read_sharded(folder)
    if name in tensors:
        del tensors[name]
    else:
        tensors[name] = torch.zeros(20, 48)
    tiny.save(tensors, own)
    with pytest.raises(CheckpointError, match=message):
        opened(own)


# -- codec --


def in_pieces(tts: TTS, codes: np.ndarray, sizes: list[int]) -> np.ndarray:
    codec = tts._model.codec
    state: State = {name: column.rows(1) for name, column in codec.columns.items()}
    parts, at = [], 0
    while at < len(codes):
        size = sizes[min(len(parts), len(sizes) - 1)]
        part = torch.from_numpy(codes[None, at : at + size].astype(np.int32))
        samples, state = codec.decode(part, state)  # type: ignore[call-arg]
        parts.append(samples)
        at += size
    return torch.cat(parts, 1)[0, tts.spec.codec_skip :].numpy()


@torch.inference_mode()
def test_codec_in_chunks_equals_the_official_whole(tts: TTS) -> None:
    codes, want = E["codec.codes"], E["codec.whole_97"]
    got = in_pieces(tts, codes, [1, 1, 2, 3, 5, 8, 13, 25])
    assert len(got) == E["codec.lengths"][0] == samples_of(len(codes), tts.spec)
    assert np.abs(got[::97] - want).max() <= AUDIO * np.abs(want).max()
    np.testing.assert_allclose(
        in_pieces(tts, codes[:60], [60]), got[: samples_of(60, tts.spec)], atol=1e-5
    )


@torch.inference_mode()
def test_the_official_chunked_decode_loses_samples_at_the_join_and_stentor_none(tts: TTS) -> None:
    whole, chunked = E["codec.lengths"].tolist()
    assert whole - chunked == tts.spec.codec_skip
    got = in_pieces(tts, E["codec.codes"], [25])
    same = samples_of(300, tts.spec) // 97
    want = E["codec.chunked_97"]
    assert np.abs(got[::97][:same] - want[:same]).max() <= AUDIO * np.abs(want).max()
    assert (
        np.abs(got[::97][same + 1 : len(want)] - want[same + 1 :]).max() > 0.1 * np.abs(want).max()
    )


@torch.inference_mode()
def test_a_frame_is_first_heard_the_lag_before_its_end_and_changes_nothing_earlier(
    tts: TTS,
) -> None:
    codes = E["codec.codes"][:12].copy()
    before = in_pieces(tts, codes, [1])
    codes[8] = (codes[8] + 1) % (codes.max() + 1)
    changed = np.flatnonzero(np.abs(in_pieces(tts, codes, [1]) - before) > 1e-6)
    assert samples_of(8, tts.spec) <= changed[0] < samples_of(9, tts.spec)


# -- the released sizes --


def test_parameters_of_the_released_sizes_are_those_of_the_official_classes() -> None:
    from stentor.models.qwen3_omni_talker.codec import Decoder
    from stentor.models.qwen3_omni_talker.model import Weights
    from stentor.models.weights import on_meta

    c = parse(released("qwen3_omni_talker", "qwen3-omni-talker").config, "config.json")
    weights = on_meta(lambda: Weights(c), torch.bfloat16)
    decoder = on_meta(lambda: Decoder(c.decoder), torch.float32)
    counts = {
        n: sum(p.numel() for p in m.parameters())
        for n, m in (("talker", weights.talker), ("code2wav", decoder))
    }
    hidden_projection = 6_294_528  # which is not loaded
    assert counts["talker"] + hidden_projection == 3_324_596_480
    assert counts["code2wav"] == 216_016_577
    assert sum(p.numel() for p in weights.talker.code_predictor.parameters()) == 141_570_304
    assert c.decoder.lags == (0, 8, 45, 184, 555)
    text_rows = c.text_vocab * c.talker.stack.hidden
    served = 2 * (counts["talker"] - hidden_projection + text_rows + counts["code2wav"])
    assert served == pytest.approx(7.4e9, rel=0.01)  # bytes in 16 bits, text rows projected
    stack = c.talker.stack
    # bytes of keys and values of a position
    assert 2 * stack.layers * stack.kv_heads * stack.head_dim * 2 == 20_480


def test_the_fixture_of_this_repository_is_the_seeds(folder: Path) -> None:
    """Sums of two tensors that the official modules were given."""
    if tiny.FIXTURE != tiny.OWN:
        pytest.skip("QWEN3_OMNI_FIXTURE has weights of its own")
    shard = load_file(folder / "model-00003-of-00003.safetensors")
    sums = {"talker.codec_head.weight": 140.0, "code2wav.decoder.0.conv.bias": -0.6}
    assert {n: round(float(shard[n].double().sum()), 1) for n in sums} == sums
