"""What goes into a request, beside the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from beam_common.endpoint import encode_body, encode_json

CHAT_ID = b"{chat_id}"  # stands for a chat's id in a body
BYTES_A_TOKEN = 2048  # the most that a token of a reply may take, events and all
SMALLEST_LIMIT = 64 * 2**20  # bytes of a reply that are read in any case


def for_chat(settings: bytes, chat_id: str) -> bytes:
    """Encoded settings with the chat's id in its place: caches are kept apart by such keys."""
    return settings.replace(CHAT_ID, encode_json(chat_id)[1:-1])


def probe(settings: Mapping[str, Any]) -> list[bytes]:
    """A one-line chat with a run's settings that asks for one token."""
    limits = {name: 1 for name in ("max_tokens", "max_completion_tokens") if name in settings}
    encoded = for_chat(encode_json({**settings, **limits}), "probe")
    return encode_body(encoded, [], encode_json({"role": "user", "content": "Hello"}))


def longest_reply(settings: Mapping[str, Any]) -> int:
    """Bytes of a reply that are read: as many as the token limit allows."""
    limits = (settings.get(name) for name in ("max_tokens", "max_completion_tokens"))
    tokens = max((n for n in limits if isinstance(n, int)), default=0)
    return max(SMALLEST_LIMIT, tokens * BYTES_A_TOKEN)
