"""VibeVoice 1.5B and 7B as a models.base.SpeechModel: pure functions over rows.

The codec is in the loop: the audio of each latent is encoded again, and both are fed. A frame
therefore holds a latent and the semantic code of its audio. The sequence without text (guidance.py)
begins where the audio does, with place 0, and frame n has place n + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.layers.conv import StreamingState, join_state, split_state, state_size
from stentor.layers.rng import normal
from stentor.layers.types import Column, Launch, State, eager
from stentor.models.base import Emit, Hidden, KVView, Prompted, PromptRows, Rows
from stentor.models.lora import AdapterSlots
from stentor.models.vibevoice.codec import Decoder, Encoder
from stentor.models.vibevoice.config import NEGATIVE, DialogueConfig
from stentor.models.vibevoice.guidance import Positions, run_both
from stentor.models.vibevoice.network import DialogueNet
from stentor.models.vibevoice.prompt import MARKS, DialoguePrompts
from stentor.models.vibevoice.solver import solve, solver_table
from stentor.models.vibevoice.spec import make_spec

AUDIO = 0
"""Number among the choices of the token that makes a latent."""
IN_LOOP = "decoder_in_loop"
SPOKEN = "semantic_encoder"
"""Columns: states of the decoder in the loop and of the semantic encoder behind it, each as one
tensor, since a row of a column is a launch."""
LOUDNESS = 10 ** (-25 / 20)
EPS = 1e-6
"""Root mean square to which a recording is scaled, as the original does."""


class VibeVoiceDialogue(Prompted):
    """A loaded checkpoint (implements SpeechModel). Frames are [latent + semantic] float32."""

    def __init__(
        self,
        c: DialogueConfig,
        net: DialogueNet,
        decoder: Decoder,
        encoders: tuple[Encoder, Encoder],
        prompts: DialoguePrompts,
        adapters: AdapterSlots,
    ) -> None:
        """encoders: of recordings, and of what has been spoken."""
        self.net = net
        self.codec = decoder
        self.acoustic, self.semantic = encoders
        self.prompts = prompts
        self.adapters = adapters
        self.audio = prompts.tokens.audio
        self.latent = c.head.latent
        columns = dict(adapters.columns)
        for name, half in (
            (IN_LOOP, decoder),
            (SPOKEN, self.semantic),
        ):
            columns[name] = Column((state_size(half.columns),), half.dtype)
        dtype = net.choices.dtype
        self.spec = make_spec(c, dtype, MARKS, columns)
        device = net.choices.device
        self.positions = Positions(
            c.language.head_dim,
            self.spec.max_model_len,
            c.theta,
            device,
        )
        self.solver = solver_table(device)

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Audio [n] -> `mean` [ceil(n / hop), latent] of its latents.

        It is brought to one loudness, and below full scale where that is too loud.
        """
        loud = wav * (LOUDNESS / (wav.square().mean().sqrt() + EPS))
        peak = loud.abs().max()
        samples = torch.where(peak > 1, loud / (peak + EPS), loud)
        return {"mean": self.acoustic(samples, launch)}

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        """Inputs [N, hidden] and the positions [M] where the audio begins."""
        token = p.rows["token"]
        text = self.net.model.language_model.embed_tokens(token)
        voice = self.net.model.acoustic_connector(p.rows["latent"].to(text.dtype))
        return torch.where((token == self.audio)[:, None], voice, text), p.frame_at

    def embed_frame(self, rows: Rows) -> Hidden:
        """Inputs [B, hidden], all rows [B], and places in the sequence without text [B]."""
        prev = rows["prev"]
        inputs = self.net.inputs(prev[:, : self.latent], prev[:, self.latent :])
        at = torch.arange(len(inputs), device=inputs.device)
        return inputs, at, rows["step"]

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        inputs, at, *place = x
        language = self.net.model.language_model
        if place:
            return run_both(
                language,
                inputs,
                kv,
                place[0],
                None,
                self.positions,
            )
        rope = self.positions.rope
        hidden = language(inputs, kv.attend, rope, kv.pos)
        if not len(at):
            return hidden, hidden
        # padding of the frames stands behind the last token
        first = torch.cat((inputs, inputs[:1]))[at]
        start = torch.zeros_like(at)
        with self.adapters.rows.at(at):
            attend = kv.frame_kv.view(NEGATIVE, start[:, None])
            began = language(first, attend, rope, start)
        padded = torch.cat((hidden, hidden[:1]))
        free = padded.index_copy(0, at, began)[:-1]
        return hidden, free

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        hidden, free = h
        latent = solve(
            self.net.model.prediction_head,
            self.solver,
            hidden,
            free,
            rows["cfg"],
            rows["flow_steps"],
            self.normals(rows, u),
            rows.num_evals,
        )
        semantic, state = self._encode_audio(latent, rows)
        ends = self.net.chosen(hidden) != AUDIO
        return Emit(torch.cat((latent, semantic), 1), ends, state)

    def _encode_audio(self, latent: Tensor, rows: Rows) -> tuple[Tensor, State]:
        """Encode the audio of latents [B, latent], unclipped. Return [B, semantic] float32, and the
        state of the codec behind them."""
        decoding = StreamingState(split_state(rows[IN_LOOP], self.codec.columns))
        encoding = StreamingState(split_state(rows[SPOKEN], self.semantic.columns))
        samples = self.codec.samples(latent[:, None], decoding)
        waves = samples[:, None].to(self.semantic.dtype)
        encoded = self.semantic.run(waves, encoding)
        state = {
            IN_LOOP: join_state(decoding.new, self.codec.columns),
            SPOKEN: join_state(encoding.new, self.semantic.columns),
        }
        return encoded[:, :, 0].float(), state

    def normals(self, rows: Rows, u: Tensor) -> Tensor:
        """Noise [B, latent] float32 of uniforms u [B, latent]."""
        return normal(u) * rows["noise_scale"][:, None]
