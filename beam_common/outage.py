"""Whether an endpoint is up: suspected after failures in a row, found out by a small request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from beam_common.cli import shown_url
from beam_common.endpoint import Endpoint
from beam_common.messages import say
from beam_common.places import Waits, backoff
from beam_common.progress import duration_text
from beam_common.reply import Reply

FAILURES_OF_AN_OUTAGE = 4  # attempts in a row


class Outage:
    """Whether the endpoint is down, and since when.

    Down is suspected after some attempts in a row that failed with transient trouble, or the last
    one of a question, and confirmed when a probe fails, too.
    """

    _in_a_row = 0
    since = 0.0
    down = confirmed = has_answered = False

    def failed(self, now: float, was_last: bool) -> bool:
        """An attempt failed; whether the endpoint has just gone down."""
        if not self._in_a_row:
            self.since = now
        self._in_a_row += 1
        was_up = not self.down
        self.down = self.down or was_last or self._in_a_row >= FAILURES_OF_AN_OUTAGE
        return was_up and self.down

    def replied(self) -> None:
        """Something came back that is neither transient nor busy trouble."""
        self._in_a_row = 0
        self.down = self.confirmed = False
        self.has_answered = True


async def wait_until_up(
    endpoint: Endpoint, probe: Sequence[bytes], outage: Outage, max_outage: float, waits: Waits
) -> str:
    """Ask with `probe` after 1, 2, 4 … 60 s, until any reply ends the outage.

    Gives "" then, else why the run has to stop: the endpoint was down for `max_outage` seconds, has
    never answered, or refuses every request. To be cancelled when a request in flight is answered.
    """
    attempt = 0
    while True:
        attempt += 1
        await asyncio.sleep(backoff(attempt, waits))
        outcome = await endpoint.ask(probe, first_piece_only=True)
        if isinstance(outcome, Reply) or outcome.kind == "refused":
            return ""
        if outcome.kind == "fatal":  # a server may hang up on a large body instead of saying so
            return outcome.with_advice
        if not outage.confirmed:
            say(f"the endpoint is down: {outcome.text}; asking it now and then until it answers")
        outage.confirmed = True
        longest = max_outage if outage.has_answered else waits.never_answered
        if time.monotonic() - outage.since >= longest:
            reason = f"the endpoint was down for {duration_text(longest)} (--max-outage)."
            if not outage.has_answered:
                url = shown_url(endpoint.base_url)
                reason = f"nothing at {url} answers: is the server running?"
            return f"{reason} The last attempt: {outcome.with_advice}"
