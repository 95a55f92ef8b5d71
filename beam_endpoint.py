"""One request to an OpenAI-compatible `/chat/completions`: its body, its reply, and what a failure means.

`Endpoint.ask` gives a value, never an exception, for everything an endpoint can do:

    Reply                     the model's answer, possibly empty
    Failure  kind "retry"     trouble that may pass: try again, after `wait` seconds if the endpoint named a wait
             kind "record"    this request is refused for what it is: trying again would be paid for nothing
             kind "overflow"  the same, because the prompt is longer than the endpoint takes
             kind "stop"      every request would fail this way; `way_out` says what to change

The prompt's shared bytes are sent in slices with a Content-Length; replies are read here, as JSON or as server-sent
events, whatever was asked for, since servers differ in whether they heed `stream`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import email.utils
import json
import os
import re
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import httpx2
import openai

from beam_cli import shown_url
from beam_common import UsageError, one_line

LONGEST_REPLY = 64 * 2**20  # bytes; more than any answer, so a server that never ends cannot fill the memory
CONNECT_SECONDS = 60.0
AFTER_FINISH_SECONDS = 30.0  # how long a finished answer is held back for its usage and [DONE]
DRAIN_SECONDS = 0.25  # how long a finished stream may take to close before its connection is given up
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Reply:
    """An answer as received. Token counts are None where the endpoint did not report them."""

    text: str
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True)
class Failure:
    """Why there is no answer. `text` is one line for a row or a message."""

    kind: Literal["retry", "record", "overflow", "stop"]
    text: str
    wait: float | None = None  # seconds that the endpoint asked for
    free: bool = False  # a rate limit that names its wait does not use up an attempt
    way_out: str = ""
    over: tuple[int, int] | None = None  # (tokens of the prompt, tokens allowed) where an overflow states them


@dataclass(frozen=True)
class Flags:
    """What the flags of an endpoint are called, for messages."""

    base_url: str = "--base-url"
    api_key: str = "--api-key"
    model: str = "--model"


# ---------------------------------------------------------------------------------------------------------------
# The body of a request.


def parameters(settings: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Everything in a body but the messages: the keys of `extra` win, a null in it takes a key out."""
    merged = {**settings, **extra}
    return {name: value for name, value in merged.items() if not (name in extra and value is None)}


