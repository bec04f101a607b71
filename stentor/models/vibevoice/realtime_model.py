"""VibeVoice Realtime as a models.base.SpeechModel: pure functions over rows.

A step feeds a token of text or the last latent (realtime_windows.py). Keys and values of the layers
that only text goes through are a page set by frame, since they have positions of their own, and so
are those of the sequence without text (guidance.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.layers.rng import normal, uniform
from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Hidden, KVView, Prompted, PromptRows, Rows
from stentor.models.lora import AdapterSlots
from stentor.models.vibevoice.codec import Decoder
from stentor.models.vibevoice.config import RealtimeConfig
from stentor.models.vibevoice.guidance import Positions, run_both
from stentor.models.vibevoice.realtime_network import RealtimeNet
from stentor.models.vibevoice.realtime_prompt import PromptBuilder
from stentor.models.vibevoice.realtime_spec import TEXT, make_spec
from stentor.models.vibevoice.realtime_windows import read_feed
from stentor.models.vibevoice.solver import solve, solver_table

SHIPPED = 1
"""Places of the sequence without text that a voice brings."""


class VibeVoiceRealtime(Prompted):
    """A loaded checkpoint (implements SpeechModel). Frames are latents [latent] float32."""

    def __init__(
        self,
        c: RealtimeConfig,
        net: RealtimeNet,
        decoder: Decoder,
        prompts: PromptBuilder,
        adapters: AdapterSlots,
    ) -> None:
        self.latent = c.head.latent
        self.net = net.model
        self.stop = net.tts_eos_classifier
        self.codec = decoder
        self.prompts = prompts
        self.adapters = adapters
        self.spec = make_spec(c, self.net.dtype, tuple(prompts.voices), adapters.columns)
        device = self.net.tts_input_types.weight.device
        self.positions = Positions(
            c.upper.head_dim,
            c.positions,
            c.theta,
            device,
        )
        self.solver = solver_table(device)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Never called: `takes_reference` is false."""
        raise NotImplementedError("the encoder of recordings was not released")

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        """Embedded tokens [N, hidden], the positions [M] of those that are computed, and their
        places [M] in the text."""
        tokens = self.net.language_model.embed_tokens(p.rows["token"])
        place = p.rows["place"]
        return tokens, p.frame_at, torch.cat((place, place[:1]))[p.frame_at]

    def embed_frame(self, rows: Rows) -> Hidden:
        """Embedded tokens [B, hidden], all rows [B], places in the text [B], then inputs of latents
        [B, hidden], which rows feed text [B], and places in the sequence without text [B]."""
        feed = read_feed(rows)
        tokens = self.net.language_model.embed_tokens(feed.token)
        at = torch.arange(len(tokens), device=tokens.device)
        fed_tokens = rows["step"] - 1 - feed.latents
        place = rows["text_places"] + fed_tokens
        latents = self.net.latent_inputs(rows["prev"])
        return tokens, at, place, latents, feed.is_text, SHIPPED + feed.latents

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        tokens, at, place, *step = x
        if not step:
            hidden = self._read_prompt(tokens, at, place, kv)
            return hidden, hidden
        latents, is_text, number = step
        attend = kv.frame_kv.view(TEXT, place[:, None], stored=is_text[:, None])
        text = self.net.text_inputs(tokens, attend, self.positions.at(place))
        inputs = torch.where(is_text[:, None], text, latents)
        return run_both(
            self.net.tts_language_model,
            inputs,
            kv,
            number,
            ~is_text,
            self.positions,
        )

    def _read_prompt(self, tokens: Tensor, at: Tensor, place: Tensor, kv: KVView) -> Tensor:
        """Hidden states [N, hidden] of a prompt's tokens, whose places in the text are `place`."""
        attend = kv.frame_kv.view(TEXT, place[:, None])
        padded = torch.cat((tokens, tokens[:1]))
        with self.adapters.rows.at(at):
            text = self.net.text_inputs(padded[at], attend, self.positions.at(place))
        inputs = padded.index_copy(0, at, text)[:-1]
        out: Tensor = self.net.tts_language_model(
            inputs,
            kv.attend,
            self.positions.rope,
            kv.pos,
        )
        return out

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        hidden, free = h
        feed = read_feed(rows)
        is_latent = ~feed.is_text
        without_text = torch.where(is_latent[:, None], free, rows["without_text"])
        latent = solve(
            self.net.prediction_head,
            self.solver,
            hidden,
            without_text,
            rows["cfg"],
            rows["flow_steps"],
            self.normals(rows, feed.latents + is_latent),
            rows.num_evals,
        )
        # the end is asked for of the latent that was fed, and that one is still heard
        ends = self.stop(hidden) > rows["eos_threshold"]
        ends = is_latent & (ends | (feed.latents + 1 >= rows["most"]))
        return Emit(latent, ends, {"without_text": without_text}, feed.makes)

    def normals(self, rows: Rows, number: Tensor) -> Tensor:
        """Noise [B, latent] float32 of the latents with these numbers [B].

        The step's own uniforms would depend on how many tokens of a text that arrives the prompt
        has.
        """
        u = uniform(rows["seed"], number, self.latent)
        return normal(u) * rows["noise_scale"][:, None]
