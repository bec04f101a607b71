"""Reference audio to a voice, by the released ONNX models of speech tokenizer and speaker.

They run on the CPU, once per voice. A stored voice (voice.py) needs neither them nor this.
"""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import soxr
import torch
import torch.nn.functional as F
from torch import Tensor

from stentor.audio import Reference, load
from stentor.errors import CheckpointError, InvalidRequest
from stentor.layers.fbank import FBANK_RATE, speaker_fbank
from stentor.models.base import Voice
from stentor.models.cosyvoice3.config import MELS, REFERENCE_SECONDS, SAMPLE_RATE
from stentor.models.cosyvoice3.voice import FOLDER, SUFFIX, StoredVoice

_KNEE_HZ = 1000.0  # Slaney's scale: linear, then logarithmic
_KNEE_MEL = 15.0
_LOG_STEP = math.log(6.4) / 27


def prompt_mel(wav: Tensor) -> Tensor:
    """24 kHz [n] -> natural logarithms of 80 mels [n // 480, 80]."""
    fft = 1920
    hop = 480
    pad = (fft - hop) // 2
    wav = F.pad(wav[None], (pad, pad), mode="reflect")[0]
    spectrum = torch.fft.rfft(wav.unfold(0, fft, hop) * torch.hann_window(fft, device=wav.device))
    magnitude = spectrum.abs().square().add(1e-9).sqrt()
    mel: Tensor = magnitude @ slaney(SAMPLE_RATE, fft, MELS).to(wav.device)
    return mel.clamp_min(1e-5).log()


def tokenizer_mel(wav: Tensor) -> Tensor:
    """16 kHz [n] -> Whisper's log-mel features [128, n // 160]."""
    fft = 400
    hop = 160
    wav = F.pad(wav[None], (fft // 2, fft // 2), mode="reflect")[0]
    power = (
        torch.fft.rfft(wav.unfold(0, fft, hop) * torch.hann_window(fft, device=wav.device))
        .abs()
        .square()[:-1]
    )
    mel = (power @ slaney(FBANK_RATE, fft, 128).to(wav.device)).clamp_min(1e-10).log10()
    return (torch.maximum(mel, mel.max() - 8).T + 4) / 4


def slaney(rate: int, fft: int, mels: int) -> Tensor:
    """Triangles of equal area on Slaney's mel scale, 0 Hz to rate / 2: [fft / 2 + 1, mels]
    float32."""
    hz = torch.arange(fft // 2 + 1).double() * rate / fft
    top = _KNEE_MEL + math.log(rate / 2 / _KNEE_HZ) / _LOG_STEP
    mel = torch.linspace(0, top, mels + 2).double()
    linear = mel * _KNEE_HZ / _KNEE_MEL
    edges = torch.where(
        mel < _KNEE_MEL, linear, _KNEE_HZ * torch.exp((mel - _KNEE_MEL) * _LOG_STEP)
    )
    lower = edges[:-2]
    centre = edges[1:-1]
    right = edges[2:]
    rising = (hz[:, None] - lower) / (centre - lower)
    falling = (right - hz[:, None]) / (right - centre)
    return (torch.minimum(rising, falling).clamp_min(0) * 2 / (right - lower)).float()


TOKENIZER = "speech_tokenizer_v3.onnx"
SPEAKER_MODEL = "campplus.onnx"


def store_voice(path: Path, name: str, reference: Reference) -> Path:
    """Encode a reference with the models in a model directory, and store it there as the voice
    `name`.

    Returns the voice file. Raises InvalidRequest and CheckpointError.
    """
    recording = load(reference, "reference", REFERENCE_SECONDS)
    features = VoiceEncoder(path)(torch.from_numpy(recording.at(SAMPLE_RATE)))
    file = path / FOLDER / f"{name}{SUFFIX}"
    file.parent.mkdir(exist_ok=True)
    StoredVoice.of(
        Voice(name, {key: value.numpy() for key, value in features.items()}), reference.text
    ).save(file)
    return file


class VoiceEncoder:
    """The models are loaded when the first reference comes. Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """path: the model directory. None: there are no such models."""
        self._path = path
        self.available = path is not None and all(
            (path / name).is_file() for name in (TOKENIZER, SPEAKER_MODEL)
        )
        """Whether references can be encoded."""
        self._lock = threading.Lock()
        self._sessions: dict[str, Any] = {}

    def __call__(self, wav: Tensor) -> dict[str, Tensor]:
        """24 kHz [n] -> codes int64 [P], mel [2 P, 80], speaker [192]. InvalidRequest where there
        are no models."""
        mono = wav.float().to("cpu")
        low = torch.from_numpy(soxr.resample(mono.numpy(), SAMPLE_RATE, FBANK_RATE))
        features = tokenizer_mel(low)[None]
        length = torch.tensor([features.shape[2]], dtype=torch.int32)
        codes = self._run(TOKENIZER, features, length).flatten().long()
        speaker = self._run(SPEAKER_MODEL, speaker_fbank(low)[None]).flatten().float()
        mel = prompt_mel(mono)
        count = min(len(mel) // 2, len(codes))
        return {"codes": codes[:count], "mel": mel[: 2 * count], "speaker": speaker}

    def _run(self, name: str, *inputs: Tensor) -> Tensor:
        session = self._session(name)
        names = [node.name for node in session.get_inputs()]
        if len(names) != len(inputs):
            raise CheckpointError(f"{name} takes {len(names)} inputs, not {len(inputs)}")
        outputs = session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})
        return torch.from_numpy(outputs[0])

    def _session(self, name: str) -> Any:
        with self._lock:
            if name not in self._sessions:
                self._sessions[name] = self._open(name)
            return self._sessions[name]

    def _open(self, name: str) -> Any:
        if self._path is None or not (self._path / name).is_file():
            advice = "take a stored voice or a speaker_embedding"
            raise InvalidRequest(
                "reference", f"cannot be encoded: this model has no {name}; {advice}"
            )
        from stentor.host.onnx_runtime import onnxruntime

        try:
            return onnxruntime.InferenceSession(
                str(self._path / name), providers=["CPUExecutionProvider"]
            )
        except Exception as e:  # onnxruntime raises types of its own, which are not public
            raise CheckpointError(f"{self._path / name} is truncated or corrupt: {e}") from e
