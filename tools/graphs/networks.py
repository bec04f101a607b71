"""The tensor functions of a VoxCPM2 checkpoint as modules of one row, ready for export.

    lm     token, place [T], patches [M, P, feat], pos [T], far [T, S + T] or [1, 1], near [T, S + T], inside [S + T],
           keys and values of every layer [1, heads, S, dim]
           -> mu [2, dit hidden], stop [], attended [S + T], keys and values [1, heads, S + T, dim]
    times  t [K] -> tokens [K, dit hidden], of the solver's times
    flow   mu, cond, x [P, feat], time [1, dit hidden], dt, cfg [1] -> x: one evaluation of the solver, with guidance
    codec  latents [n, feat], a history of each causal module [tail, channels] -> samples, histories

A prompt has T = its length and S = 0, a later frame T = 1, so one graph serves both.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from stentor.layers.conv import CausalConv1d, CausalConvTranspose1d
from stentor.layers.qk_norm_rope import NormRope
from stentor.layers.rope import CosSin, Rope, angles
from stentor.models.base import ModelSpec
from stentor.models.info import AlignmentHeads
from stentor.models.voxcpm2.codec import Decoder
from stentor.models.voxcpm2.modules import VoxCPM2Net
from stentor.models.voxcpm2.ops import ZERO_STAR_EPS
from tools.graphs.forms import rotated


class ComputedRope(Rope):
    """RoPE whose tables are computed for the positions of a call: as constants they would be most
    of the graph."""

    def __init__(self, theta: float, rope: Rope) -> None:
        dim = 2 * rope.cos.shape[1]
        super().__init__(angles(dim, 1, theta), rope.cos.dtype, rope.interleaved, rope.in_float32)
        self.frequencies = angles(dim, 2, theta)[1]

    def at(self, pos: Tensor) -> CosSin:
        turns = pos.unsqueeze(-1) * self.frequencies
        return turns.cos().unsqueeze(-2), turns.sin().unsqueeze(-2)


class ComputedCounts:
    """`modules.sinusoids` at positions, without its table of all."""

    def __init__(self, length: int, hidden: int) -> None:
        self.speed = length ** -torch.linspace(0, 1, hidden // 2)

    def __getitem__(self, pos: Tensor) -> Tensor:
        turns = pos.unsqueeze(-1) * self.speed
        return torch.cat((turns.sin(), turns.cos()), dim=-1)


class GrowingCache:
    """Attention over keys and values that are inputs, and outputs with the new tokens behind them."""

    def __init__(self, past: list[Tensor], masks: dict[str, Tensor], heads: AlignmentHeads) -> None:
        self.past = past
        self.masks = masks
        self.heads = heads
        self.present: list[Tensor] = []
        self.attended: list[Tensor] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, norm_rope: NormRope) -> Tensor:
        shape = q.shape[2:]
        reads_text = layer in self.heads.layers
        queries = rotated(q, norm_rope)
        out, keys, values, _ = torch.onnx.ops.attention(
            queries,
            rotated(k, norm_rope),
            v.flatten(-2),
            self.masks["near" if reads_text else "far"],
            self.past[2 * layer],
            self.past[2 * layer + 1],
            q_num_heads=q.shape[2],
            kv_num_heads=k.shape[2],
        )
        self.present += [keys, values]
        if reads_text:
            last = queries[0, -1].unflatten(-1, shape)[: self.heads.heads] * self.heads.scale
            scores = torch.matmul(last, keys[0, 0].transpose(0, 1)) + self.masks["inside"]
            self.attended.append(torch.softmax(scores, -1).sum(0))
        return out.unflatten(-1, shape)


class LanguageModels(nn.Module):
    def __init__(self, net: VoxCPM2Net, spec: ModelSpec, rope: ComputedRope) -> None:
        super().__init__()
        assert spec.alignment is not None
        self.net = net
        self.heads = spec.alignment
        self.rope = rope
        self.counts = ComputedCounts(*net.counts.shape)

    def forward(
        self,
        token: Tensor,
        place: Tensor,
        patches: Tensor,
        pos: Tensor,
        far: Tensor,
        near: Tensor,
        inside: Tensor,
        *past: Tensor,
    ) -> tuple[Tensor, ...]:
        embedded = self.net.embed_patches(patches)
        nothing = embedded.new_zeros(1, embedded.shape[1])
        feat = torch.cat((nothing, embedded))[place].unsqueeze(0)
        audio = (place > 0).unsqueeze(0)
        text = self.net.base_lm.embed_tokens(token).unsqueeze(0)
        x = torch.where(audio.unsqueeze(-1), feat, text)

        masks = {"far": far, "near": near, "inside": inside}
        cache = GrowingCache(list(past), masks, self.heads)
        with (
            mock.patch.object(self.net, "rope", self.rope),
            mock.patch.object(self.net, "get_buffer", return_value=self.counts),
        ):
            h, r = self.net.run_language_models(x, feat, audio, cache.attend, pos.unsqueeze(0))
        last_h = h[0, -1]
        mu = torch.stack(self.net.conditions(last_h, r[0, -1]))
        logits = self.net.stop_head(torch.nn.functional.silu(self.net.stop_proj(last_h)))
        attended = torch.stack(cache.attended).sum(0) / (len(self.heads.layers) * self.heads.heads)
        return mu, logits[1] - logits[0], attended, *cache.present


class TimeTokens(nn.Module):
    def __init__(self, net: VoxCPM2Net) -> None:
        super().__init__()
        self.dit = net.feat_decoder.estimator

    def forward(self, t: Tensor) -> Tensor:
        return self.dit.time_tokens(t)


class FlowStep(nn.Module):
    def __init__(self, net: VoxCPM2Net) -> None:
        super().__init__()
        self.dit = net.feat_decoder.estimator
        self.rope = net.rope

    def forward(
        self, mu: Tensor, cond: Tensor, x: Tensor, time: Tensor, dt: Tensor, cfg: Tensor
    ) -> Tensor:
        rest = torch.cat((time, self.dit.cond_proj(cond), self.dit.in_proj(x)), dim=0)
        tokens = torch.stack((torch.cat((mu, rest)), torch.cat((mu * 0, rest))))
        both = self.dit(tokens, x.shape[0], self.rope)
        with_mu = both[0]
        without = both[1]
        scale = (with_mu * without).sum() / ((without * without).sum() + ZERO_STAR_EPS)
        base = without * scale
        return x - dt * (base + cfg * (with_mu - base))


class Codec(nn.Module):
    """The decoder with channels last, so that its products are MatMul and its histories lie in one
    piece."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.weights = nn.ParameterDict()
        self.decoder = [decoder]  # in a list, so that its own weights are not exported
        self.states: list[tuple[str, int, int]] = []
        for name, module in decoder.named_modules():
            self._take(name.replace(".", "_"), module)
        for index, condition in decoder.sr_cond_model.items():
            affine = condition()
            self._keep(f"scale{index}", affine.scale)
            self._keep(f"shift{index}", affine.shift)

    def _keep(self, key: str, value: Tensor) -> None:
        self.weights[key] = nn.Parameter(value.detach().float().contiguous(), requires_grad=False)

    def _take(self, key: str, module: Any) -> None:
        """Keep the weights of a module in the layout of its product."""
        module.name = key
        kind = type(module).__name__
        if kind == "Snake":
            alpha = module.alpha.detach().float().flatten()
            self._keep(key, alpha)
            self._keep(key + "_inverse", 1 / (alpha + 1e-9))
        if not isinstance(module, CausalConv1d | CausalConvTranspose1d):
            return
        if isinstance(module, CausalConvTranspose1d):
            columns = module.weight.shape[2] // module.stride
            by_column = module.weight.permute(0, 2, 1).unflatten(1, (columns, -1)).flatten(2)
            weight = by_column.transpose(0, 1).flatten(0, 1)
        elif module.groups > 1:
            weight = module.weight.unsqueeze(1)  # of an image with one row
        else:
            weight = module.weight.permute(1, 2, 0).flatten(1)
        self._keep(key, weight)
        if isinstance(module, CausalConvTranspose1d):
            self._keep(key + "_bias", module.bias.repeat(module.stride))
        elif module.bias is not None:
            self._keep(key + "_bias", module.bias)
        if module.tail:
            self.states.append((key, module.tail, module.channels))

    def forward(self, x: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        decoder = self.decoder[0]
        self.new: dict[str, Tensor] = {}
        self.past = {key: state for (key, _, _), state in zip(self.states, past, strict=True)}
        *body, act, out = decoder.model
        for index, layer in enumerate(body):
            if isinstance(layer, CausalConv1d):
                x = self._conv(layer, x)
                continue
            if str(index) in decoder.sr_cond_model:
                x = x * self.weights[f"scale{index}"] + self.weights[f"shift{index}"]
            first, up, *units = layer.block
            x = self._up(up, self._snake(first, x))
            for unit in units:
                before, dilated, after, point = unit.block
                y = self._snake(after, self._conv(dilated, self._snake(before, x)))
                x = x + self._conv(point, y)
        y = torch.tanh(self._conv(out, self._snake(act, x)))
        return y.flatten(), *(self.new[key] for key, _, _ in self.states)

    def _snake(self, module: Any, x: Tensor) -> Tensor:
        sine = torch.sin(x * self.weights[module.name])
        return x + sine * sine * self.weights[module.name + "_inverse"]

    def _history(self, module: Any, x: Tensor) -> Tensor:
        """x [n, C] behind the columns that the call before left."""
        if not module.tail:
            return x
        y = torch.cat((self.past[module.name], x), dim=0)
        self.new[module.name] = y[-module.tail :]
        return y

    def _biased(self, module: Any, y: Tensor) -> Tensor:
        if module.bias is None:
            return y
        return y + self.weights[module.name + "_bias"]

    def _conv(self, module: Any, x: Tensor) -> Tensor:
        count = x.shape[0]
        weight = self.weights[module.name]
        x = self._history(module, x)
        taps = module.weight.shape[2]
        if module.groups > 1:
            # In these two permutations onnxruntime finds an image with channels last, whose
            # convolution needs no transposed copy.
            image = x[None, None].permute(0, 3, 1, 2)
            bias = self.weights[module.name + "_bias"]
            dilation = (1, module.dilation)
            y = torch.nn.functional.conv2d(image, weight, bias, 1, 0, dilation, module.groups)
            return y.permute(0, 2, 3, 1).squeeze(0).squeeze(0)
        y = torch.matmul(x, weight)
        if taps > 1:
            # Every tap of every column, then the taps of one output: they are few, and columns
            # with their taps beside them would be many.
            outputs = module.weight.shape[0]
            parts = [
                y[
                    k * module.dilation : k * module.dilation + count,
                    k * outputs : (k + 1) * outputs,
                ]
                for k in range(taps)
            ]
            y = torch.stack(parts).sum(0)
        return self._biased(module, y)

    def _up(self, module: Any, x: Tensor) -> Tensor:
        """One product: a column and the one before it make `stride` outputs."""
        y = self._history(module, x)
        pairs = torch.cat((y[1:], y[:-1]), dim=1)
        y = self._biased(module, torch.matmul(pairs, self.weights[module.name]))
        return y.reshape(-1, module.weight.shape[1])
