"""What an error of an endpoint means: one table over status, code and a few words.

Failure.kind
    transient   trouble that may pass: ask again
    busy        too many requests: ask again, with fewer in flight
    refused     this request is refused for what it is
    fatal       every request would fail this way
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from beam_common.messages import one_line
from beam_common.rows import Json

WRONG_URL = "check {prefix}base-url {url} (most servers want /v1 at its end)"
ADVICE = {
    401: "the key is refused: check {prefix}api-key",
    402: "the account is used up: top it up, then start again",
    404: WRONG_URL + " and {prefix}model",
    405: WRONG_URL,
    407: "the proxy wants credentials: check HTTP_PROXY, or set NO_PROXY",
}
TLS_ADVICE = {  # by what OpenSSL says
    "CERTIFICATE_VERIFY_FAILED": "let SSL_CERT_FILE name the certificate of its authority",
    "WRONG_VERSION|RECORD_LAYER|PACKET_LENGTH": "no https there: check the scheme of "
    "{prefix}base-url {url}",
}
Kind = Literal["transient", "busy", "refused", "fatal"]


@dataclass(frozen=True)
class Failure:
    """Why there is no answer. `text` is one line, fit for a row."""

    kind: Kind
    text: str
    advice: str = ""  # what to look at
    wait: float = 0.0  # seconds that the endpoint names
    overflow: bool = False  # refused because the prompt is too long

    @property
    def with_advice(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


@dataclass(frozen=True)
class Flags:
    """How a program's flags are called, for advice.

    `parameters`: names in the body that have a flag; the first one that an error names counts.
    """

    prefix: str = "--"
    parameters: Sequence[str] = ("model",)
    no_stream: str = ""  # advice where a stream is the trouble
    too_long: str = ""  # advice where a prompt is too long
    url: str = ""  # the base URL, as it may be shown

    def advice(self, text: str = WRONG_URL) -> str:
        """What to look at where every request fails."""
        return text.format(prefix=self.prefix, url=self.url)

    def of_parameter(self, words: str) -> str:
        """What to look at where an error names a parameter."""
        for name in self.parameters:
            if re.search(rf"\b{name}\b", words):
                return "see " + self.prefix + name.replace("_", "-")
        return ""


STATUS_OF_CODE = {  # of errors inside a reply that was said to be fine
    429: "rate_?limit|too_many_requests|resource_exhausted",
    529: "overloaded",
    400: "invalid_(request|argument)|content_filter",
    401: "authentication|invalid_api_key",
    403: "permission",
    404: "not_found",
}
LONGEST_WORDS = 500  # characters of a message that are looked at: some servers echo the prompt
PAGE = r"(?is)<\s*(!doctype|html|head|body)\b.*"
USED_UP = (
    r"(?i)insufficient[ _](\w+_)?(quota|balance|credits?|funds)|exceeded_current_quota"
    r"|billing_hard_limit|budget_exceeded"
)
LOAD = (
    r"(?i)overload|\bload|capacity|queue|\brates?\b|rate_?limit|per (second|minute)|busy|too many"
    r"|throttl|concurren"
)
TOO_LARGE = (
    r"(?is)context_length_exceeded"
    r"|\b(request|prompt|input|messages?)\b[^.]{0,30}\btoo (large|long)"
)
OVERFLOW = (
    rf"{TOO_LARGE}|context[ _-]?(length|window|size|limit)|\bn_ctx\b|max_model_len"
    r"|tokens?\b.{0,40}\bexceed|\bexceed.{0,40}\btokens?\b|\binput length"
)
ANSWER_LIMIT = r"\bmax_(\w+_)?tokens\b"
PROMPT = r"(?i)\b(input|prompt|messages?)\b"
STREAM = r"(?<![\w-])stream(_options)?(?![\w-])"
WRONG_PATH = (
    r"(?i)(unexpected|unknown|invalid|no such|no) (endpoint|path|route|url)"
    r"|(endpoint|path|route|url|method) (was )?not (found|allowed|supported)|^not found"
)


@dataclass(frozen=True)
class ErrorBody:
    """An error as the endpoint words it."""

    message: str
    codes: str = ""


def parsed(body: str | bytearray) -> Any:
    """A body as JSON; None where it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def read_error(content: Any, text: str = "") -> ErrorBody:
    """The error in a body: OpenAI's `error`, FastAPI's `detail`, a bare `message`, else `text`."""
    if isinstance(content, list) and content:
        content = content[0]
    codes: list[str] = []
    while isinstance(content, dict):
        codes += [str(content[n]) for n in ("code", "type", "status", "param") if content.get(n)]
        inner = [content[n] for n in ("error", "detail", "message", "msg") if content.get(n)]
        content = inner[0] if inner else str(content)
        text = str(content)
    return ErrorBody(text, " ".join(codes))


