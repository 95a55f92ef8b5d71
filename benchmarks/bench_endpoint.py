"""An endpoint that answers at once and takes next to no time itself, in a process of its own.

It counts the bytes of a request's body, looks at none of them, and sends a reply made beforehand. Which one is told by
the base URL: http://127.0.0.1:PORT/stream20/v1 streams 20 events (any number will do), /json/v1 answers in one piece,
/verdict/v1 as a judge does. Each event is a chunk of its own, as servers send them, but all of them leave at once: the
most work at a time for a client. GET /used tells CPU time, requests, and the time between the first and the last.

    python benchmarks/bench_endpoint.py        # prints its port; ends with its standard input
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from typing import Any, Self, cast

from bench_measure import beside, start_child

USAGE = {"prompt_tokens": 1_000_000, "completion_tokens": 300, "prompt_tokens_details": {"cached_tokens": 990_000}}
BUFFER = 2**20
VERDICT = json.dumps({"score": 1.0, "reason": "The response states what the criterion asks for, in other words."})


def chunk_of(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: object) -> bytes:
    return chunk_of(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")


def piece(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def stream(events: int) -> bytes:
    """A reply of so many events, the last two being the one with the usage and [DONE]."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    texts = [event(piece({"content": f" word{number}"})) for number in range(events - 3)]
    last = [event(piece({}, "stop")), event({**piece({}), "choices": [], "usage": USAGE}), event(b"[DONE]")]
    return head + b"".join(texts + last) + b"0\r\n\r\n"


def whole(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    body = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json_reply({**body, "usage": USAGE})


def json_reply(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Counts:
    """What has been served since the last look."""

    def __init__(self) -> None:
        self.replies: dict[str, bytes] = {}
        self.requests, self.first, self.last = 0, 0.0, 0.0
        self.cpu = time.process_time()

    def look(self) -> dict[str, float]:
        now = time.process_time()
        seen = {"cpu": now - self.cpu, "requests": self.requests, "span": self.last - self.first}
        self.requests, self.first, self.last, self.cpu = 0, 0.0, 0.0, now
        return seen

    def reply(self, kind: str) -> bytes:
        now = time.perf_counter()
        self.first = self.first or now
        self.last = now
        self.requests += 1
        if kind not in self.replies:
            events = re.fullmatch(r"stream(\d+)", kind)
            text = VERDICT if kind == "verdict" else "a short answer"
            self.replies[kind] = stream(int(events[1])) if events else whole(text)
        return self.replies[kind]


class Connection(asyncio.BufferedProtocol):
    """Reads into one buffer that all connections share: what is in it is dealt with at once."""

    buffer = memoryview(bytearray(BUFFER))

    def __init__(self, counts: Counts) -> None:
        self.counts, self.head, self.left, self.kind = counts, b"", 0, ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.left:
            self.left -= nbytes
        else:
            self.head += bytes(self.buffer[:nbytes])
            head, end, body = self.head.partition(b"\r\n\r\n")
            if not end:
                return
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            self.kind = head.split(b" ", 2)[1].split(b"/")[1].decode()
            self.left = int(length[1] if length else 0) - len(body)
            self.head = b""
        if self.left <= 0:
            self.left = 0
            look = self.kind == "used"
            self.transport.write(json_reply(self.counts.look()) if look else self.counts.reply(self.kind))


async def serve() -> None:
    loop = asyncio.get_running_loop()
    counts = Counts()
    server = await loop.create_server(lambda: Connection(counts), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


class EndpointProcess:
    """The endpoint as a child; a context manager."""

    def __enter__(self) -> Self:
        self.process = start_child([beside("bench_endpoint.py")], subprocess.PIPE, None, subprocess.PIPE)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.communicate()  # closes its standard input

    def url(self, kind: str) -> str:
        return f"http://127.0.0.1:{self.port}/{kind}/v1"

    def used(self) -> dict[str, float]:
        """CPU seconds of the endpoint, requests and seconds between the first and the last reply since the last look."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/used") as reply:
            return cast(dict[str, float], json.load(reply))


if __name__ == "__main__":
    asyncio.run(serve())