def encode_json(value: object) -> bytes:
    """JSON as the SDK writes it: UTF-8, no blanks; lone surrogates, on which the SDK fails, as JSON escapes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def encode_body(settings: bytes, shared: Sequence[bytes], last_message: bytes) -> list[bytes]:
    """The body in slices: `settings` (a JSON object), then the messages: `shared` (each followed by a comma), the last."""
    head = settings[:-1] + (b"," if len(settings) > 2 else b"") + b'"messages":['
    return [head, *shared, last_message + b"]}"]


# ---------------------------------------------------------------------------------------------------------------
# Reading a reply.


def text_of(content: object) -> str:
    """A message's content as text: a string, or the text parts of a list joined; None is an empty answer."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (
            part if isinstance(part, str) else part.get("text") for part in content if isinstance(part, (str, dict))
        )
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def join_surrogates(text: str) -> str:
    """Halves of a surrogate pair that came in two pieces become one character; lone ones stay."""
    return re.sub(
        "[\ud800-\udbff][\udc00-\udfff]",
        lambda m: m.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le"),
        text,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def token_counts(usage: object) -> tuple[int | None, int | None, int | None]:
    """(prompt, completion, cached) tokens of a usage object, each None where it is not reported."""
    if not isinstance(usage, dict):
        return None, None, None
    details = usage.get("prompt_tokens_details")
    places = [details.get("cached_tokens") if isinstance(details, dict) else None]
    places += [usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens")]
    cached = next((count for count in map(_count, places) if count is not None), None)
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), cached


def _finished(text: str, finish_reason: object, usage: object) -> Reply | Failure:
    reason = finish_reason if isinstance(finish_reason, str) and finish_reason else None
    if reason in ("error", "insufficient_system_resource", "abort"):
        return Failure("retry", f"the reply ended with finish_reason {reason}")
    if reason == "content_filter":
        return Failure("record", "the endpoint's content filter stopped the reply (finish_reason content_filter)")
    prompt, completion, cached = token_counts(usage)
    return Reply(join_surrogates(text), reason, prompt, completion, cached)


def _reports_error(body: Mapping[str, Any], answered: bool) -> bool:
    """Whether a body of status 200 is an error; beside an answer only one with a code is, some gateways send empty ones."""
    if body.get("error"):
        return not answered or read_error(body).status is not None
    return not answered and bool(body.get("object") == "error" or body.get("message") or body.get("detail"))


def read_completion(body: object, wait: float | None = None) -> Reply | Failure:
    """A reply that is not streamed, as parsed JSON. `wait`: seconds that its headers name, for an error in it."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if not isinstance(body, dict):
        return Failure("retry", "the reply is JSON, but no completion")
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
    message = choice.get("message") if choice else None
    answered = isinstance(message, dict)
    if _reports_error(body, answered):
        return _error_inside(body, wait)
    if choice and choice.get("error") and _reports_error(choice, answered):
        return _error_inside(choice, wait)
    if not choice or not isinstance(message, dict):
        return Failure("retry", "the reply holds no choices" if not choice else "the reply holds no message")
    return _finished(text_of(message.get("content")), choice.get("finish_reason"), body.get("usage"))


DONE = b"[DONE]"


class EventLines:
    """Splits the bytes of a stream of server-sent events into the data of each event."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of a line whose end has not come yet
        self._data: list[bytes] = []
        self._after_return = False  # a line feed that comes next is the second half of a line end

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The data of every event that `chunk` completes; at the end, feed two line ends."""
        if self._after_return and chunk:
            chunk, self._after_return = chunk.removeprefix(b"\n"), False
        if b"\n" not in chunk and b"\r" not in chunk:
            self._pieces.append(chunk)
            return
        lines = b"".join([*self._pieces, chunk]).splitlines(keepends=True)
        self._after_return = lines[-1].endswith(b"\r")
        self._pieces = [] if lines[-1].endswith((b"\r", b"\n")) else [lines.pop()]
        for line in lines:
            yield from self._line(line.rstrip(b"\r\n"))

    def _line(self, line: bytes) -> Iterator[bytes]:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        if self._data and (not line or self._data[-1].strip() == DONE):  # after [DONE] nothing is worth waiting for
            data, self._data = self._data, []
            whole = b"\n".join(data)
            yield from [whole] if len(data) == 1 or _is_json(whole) else data


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
        return True
    except ValueError:
        return False


@dataclass
class Stream:
    """What has come of a streamed completion."""

    wait: float | None = None  # seconds that the headers name, for an error among the events
    parts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage: object = None
    failure: Failure | None = None
    done: bool = False
    begun: bool = False  # a choice has come
    first_piece: bool = False  # content or reasoning has come: the prompt's prefix is cached now

    def take(self, data: bytes) -> None:
        """One event's data."""
        if self.done or not data.strip():
            return
        if data.strip() == DONE:
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            self.failure = Failure("retry", f"an event of the stream is not JSON: {_shown(data)}")
            return
        if not isinstance(chunk, dict):
            return
        if not self.finish_reason and _reports_error(chunk, answered=bool(chunk.get("choices"))):
            self.failure = _error_inside(chunk, self.wait)
            return
        self.usage = chunk.get("usage") or self.usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if not isinstance(choice, dict) or choice.get("index") not in (0, None):
                continue
            if choice.get("error") and _reports_error(choice, answered=bool(choice.get("delta"))):
                self.failure = _error_inside(choice, self.wait)
                return
            delta = choice.get("delta") or (None if self.begun else choice.get("message"))
            self.begun = True
            if isinstance(delta, dict):
                self.parts.append(text_of(delta.get("content")))
                self.first_piece |= bool(self.parts[-1] or delta.get("reasoning_content") or delta.get("reasoning"))
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def result(self) -> Reply | Failure:
        """The answer, once the stream is over."""
        if self.failure:
            return self.failure
        if not self.finish_reason and not self.done:
            return Failure("retry", "the stream ended before the reply did")
        if not self.begun:
            return Failure("retry", "the stream holds no choices")
        return _finished("".join(self.parts), self.finish_reason, self.usage)


# ---------------------------------------------------------------------------------------------------------------
# What a failure means.

STOPPING_STATUS = {401, 402, 404, 405, 407}
PASSING_STATUS = {408, 409, 425, 429}
CODE_NAMES = {  # errors inside a reply whose code, type or status is a word: OpenAI's, Anthropic's, Google's
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "server_error": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "api_error": 500,
    "overloaded_error": 529,
    "service_unavailable": 503,
    "timeout": 504,
    "timeout_error": 504,
    "resource_exhausted": 429,
    "unavailable": 503,
    "internal": 500,
    "deadline_exceeded": 504,
    "bad_request_error": 400,
    "invalid_argument": 400,
    "unauthenticated": 401,
    "billing_error": 402,
    "permission_denied": 403,
    "not_found": 404,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}
QUOTA_CODES = re.compile(
    r"insufficient_quota|exceeded_current_quota_error|insufficient_(balance|credits?|funds)|billing_hard_limit_reached"
    r"|billing_not_active|quota_exhausted|quota_exceeded",
    re.I,
)
QUOTA_WORDS = re.compile(r"insufficient (balance|credit|fund)|exceeded your current quota|quota (is )?exhausted", re.I)
OVERFLOW = re.compile(
    r"context_length_exceeded|context[ _-]?length|context[ _-]window|\bn_ctx\b|exceed_context_size|context size"
    r"|(prompt|input|request) (is|was) too (long|large)|too many (input |prompt )?tokens|maximum (prompt|input) length"
    r"|exceeds? the (maximum|available|model'?s?) (number of |input |context|sequence|tokens)|max_model_len"
    r"|reduce the length of the (messages|prompt|input)|longer than the (model|maximum)|token limit exceeded"
    r"|input[ _]?(tokens|length)[^.]{0,40}exceed",
    re.I,
)
HTML_PAGE = re.compile(r"<\s*(!doctype\s+html|html|head|body)\b.*", re.I | re.S)  # to its end
STREAM_NAMED = re.compile(r"(?<![\w-])stream(_options)?(?![\w-])", re.I)
CONTENT_FILTER = re.compile(r"content[ _-]?(filter|policy|management)|responsible ?ai ?policy|safety system", re.I)
NO_STREAM = "the endpoint does not take a streamed request: start again with --no-stream"
WRONG_PATH = re.compile(
    r"unexpected endpoint|unknown (endpoint|path|route|url)|no (such )?(route|endpoint|path)|(endpoint|path|route|url)"
    r"[^.]{0,40}not (found|exist|supported)|invalid (url|path|endpoint)|method not allowed|not found$|cannot post",
    re.I,
)


@dataclass(frozen=True)
class ErrorBody:
    """The parts of an error body, in whichever dialect it came."""

    message: str
    code: str
    status: int | None


def read_error(body: object, raw: bytes = b"") -> ErrorBody:
    """Message, code and status of an error body: OpenAI's `error`, FastAPI's `detail`, bare `message`, text, HTML."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return ErrorBody("an HTML page" if _looks_like_html(raw) else _shown(raw), "", None)
    error = body.get("error") or body.get("detail") or body.get("message") or body
    if isinstance(error, list) and error and isinstance(error[0], dict):
        error = "; ".join(
            f"{item.get('loc', '')} {item.get('msg', '')}".strip() for item in error if isinstance(item, dict)
        )
    while isinstance(error, dict) and isinstance(inner := error.get("error") or error.get("detail"), dict):
        error = inner
    if not isinstance(error, dict):
        error = {"message": error}
    words = [place.get(name) for place in (error, body) for name in ("code", "type", "status", "status_code")]
    numbers = (int(str(w)) for w in words if re.fullmatch(r"[1-5]\d\d", str(w)))
    names = (_STATUS_OF_NAME.get(_letters(w)) for w in words if isinstance(w, str))
    status = next(numbers, None) or next((number for number in names if number), None)
    code = " ".join(w for w in [*words, error.get("param")] if isinstance(w, str))
    counts = {name: error[name] for name in ("n_prompt_tokens", "n_ctx") if name in error}
    message = error.get("message") or error.get("detail") or error.get("msg") or error
    message = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    message = HTML_PAGE.sub("an HTML page", message)
    return ErrorBody(f"{message} {json.dumps(counts)}" if counts else message, code, status)


def _letters(name: str) -> str:
    """`BadRequestError`, `bad_request_error` and `BAD_REQUEST_ERROR` are one name."""
    return re.sub(r"[\W_]", "", name).lower()


_STATUS_OF_NAME = {_letters(name): status for name, status in CODE_NAMES.items()}


def meaning(status: int, error: ErrorBody, wait: float | None = None, *, inside: bool = False) -> Failure:
    """What a status with an error body means. `inside`: it came in a reply of status 200, with `status` its own code."""
    where = f"error {status} inside a reply" if inside else f"HTTP {status}"
    text = f"{where}: {error.message}" if error.message else where
    words = f"{error.code} {error.message}"
    quota = QUOTA_CODES.search(words) or (QUOTA_WORDS.search(error.message) and wait is None)
    if status == 429 and not quota:
        return Failure("retry", text, wait, free=wait is not None)
    if quota:
        return Failure("stop", text, way_out="the quota or balance is used up: top it up, then start again")
    if 400 <= status < 600 and status not in STOPPING_STATUS | PASSING_STATUS and OVERFLOW.search(words):
        return Failure("overflow", text, over=stated_excess(error.message))
    if status in PASSING_STATUS or status >= 500:
        return Failure("retry", text, wait)
    if status in STOPPING_STATUS or 300 <= status < 400:
        return Failure("stop", text, way_out=f"status {status}")
    if status in (400, 422) and STREAM_NAMED.search(words) and not CONTENT_FILTER.search(words):
        return Failure("stop", text, way_out=NO_STREAM)
    return Failure("record", text)


def _error_inside(body: Mapping[str, Any], wait: float | None) -> Failure:
    """The failure in a body of status 200 that holds an error; `wait` as its headers name it."""
    error = read_error(body)
    words = f"{error.code} {error.message}"
    if error.status is not None and error.status >= 300:
        return meaning(error.status, error, wait, inside=True)
    if QUOTA_CODES.search(words) or QUOTA_WORDS.search(error.message):
        return meaning(402, error, inside=True)
    if OVERFLOW.search(words) or CONTENT_FILTER.search(words):
        return meaning(400, error, inside=True)
    if WRONG_PATH.search(error.message):
        return Failure("stop", f"the endpoint answered: {error.message}", way_out="status 404")
    return Failure("retry", f"error inside a reply: {error.message}", wait)


def stated_excess(message: str) -> tuple[int, int] | None:
    """(tokens of the prompt, tokens allowed) as an overflow's message states them; None where it does not.

    The largest number is what was asked for, the largest smaller one beside a word for a limit the limit: servers word it
    in a dozen ways, but "maximum context length is 131072 tokens, you requested 140000 tokens (131000 in the messages, …)",
    "205616 tokens > 200000 maximum" and {"n_prompt_tokens": 9000, "n_ctx": 8192} all name these two.
    """
    asked = max((_whole_number(n) for n in re.findall(NUMBER, message)), default=0)
    stated = [n for pattern in (LIMIT_THEN_NUMBER, NUMBER_THEN_LIMIT) for n in re.findall(pattern, message, re.I)]
    allowed = max((n for n in map(_whole_number, stated) if n < asked), default=0)
    return (asked, allowed) if allowed else None


NUMBER = r"\d[\d,_]{2,}"
LIMIT_THEN_NUMBER = rf"(?:max|limit|allowed|n_ctx|context (?:length|window|size)|up to|at most)\D{{0,60}}?({NUMBER})"
NUMBER_THEN_LIMIT = rf"({NUMBER})\D{{0,20}}(?:max|limit|allowed)"


def _whole_number(text: str) -> int:
    return int(re.sub(r"[,_]", "", text))


def named_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until the endpoint wants to be asked again, None where it does not say (or says zero, the past or junk)."""
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    waits = [milliseconds / 1000 if milliseconds else None]
    for name in ("retry-after", "llm_provider-retry-after"):
        value = headers.get(name, "").strip()
        wait = _seconds(value)
        if wait is None and value:
            try:
                date = email.utils.parsedate_to_datetime(value)
                wait = (date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp() - now
            except (ValueError, TypeError, OverflowError):
                wait = None
        waits.append(wait)
    return max((wait for wait in waits if wait is not None and wait > 0), default=None)


def _seconds(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text.strip(), re.A) else None


def _looks_like_html(raw: bytes) -> bool:
    return raw.lstrip().removeprefix(BOM).lstrip()[:1] == b"<"


def _shown(raw: bytes) -> str:
    return one_line(raw[:2000].decode("utf-8", "replace"), 200)


# ---------------------------------------------------------------------------------------------------------------
# The endpoint.


class Endpoint:
    """A client for one base URL. `ask` may run many times at once on one event loop."""

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        timeout: float,
        connections: int,
        headers: Mapping[str, str],
        flags: Flags,
        streams: bool = False,
    ) -> None:
        self.base_url = base_url
        self.timeout = timeout
        self.flags = flags
        self.streams = streams
        parts = urlsplit(base_url)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=connections)
        bounds = httpx2.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS), pool=None)
        try:
            self.proxy = _proxy_for(parts.scheme, parts.hostname or "")
            http_client = openai.DefaultAsyncHttpxClient(follow_redirects=False, limits=limits, timeout=bounds)
        except (ImportError, ValueError) as error:  # SOCKS without its package, an unknown scheme
            raise UsageError(
                f"the proxy that the environment sets cannot be used ({one_line(str(error), 120)}); unset HTTP_PROXY, "
                "HTTPS_PROXY and ALL_PROXY, or let them name an http:// proxy"
            ) from error
        with _without_openai_variables():
            self._client = openai.AsyncOpenAI(
                api_key=api_key,
                base_url=urlunsplit((parts.scheme, parts.netloc, parts.path, "", "")),
                default_query=dict(parse_qsl(parts.query, keep_blank_values=True)),
                default_headers=dict(headers),
                max_retries=0,
                timeout=bounds,
                http_client=http_client,
            )

    async def close(self) -> None:
        await self._client.close()

    async def ask(self, body: Sequence[bytes], on_first_piece: Callable[[], None] = lambda: None) -> Reply | Failure:
        """Send one request and read its reply; `on_first_piece` is called when the reply has begun.

        No silence longer than `timeout` seconds, and three times that in all.
        """
        try:
            async with asyncio.timeout(3 * self.timeout):
                outcome = await self._ask(body, on_first_piece)
        except TimeoutError:
            outcome = Failure("retry", f"no whole reply within {3 * self.timeout:g} s")
        except openai.APITimeoutError as error:
            outcome = self._no_connection(error.__cause__ or error)
        except openai.APIConnectionError as error:
            outcome = self._no_connection(error.__cause__ or error)
        except httpx2.HTTPError as error:
            outcome = self._no_connection(error)
        return outcome if isinstance(outcome, Reply) else self._explained(outcome, sum(map(len, body)))

    async def _ask(self, body: Sequence[bytes], on_first_piece: Callable[[], None]) -> Reply | Failure:
        length = {"Content-Length": str(sum(map(len, body))), "Content-Type": "application/json"}
        try:
            posted = await self._client.post(
                "/chat/completions",
                cast_to=httpx2.Response,
                content=_slices(body),
                options={"headers": length},
                stream=True,
                stream_cls=openai.AsyncStream[object],
            )
            response = cast(httpx2.Response, posted)  # with this cast_to the SDK hands out the bare response
        except openai.APIStatusError as error:
            return self._refused(error.response)
        try:
            return await self._read(response, on_first_piece)
        finally:
            await response.aclose()

    def _refused(self, response: httpx2.Response) -> Failure:
        wait = named_wait(response.headers, time.time())
        try:
            content = json.loads(response.content)
        except (ValueError, RecursionError):
            content = None
        failure = meaning(response.status_code, read_error(content, response.content), wait)
        if response.is_redirect:
            try:
                place = shown_url(response.headers.get("location", "")) or "nowhere"
            except ValueError:
                place = "what is no URL"
            failure = replace(failure, text=f"HTTP {response.status_code}: a redirect to {place}")
        return failure

    async def _read(self, response: httpx2.Response, on_first_piece: Callable[[], None]) -> Reply | Failure:
        """Read a reply of status 200: what its first bytes are decides whether it is JSON or a stream."""
        wait = named_wait(response.headers, time.time())
        chunks = response.aiter_bytes()
        start = b""
        async for chunk in chunks:
            start = (start + chunk).lstrip().removeprefix(BOM).lstrip()
            if len(start) >= 6:
                break
        if start[:1] in (b"{", b"[", b"<", b""):
            body = await _rest(start, chunks)
            if body is None:
                return Failure("retry", f"the reply is longer than {LONGEST_REPLY // 2**20} MB")
            return self._whole(body, wait)
        if re.match(rb"(data|event|id|retry)?:", start):
            return await self._streamed(start, chunks, on_first_piece, wait)
        return Failure("retry", f"the reply is neither JSON nor a stream: {_shown(start)}")

    def _whole(self, body: bytes, wait: float | None) -> Reply | Failure:
        if _looks_like_html(body):
            return Failure("stop", "the endpoint answered with an HTML page", way_out="status 404")
        if not body.strip():
            return Failure("retry", "the reply is empty")
        try:
            return read_completion(json.loads(body), wait)
        except (ValueError, RecursionError) as error:
            return Failure("retry", f"the reply is not whole JSON ({one_line(str(error), 80)})")

    async def _streamed(
        self, start: bytes, chunks: AsyncIterator[bytes], on_first_piece: Callable[[], None], wait: float | None
    ) -> Reply | Failure:
        lines, stream, begun, size = EventLines(), Stream(wait), False, 0
        try:
            async with asyncio.timeout(None) as rest:
                async for chunk in _after(start, chunks):
                    size += len(chunk)
                    for data in lines.feed(chunk):
                        stream.take(data)
                    if stream.first_piece and not begun:
                        begun = True
                        on_first_piece()
                    if size > LONGEST_REPLY:
                        stream.failure = Failure("retry", f"the reply is longer than {LONGEST_REPLY // 2**20} MB")
                    if stream.done or stream.failure:
                        break
                    if stream.finish_reason and rest.when() is None:
                        rest.reschedule(asyncio.get_running_loop().time() + min(self.timeout, AFTER_FINISH_SECONDS))
                else:
                    for data in lines.feed(b"\n\n"):
                        stream.take(data)
        except (TimeoutError, httpx2.HTTPError):
            if not stream.finish_reason:  # else only the end of the connection is missing, not of the reply
                raise
        if stream.done:
            await _drain(chunks)
        return stream.result()

    def _no_connection(self, error: BaseException) -> Failure:
        kind = type(error).__name__
        if isinstance(error, (httpx2.TimeoutException, openai.APITimeoutError)):
            limit = min(self.timeout, CONNECT_SECONDS) if isinstance(error, httpx2.ConnectTimeout) else self.timeout
            return Failure("retry", f"the endpoint was silent for {limit:g} s ({kind})")
        text = f"no connection or a broken one: {one_line(str(error), 160) or kind} ({kind})"
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return Failure(
                "stop", text, way_out=f"the certificate of the server is not trusted; check {self.flags.base_url}"
            )
        return Failure("retry", text)

    def _explained(self, failure: Failure, size: int) -> Failure:
        """The failure with its text made fit for people: one line, no secret, with the size, URL or flag it is about."""
        if failure.way_out == NO_STREAM and not self.streams:
            failure = replace(failure, kind="record", way_out="")
        flags, text, way_out = self.flags, one_line(failure.text), failure.way_out
        url = shown_url(self.base_url)
        if failure.kind in ("record", "overflow") and re.search(r"\b(400|413|422)\b", text):
            text += f" (request of {size:,} bytes)"
        if self.proxy:
            text += f" (through the proxy {self.proxy}; set NO_PROXY to go around it)"
        wrong_path = f"check {flags.base_url} {url} (most servers want /v1 at its end)"
        status = way_out.removeprefix("status ")
        if way_out.startswith("status "):
            way_out = {
                "401": f"the key is refused: check {flags.api_key}",
                "402": "the account must be topped up, then start again",
                "404": f"{wrong_path} and {flags.model}",
                "407": "the proxy wants credentials",
            }.get(status, wrong_path)
        return replace(failure, text=text, way_out=way_out)


async def _slices(body: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in body:
        yield piece


async def _after(start: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for chunk in chunks:
        yield chunk


async def _rest(start: bytes, chunks: AsyncIterator[bytes]) -> bytes | None:
    """The whole body; None when it is longer than any reply."""
    parts, size = [start], len(start)
    async for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > LONGEST_REPLY:
            return None
    return b"".join(parts)


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read a finished stream to its end, so that its connection can be used again; give up soon or on any trouble."""
    with contextlib.suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in chunks:
                pass


def _proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the environment sets for this host, without credentials."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(host):
        return None
    return shown_url(proxy if "://" in proxy else f"http://{proxy}")


@contextlib.contextmanager
def _without_openai_variables() -> Iterator[None]:
    """The SDK takes keys, organisations and headers from OPENAI_* variables; none of them is meant for this endpoint."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("OPENAI_")}
    try:
        yield
    finally:
        os.environ.update(hidden)