def meaning(status: int, error: ErrorBody, flags: Flags, where: str = "HTTP") -> Failure:
    """What a status with an error body means."""
    message = re.sub(PAGE, "an HTML page", error.message[:LONGEST_WORDS])
    text = one_line(f"{where} {status}: {message or 'no reason given'}", LONGEST_WORDS)
    words = f"{message} {error.codes}"
    if re.search(USED_UP, words):
        status = 402
    if status in ADVICE or status < 400:
        return Failure("fatal", text, flags.advice(ADVICE.get(status, WRONG_URL)))
    busy = status == 429 or (status in (503, 529) and re.search(LOAD, words))
    too_long = re.search(TOO_LARGE if busy else OVERFLOW, words)  # while busy: a rate, mostly
    of_answer = re.search(ANSWER_LIMIT, words) and not re.search(PROMPT, words)
    if too_long and not of_answer:
        return Failure("refused", text, flags.too_long, overflow=True)
    if busy:
        return Failure("busy", text)
    if status in (408, 409, 425) or status >= 500:
        return Failure("transient", text)
    if flags.no_stream and status in (400, 422) and re.search(STREAM, words):
        return Failure("fatal", text, flags.no_stream)
    return Failure("refused", text, flags.of_parameter(words))


def error_inside(content: Json, flags: Flags) -> Failure:
    """The failure in a reply of status 200 that holds an error."""
    error = read_error(content)
    number = re.search(r"\b[345]\d\d\b", error.codes)
    known = [s for s, names in STATUS_OF_CODE.items() if re.search(names, error.codes.lower())]
    if not number and not known and re.search(WRONG_PATH, error.message):
        return Failure("fatal", f"the endpoint answers: {error.message}", flags.advice())
    status = int(number[0]) if number else [*known, 500][0]
    return meaning(status, error, flags, "error inside a reply, taken as")


WAIT_HEADERS = {"retry-after": "", "llm_provider-retry-after": "", "retry-after-ms": "ms"}
EPOCH = 1e9  # seconds; a number above it is a point in time, above EPOCH_MS in milliseconds
EPOCH_MS = 1e11
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
PART = r"(\d+(?:\.\d+)?)\s*(ms|[smhd])(?:ec(?:ond)?s?|in(?:ute)?s?|ours?|ays?)?(?![a-z])\s*"
DURATION = f"(?:{PART})+"
WAIT_WORDS = rf"(?:\b(?:in|after) +|retryDelay\W+)({DURATION})"


def named_wait(headers: dict[str, str], now: float, text: str) -> float:
    """Seconds until the endpoint wants to be asked again, as headers or the body's text say.

    0 for none, the past and junk. `headers` by lower-case names. When a counter starts anew counts
    only where nothing is left of it, and nothing else is said.
    """
    waits = [_seconds(headers.get(n, "") + unit, now) for n, unit in WAIT_HEADERS.items()]
    if said := re.search(WAIT_WORDS, text):
        waits.append(_seconds(said[1], now))
    if max(waits) <= 0:
        for name, value in headers.items():
            left = headers.get(name.replace("reset", "remaining"), "0")
            if name.startswith("x-ratelimit-reset") and left == "0":
                waits.append(_seconds(value, now))
    return max(0.0, *waits)


def _seconds(text: str, now: float) -> float:
    """The wait in `2.5`, `6m0s`, `1 seconds` or a point in time; 0 for junk."""
    import email.utils  # takes a while, and is hardly ever needed

    text = text.strip()
    if duration := re.fullmatch(DURATION, text) or re.fullmatch(DURATION, text + "s"):
        seconds = sum(float(n) * UNITS[unit] for n, unit in re.findall(PART, duration[0]))
        seconds /= 1000 if seconds > EPOCH_MS else 1
        return seconds - now if seconds > EPOCH else seconds
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
