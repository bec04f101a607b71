"""The built-in voice says when it speaks a word: as training saw its attention, and as `training.word_times` measures it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import stentor
from stentor.layers.attention import causal, sdpa
from stentor.layers.qk_norm_rope import NormRope
from stentor.models.info import REACH
from stentor.text.trace import Trace, is_sound
from training.word_times import Forced, measure, utterances

TEXT = "Two boats, 3 nets — all at sea."
ASK = {"seed": 2, "retries": 1, "word_timestamps": True}


@pytest.fixture(scope="module")
def voice() -> Iterator[stentor.TTS]:
    with stentor.TTS(runtime="torch", device="cpu", max_num_seqs=1) as tts:
        yield tts


@pytest.fixture(scope="module")
def speech(voice: stentor.TTS) -> stentor.Speech:
    return voice.generate(TEXT, **ASK)


def attention(voice: stentor.TTS, frames: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Mean attention [frames, text] of the alignment heads, from one pass over the whole sequence. Frame n sees the window
    around places[n]."""
    model, heads = voice._model, voice.spec.alignment
    assert heads is not None
    assert heads.window is not None
    behind, ahead = heads.window
    request = voice.request(TEXT, seed=2)
    prompt = voice.prompt(request)
    start, end, length = prompt.columns["text_start"], prompt.columns["text_end"], prompt.length
    found: list[Tensor] = []
    at, place = torch.arange(end - start), torch.from_numpy(places)[:, None]
    near = (at >= place - behind) & (at <= place + ahead)
    seen = torch.ones(length + len(frames), length + len(frames), dtype=torch.bool).tril()
    seen[length:-1, start:end] &= near[1:]  # the prompt sees all of its text

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        q, k = norm_rope.apply(q, k)
        if layer in heads.layers:
            for head in range(heads.heads):
                scores = (
                    q[0, length - 1 : -1, head]
                    @ k[0, start:end, head // heads.group].T
                    * heads.scale
                )
                found.append(scores.masked_fill(~near, float("-inf")).softmax(-1))
            return sdpa(q, k, v, seen)
        return causal(layer, q, k, v, NormRope())

    with torch.inference_mode():
        given = np.concatenate([prompt.frames, frames])
        feat = model.net.embed_patches(torch.from_numpy(given))
        tokens = model.net.base_lm.embed_tokens(torch.from_numpy(prompt.rows["token"]))
        given_at = np.concatenate([prompt.frame_at, length + np.arange(len(frames))])
        x = torch.cat((tokens, tokens.new_zeros(len(frames), tokens.shape[1]))).index_copy(
            0, torch.from_numpy(given_at), feat
        )
        audio = torch.zeros(len(x), dtype=torch.bool).index_fill(
            0, torch.from_numpy(given_at), True
        )
        feat = x * audio[:, None]
        model.net.run_language_models(
            x[None], feat[None], audio[None], attend, torch.arange(len(x))[None]
        )
    return torch.stack(found).mean(0).numpy()


def test_the_steps_keep_what_the_heads_look_at_in_a_pass_over_the_whole(
    voice: stentor.TTS, speech: stentor.Speech
):
    prompt = voice.prompt(voice.request(TEXT, seed=2))
    chunks = list(voice.engine.submit(prompt, 2, streaming=True))
    kept = np.concatenate([c.attended for c in chunks if len(c.frames)])
    places = np.array([0, *kept[:-1, 0].astype(int)])  # before each frame
    want = attention(voice, np.concatenate([c.frames for c in chunks]), places)
    for row, mean, place in zip(kept, want, places, strict=True):
        peak = int(row[0])
        assert peak == place or mean[peak] == pytest.approx(mean.max(), abs=1e-4)
        assert peak >= place
        for k in range(-REACH, REACH + 1):
            there = mean[peak + k] if 0 <= peak + k < len(mean) else 0.0
            assert row[1 + REACH + k] == pytest.approx(there, abs=1e-4)


def test_words_follow_one_another_and_fill_the_speech(speech: stentor.Speech):
    assert [w.text for w in speech.words] == ["Two", "boats,", "3", "nets —", "all", "at", "sea."]
    assert [TEXT[w.start_char : w.end_char] for w in speech.words] == [w.text for w in speech.words]
    times = [t for w in speech.words for t in (w.start, w.end)]
    assert times == sorted(times)
    assert times[0] < 0.4
    assert speech.duration - 1.0 < times[-1] <= speech.duration


def test_speech_that_is_forced_has_the_words_where_they_were_spoken(
    voice: stentor.TTS, speech: stentor.Speech, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The voice's own speech stands for the teacher's, with the times of its words for durations."""
    monkeypatch.setattr(voice._model, "emit", voice._model.emit)  # both are replaced, and put back
    monkeypatch.setattr(voice._model.prompts, "front_end", voice._model.prompts.front_end)
    read = voice._model.prompts.front_end(TEXT).text
    places = [place for place in Trace.of(read).places(is_sound) if place]
    borders = [(at, time) for place, word in zip(places, speech.words, strict=True)
               for at, time in ((place.start, word.start), (place.stop, word.end))]  # fmt: skip
    ends = (1000 * np.interp(np.arange(len(read)) + 1, *np.array(borders).T)).astype(int).tolist()
    (tmp_path / "w.pcm").write_bytes((speech.samples * 32767).astype("<i2").tobytes())
    row = {"id": 1, "voice": "any", "offset": 0, "samples": len(speech.samples), "ends": ends}
    (tmp_path / "w.jsonl").write_text(json.dumps(row) + "\n")
    sentences = tmp_path / "sentences.json"
    sentences.write_text(json.dumps({"id": 1, "phonemes": read}) + "\n", encoding="utf-8")
    found = measure(Forced(voice), list(utterances(tmp_path, sentences, {}, 4)))
    assert found["utterances"] == 1
    # the silence before the first word has no end
    assert found["starts"]["borders"] == len(places) - 1
    assert found["ends"]["borders"] == len(places)
    assert found["starts_and_ends"]["median"] <= 60
    assert found["lag"] == pytest.approx(voice.spec.alignment.lag, abs=0.06)
