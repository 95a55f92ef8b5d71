"""What a judge said, read without guessing, and a question's score. Pure functions, no input or output.

A verdict is accepted only when it is unambiguous; a reply that could mean two things is unreadable (None).
The steps, of which the first that finds a score decides, also when what it finds is no level:

1. the whole reply as JSON;
2. if it is none: what follows the last </think>; a <think> that stays open is unreadable;
3. the last fenced block, unless it stands within braces: then an object may quote it;
4. the last complete JSON object that carries a score, itself or exactly one object in it;
5. "score: X" in prose or near-JSON, if all mentions agree and the length limit did not cut the reply.

Beside another verdict that is broken or in one list with it, an object of step 4 counts only if they agree; so does one
that a text in a broken object quotes. Two in one broken object are unreadable, and so is one that the length limit may
have cut off from others. Reasoning fields are never read. An alignment is read by the same steps, by the last one in
near-JSON only.

Every step takes time linear in the reply, and no reply makes a reader raise.
"""

import json
import math
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from beam_prose import flag_name, mentioned_flags, mentioned_levels, near_json_matches, prose_verdict
from beam_tau import one_to_one
from beam_tau import tau_score as tau_score

# A JSON object as its pairs, so that a key given twice is seen; a JSON array stays a list.
JsonObject = tuple[tuple[str, Any], ...]

CUT_REASONS = ("length", "max_tokens", "max_output_tokens", "model_length")
ORDERING_FLAGS = ("all_present", "order_correct")
# Fields in which a judge explains itself: what they hold is no verdict.
REASONING = ("reason", "reasoning", "reasoning_content", "explanation", "rationale", "analysis", "thought", "thoughts")
SCALES = ("max_score", "maximum_score", "out_of")
FLAG_WORDS = dict.fromkeys(("true", "yes", "1", "✅"), True) | dict.fromkeys(
    ("false", "no", "0", "❌", "✗", "✘", "incorrect", "wrong"), False
)
UNCLEAR_FLAGS = ("not", "partially", "partly", "mostly")

# Raw line breaks in strings are let through. Integers as floats: int() refuses more than 4300 digits, float() does not.
_DECODER = json.JSONDecoder(strict=False, parse_int=float, object_pairs_hook=tuple)
_NOT_JSON = object()
# Broken objects nested in one another are parsed once for each level: give up after so many lengths of the reply.
_MOST_RESCANS = 32
_FAR_BEHIND = 4096

_REASONING_KEY = re.compile(rf"""["'](?:{"|".join(REASONING)})["']\s*:\s*\[?\s*\Z""", re.IGNORECASE)
_OBJECT_WITH_KEY = re.compile(r"""\{\s*+["']?\w[\w -]{0,40}+["']?\s*+:""")
# Before an object that is the value of a key: the key stands behind a brace, or behind a value and a comma.
_KEY_BEFORE = re.compile(
    r"""(?:\{|(?:["'\d)}\]]|true|false|null|none)\s*,)\s*["']?\w[\w -]{0,40}["']?\s*:\s*\[?\s*\Z""", re.IGNORECASE
)
_LONGEST_KEY = 80  # characters looked at before an object
_OBJECT_START = re.compile(r'\{\s*+["}]')
_OPEN_THINK = re.compile(r"<think(?:ing)?\s*>", re.IGNORECASE)
_CLOSE_THINK = re.compile(r"</think(?:ing)?\s*>", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})(.*)$", re.MULTILINE)
_BRACE = re.compile("[{}]")
_LANGUAGE_TAG = re.compile(r"[ \t]*[\w.+-]*")
_NUMERIC_TEXT = re.compile(
    r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)(?:\s*(?:/|out\s+of)\s*1(?:\.0*)?)?\s*", re.IGNORECASE
)


class _Unreadable(Exception):
    """The reply says nothing that counts, or two things at once."""


class _Found(NamedTuple):
    """A complete JSON object in a text: its span, and where the broken object around it begins, if there is one."""

    start: int
    end: int
    value: Any
    outer: int | None


# ---- the three readers ----


def read_score(reply: str, finish_reason: str | None) -> float | None:
    """The level of a criterion verdict, 0.0 to 1.0 (0.7 stays 0.7), or None when the reply is unreadable."""
    try:
        return _agreed_level(_verdict(reply, finish_reason, "score"))
    except _Unreadable:
        return None


