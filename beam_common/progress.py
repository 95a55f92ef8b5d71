"""The progress of a run: a bar on a terminal, else one plain line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from beam_common.messages import say

PLAIN_SECONDS = 30.0  # between two plain lines
SILENCE = 300.0  # without a byte from anyone before the screen says so
BAR_SECONDS = 1.0  # between two looks of a bar
BAR_FORMAT = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


class Progress:
    """`status` gives what follows the counts, the most important first: a narrow bar is cut."""

    _told = 0.0
    _bar: Any = None
    interval = PLAIN_SECONDS

    def __init__(self, total: int, done: int, unit: str, status: Callable[[], str]) -> None:
        self._total, self._done, self._unit, self._status = total, done, unit, status
        self._first_done = done
        self._started = self._shown = time.monotonic()
        if _has_known_width():
            import tqdm

            self.interval = BAR_SECONDS
            self._bar = tqdm.tqdm(
                total=total,
                initial=done,
                bar_format=BAR_FORMAT,
                postfix=status(),
                file=sys.stderr,
                dynamic_ncols=True,
            )

    def step(self, n: int = 1) -> None:
        self._done += n
        if self._bar is not None:
            self._bar.set_postfix_str(self._status(), refresh=False)
            self._bar.update(n)

    def tick(self, last_byte_at: float | None = None) -> None:
        """Show a plain line if one is due; bring a bar up to date.

        `last_byte_at`: when a byte last came, where requests are in flight. A long silence is told
        once.
        """
        now = time.monotonic()
        if last_byte_at and last_byte_at != self._told and now - last_byte_at > SILENCE:
            self._told = last_byte_at
            say(f"no byte from anyone for {duration_text(now - last_byte_at)}: still waiting")
        if self._bar is not None:
            self._bar.set_postfix_str(self._status())
        elif now - self._shown >= PLAIN_SECONDS:
            self._shown = now
            text = f"{self._done:,} of {self._total:,} {self._unit}s, {self._status()}"
            if new := self._done - self._first_done:
                left = (now - self._started) / new * (self._total - self._done)
                text += f", about {duration_text(left)} left"
            say(text)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _has_known_width() -> bool:
    try:
        return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except (OSError, ValueError):
        return False


def short_count(n: int) -> str:
    """`950`, `12.3k`, `34.9M`, for lines without much room."""
    if n >= 1_000_000:
        return f"{n / 1_000_000:.1f}M"
    return f"{n / 1_000:.1f}k" if n >= 1_000 else str(n)


def duration_text(seconds: float) -> str:
    """`42 s`, `7 min`, `3 h 05 min`."""
    if seconds < 60:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
