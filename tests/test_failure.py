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

FLAGS = Flags(
    parameters=("temperature", "max_tokens", "model"),
    no_stream="start again with --no-stream",
    url="http://h",
)
BASE_URL = "check --base-url http://h (most servers want /v1 at its end)"


def kind_of(failure: Failure) -> str:
    """The kind of a failure, `overflow` where it is refused for its length."""
    return "overflow" if failure.overflow else failure.kind


# --- Error bodies


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            {"error": {"message": "m", "type": "t", "param": "p", "code": "c"}},
            ErrorBody("m", "c t p"),
            id="openai",
        ),
        pytest.param({"error": "m"}, ErrorBody("m"), id="a-text"),
        pytest.param({"error": "m", "code": 502}, ErrorBody("m", "502"), id="code-beside"),
        pytest.param({"detail": "m"}, ErrorBody("m"), id="fastapi"),
        pytest.param(
            {"detail": {"error": {"message": "m", "code": "400"}}},
            ErrorBody("m", "400"),
            id="nested",
        ),
        pytest.param(
            {"detail": [{"loc": ["body", "top_p"], "msg": "too big"}]},
            ErrorBody("[{'loc': ['body', 'top_p'], 'msg': 'too big'}]"),
            id="fastapi-list",
        ),
        pytest.param(
            {"object": "error", "message": "m", "type": "BadRequestError", "code": 400},
            ErrorBody("m", "400 BadRequestError"),
            id="vllm",
        ),
        pytest.param(
            {"type": "error", "error": {"type": "overloaded_error", "message": "m"}},
            ErrorBody("m", "error overloaded_error"),
            id="anthropic",
        ),
        pytest.param(
            [{"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}],
            ErrorBody("m", "429 RESOURCE_EXHAUSTED"),
            id="google",
        ),
        pytest.param(
            {"error": {"status": "UNAVAILABLE", "message": "m"}},
            ErrorBody("m", "UNAVAILABLE"),
            id="google-by-name",
        ),
        pytest.param({"msg": "m", "code": 40301}, ErrorBody("m", "40301"), id="odd-code"),
        pytest.param({"reason": 1}, ErrorBody("{'reason': 1}"), id="unknown-dialect"),
        pytest.param({"error": True}, ErrorBody("True"), id="error-true"),
        pytest.param(None, ErrorBody("what was sent"), id="no-json"),
    ],
)
def test_read_error(content: object, expected: ErrorBody) -> None:
    assert read_error(content, "what was sent") == expected


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


@pytest.mark.parametrize(
    ("status", "error", "advice"),
    [
        pytest.param(401, ErrorBody("m"), "the key is refused: check --api-key", id="key"),
        pytest.param(404, ErrorBody("m"), f"{BASE_URL} and --model", id="path-or-model"),
        pytest.param(405, ErrorBody("m"), BASE_URL, id="method"),
        pytest.param(307, ErrorBody("m"), BASE_URL, id="redirect"),
        pytest.param(400, ErrorBody("stream"), "start again with --no-stream", id="stream"),
        pytest.param(400, ErrorBody("the temperature of this model"), "see --temperature", id="of"),
        pytest.param(400, ErrorBody("m", "x max_tokens"), "see --max-tokens", id="param"),
        pytest.param(400, ErrorBody(MAX_TOKENS), "see --max-tokens", id="max-tokens"),
        pytest.param(400, ErrorBody("Invalid model=x"), "see --model", id="model"),
        pytest.param(400, ErrorBody("remodelled temperatures"), "", id="parts-of-words"),
    ],
)
def test_advice_names_the_flag(status: int, error: ErrorBody, advice: str) -> None:
    assert meaning(status, error, FLAGS).advice == advice


def test_stream_is_a_word_like_others_where_nothing_is_streamed() -> None:
    assert meaning(400, ErrorBody("stream"), Flags()).kind == "refused"


@pytest.mark.parametrize(
    ("status", "message", "shown"),
    [
        pytest.param(502, "<html>\n<body>long</body></html>", "HTTP 502: an HTML page", id="page"),
        pytest.param(
            500, "upstream: <!DOCTYPE html>…", "HTTP 500: upstream: an HTML page", id="in"
        ),
        pytest.param(413, "", "HTTP 413: no reason given", id="empty"),
        pytest.param(400, "two\nlines", "HTTP 400: two lines", id="lines"),
    ],
)
def test_text_is_one_line_without_pages(status: int, message: str, shown: str) -> None:
    assert meaning(status, ErrorBody(message), FLAGS).text == shown


def test_a_prompt_echoed_behind_the_message_is_not_looked_through() -> None:
    message = (
        "Extra inputs are not permitted: " + "word " * 100 + "insufficient_quota, context window"
    )
    assert kind_of(meaning(400, ErrorBody(message), FLAGS)) == "refused"


