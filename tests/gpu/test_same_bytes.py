"""On a GPU, `deterministic` gives a request the same bytes alone and among others that come, go and are preempted."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor import TTS
from stentor.models.codec_timing import UtteranceTiming
from tests.helpers.tiny import FAMILIES, VOICE, WORDS, checkpoint

pytestmark = pytest.mark.gpu
REQUESTS, FRAMES = 12, 30


@pytest.mark.parametrize("family", [*FAMILIES, "cosyvoice3", "voxcpm2_window"])
def test_a_request_gives_the_same_bytes_alone_and_among_others(family, tmp_path):
    compare(checkpoint(family, tmp_path), VOICE[family], 0.00005)


@pytest.mark.parametrize(
    ("model", "load"),
    [
        ("dummy:qwen3-tts-0.6b-customvoice", {"quantization": "auto"}),
        ("dummy:qwen3-tts-0.6b-customvoice", {"quantization": "int8"}),
        ("dummy:cosyvoice3", {}),
    ],
)
def test_a_request_of_a_model_of_released_size_does_too(model, load):
    """Its products go by clusters on a Hopper GPU. Those of tiny models are too small for that."""
    compare(model, None, 0.016, **load)


def test_rows_of_cosyvoice3_share_codec_calls_as_all_its_operations_keep_their_bits():
    settings = {"max_num_seqs": 16, "memory_gb": 0.05, "require_graphs": True}
    with TTS("dummy:cosyvoice3", device="cuda", deterministic=True, **settings) as tts:
        assert max(shape.rows for shape in tts.engine.codec.captured) > 1


def compare(model: str | Path, voice: dict[str, str] | None, memory_gb: float, **load: Any) -> None:
    """Make audio one request after another, among others with memory for some of them, and as streams. voice: None for
    the model's first."""
    dice = random.Random(4)
    texts = [" ".join(dice.choices(WORDS, k=dice.randint(1, 12))) for _ in range(REQUESTS)]
    settings = {"max_num_seqs": 6, "memory_gb": memory_gb, "require_graphs": True, **load}
    with TTS(model, device="cuda", dtype="bfloat16", deterministic=True, **settings) as tts:
        said = {"voice": tts.spec.voices[0]} if voice is None else voice

        def speak(i: int) -> tuple[bytes, bytes]:
            speech = tts.generate(texts[i], seed=i, max_frames=FRAMES, **said)
            return np.asarray(speech.frames).tobytes(), speech.samples.tobytes()

        def stream(i: int) -> bytes:
            given = {"seed": i, "max_frames": FRAMES, **said}
            return np.concatenate(
                [part.samples for part in tts.stream(texts[i], **given)]
            ).tobytes()

        alone = [speak(i) for i in range(REQUESTS)]
        streamed = [samples for _, samples in alone]
        if isinstance(tts.spec.codec_timing, UtteranceTiming):  # a stream's audio is another
            streamed = [stream(i) for i in range(REQUESTS)]
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(speak, range(REQUESTS))) == alone
            assert list(pool.map(stream, range(REQUESTS))) == streamed