def read_ordering(reply: str, finish_reason: str | None) -> float | None:
    """The score of an ordering verdict, 0.0 or 1.0, or None: unreadable, a part of a point, or fields that contradict.

    A flag that is absent or null says nothing; it may be one level down. A score of 1 contradicts any flag that is not
    true, a score of 0 contradicts two flags that are.
    """
    try:
        verdict = _verdict(reply, finish_reason, "score")
        score = _agreed_level(verdict)
        flags = [_agreed_flag(verdict, name) for name in ORDERING_FLAGS]
    except _Unreadable:
        return None
    if score == 1.0:
        return None if any(flag not in (True, None) for flag in flags) else 1.0
    return 0.0 if score == 0.0 and flags != [True, True] else None


def read_alignment(
    reply: str, finish_reason: str | None, lines: int, events: int | Sequence[str]
) -> list[int | None] | None:
    """For each of the response's lines the number (from 1) of its reference event or None; or None: unreadable.

    `events` holds the reference events, or just how many there are when no two are equal. The result is one-to-one.
    """
    names: Sequence[Hashable] = range(events) if isinstance(events, int) else events
    try:
        matches = _values(_verdict(reply, finish_reason, "matches"), "matches")
        if len(matches) != 1 or not isinstance(matches[0], list) or len(matches[0]) != lines:
            return None
        return one_to_one([_event_number(match, len(names)) for match in matches[0]], names)
    except _Unreadable:
        return None


# ---- the steps ----


def _verdict(reply: str, finish_reason: str | None, key: str) -> JsonObject:
    """The object that carries the key, by the steps of the module's docstring."""
    was_cut = (finish_reason or "").lower() in CUT_REASONS
    text = _trimmed(reply)
    value = _json(text)
    if value is _NOT_JSON:
        text = _trimmed(_after_thinking(text))
        value = _json(text)
    if value is _NOT_JSON and _OPEN_THINK.search(text):
        raise _Unreadable  # still thinking at the end
    if value is not _NOT_JSON:
        found = _carrier(value, key)
    else:
        objects = _complete_objects(text)
        found = _in_fence(text, key, was_cut) or _in_objects(text, objects, key, was_cut)
        beside = tuple(("", other.value) for other in objects)  # flags may be said outside the verdict
        if found and key == "score" and not any(flag_name(name) for name, _ in found):
            said = mentioned_flags(_outside(text, objects, 0))
            found += tuple((name, value) for name, value in said if value.lower() in (*FLAG_WORDS, *UNCLEAR_FLAGS))
            found += tuple(other for other in beside if not _says_score(other[1]))
        if found is None and not was_cut:
            loosely: Callable[[str], JsonObject | None] = prose_verdict if key == "score" else near_json_matches
            found = loosely(_outside(text, objects, 0))
            if found and key == "score":
                found += beside
    if found is None:
        raise _Unreadable
    return found


def _says_score(value: Any) -> bool:
    try:
        return _carrier(value, "score") is not None
    except _Unreadable:
        return True


def _trimmed(text: str) -> str:
    return text.strip().strip("\ufeff\u200b").strip()


def _json(text: str) -> Any:
    """The text as one JSON value. A quoted text is prose with quotes around it, not a verdict: no JSON."""
    try:
        value = _DECODER.decode(text)
    except (json.JSONDecodeError, RecursionError):
        return _NOT_JSON
    return _NOT_JSON if isinstance(value, str) else value


def _after_thinking(text: str) -> str:
    ends = [tag.end() for tag in _CLOSE_THINK.finditer(text)]
    return text[ends[-1] :] if ends else text


def _in_fence(text: str, key: str, was_cut: bool) -> JsonObject | None:
    place = last_fence(text)
    if place is None:
        return None
    opened: list[int] = []
    _follow_braces(text, 0, place.start, opened)
    after = place.stop if place.stop < len(text) else place.start
    if opened and (was_cut or _follow_braces(text, after, len(text), [])):
        return None  # within braces: perhaps quoted
    block = text[place]
    value = _json(block.strip())
    if value is not _NOT_JSON:
        return _carrier(value, key)
    return _in_objects(block, _complete_objects(block), key, was_cut)


