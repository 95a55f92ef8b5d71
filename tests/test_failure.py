"""What an error means: dialects of error bodies, the table of statuses and words, named waits."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from beam_common.failure import (
    ErrorBody,
    Failure,
    Flags,
    error_inside,
    meaning,
    named_wait,
    read_error,
)

FLAGS = Flags("--", ("temperature", "max_tokens", "model"), "try --no-stream", url="http://h")
BASE_URL = "check --base-url http://h (most servers want /v1 at its end)"


def table(names: str, *rows: tuple[Any, ...]) -> pytest.MarkDecorator:
    """A test for each row, whose first column says what it stands for."""
    return pytest.mark.parametrize(names.split(), [r[1:] for r in rows], ids=[r[0] for r in rows])


def kind_of(failure: Failure) -> str:
    """The kind of a failure, `overflow` where it is refused for its length."""
    return "overflow" if failure.overflow else failure.kind


# --- Error bodies


@table(
    "content message codes",
    ("openai", {"error": {"message": "m", "type": "t", "param": "p", "code": "c"}}, "m", "c t p"),
    ("a-text", {"error": "m"}, "m", ""),
    ("code-beside", {"error": "m", "code": 502}, "m", "502"),
    ("fastapi", {"detail": "m"}, "m", ""),
    ("nested", {"detail": {"error": {"message": "m", "code": "400"}}}, "m", "400"),
    ("fastapi-list", {"detail": [{"loc": "top_p"}]}, "[{'loc': 'top_p'}]", ""),
    ("vllm", {"object": "error", "message": "m", "type": "T", "code": 400}, "m", "400 T"),
    ("anthropic", {"type": "error", "error": {"type": "t", "message": "m"}}, "m", "error t"),
    ("google", [{"error": {"code": 429, "message": "m", "status": "S"}}], "m", "429 S"),
    ("odd-code", {"msg": "m", "code": 40301}, "m", "40301"),
    ("unknown-dialect", {"reason": 1}, "{'reason': 1}", ""),
    ("error-true", {"error": True}, "True", ""),
    ("no-json", None, "what was sent", ""),
)
def test_read_error(content: object, message: str, codes: str) -> None:
    assert read_error(content, "what was sent") == ErrorBody(message, codes)


# --- The table

RATE = "Rate limit reached on tokens per min (TPM): Limit 30000, Used 20000, Requested 15000."
TOO_LARGE = "Request too large on tokens per min (TPM): Limit 30000, Requested 141766."
MAX_TOKENS = (
    "`max_tokens` must be less than or equal to `40960`, the maximum value for `max_tokens` is "
    "less than the `context_window` for this model"
)


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        *(
            pytest.param(status, "m", kind, id=f"{status}")
            for kind, statuses in {
                "transient": (408, 409, 425, 500, 501, 502, 503, 504, 520, 522, 524, 529, 598),
                "busy": (429,),
                "refused": (400, 403, 410, 413, 414, 422, 451),
                "fatal": (301, 302, 307, 308, 401, 402, 404, 405, 407),
            }.items()
            for status in statuses
        ),
        pytest.param(503, "Loading model", "busy", id="llama-cpp-starts"),
        pytest.param(503, "queue full", "busy", id="queue"),
        pytest.param(503, "The engine is currently overloaded", "busy", id="overloaded"),
        pytest.param(529, "overloaded_error", "busy", id="anthropic-overloaded"),
        pytest.param(503, "at capacity", "busy", id="capacity"),
        pytest.param(503, "too many concurrent requests", "busy", id="concurrency"),
        pytest.param(503, "upstream connect error", "transient", id="503-of-an-outage"),
        pytest.param(503, "error while downloading", "transient", id="download-is-no-load"),
        pytest.param(429, RATE, "busy", id="429-rate"),
        pytest.param(429, "Resource exhausted, check quota", "busy", id="429-quota-a-minute"),
        pytest.param(429, TOO_LARGE, "overflow", id="429-of-this-request-alone"),
        pytest.param(413, TOO_LARGE, "overflow", id="413-of-this-request-alone"),
        pytest.param(429, "insufficient_quota", "fatal", id="429-account-used-up"),
        pytest.param(429, "exceeded_current_quota_error", "fatal", id="429-moonshot-used-up"),
        pytest.param(403, "Insufficient Balance", "fatal", id="403-balance"),
        pytest.param(400, "content management policy", "refused", id="content-filter"),
        pytest.param(400, "No connected db.", "refused", id="litellm-wrong-key"),
        pytest.param(400, MAX_TOKENS, "refused", id="max-tokens-is-no-overflow"),
        pytest.param(400, "max_tokens exceeds 8192 tokens", "refused", id="max-tokens-too-large"),
        pytest.param(400, "unknown field stream_options", "fatal", id="stream-options"),
        pytest.param(422, '["body", "stream"] not allowed', "fatal", id="stream"),
        pytest.param(400, "upstream-stream closed", "refused", id="another-stream"),
        pytest.param(403, "the stream is not for you", "refused", id="403-names-stream"),
    ],
)
def test_meaning(status: int, message: str, expected: str) -> None:
    failure = meaning(status, ErrorBody(message), FLAGS)
    assert kind_of(failure) == expected
    assert failure.text == f"HTTP {status}: {message}"


@pytest.mark.parametrize("status", [400, 422, 500])
@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens, you requested 9000.",
        "prompt is too long: 205616 tokens > 200000 maximum",
        "the request exceeds the available context size",
        'too big {"n_prompt_tokens": 9000, "n_ctx": 8192}',
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
        "Range of input length should be [1, 129024]",
        "`max_tokens` is too large: 4000. This model's maximum context length is 9000 tokens and "
        "your request has 6035 input tokens (4000 > 9000 - 6035).",
    ],
    ids="openai anthropic llama-cpp n-ctx google moonshot dashscope vllm".split(),
)
def test_a_prompt_too_long_in_many_words(status: int, message: str) -> None:
    assert kind_of(meaning(status, ErrorBody(message), FLAGS)) == "overflow"


def test_a_busy_server_may_speak_of_tokens() -> None:
    message = "the number of queued input tokens exceeds the limit"
    assert kind_of(meaning(503, ErrorBody(message), FLAGS)) == "busy"


@table(
    "status error advice",
    ("key", 401, ErrorBody("m"), "the key is refused: check --api-key"),
    ("path-or-model", 404, ErrorBody("m"), f"{BASE_URL} and --model"),
    ("method", 405, ErrorBody("m"), BASE_URL),
    ("redirect", 307, ErrorBody("m"), BASE_URL),
    ("stream", 400, ErrorBody("stream"), "try --no-stream"),
    ("of", 400, ErrorBody("the temperature of this model"), "see --temperature"),
    ("param", 400, ErrorBody("m", "x max_tokens"), "see --max-tokens"),
    ("max-tokens", 400, ErrorBody(MAX_TOKENS), "see --max-tokens"),
    ("model", 400, ErrorBody("Invalid model=x"), "see --model"),
    ("parts-of-words", 400, ErrorBody("remodelled temperatures"), ""),
)
def test_advice_names_the_flag(status: int, error: ErrorBody, advice: str) -> None:
    assert meaning(status, error, FLAGS).advice == advice


def test_stream_is_a_word_like_others_where_nothing_is_streamed() -> None:
    assert meaning(400, ErrorBody("stream"), Flags()).kind == "refused"


@table(
    "status message shown",
    ("page", 502, "<html>\n<body>long</body></html>", "HTTP 502: an HTML page"),
    ("in", 500, "upstream: <!DOCTYPE html>…", "HTTP 500: upstream: an HTML page"),
    ("empty", 413, "", "HTTP 413: no reason given"),
    ("lines", 400, "two\nlines", "HTTP 400: two lines"),
)
def test_text_is_one_line_without_pages(status: int, message: str, shown: str) -> None:
    assert meaning(status, ErrorBody(message), FLAGS).text == shown


def test_a_prompt_echoed_behind_the_message_is_not_looked_through() -> None:
    message = "Extra inputs are not permitted: " + "word " * 100 + "context window"
    assert kind_of(meaning(400, ErrorBody(message), FLAGS)) == "refused"


# --- Errors in replies of status 200


@table(
    "content expected",
    ("502", {"error": {"code": 502, "message": "upstream"}}, "transient"),
    ("524-as-text", {"error": {"code": "524"}, "choices": None}, "transient"),
    ("429", {"error": {"code": 429, "message": "slow"}}, "busy"),
    ("403", {"error": {"code": 403, "message": "no"}}, "refused"),
    ("400", {"error": {"code": 400, "message": "no"}}, "refused"),
    ("code-a-word", {"error": {"code": "rate_limit_exceeded"}}, "busy"),
    ("status-a-word", {"error": {"status": "RESOURCE_EXHAUSTED"}}, "busy"),
    ("load", {"error": {"type": "overloaded_error", "message": "Overloaded"}}, "busy"),
    ("type-a-word", {"error": {"type": "authentication_error"}}, "fatal"),
    ("quota", {"error": {"code": "insufficient_quota"}}, "fatal"),
    ("overflow", {"error": {"message": "prompt is too long"}}, "overflow"),
    ("lm-studio-path", {"error": "Unexpected endpoint or method"}, "fatal"),
    ("fastapi-path", {"detail": "Not Found"}, "fatal"),
    ("kong-path", {"message": "no Route matched"}, "fatal"),
    ("no-code", {"error": "the upstream went away"}, "transient"),
    ("no-words", {"error": True}, "transient"),
)
def test_error_inside(content: dict[str, Any], expected: str) -> None:
    assert kind_of(error_inside(content, FLAGS)) == expected


def test_a_wrong_path_inside_names_the_base_url() -> None:
    failure = error_inside({"error": "Unexpected endpoint or method"}, FLAGS)
    assert failure.with_advice == f"the endpoint answers: Unexpected endpoint or method; {BASE_URL}"


# --- Waits

NOW = 1_800_000_000.0
COUNTERS = {
    "x-ratelimit-reset-requests": "1.5s",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-tokens": "6m0s",
    "x-ratelimit-remaining-tokens": "29000",
}


@table(
    "headers text expected",
    ("nothing", {}, "", 0),
    ("seconds", {"retry-after": "2"}, "", 2.0),
    ("fraction", {"retry-after": " 2.5 "}, "", 2.5),
    ("long", {"retry-after": "9999"}, "", 9999.0),
    ("zero", {"retry-after": "0"}, "", 0),
    ("negative", {"retry-after": "-5"}, "", 0),
    ("junk", {"retry-after": "soon"}, "", 0),
    ("nan", {"retry-after": "nan"}, "", 0),
    ("date", {"retry-after": formatdate(NOW + 3, usegmt=True)}, "", 3.0),
    ("past", {"retry-after": formatdate(NOW - 3, usegmt=True)}, "", 0),
    ("milliseconds", {"retry-after-ms": "1500"}, "", 1.5),
    ("litellm", {"llm_provider-retry-after": "7"}, "", 7.0),
    ("the-longest", {"retry-after": "1", "retry-after-ms": "1500"}, "", 1.5),
    ("reset", {"x-ratelimit-reset-requests": "6m0s"}, "", 360.0),
    ("reset-ms", {"x-ratelimit-reset-tokens": "120ms"}, "", 0.12),
    ("reset-epoch", {"x-ratelimit-reset": f"{NOW + 9:.0f}"}, "", 9.0),
    ("reset-epoch-ms", {"x-ratelimit-reset": f"{NOW + 9:.0f}000"}, "", 9.0),
    ("reset-of-what-is-exhausted", COUNTERS, "", 1.5),
    ("not-the-reset", {"retry-after": "2", "x-ratelimit-reset-requests": "6m0s"}, "", 2.0),
    ("said-seconds", {}, "Please try again in 41.3s. Visit", 41.3),
    ("said-minutes", {}, "Please try again in 6m0s.", 360.0),
    ("said-in-full", {}, "retry after 1 seconds", 1.0),
    ("said-both", {}, "try again in 1m26s", 86.0),
    ("said-milliseconds", {}, "try again in 20ms", 0.02),
    ("said-hours", {}, "wait: in 2 hours", 7200.0),
    ("google", {}, '"retryDelay": "34s"', 34.0),
    ("other-units", {}, "in 5 messages, after 3 models", 0),
)
def test_named_wait(headers: dict[str, str], text: str, expected: float) -> None:
    assert named_wait(headers, NOW, text) == pytest.approx(expected)
