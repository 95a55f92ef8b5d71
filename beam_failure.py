"""What a failure means: error bodies in their dialects, statuses, named waits, and what follows from them.

Failure  kind "retry"     trouble that may pass: try again, after `wait` seconds if the endpoint named a wait
         kind "record"    this request is refused for what it is: trying again would be paid for nothing
         kind "overflow"  the same, because the prompt is longer than the endpoint takes
         kind "stop"      every request would fail this way; `way_out` says what to change
"""

from __future__ import annotations

import datetime
import email.utils
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from beam_common import one_line


@dataclass(frozen=True)
class Failure:
    """Why there is no answer. `text` is one line for a row or a message."""

    kind: Literal["retry", "record", "overflow", "stop"]
    text: str
    wait: float | None = None  # seconds that the endpoint asked for
    free: bool = False  # a rate limit that names its wait does not use up an attempt
    way_out: str = ""
    over: tuple[int, int] | None = None  # (tokens of the prompt, tokens allowed) where an overflow states them


BOM = b"\xef\xbb\xbf"
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
    r"insufficient_(\w+_)?quota|exceeded_current_quota_error|insufficient_(balance|credits?|funds)|not_enough_balance"
    r"|billing_hard_limit_reached|billing_not_active|quota_exhausted|quota_exceeded|quota_failed|budget_exceeded"
    r"|SetLimitExceeded",
    re.I,
)
QUOTA_WORDS = re.compile(  # only below status 500, and not beside a rate or a named wait
    r"(insufficient|not enough) (balance|credit|fund)|(balance|credit|fund)s?( balance)? (is|are) (insufficient|too low)"
    r"|(balance|credit|fund)s?( balance)? (is|are) not enough|used all (\w+ )?credits|out of call volume quota"
    r"|exceeded your current quota|quota (is )?exhausted|budget has been exceeded! current cost|key limit exceeded \("
    r"|spending limit|api usage limit|overdue|arrear|good standing|余额不足|额度不足|额度已用尽|剩余额度|欠费",
    re.I,
)
RATE_WORDS = re.compile(
    r"per (second|minute)|this minute|\b[TR]PM\b|concurren|rate limit (is |has been )?(reached|exceeded|hit)", re.I
)
OVERFLOW = re.compile(
    r"context_length_exceeded|context[ _-]?length|context[ _-]window|\bn_ctx\b|exceed_context_size|context size"
    r"|(prompt|input) (is |was )?too long|(prompt|input|request) (is|was) too (long|large)"
    r"|too many (input |prompt )?tokens|maximum (prompt|input) length"
    r"|exceeds? the (maximum|available|model'?s?) (number of (\w+ )?tokens|input |context|sequence|tokens)|max_model_len"
    r"|reduce the length of the (messages|prompt|input)|longer than the (model|maximum)|token limit exceeded"
    r"|exceeded [\w ]{0,20}token limit|exceeds? max(imum)? (\w+ )?(length|len\b|tokens)|range of input length"
    r"|must (be <=|have less than) \d+( tokens)?\. given|input[ _]?(tokens|length)[^.]{0,40}exceed|tokens_limit_reached"
    r"|token count of \d+ exceeds|max input (characters|tokens|length)",
    re.I,
)
CERTAIN_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|prompt is too long|max_model_len", re.I
)
BUSY = re.compile(  # beside a status that may pass these weigh more than the other words for an overflow
    r"concurren|in[- ]flight|queue (is )?full|queued|per (second|minute|hour|day)|out of memory|to allocate|overload|busy"
    r"|rate[ _-]?limit|throttl|upstream|connection (was )?(reset|refused|error|closed|aborted|timed)|cuda"
    r"|please wait|retry (in|later)|try again(?! with\b)",
    re.I,
)
HTML_PAGE = re.compile(r"<\s*(!doctype\s+html|html|head|body)\b.*", re.I | re.S)  # to its end
STREAM_NAMED = re.compile(r"(?<![\w-])stream(_options)?(?![\w-])", re.I)
CONTENT_FILTER = re.compile(
    r"content[ _-]?(filter|policy|management)|responsible ?ai ?policy|safety system|inspection_failed"
    r"|(in|out)put \w*sensitive|sensitive content|inappropriate content|敏感|不安全|违规",
    re.I,
)
# In a reply of status 200 without a code of its own.
REFUSED_KEY = re.compile(
    r"login fail|(api[ _-]?key|access[ _-]?token|credential)s? (is |was )?(invalid|expired|incorrect)"
    r"|(invalid|incorrect|expired) (api|access|auth)[ _-]?(key|token)|^\W*(401 )?unauthorized\W*$",
    re.I | re.M,
)
REFUSED_REQUEST = re.compile(r"^\W*(error: )?invalid (param|request|argument)", re.I)
ECHO = re.compile(  # of the request, as pydantic words it; a bare "Invalid input: too long" is none
    r"""\binput_value=.*|['"](input\\?['"]\s*:|messages\\?['"]\s*:\s*\[\s*\{).*""", re.S
)
LONGEST_CODE = 200  # characters of each code or type that are looked at
LONGEST_MESSAGE = 4000  # characters of an error that are looked at
MESSAGE_NAMES = ("message", "detail", "msg", "error_msg", "errmsg", "status_msg")  # also Baidu's and MiniMax's
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

    @property
    def words(self) -> str:
        """Message and code in the server's own words: without those of a prompt that it echoes."""
        return f"{ECHO.sub('', self.message)}\n{self.code}"


