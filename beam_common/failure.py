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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from beam_common.messages import one_line
from beam_common.rows import Json

Kind = Literal["transient", "busy", "refused", "fatal"]


@dataclass(frozen=True)
class Failure:
    """Why there is no answer. `text` is one line, fit for a row."""

    kind: Kind
    text: str
    wait: float | None = None  # seconds that the endpoint names
    advice: str = ""  # what to look at
    overflow: bool = False  # refused because the prompt is too long

    @property
    def with_advice(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


@dataclass(frozen=True)
class Flags:
    """What a program's flags are called, for advice.

    `parameters`: by their names in the body; of several that an error names the first one counts.
    """

    base_url: str = "--base-url"
    api_key: str = "--api-key"
    parameters: Mapping[str, str] = field(default_factory=dict)
    no_stream: str = ""  # where replies are streamed
    too_long: str = ""  # advice where a prompt is too long

    def advice(self, status: int = 0) -> str:
        """What to look at where every request fails: with `status`, or for want of an API."""
        model = self.parameters.get("model", "the model")
        text = ADVICE.get(status, WRONG_URL)
        return text.format(base_url=self.base_url, api_key=self.api_key, model=model)

    def of_parameter(self, words: str) -> str:
        """What to look at where an error names a parameter."""
        for name, flag in self.parameters.items():
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words):
                return f"see {flag}"
        return ""


WRONG_URL = "check {base_url} (most servers want /v1 at its end)"
ADVICE = {
    401: "the key is refused: check {api_key}",
    402: "the account is used up: top it up, then start again",
    404: WRONG_URL + " and {model}",
    407: "the proxy wants credentials: check HTTP_PROXY, or set NO_PROXY",
}
FATAL_STATUS = (401, 402, 404, 405, 407)
PASSING_STATUS = (408, 409, 425)
STATUS_OF_CODE = {  # of errors inside a reply that was said to be fine
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "resource_exhausted": 429,
    "overloaded_error": 529,
    "unavailable": 503,
    "invalid_request_error": 400,
    "invalid_argument": 400,
    "content_filter": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}
LONGEST_WORDS = 500  # characters of a message that are looked at: some servers echo the prompt

PAGE = re.compile(r"<\s*(!doctype|html|head|body)\b.*", re.I | re.S)
QUOTA = re.compile(
    r"insufficient[ _](\w+_)?(quota|balance|credits?|funds)|exceeded_current_quota"
    r"|billing_hard_limit|budget_exceeded",
    re.I,
)
LOAD = re.compile(
    r"overload|\bload|capacity|queue|\brates?\b|rate_?limit|per (second|minute)|busy|too many"
    r"|throttl|concurren",
    re.I,
)
TOO_LARGE = re.compile(
    r"context_length_exceeded|\b(request|prompt|input|messages?)\b[^.]{0,30}\btoo (large|long)",
    re.I,
)
OVERFLOW = re.compile(
    rf"{TOO_LARGE.pattern}|context[ _-]?(length|window|size|limit)|\bn_ctx\b|max_model_len"
    r"|tokens?\b.{0,40}\bexceed|\bexceed.{0,40}\btokens?\b|\binput length",
    re.I | re.S,
)
ANSWER_LIMIT = re.compile(r"\bmax_(\w+_)?tokens\b")
PROMPT = re.compile(r"\b(input|prompt|messages?)\b", re.I)
STREAM = re.compile(r"(?<![\w-])stream(_options)?(?![\w-])")
WRONG_PATH = re.compile(
    r"(unexpected|unknown|invalid|no such|no) (endpoint|path|route|url)"
    r"|(endpoint|path|route|url|method) (was )?not (found|allowed|supported)|^not found",
    re.I,
)


# ------------------------------------------------------------------------------------------------
# Errors.


@dataclass(frozen=True)
class ErrorBody:
    """An error as the endpoint words it. `status`: the one that its code stands for."""

    message: str
    codes: str = ""
    status: int | None = None


def read_error(content: object, text: str = "") -> ErrorBody:
    """The error in a body: OpenAI's `error`, FastAPI's `detail`, a bare `message`, `text`."""
    if isinstance(content, list) and content:
        content = content[0]
    if not isinstance(content, dict):
        return ErrorBody(text)
    error: Any = content
    while isinstance(error, dict) and (inner := error.get("error") or error.get("detail")):
        error = inner
    fields = error if isinstance(error, dict) else {}
    message = fields.get("message") or fields.get("msg") or error
    if not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    names = ("code", "type", "status", "param")
    codes = [str(place[n]) for place in (fields, content) for n in names if place.get(n)]
    status = next(filter(None, map(_status_of, codes)), None)
    return ErrorBody(message, " ".join(codes), status)


