"""From the flags of a program to the requests of a run."""

from __future__ import annotations

from argparse import Namespace as Args
from collections.abc import Sequence
from dataclasses import replace

from beam_common.cli import shown_url
from beam_common.endpoint import Endpoint, encode_body, encode_json
from beam_common.failure import Flags
from beam_common.messages import say
from beam_common.rows import Json
from beam_common.run import Ended, Run
from beam_common.schedule import Order
from beam_common.settings import now_text

CHAT_ID = b"{chat_id}"  # stands for a chat's id in a body
SMALLEST_LIMIT = 2**26  # bytes of a reply that are read in any case
BYTES_A_TOKEN = 2048  # the most that a token of a reply may take, events and all


def body_of(settings: bytes, chat_id: str, text: str, before: Sequence[bytes] = ()) -> list[bytes]:
    """A body whose last message is the user's `text`, in slices.

    `settings`: all but the messages, as JSON, in which the chat's id gets its place, since caches
    are kept apart by such keys; `before`: the messages before, each followed by a comma.
    """
    settings = settings.replace(CHAT_ID, encode_json(chat_id)[1:-1])
    return encode_body(settings, before, encode_json({"role": "user", "content": text}))


def start_run(args: Args, key: str, flags: Flags, settings: Json, order: Order) -> Run:
    """A run that asks `order`'s jobs, with `settings` in each body."""
    if not settings.get("stream"):
        flags = replace(flags, no_stream="")
    limits = settings.keys() & {"max_tokens", "max_completion_tokens"}
    most = max((n for name in limits if isinstance(n := settings[name], int)), default=0)
    endpoint = Endpoint(
        args.base_url,
        key,
        timeout=args.timeout,
        headers=dict(args.header),
        flags=flags,
        longest_reply=max(SMALLEST_LIMIT, BYTES_A_TOKEN * most),
    )
    one_token = encode_json({**settings, **dict.fromkeys(limits, 1)})
    return Run(endpoint, order, args, probe=body_of(one_token, "probe", "Hello"))


def announce(args: Args, what: str) -> None:
    say(f"{now_text()} {what} at {shown_url(args.base_url)}, {args.concurrency} in flight")


def closing(ended: Ended, left: str) -> int:
    """Say how a run ended, what is `left` and how to go on; the exit code."""
    if ended.reason:
        say(f"stopped: {ended.reason}")
    if left:
        say(f"{left}: start the same command again to go on")
        return ended.code or 1
    return ended.code if ended.code > 1 else 0