def last_fence(text: str) -> slice | None:
    """Where the inside of the last ``` or ~~~ block is, without a language tag; one not closed reaches to the end."""
    block, opener, begin = None, "", 0
    for line in _FENCE.finditer(text):
        fence, rest = line[1], line[2].strip()
        if not opener and not (fence[0] == "`" and "`" in rest):  # ```x``` on one line opens nothing
            opener, begin = fence, line.end(1) + len(_LANGUAGE_TAG.match(line[2])[0])  # type: ignore[index]
        elif opener and fence.startswith(opener) and not rest:
            block, opener = slice(begin, line.start()), ""
    return slice(begin, len(text)) if opener else block


def _follow_braces(text: str, begin: int, end: int, opened: list[int]) -> int:
    """Keep in `opened` where the braces stand that are open; how many were closed that are not among them."""
    closed = 0
    for brace in _BRACE.finditer(text, begin, end):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            opened.pop()
        else:
            closed += 1
    return closed


def _complete_objects(text: str) -> list[_Found]:
    """The outermost complete JSON objects, from left to right."""
    found: list[_Found] = []
    broken = reach = done = work = 0  # the last broken object begins at `broken` and is JSON up to `reach`
    opened: list[int] = []
    rest, base = text, 0  # a decoding error counts the lines before it, so what lies far behind is cut off
    start = _OBJECT_START.search(text)
    while start:
        position = start.start()
        if position - base > _FAR_BEHIND:
            rest, base = text[position:], position
        try:
            value, length = _DECODER.raw_decode(rest, position - base)
            end = base + length
        except json.JSONDecodeError as error:
            if position >= reach:
                broken = position
            reach = max(reach, base + error.pos)
            work += base + error.pos - position
            end = position + 1
        except RecursionError:
            raise _Unreadable from None
        else:
            _follow_braces(text, done, position, opened)
            outer = broken if position < reach else opened[0] if opened else None
            found.append(_Found(position, end, value, outer))
            done = end
        if work > _MOST_RESCANS * len(text):
            raise _Unreadable
        start = _OBJECT_START.search(text, end)
    return found


def _in_objects(text: str, objects: Sequence[_Found], key: str, was_cut: bool) -> JsonObject | None:
    carriers = ((index, _counting(text, objects[index], key)) for index in reversed(range(len(objects))))
    index, carrier = next(((index, carrier) for index, carrier in carriers if carrier), (0, None))
    if carrier is None:
        return None
    start, end, _, outer = objects[index]
    if any(_values(other, key) != _values(carrier, key) for other in _listed_before(text, objects, index, key)):
        raise _Unreadable  # different ones in a list, not a draft and its revision
    rest = _outside(text, objects, end)
    is_in_open_list = "]" not in rest and text.rfind("[", 0, start) > text.rfind("]", 0, start)
    is_begun = bool(_OBJECT_START.search(rest))
    if (is_in_open_list and is_begun) or (
        was_cut and (is_in_open_list or is_begun or outer is not None or rest.strip() == ",")
    ):
        raise _Unreadable  # what is around it or after it might have gone on with another one
    around, is_quoted = "", False
    is_value = bool(_KEY_BEFORE.search(text[max(0, start - _LONGEST_KEY) : start]))
    is_draft = text[:start].rstrip(" \t").endswith("\n") and "}" not in rest and '"' not in rest  # broken off before it
    if outer is not None and (is_value or not is_draft):
        if any(other.outer == outer and _counting(text, other, key) for other in objects[:index]):
            raise _Unreadable  # two in one object
        around = _outside(text, objects, outer)
        is_quoted = not is_value and bool(_OBJECT_WITH_KEY.match(text, outer))
    # A broken object around this one or after it may hold the judge's real verdict: it must not say otherwise, and must
    # say the same where this one is but quoted in a text of it. Prose after it may say what it likes.
    beside = around or rest
    beside = beside[beside.find("{") :].rstrip() if "{" in beside else ""
    levels = {*mentioned_levels(beside, keys_only=True)} if key == "score" else set()
    if (is_quoted and not levels) or (levels and levels != {_agreed_level(carrier)}):
        raise _Unreadable
    return carrier + mentioned_flags(around)