def _status_of(code: str) -> int | None:
    return int(code) if re.fullmatch(r"[345]\d\d", code) else STATUS_OF_CODE.get(code.lower())


def meaning(status: int, error: ErrorBody, flags: Flags, where: str = "HTTP") -> Failure:
    """What a status with an error body means."""
    message = PAGE.sub("an HTML page", error.message[:LONGEST_WORDS])
    text = one_line(f"{where} {status}: {message or 'no reason given'}")
    words = f"{message} {error.codes}"
    if QUOTA.search(words):
        return Failure("fatal", text, advice=flags.advice(402))
    if status in FATAL_STATUS or status < 400:
        return Failure("fatal", text, advice=flags.advice(status))
    if _is_overflow(status, words):
        return Failure("refused", text, advice=flags.too_long, overflow=True)
    if status in (400, 422) and flags.no_stream and STREAM.search(words):
        return Failure("fatal", text, advice=f"start again with {flags.no_stream}")
    if status == 429 or (status in (503, 529) and LOAD.search(words)):
        return Failure("busy", text)
    if status in PASSING_STATUS or status >= 500:
        return Failure("transient", text)
    return Failure("refused", text, advice=flags.of_parameter(words))


def _is_overflow(status: int, words: str) -> bool:
    """Whether the prompt alone is called too long: not a rate, and not the limit of the answer."""
    if status == 429:
        return bool(TOO_LARGE.search(words))
    if status >= 500 and LOAD.search(words):
        return False
    is_setting = ANSWER_LIMIT.search(words) and not PROMPT.search(words)
    return bool(OVERFLOW.search(words)) and not is_setting


def error_inside(content: Json, flags: Flags) -> Failure:
    """The failure in a reply of status 200 that holds an error."""
    error = read_error(content)
    if error.status is not None:
        return meaning(error.status, error, flags, "error inside a reply:")
    if WRONG_PATH.search(error.message):
        text = one_line(f"the endpoint answers: {error.message}")
        return Failure("fatal", text, advice=flags.advice())
    return meaning(500, error, flags, "error inside a reply, taken as")


# ------------------------------------------------------------------------------------------------
# Waits.

WAIT_HEADERS = {"retry-after": 1.0, "llm_provider-retry-after": 1.0, "retry-after-ms": 0.001}
EPOCH = 1e9  # seconds; a number above it is a point in time, above EPOCH_MS in milliseconds
EPOCH_MS = 1e11
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
PART = r"(\d+(?:\.\d+)?)\s*(ms|[smhd])(?:ec(?:ond)?s?|in(?:ute)?s?|ours?|ays?)?(?![a-z])\s*"
DURATION = re.compile(f"(?:{PART})+")
WAIT_WORDS = re.compile(rf'(?:\b(?:in|after) +|"retryDelay": *")({DURATION.pattern})')


def named_wait(headers: Mapping[str, str], now: float, text: str = "") -> float | None:
    """Seconds until the endpoint wants to be asked again, as headers or the body's text say.

    `headers` by lower-case names. None where nothing is named, or zero, the past or junk. When a
    counter starts anew counts only where nothing is left of it, and nothing else is said.
    """
    waits = [scale * _seconds(headers.get(n, ""), now) for n, scale in WAIT_HEADERS.items()]
    if found := WAIT_WORDS.search(text):
        waits.append(_seconds(found[1], now))
    if max(waits) <= 0:
        for name, value in headers.items():
            left = headers.get(name.replace("reset", "remaining"), "0")
            if name.startswith("x-ratelimit-reset") and left == "0":
                waits.append(_seconds(value, now))
    return max(waits) if max(waits) > 0 else None


def _seconds(text: str, now: float) -> float:
    """The wait in `2.5`, `6m0s`, `1 seconds` or a point in time; 0 for junk."""
    import email.utils  # takes a while, and is hardly ever needed

    text = text.strip()
    if duration := DURATION.fullmatch(text) or DURATION.fullmatch(text + "s"):
        seconds = sum(float(n) * UNITS[unit] for n, unit in re.findall(PART, duration[0]))
        seconds /= 1000 if seconds > EPOCH_MS else 1
        return seconds - now if seconds > EPOCH else seconds
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