# --- Errors in replies of status 200


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param({"error": {"code": 502, "message": "upstream"}}, "transient", id="502"),
        pytest.param({"error": {"code": "524"}, "choices": None}, "transient", id="524-as-text"),
        pytest.param({"error": {"code": 429, "message": "slow"}}, "busy", id="429"),
        pytest.param({"error": {"code": 403, "message": "no"}}, "refused", id="403"),
        pytest.param({"error": {"code": 400, "message": "no"}}, "refused", id="400"),
        pytest.param({"error": {"code": "rate_limit_exceeded"}}, "busy", id="code-a-word"),
        pytest.param({"error": {"status": "RESOURCE_EXHAUSTED"}}, "busy", id="status-a-word"),
        pytest.param(
            {"error": {"type": "overloaded_error", "message": "Overloaded"}}, "busy", id="load"
        ),
        pytest.param({"error": {"type": "authentication_error"}}, "fatal", id="type-a-word"),
        pytest.param({"error": {"code": "insufficient_quota"}}, "fatal", id="quota"),
        pytest.param({"error": {"message": "prompt is too long"}}, "overflow", id="overflow"),
        pytest.param({"error": "Unexpected endpoint or method"}, "fatal", id="lm-studio-path"),
        pytest.param({"detail": "Not Found"}, "fatal", id="fastapi-path"),
        pytest.param({"message": "no Route matched"}, "fatal", id="kong-path"),
        pytest.param({"error": "the upstream went away"}, "transient", id="no-code"),
        pytest.param({"error": True}, "transient", id="no-words"),
    ],
)
def test_error_inside(content: dict[str, Any], expected: str) -> None:
    assert kind_of(error_inside(content, FLAGS)) == expected


def test_a_wrong_path_inside_names_the_base_url() -> None:
    failure = error_inside({"error": "Unexpected endpoint or method"}, FLAGS)
    assert failure.with_advice == f"the endpoint answers: Unexpected endpoint or method; {BASE_URL}"


# --- Waits

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "text", "expected"),
    [
        pytest.param({}, "", 0, id="nothing"),
        pytest.param({"retry-after": "2"}, "", 2.0, id="seconds"),
        pytest.param({"retry-after": " 2.5 "}, "", 2.5, id="fraction"),
        pytest.param({"retry-after": "9999"}, "", 9999.0, id="long"),
        pytest.param({"retry-after": "0"}, "", 0, id="zero"),
        pytest.param({"retry-after": "-5"}, "", 0, id="negative"),
        pytest.param({"retry-after": "soon"}, "", 0, id="junk"),
        pytest.param({"retry-after": "nan"}, "", 0, id="nan"),
        pytest.param({"retry-after": formatdate(NOW + 3, usegmt=True)}, "", 3.0, id="date"),
        pytest.param({"retry-after": formatdate(NOW - 3, usegmt=True)}, "", 0, id="past"),
        pytest.param({"retry-after-ms": "1500"}, "", 1.5, id="milliseconds"),
        pytest.param({"llm_provider-retry-after": "7"}, "", 7.0, id="litellm"),
        pytest.param({"retry-after": "1", "retry-after-ms": "1500"}, "", 1.5, id="the-longest"),
        pytest.param({"x-ratelimit-reset-requests": "6m0s"}, "", 360.0, id="reset"),
        pytest.param({"x-ratelimit-reset-tokens": "120ms"}, "", 0.12, id="reset-ms"),
        pytest.param({"x-ratelimit-reset": f"{NOW + 9:.0f}"}, "", 9.0, id="reset-epoch"),
        pytest.param({"x-ratelimit-reset": f"{NOW + 9:.0f}000"}, "", 9.0, id="reset-epoch-ms"),
        pytest.param(
            {
                "x-ratelimit-reset-requests": "1.5s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "6m0s",
                "x-ratelimit-remaining-tokens": "29000",
            },
            "",
            1.5,
            id="reset-of-what-is-exhausted",
        ),
        pytest.param(
            {"retry-after": "2", "x-ratelimit-reset-requests": "6m0s"}, "", 2.0, id="not-the-reset"
        ),
        pytest.param({}, "Please try again in 41.3s. Visit", 41.3, id="said-seconds"),
        pytest.param({}, "Please try again in 6m0s.", 360.0, id="said-minutes"),
        pytest.param({}, "retry after 1 seconds", 1.0, id="said-in-full"),
        pytest.param({}, "try again in 1m26s", 86.0, id="said-both"),
        pytest.param({}, "try again in 20ms", 0.02, id="said-milliseconds"),
        pytest.param({}, "wait: in 2 hours", 7200.0, id="said-hours"),
        pytest.param({}, '"retryDelay": "34s"', 34.0, id="google"),
        pytest.param({}, "in 5 messages, after 3 models", 0, id="other-units"),
    ],
)
def test_named_wait(headers: dict[str, str], text: str, expected: float) -> None:
    assert named_wait(headers, NOW, text) == pytest.approx(expected)