def _counting(text: str, found: _Found, key: str) -> JsonObject | None:
    """What carries the key in an object, unless the object is the value of a reasoning field."""
    carrier = _carrier(found.value, key)
    return None if _REASONING_KEY.search(text[max(0, found.start - _LONGEST_KEY) : found.start]) else carrier


def _listed_before(text: str, objects: Sequence[_Found], index: int, key: str) -> Iterator[JsonObject]:
    """The objects with the key before one, as far as only commas separate them."""
    while index and text[objects[index - 1].end : objects[index].start].strip() == ",":
        index -= 1
        if carrier := _carrier(objects[index].value, key):
            yield carrier


def _outside(text: str, objects: Sequence[_Found], since: int) -> str:
    """The text from a place on, with the complete objects emptied: what is in them has been read."""
    pieces = []
    for found in objects:
        if found.start >= since:
            pieces.append(text[since : found.start])
            since = found.end
    return "(…)".join([*pieces, text[since:]])


# ---- what an object says ----


def _values(pairs: JsonObject, key: str) -> list[Any]:
    return [value for name, value in pairs if name.strip().lower() == key]


def _carrier(value: Any, key: str) -> JsonObject | None:
    """The object with the key: the value itself, the one below it, or the one in a list. None without any."""
    if isinstance(value, tuple) and _values(value, key):
        return value
    if isinstance(value, tuple):
        children = [child for name, child in value if name.strip().lower() not in REASONING]
        carriers = [child for child in children if isinstance(child, tuple) and _values(child, key)]
    else:
        items = value if isinstance(value, list) else []
        carriers = [found for item in items if isinstance(item, tuple) and (found := _carrier(item, key))]
    if len(carriers) > 1:
        raise _Unreadable
    return carriers[0] + (value if isinstance(value, tuple) else ()) if carriers else None


def _agreed_level(verdict: JsonObject) -> float:
    levels = {_level(value) for value in _values(verdict, "score")}
    if len(levels) != 1 or any(_level(most) != 1 for name in SCALES for most in _values(verdict, name)):
        raise _Unreadable
    return levels.pop()


def _level(value: Any) -> float:
    """A number from 0 to 1: as number, as numeric text, over 1, or as the one element of a list."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and (numeric := _NUMERIC_TEXT.fullmatch(value)):
        value = float(numeric[1])
    if not isinstance(value, float) or not 0 <= value <= 1:
        raise _Unreadable
    return value + 0.0  # turns -0.0 into 0.0


def _agreed_flag(verdict: JsonObject, name: str) -> bool | str | None:
    """True, False, None where nothing is said, or "unclear"; one that is said differently below is unreadable."""
    below = [value for key, value in verdict if isinstance(value, tuple) and key.strip().lower() not in REASONING]
    flags: set[bool | str] = set()
    for value in (value for pairs in (verdict, *below) for key, value in pairs if flag_name(key) == name):
        if isinstance(value, str):
            value = FLAG_WORDS.get(value.strip().lower(), None if value.strip().lower() in ("null", "none") else value)
        if value in (0.0, 1.0):  # true and false as well
            flags.add(bool(value))
        elif value is not None:
            flags.add("unclear")
    if len(flags) > 1:
        raise _Unreadable
    return flags.pop() if flags else None


def _event_number(match: Any, events: int) -> int | None:
    if isinstance(match, str):
        word = match.strip().lower()
        match = float(word) if re.fullmatch("[0-9]{1,9}", word) else None if word in ("null", "none") else word
    if match is None:
        return None
    if not isinstance(match, float) or not match.is_integer() or not 0 <= match <= events:
        raise _Unreadable
    return int(match) or None


# ---- arithmetic ----


def cut(level: float) -> int:
    """The level as the authors' evaluation counts it: 0.5, and anything else below 1, is 0."""
    return int(level)


def question_score(levels: Sequence[float | None], cut: bool = True) -> float:
    """Mean over a question's levels, each cut to 0 or 1, or with half points kept; None (no verdict) counts 0.

    ValueError without any level: a question without criteria has no score.
    """
    if not levels:
        raise ValueError("a question without levels has no score")
    return math.fsum(int(level or 0) if cut else (level or 0.0) for level in levels) / len(levels)
