"""AudioVAE V2: a causal convolutional autoencoder with continuous latents.

Modules are named as the checkpoint names them, with weight norm folded. Everything is
differentiable: training runs the same modules over whole sequences (`state=None`), serving runs the
decoder in chunks with a `StreamingState`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stentor.kernels.types import Affine
from stentor.layers.codec_blocks import DownsampleBlock, Snake, UpsampleBlock
from stentor.layers.conv import (
    CausalConv1d,
    StreamingState,
    convolve,
    state_columns,
    upcast,
)
from stentor.layers.types import CodecCall, Launch, State, eager
from stentor.layers.windows import Windows
from stentor.models.voxcpm2.config import VAEConfig


class Encoder(nn.Module):
    """Waveform [B, 1, n] -> latent means [B, latent_dim, n / hop]. The checkpoint's fc_logvar is
    for training only."""

    def __init__(self, c: VAEConfig) -> None:
        super().__init__()
        self.samples = c.samples_per_column
        layers: list[nn.Module] = [CausalConv1d(self.samples, c.encoder_dim, 7)]
        dim = c.encoder_dim
        for stride in c.encoder_rates:
            layers.append(DownsampleBlock(dim, 2 * dim, stride, c.depthwise))
            dim *= 2
        self.block = nn.ModuleList(layers)
        self.fc_mu = CausalConv1d(dim, c.latent_dim, 3)
        self.windows = Windows(self.window, c.hop, state_columns(self))

    def window(self, x: Tensor, state: StreamingState, _: Tensor) -> Tensor:
        """A piece of a recording, in `windows`."""
        out: Tensor = self(x, state)
        return out

    def hidden(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        """Input of fc_mu (and, in training, of fc_logvar): [B, encoder_dim * 2 ** blocks, n /
        hop]."""
        first, *blocks = self.block
        if self.samples > 1:
            x = x.reshape(len(x), -1, self.samples).transpose(1, 2)
        x = convolve(first, x, state)
        for block in blocks:
            x = block(x, state)
        return x

    def forward(self, x: Tensor, state: StreamingState | None = None) -> Tensor:
        return convolve(self.fc_mu, self.hidden(x, state), state)


class RateCondition(nn.Module):
    """Per-channel affine chosen by the output sample rate. The rate is fixed, so `bucket` is a
    plain number."""

    def __init__(self, channels: int, buckets: int, bucket: int) -> None:
        super().__init__()
        self.scale_embed = nn.Embedding(buckets, channels)
        self.bias_embed = nn.Embedding(buckets, channels)
        self.bucket = bucket

    def forward(self) -> Affine:
        return Affine(self.scale_embed.weight[self.bucket], self.bias_embed.weight[self.bucket])


class Decoder(nn.Module):
    """Latents [B, latent_dim, T] -> waveform [B, 1, T * upsampling]."""

    def __init__(self, c: VAEConfig) -> None:
        super().__init__()
        n = c.latent_dim
        widths = c.widths
        head = [CausalConv1d(n, n, 7, groups=n), CausalConv1d(n, widths[0], 1)]
        layers: list[nn.Module] = [*head] if c.depthwise else [CausalConv1d(n, widths[0], 7)]
        self.head = len(layers)
        for i, stride in enumerate(c.decoder_rates):
            layers.append(UpsampleBlock(widths[i], widths[i + 1], stride, c.depthwise))
        layers += [Snake(widths[-1]), CausalConv1d(widths[-1], c.samples_per_column, 7)]
        self.model = nn.ModuleList(layers)
        self.sr_cond_model = nn.ModuleDict()
        if c.sr_bin_boundaries is not None:
            buckets = len(c.sr_bin_boundaries) + 1
            for i, width in enumerate(widths[:-1]):
                self.sr_cond_model[str(self.head + i)] = RateCondition(
                    width, buckets, c.rate_bucket
                )

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which audio is made."""
        return self.model[-1].get_parameter("weight").dtype

    def forward(self, x: Tensor, state: StreamingState | None) -> Tensor:
        *body, act, out = self.model
        for i, layer in enumerate(body):
            if isinstance(layer, CausalConv1d):
                x = convolve(layer, x, state)
            else:
                if str(i) in self.sr_cond_model:
                    condition = self.sr_cond_model[str(i)]()
                else:
                    condition = None
                x = layer(x, state, condition)
        y = torch.tanh(upcast(convolve(out, x, state, before=act)))
        if y.shape[1] == 1:
            return y
        return y.transpose(1, 2).flatten(1).unsqueeze(1)


class AudioVAE(nn.Module):
    """Encoder and decoder over token-last latents."""

    def __init__(self, c: VAEConfig) -> None:
        super().__init__()
        self.encoder = Encoder(c)
        self.decoder = Decoder(c)
        self.config = c

    def encode_latents(self, wav: Tensor, launch: Launch = eager) -> Tensor:
        """wav [B, n] at `sample_rate`, n a multiple of `hop` -> latent means [B, n / hop,
        latent_dim]. In 16 bits the encoder returns float32 too."""
        x = wav.unsqueeze(1).to(self.encoder.fc_mu.weight.dtype)
        return upcast(self.encoder.windows(x, launch).transpose(1, 2))

    def decode(self, latents: Tensor, state: StreamingState | None = None) -> Tensor:
        """latents [B, T, latent_dim] -> waveform [B, T * upsampling] in [-1, 1]. `state` continues
        an earlier call. `PatchCodec` names its entries. None starts from silence."""
        out: Tensor = self.decoder(latents.to(self.decoder.dtype).transpose(1, 2), state).squeeze(1)
        return out


class PatchCodec:
    """The decoder as the engine sees it: patches of latents in, samples out, state in columns.
    Implements Codec."""

    def __init__(self, vae: AudioVAE) -> None:
        self.vae = vae
        self.columns = state_columns(vae.decoder)

    def decode(
        self, frames: Tensor, state: State, _: CodecCall | None = None
    ) -> tuple[Tensor, State]:
        """frames [B, n, patch, latent_dim] float32 -> samples [B, n * patch * upsampling], next
        state."""
        streaming = StreamingState(state)
        return self.vae.decode(frames.flatten(1, 2), streaming), streaming.new
