"""From the flags of a program to the requests of a run."""

from __future__ import annotations

import argparse
from dataclasses import replace

from beam_common.endpoint import Endpoint, encode_body, encode_json
from beam_common.failure import Flags
from beam_common.rows import Json
from beam_common.run import Limits, Run
from beam_common.schedule import Order

CHAT_ID = b"{chat_id}"  # stands for a chat's id in a body
BYTES_A_TOKEN = 2048  # the most that a token of a reply may take, events and all
SMALLEST_LIMIT = 64 * 2**20  # bytes of a reply that are read in any case


def for_chat(settings: bytes, chat_id: str) -> bytes:
    """Encoded settings with the chat's id in its place: caches are kept apart by such keys."""
    return settings.replace(CHAT_ID, encode_json(chat_id)[1:-1])


def probe(settings: Json) -> list[bytes]:
    """A one-line chat with a run's settings that asks for one token."""
    limits = {name: 1 for name in ("max_tokens", "max_completion_tokens") if name in settings}
    encoded = for_chat(encode_json({**settings, **limits}), "probe")
    return encode_body(encoded, [], encode_json({"role": "user", "content": "Hello"}))


def longest_reply(settings: Json) -> int:
    """Bytes of a reply that are read: as many as the token limit allows."""
    limits = (settings.get(name) for name in ("max_tokens", "max_completion_tokens"))
    tokens = max((n for n in limits if isinstance(n, int)), default=0)
    return max(SMALLEST_LIMIT, tokens * BYTES_A_TOKEN)


def start_run(
    args: argparse.Namespace, key: str, flags: Flags, settings: Json, order: Order, chats: int
) -> Run:
    """A run that asks `order`'s jobs about so many `chats`, with `settings` in each body."""
    if not settings.get("stream"):
        flags = replace(flags, no_stream="")
    endpoint = Endpoint(
        args.base_url,
        key,
        timeout=args.timeout,
        headers=dict(args.header),
        flags=flags,
        longest_reply=longest_reply(settings),
    )
    limits = Limits(
        args.concurrency, args.max_retries, args.max_outage, args.stop_after_failures, chats
    )
    return Run(endpoint, order, limits, probe(settings))
