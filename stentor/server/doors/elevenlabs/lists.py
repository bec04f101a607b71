"""Voices and models as ElevenLabs lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from stentor.server.errors import invalid
from stentor.server.limits import LIMITS
from stentor.server.speech.languages import code_of
from stentor.server.state import Server
from stentor.server.voices.voice import listing, own_voices

PAGE = LIMITS.max_voices  # voices of a page where a request does not say


async def voices(server: Server) -> list[dict[str, Any]]:
    """The default voice, those of the models, aliases and uploads."""
    own = own_voices(server.hosts.voices(), server.config.aliases)
    found = await asyncio.to_thread(lambda: listing(own, server.voices.list(), details=True))
    return [_voice(entry) for entry in found["data"]]


def _voice(entry: dict[str, Any]) -> dict[str, Any]:
    """ElevenLabs' Voice for an entry of our list."""
    uploaded = entry["type"] == "uploaded"
    return {
        "voice_id": entry["id"],
        "name": entry["name"],
        "category": "cloned" if uploaded else "premade",
        "labels": {},
        "description": entry.get("speaker_description"),
        "preview_url": None,
        "available_for_tiers": [],
        "settings": None,
        "samples": None,
        "high_quality_base_model_ids": [],
        "is_owner": uploaded,
        "created_at_unix": entry.get("created_at"),
    }


def page(found: Sequence[dict[str, Any]], size: int, token: str | None) -> dict[str, Any]:
    """A page of a list. The token of the next is where it begins."""
    if not 1 <= size <= PAGE:
        raise invalid("page_size", f"must be from 1 to {PAGE}")
    if token is not None and not (token.isascii() and token.isdecimal()):
        raise invalid("next_page_token", "must be one of an answer")
    begin = int((token or "0")[: LIMITS.param_chars])
    end = begin + size
    return {
        "voices": list(found[begin:end]),
        "has_more": end < len(found),
        "total_count": len(found),
        "next_page_token": str(end) if end < len(found) else None,
    }


def models(server: Server) -> list[dict[str, Any]]:
    """Each model, and each adapter as a model."""
    names = [(name, host) for host in server.hosts.all for name in (host.name, *host.adapters.paths)]
    return [
        {
            "model_id": name,
            "name": name,
            "description": f"{host.spec.family} on this server" if host.known else None,
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": False,
            "can_be_finetuned": False,
            "can_use_style": False,
            "can_use_speaker_boost": False,
            "serves_pro_voices": False,
            "requires_alpha_access": False,
            "token_cost_factor": 0.0,
            "model_rates": {"character_cost_multiplier": 0.0},
            "maximum_text_length_per_request": server.config.max_input_chars,
            "max_characters_request_free_user": server.config.max_input_chars,
            "max_characters_request_subscribed_user": server.config.max_input_chars,
            "languages": [{"language_id": code_of(n), "name": n.title()} for n in host.spec.languages]
            if host.known
            else [],
            "concurrency_group": "standard",
        }
        for name, host in names
    ]
