"""A second, plain implementation of the language model (docs/models/fish_s2.md) in float64.

It reads the released tensor names and has no caches, batches or fused weights. Tests compare the family with it where
no value of the official code is at hand.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

CHECKPOINT = Path(__file__).parents[2] / "fixtures" / "fish_s2" / "checkpoint"


def norm(x, w, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


def rotate(x, base):
    """x [T, heads, dim]: neighbouring pairs as complex numbers, tables rounded to bfloat16."""
    t, _, dim = x.shape
    angle = torch.outer(
        torch.arange(t).float(), 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
    )
    cos, sin = angle.cos().bfloat16().double(), angle.sin().bfloat16().double()
    z = (
        torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        * torch.complex(cos, sin)[:, None]
    )
    return torch.view_as_real(z).flatten(-2)


class Oracle:
    def __init__(self, path: Path = CHECKPOINT) -> None:
        self.config = json.loads((path / "config.json").read_text())
        self.w = {}
        for shard in sorted(path.glob("*.safetensors")):
            self.w.update({k: v.double() for k, v in load_file(shard).items()})
        self.codes = self.config["audio_decoder_config"]["vocab_size"]
        self.books = self.config["audio_decoder_config"]["num_codebooks"]
        self.semantic, self.im_end = (
            self.config["semantic_start_token_id"],
            self.config["eos_token_id"],
        )

    def block(self, x, prefix, c, eps, base, qk_norm):
        def w(name):
            return self.w[f"{prefix}.{name}.weight"]

        heads, kv, dim = c["n_head"], c["n_local_heads"], c["head_dim"]
        y = norm(x, w("attention_norm"), eps) @ w("attention.wqkv").T
        q, k, v = (
            p.unflatten(-1, (-1, dim)) for p in y.split([heads * dim, kv * dim, kv * dim], dim=-1)
        )
        if qk_norm:
            q, k = norm(q, w("attention.q_norm"), eps), norm(k, w("attention.k_norm"), eps)
        q, k = rotate(q, base), rotate(k, base)
        out = []
        for h in range(heads):
            score = q[:, h] @ k[:, h // (heads // kv)].T / dim**0.5
            score = score.masked_fill(torch.ones_like(score).triu(1).bool(), float("-inf"))
            out.append(score.softmax(-1) @ v[:, h // (heads // kv)])
        x = x + torch.cat(out, dim=-1) @ w("attention.wo").T
        z = norm(x, w("ffn_norm"), eps)
        return (
            x
            + (F.silu(z @ w("feed_forward.w1").T) * (z @ w("feed_forward.w3").T))
            @ w("feed_forward.w2").T
        )

    def embed(self, token, frame=None):
        e = self.w["text_model.model.embeddings.weight"][token]
        if frame is None:
            return e
        c = self.w["audio_decoder.codebook_embeddings.weight"]
        return (e + sum(c[int(code) + self.codes * i] for i, code in enumerate(frame))) / (
            self.books + 1
        ) ** 0.5

    def prompt(self, token, frames, frame_at):
        """The matrix of embeddings [T, dim] of a tokenised prompt."""
        at = {int(p): f for p, f in zip(frame_at, frames, strict=True)}
        return torch.stack([self.embed(int(t), at.get(i)) for i, t in enumerate(token)])

    def slow(self, x):
        """[T, dim] -> hidden after the final norm, and full-vocabulary logits [T, vocab]."""
        c = self.config["text_config"]
        for i in range(c["n_layer"]):
            x = self.block(
                x, f"text_model.model.layers.{i}", c, c["norm_eps"], c["rope_base"], True
            )
        h = norm(x, self.w["text_model.model.norm.weight"], c["norm_eps"])
        return h, h @ self.w["text_model.model.embeddings.weight"].T

    def fast(self, h, codes):
        """Logits over code `len(codes)`, given the slow hidden state [dim] and the codes before it."""
        c, text = self.config["audio_decoder_config"], self.config["text_config"]
        x = torch.stack(
            [h, *(self.w["audio_decoder.embeddings.weight"][int(code)] for code in codes)]
        )
        for i in range(c["n_layer"]):
            x = self.block(
                x, f"audio_decoder.layers.{i}", c, text["norm_eps"], text["rope_base"], False
            )
        x = norm(x[-1], self.w["audio_decoder.norm.weight"], text["norm_eps"])
        return x @ self.w["audio_decoder.output.weight"].T

    def greedy_frame(self, h, logits):
        """The first frame after hidden state h: argmax over the ids that may be drawn, then the fast codes."""
        allowed = torch.cat(
            (logits[self.semantic : self.semantic + self.codes], logits[self.im_end, None])
        )
        codes = [int(allowed.argmax())]
        while len(codes) < self.books:
            codes.append(int(self.fast(h, codes).argmax()))
        return codes


def probabilities(logits, temperature, top_k, top_p):
    """Specs/fish_s2 4.3 in numpy: what a draw from logits [V] takes each index with."""
    logits = np.asarray(logits, np.float64)
    order = np.argsort(-logits, kind="stable")
    ranked = np.exp(logits[order] - logits.max())
    mass = np.cumsum(ranked / ranked.sum())
    keep = ((mass <= top_p) | (top_p >= 1)) & ((np.arange(len(logits)) < top_k) | (top_k == 0))
    keep[0] = True
    scaled = np.where(keep, np.exp((logits[order] - logits.max()) / max(temperature, 1e-5)), 0.0)
    result = np.zeros(len(logits))
    result[order] = scaled / scaled.sum()
    return result