def read_error(body: object, raw: bytes = b"") -> ErrorBody:
    """Message, code and status of an error body: OpenAI's `error`, FastAPI's `detail`, bare `message`, text, HTML."""
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        return ErrorBody("an HTML page" if looks_like_html(raw) else shown(raw), "", None)
    error = next(filter(None, (body.get(name) for name in ("error", "detail", "message", "base_resp"))), body)
    if isinstance(error, list) and error and isinstance(error[0], dict):
        error = "; ".join(
            f"{item.get('loc', '')} {item.get('msg', '')}".strip() for item in error if isinstance(item, dict)
        )
    while isinstance(error, dict) and isinstance(inner := error.get("error") or error.get("detail"), dict):
        error = inner
    if not isinstance(error, dict):
        error = {"message": error}
    words = [
        place.get(name) for place in (error, body) for name in ("code", "type", "status", "status_code", "error_code")
    ]
    numbers = (int(str(w)) for w in words if re.fullmatch(r"[1-5]\d\d", str(w)))
    names = (_STATUS_OF_NAME.get(_letters(w)) for w in words if isinstance(w, str))
    status = next(numbers, None) or next((number for number in names if number), None)
    code = " ".join(w[:LONGEST_CODE] for w in [*words, error.get("param")] if isinstance(w, str))
    counts = {name: error[name] for name in ("n_prompt_tokens", "n_ctx") if name in error}
    message = next(filter(None, map(error.get, MESSAGE_NAMES)), error)
    if not isinstance(message, str):
        try:
            message = json.dumps(message, ensure_ascii=False)
        except RecursionError:
            message = "an error too deeply nested to be shown"
    if len(message) > LONGEST_MESSAGE:  # some servers echo the whole prompt
        message = ECHO.sub("…", message)
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[: LONGEST_MESSAGE // 2]} … {message[-LONGEST_MESSAGE // 2 :]}"
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
    words = error.words
    quota = QUOTA_CODES.search(words) or (status < 500 and wait is None and _says_quota(words))
    if status == 429 and not quota:
        return Failure("retry", text, wait, free=wait is not None)
    if quota:
        return Failure("stop", text, way_out="the quota or balance is used up: top it up, then start again")
    if 400 <= status < 600 and status not in STOPPING_STATUS | PASSING_STATUS and _is_overflow(words, status >= 500):
        return Failure("overflow", text, over=stated_excess(words))
    if status in PASSING_STATUS or status >= 500:
        return Failure("retry", text, wait)
    if status in STOPPING_STATUS or 300 <= status < 400:
        return Failure("stop", text, way_out=f"status {status}")
    if status in (400, 422) and STREAM_NAMED.search(words) and not CONTENT_FILTER.search(words):
        return Failure("stop", text, way_out=NO_STREAM)
    return Failure("record", text)


def _says_quota(words: str) -> bool:
    """Whether a message says that quota or balance are used up: not for a minute, and not in a prompt that it quotes."""
    return bool(QUOTA_WORDS.search(words)) and not (CONTENT_FILTER.search(words) or RATE_WORDS.search(words))


def _is_overflow(words: str, may_pass: bool) -> bool:
    """Whether the prompt is called too long; where the trouble may pass, only if a busy server would not say the same."""
    busy = may_pass and BUSY.search(words) and not CERTAIN_OVERFLOW.search(words)
    return bool(OVERFLOW.search(words)) and not busy


def error_inside(body: Mapping[str, Any], wait: float | None) -> Failure:
    """The failure in a body of status 200 that holds an error; `wait` as its headers name it."""
    error = read_error(body)
    words = error.words
    if error.status is not None and error.status >= 300:
        return meaning(error.status, error, wait, inside=True)
    told = None
    if QUOTA_CODES.search(words) or _says_quota(words):
        told = 402
    elif _is_overflow(words, True) or CONTENT_FILTER.search(words):
        told = 400
    elif not BUSY.search(words):
        told = 400 if REFUSED_REQUEST.search(words) else 401 if REFUSED_KEY.search(words) else None
    if told:
        return replace(meaning(told, error, inside=True), text=f"error inside a reply: {error.message}")
    if WRONG_PATH.search(error.message):
        return Failure("stop", f"the endpoint answered: {error.message}", way_out="status 404")
    return Failure("retry", f"error inside a reply: {error.message}", wait)


FIGURE = (  # no part of an id, nor of "131 072" or "131.072"; under 20 million: no date like 20261130, no time
    r"(?<![A-Za-z\d_.,/-])(?<!\d\s)(\d{1,3}(?:[,_]\d{3})+|1?\d{3,7})(?![A-Za-z\d_/]|-(?!token)|[.,]\d|\s\d)"
)
RATE = re.compile(r"(?i)(\b(per|an?|each|every) ?|/ ?)(min(ute)?|hour|day|sec(ond)?|month)\b|\b[TR]P[MDHS]\b")
_TERM, _ANSWER = rf"{FIGURE}(?: \w*tokens?)?", r"output|completion|generat|max_(?:\w+_)?tokens"
EXCESS = re.compile(rf"(?:{_TERM} \+ )?{_TERM} > {_TERM}(?: - {_TERM})?")  # + or -: the answer's tokens count too
NO_TOKENS = re.compile(  # in these three, # is the figure and the rest its clause
    r"(?i)(at least|(more|greater) than|over|above|>=?|≥|(\b|_)(id|code))\W*#"
    r"|#\W*(\w+ )?((requests|images|m?s|seconds)\b|char|[kmg]?i?b(yte|\b))"
)
LIMIT = re.compile(
    r"(?is)((max(?!_(\w+_)?tokens)|limit|allow|n_ctx|context[ _-]?(length|window|size)|up to|at most|less than|[<≤])"
    r"((?!exceed|\byou|\bby\b|requested|got|given|received|prompt_tokens|\bha[sd]|contain|result|sent|found|>|output|completion).)*#"
    r"|exceeds? #|#(?=[^\w>]*(tokens? )?((is|are) )?(the )?(max|limit|allowed|context[ _-]?(length|window|size))))"
    rf"(?!.{{0,30}}({_ANSWER}))"
)
PROMPT = re.compile(
    rf"(?is)(?!.*({_ANSWER}).*#|.*#.{{0,30}}({_ANSWER}))"
    r".*((token|prompt|input|message|request|length|context|given|got|received|=).*#|#\W*(\w+\W+){0,2}token)"
)


def stated_excess(message: str) -> tuple[int, int] | None:
    """(tokens of the prompt, tokens allowed) as an overflow's message states them; None where that is not clear.

    Servers word it in dozens of ways: a figure is known by the words of its own clause, outside of sentences about a rate.
    Too small a cut costs another attempt, too large a one costs history: what may mean two things means nothing.
    """
    message = " ".join(part for part in re.split(r"(?<=[.;\n])\s+", message.replace("#", " ")) if not RATE.search(part))
    if stated := EXCESS.search(message):
        added, first, limit, taken = (_whole_number(figure) for figure in stated.groups("0"))
        asked, allowed = (added or taken, limit - first) if added or taken else (first, limit)
        return (asked, allowed) if 0 < allowed < asked else None
    limits, prompts, pieces = [0], [0], re.split(FIGURE, message)
    for before, figure, after in zip(pieces[:-1:2], pieces[1::2], pieces[2::2], strict=True):
        clause = re.split(r"[.,;]\s", before)[-1][-150:] + "#" + re.split(r"[.,;:()\n]", after)[0][:50]
        if NO_TOKENS.search(clause):
            continue
        if LIMIT.search(clause):
            limits.append(_whole_number(figure))
        elif PROMPT.match(clause):
            prompts.append(_whole_number(figure))
    asked = max(prompts)
    allowed = max(n for n in limits if n <= asked)
    return (asked, allowed) if 0 < allowed < asked <= 2 * min(n for n in prompts if n > allowed) else None


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


def named_wait_inside(body: bytes) -> float | None:
    """Seconds that the body of a refusal names, as Google's RetryInfo does; None where it does not."""
    delay = re.search(rb'"retryDelay":\s*"(\d{1,6}(?:\.\d+)?)s"', body[:100_000])
    return float(delay[1]) or None if delay else None


def _seconds(text: str) -> float | None:
    """A number of seconds; the largest one where a header came twice, which clients join by a comma."""
    parts = [part.strip() for part in text.split(",")]
    return max(map(float, parts)) if all(re.fullmatch(r"\d+(\.\d*)?|\.\d+", p, re.A) for p in parts) else None


def looks_like_html(raw: bytes) -> bool:
    return raw.lstrip().removeprefix(BOM).lstrip()[:1] == b"<"


def shown(raw: bytes) -> str:
    return one_line(raw[:2000].decode("utf-8", "replace"), 200)
