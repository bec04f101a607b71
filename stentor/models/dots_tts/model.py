"""dots.tts as a models.base.SpeechModel: pure functions over rows.

Patch n of a request, those of a recording among them, is number n of both page sets by frame. A
hidden state makes the patch of the position behind it, so the unit of patch n is stored at the
position before that of the patch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stentor.layers.fbank import speaker_fbank
from stentor.layers.rng import normal
from stentor.layers.types import Launch, eager
from stentor.models.base import Emit, Hidden, KVView, Prompted, PromptRows, Rows
from stentor.models.dots_tts.codec import Decoder, Encoder
from stentor.models.dots_tts.config import DotsConfig
from stentor.models.dots_tts.flow import Tables, Velocity, flow_place, flow_rope, solve
from stentor.models.dots_tts.live_text import StepActions, turn_of
from stentor.models.dots_tts.network import DotsNet, language_rope
from stentor.models.dots_tts.prompt import PromptBuilder
from stentor.models.dots_tts.reference import SpeakerEncoder, speaker_window
from stentor.models.dots_tts.spec import MAX_SILENT, make_spec
from stentor.models.lora import AdapterSlots

NOTHING = -1
"""In place of a patch's number, where none is encoded."""


class DotsTTS(Prompted):
    """A loaded checkpoint (implements SpeechModel). Frames are float32 patches [patch, D] of
    normalised latents."""

    def __init__(
        self,
        c: DotsConfig,
        net: DotsNet,
        decoder: Decoder,
        encoders: tuple[Encoder, SpeakerEncoder],
        prompts: PromptBuilder,
        adapters: AdapterSlots,
    ) -> None:
        self.config = c
        self.net = net
        self.codec = decoder
        self.prompts = prompts
        self.adapters = adapters
        self.encoder, self.speaker = encoders
        weight = net.hidden_proj.weight
        self.dtype = weight.dtype
        device = weight.device
        self.spec = make_spec(c, self.dtype, adapters.columns)
        self.head = net.velocity_field_predictor
        self.rope = language_rope(c).to(device)
        self.flow_rope = flow_rope(c, self.spec.max_model_len + 1).to(device)
        self.times = self.head.times(c.solver)
        no_voice = torch.zeros(1, c.flow.hidden, dtype=self.dtype, device=device)
        plain = self.head.table(self.times + no_voice)[None]
        self.without = [self.head.of_table(plain)] * (c.solver.branches - 1)
        """Tables of the branch without hidden states and voice."""
        self.live = c.quotas is not None
        if self.live:
            self.silence = self._silence()

    def _silence(self) -> Tensor:
        """Normalised patches [MAX_SILENT, patch, D] of silence."""
        mean, _ = self.encoder(
            torch.zeros(MAX_SILENT * self.config.hop, device=self.codec.mean.device)
        )
        patches = (mean.float() - self.codec.mean) / self.codec.std
        out: Tensor = patches.view(MAX_SILENT, self.config.patch, self.config.latent)
        return out

    def encode(self, wav: Tensor, role: str, launch: Launch = eager) -> dict[str, Tensor]:
        """Audio [n] in whole patches -> `speaker` [size], and the `mean` and the log `spread` [n /
        hop, D] of its latents."""
        samples = wav.to(self.encoder.pre_proj.weight.dtype)
        longest = int(self.config.speaker_seconds * self.spec.sample_rate)
        features = speaker_fbank(self.speaker.lowered(speaker_window(samples, longest).float()))
        mean, spread = self.encoder(samples)
        return {"speaker": self.speaker(features), "mean": mean.float(), "spread": spread.float()}

    def embed_prompt(self, p: PromptRows, rows: Rows) -> Hidden:
        """Inputs [N, hidden], the positions [M] that have patches, latents of these for the encoder
        [M, patch, D] and their numbers [M], then the patches that they make and their voices."""
        text = self.net.llm.model.embed_tokens(p.rows["token"])
        speaker = rows.column("speaker")
        both = torch.stack((p.rows["patch"], speaker.idx))
        number, slot = torch.cat((both, both[:, :1]), dim=1)[:, p.frame_at]
        encoded, new_patches = p.frames.chunk(2, dim=1)
        return (
            text,
            p.frame_at,
            encoded,
            number - 1,
            new_patches,
            self.net.voice(speaker.table[slot]),
            number,
        )

    def embed_frame(self, rows: Rows) -> Hidden:
        """Inputs as of a prompt, of the last patch or of the token that the step feeds in its
        place. Where frames are replayed, also which steps make a patch, and the unit of a patch
        that was made by the prompt's end."""
        turn = turn_of(rows, self.live)
        prev = rows["prev"]
        at = torch.arange(len(prev), device=prev.device)
        before = rows.recent(2)[0][:, 1, -1] * self.codec.std + self.codec.mean
        tail = torch.where((turn.patch > 1)[:, None], before, rows["tail"])
        raw = prev * self.codec.std + self.codec.mean
        encoded = torch.cat((tail[:, None], raw[:, :-1]), dim=1)
        text = self.net.llm.model.embed_tokens(turn.token.clamp_min(0))
        number = rows["given"] + turn.patch
        # A step that feeds a token has a number below 0 for the encoder, whose output for it is not
        # used.
        x = (text, at, encoded, torch.where(turn.token < 0, number - 1, NOTHING))
        if not rows.replays:
            return x
        follows = (rows["step"] == 1) & (rows["opening"] & 1 == 1 if self.live else True)
        first = (rows["first_hidden"], prev, rows["given"], follows)
        return *x, rows.made(), self.net.voice(rows["speaker"]), number, turn.makes, *first

    def backbone(self, x: Hidden, kv: KVView) -> Hidden:
        inputs, at, encoded, number, *unit = x
        if len(at):
            patches = self.net.patch_encoder(encoded, number, kv.frame_kv)
            # padding of the patches stands behind the last token
            inputs = torch.cat((inputs, inputs[:1]))
            patches = torch.where((number >= 0)[:, None], patches, inputs[at])
            inputs = inputs.index_copy(0, at, patches)[:-1]
        hidden = self.net.llm.model(inputs, kv.attend, self.rope, kv.pos)
        if unit and len(at):
            self._remember(torch.cat((hidden, hidden[:1]))[at], kv, *unit)
        return (hidden,)

    def _remember(
        self,
        hidden: Tensor,
        kv: KVView,
        patch: Tensor,
        voice: Tensor,
        number: Tensor,
        makes: Tensor | None = None,
        *first: Tensor,
    ) -> None:
        """Store units that have been made: hidden states [M, hidden] and the patches that they
        made, whose number is `number` [M], of the tokens that make one. `first`, where frames are
        replayed: hidden state, patch and number of the unit that a prompt's end made, and behind
        which token [M] it stands. The last unit of a prompt is none: what is stored there is stored
        again before anyone sees it."""
        unit = self.head.unit
        within = torch.arange(unit, device=number.device)
        pos = number[:, None] * unit + within
        stored = None
        rows = self._units(hidden, patch)
        if makes is not None:
            first_hidden, first_patch, first_number, follows = first
            before = self._units(first_hidden, first_patch)
            rows = [torch.cat(pair, dim=1) for pair in zip(before, rows, strict=True)]
            pos = torch.cat((first_number[:, None] * unit + within, pos), dim=1)
            stored = torch.stack((follows, makes), dim=1).repeat_interleave(unit, dim=1)
        place = flow_place(kv.frame_kv, self.flow_rope, pos, None, stored)
        tables = [self.head.of_condition(self.times, voice), *self.without]
        self.head.remember(rows, tables, self.config.solver.evaluations, place)

    def _units(self, hidden: Tensor, patch: Tensor) -> list[Tensor]:
        """Rows [M, unit, width] of finished units, for each branch. That without guidance has a
        hidden state of zeros, which the projection makes its bias."""
        latents = self.net.latent_proj(patch.to(self.dtype))
        branches = [self.net.hidden_proj(hidden)]
        if self.without:
            bias = self.net.hidden_proj.bias
            branches.append(bias.expand(len(hidden), -1))
        return [torch.cat((h[:, None], latents), dim=1) for h in branches]

    def emit(self, h: Hidden, rows: Rows, u: Tensor) -> Emit:
        (hidden,) = h
        turn = turn_of(rows, self.live)
        is_first = rows["step"] == 0
        new = {
            "last_hidden": torch.where(turn.makes[:, None], hidden, rows["last_hidden"]),
            "first_hidden": torch.where(is_first[:, None], hidden, rows["first_hidden"]),
        }
        if rows.first:
            voice = self.net.voice(rows["speaker"])
            table = self.head.table(self.times + voice[:, None])
            new["modulation"] = table
        else:
            table = rows["modulation"]
        patch = solve(
            self.config.solver,
            self._velocity(hidden, rows, turn, [self.head.of_table(table), *self.without]),
            self.normals(rows, u, turn).to(self.dtype),
        ).float()
        if self.live:
            silent = self.silence[turn.patch.clamp_max(len(self.silence) - 1)]
            patch = torch.where((turn.patch < rows["silent"])[:, None, None], silent, patch)
            patch = torch.where(turn.makes[:, None, None], patch, rows["prev"])
        emitted = turn.makes & ~(is_first & (rows["given"] > 0))
        ends = self.net.stop_probability(hidden) > rows["eos_threshold"]
        if self.live:
            ends = (ends & turn.ended) | (turn.patch + 1 >= rows["most"])
        return Emit(patch, ends & emitted, new, emitted)

    def normals(self, rows: Rows, u: Tensor, turn: StepActions) -> Tensor:
        """Noise [B, noises, patch, D] float32 of what the step makes."""
        drawn = normal(u).view(len(u), -1, self.config.patch, self.config.latent)
        return drawn * rows["noise_scale"].view(-1, 1, 1, 1)

    def _velocity(
        self, hidden: Tensor, rows: Rows, turn: StepActions, tables: list[Tables]
    ) -> Velocity:
        """The guided velocity [B, patch, D] of noisy patches. The unit before theirs is stored
        along."""
        head = self.head
        branches = len(tables)
        number = rows["given"] + turn.patch
        pos = (number[:, None] - 1) * head.unit + torch.arange(2 * head.unit, device=hidden.device)
        is_last = torch.arange(2 * head.unit, device=hidden.device) < head.unit
        visible = torch.where(is_last, pos, pos[:, -1:])
        stored = ~is_last | (turn.patch > 0)[:, None]
        place = flow_place(rows.frame_kv, self.flow_rope, pos, visible, stored)
        before = self._units(rows["last_hidden"], rows["prev"])
        current = self._units(hidden, rows["prev"])
        context = torch.cat(
            [torch.cat((b, c[:, :1]), dim=1) for b, c in zip(before, current, strict=True)]
        )
        guidance = rows["cfg"].to(self.dtype).view(-1, 1, 1)

        def velocity(z: Tensor, evaluation: int) -> Tensor:
            noisy = self.net.coordinate_proj(z).repeat(branches, 1, 1)
            v = head.velocity(
                torch.cat((context, noisy), dim=1), branches, evaluation, tables, place
            )
            if branches == 1:
                return v
            conditional, without = v.chunk(2)
            return conditional + guidance * (conditional - without)

        return velocity
