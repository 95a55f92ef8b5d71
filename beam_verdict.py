"""What a judge said, read without guessing, and the arithmetic on it. Pure functions, no input or output.

A verdict is accepted only when it is unambiguous; a reply that could mean two things is unreadable (None).
The steps, of which the first that finds a score decides, also when what it finds is no level:

1. the whole reply as JSON;
2. if it is none: what follows the last </think>; a <think> that stays open is unreadable;
3. the last fenced block;
4. the last complete JSON object that carries a score, itself or exactly one object in it;
5. "score: X" in prose or near-JSON, if all mentions agree and the length limit did not cut the reply.

Every step takes time linear in the reply, and no reply makes a reader raise.
"""

import json
import math
import re
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

# A JSON object as its pairs, so that a key given twice is seen; a JSON array stays a list.
JsonObject = tuple[tuple[str, Any], ...]

CUT_REASONS = ("length", "max_tokens", "max_output_tokens", "model_length")
ORDERING_FLAGS = ("all_present", "order_correct")
FLAG_WORDS = {"true": True, "yes": True, "false": False, "no": False}

# Raw line breaks in strings are let through. Integers as floats: int() refuses more than 4300 digits, float() does not.
_DECODER = json.JSONDecoder(strict=False, parse_int=float, object_pairs_hook=tuple)
_NOT_JSON = object()
# Broken objects nested in one another are parsed once for each level: give up after so many lengths of the reply.
_MOST_RESCANS = 32
_FAR_BEHIND = 4096

_OBJECT_START = re.compile(r'\{\s*+["}]')
_THINK_TAG = re.compile(r"<(/?)think(?:ing)?\s*>", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t>]*(`{3,}|~{3,})(.*)$", re.MULTILINE)
_LANGUAGE_TAG = re.compile(r"[ \t]*[\w.+-]*")
_NUMERIC_TEXT = re.compile(
    r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)(?:\s*(?:/|out\s+of)\s*1(?:\.0*)?)?\s*", re.IGNORECASE
)

# Step 5. Typographic characters are made plain first; every quantifier is bounded or possessive.
_PLAIN = str.maketrans("“”„‘’：＝", '"""\'\':=')
_MENTION = re.compile(
    r"""(?<!\w)(?<!\w-)
    (?P<other>(?:max(?:im(?:um|al))?|min(?:im(?:um|al))?|possible|highest|lowest|achievable|confidence)\.?[ \t]{1,8})?
    score ["'`*_\\]{0,6} [ \t]{0,8} (?:\([^()\n]{0,40}\))? ["'`*_\\ \t]{0,6} (?P<sign>:=|[:=]=?>?|\bis\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_AFTER_MENTION = re.compile(
    r"""(?P<lead>[\s"'`*_\[(\\$]{0,40}+)
    (?P<number>[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))
    (?:(?:[ \t]*(?:points?|pts?))?[ \t]*[(\[]?[ \t]*(?:/|out[ ]of|of)[ \t]*(?P<most>[0-9]{1,9}(?:\.[0-9]{0,9})?))?
    (?P<rest>.*)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# Behind the number, closing marks aside: what makes it part of something else (10, 1e5, 1,0, 0.5-1.0, 1/5, 100%).
_MORE_THAN_A_NUMBER = re.compile(
    r"""["'`*_\])}$\\]*+ (?: [^\W_] | \.+\d | [ \t]*+% | [ \t]*+/(?![/*])
    | [ \t]*+[(\[]?(?:of|on[ ]an?|percent|only|if|when|unless)\b
    | (?:[-–—−~+*^×÷→=<>|:,…·/\ \t]|\b(?:or|to|and|through|vs)\b)*+[\d½¼¾])""",
    re.IGNORECASE | re.VERBOSE,
)
_ALONE_ON_ITS_LINE = re.compile(r"""["'`*_\])}$\\.,; \t\r]*+(?:\n|\Z)""")
_END_OF_STATEMENT = re.compile(
    r"""["'`*_\])}$\\]*+\s*+(?:[.;!](?!\d)|\Z|\n|because\b|since\b|as\b)|\s*+\n""", re.IGNORECASE
)
_NO_NUMBER = re.compile(r"(?:none|null|nan|true|false|inf(?:inity)?|n/a)\b", re.IGNORECASE)
# A string value of near-JSON: it ends at a quote that a comma or bracket follows, so that quotes inside do not end it.
_STRING_VALUE = re.compile(
    r"""[:\[]\s*+(["'])(?!\s*+[-+.\d/ ]{1,16}\1)(?:\\.|(?!\1\s*+(?:[,}\]]|\Z)).)*+(?:\1|\Z)""", re.DOTALL
)
_FLAG_MENTION = re.compile(
    r"""\b(all_present|order_correct)["'`*\\]{0,6}\s*+[:=]\s*+["'`*\\]{0,6}(\w+)""", re.IGNORECASE
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

    A flag that is absent or null says nothing. A score of 1 contradicts any flag that is not true, a score of 0
    contradicts two flags that are.
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
    if value is not _NOT_JSON:
        found = _carrier(value, key)
    else:
        objects = _complete_objects(text)
        found = _in_fence(text, key, was_cut) or _in_objects(text, objects, key, was_cut)
        if found is None and key == "score" and not was_cut:
            found = _in_prose(_outside(text, objects, 0))
    if found is None:
        raise _Unreadable
    return found


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
    tags = list(_THINK_TAG.finditer(text))
    if tags and not tags[-1][1]:
        raise _Unreadable  # still thinking at the end
    return text[tags[-1].end() :] if tags else text


def _in_fence(text: str, key: str, was_cut: bool) -> JsonObject | None:
    block = last_fenced_block(text)
    if block is None:
        return None
    value = _json(block.strip())
    if value is not _NOT_JSON:
        return _carrier(value, key)
    return _in_objects(block, _complete_objects(block), key, was_cut)


def last_fenced_block(text: str) -> str | None:
    """The inside of the last ``` or ~~~ block, without a language tag; one that is not closed reaches to the end."""
    block, opener, begin = None, "", 0
    for line in _FENCE.finditer(text):
        fence, rest = line[1], line[2].strip()
        if not opener and not (fence[0] == "`" and "`" in rest):  # ```x``` on one line opens nothing
            opener, begin = fence, line.end(1)
        elif opener and fence.startswith(opener) and not rest:
            block, opener = text[begin : line.start()], ""
    if opener:
        block = text[begin:]
    return None if block is None else _LANGUAGE_TAG.sub("", block, count=1)


def _complete_objects(text: str) -> list[_Found]:
    """The outermost complete JSON objects, from left to right."""
    found: list[_Found] = []
    broken = reach = done = work = 0  # the last broken object begins at `broken` and is JSON up to `reach`
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
            opened, closed = text.rfind("{", done, position), text.rfind("}", done, position)
            outer = broken if position < reach else opened if opened > closed else None
            found.append(_Found(position, end, value, outer))
            done = end
        if work > _MOST_RESCANS * len(text):
            raise _Unreadable
        start = _OBJECT_START.search(text, end)
    return found


def _in_objects(text: str, objects: Sequence[_Found], key: str, was_cut: bool) -> JsonObject | None:
    for index in reversed(range(len(objects))):
        start, end, value, outer = objects[index]
        carrier = _carrier(value, key)
        if carrier is None:
            continue
        before = objects[index - 1] if index else None
        if before and text[before.end : start].strip() == "," and _carrier(before.value, key):
            raise _Unreadable  # neighbours in a list, not a draft and its revision
        if was_cut and outer is not None:
            raise _Unreadable  # the object around it might have gone on with another one
        if key == "score":
            # A broken object around this one or after it may hold the judge's real verdict: it must not say otherwise.
            rest = _outside(text, objects, end if outer is None else outer).rstrip()
            if any(level != _agreed_level(carrier) for level in _mentions(rest, keys_only=True)):
                raise _Unreadable
        return carrier
    return None


def _outside(text: str, objects: Sequence[_Found], since: int) -> str:
    """The text from a place on, with the complete objects emptied: what is in them has been read."""
    pieces = []
    for found in objects:
        if found.start >= since:
            pieces.append(text[since : found.start])
            since = found.end
    return "{}".join([*pieces, text[since:]])


def _in_prose(text: str) -> JsonObject | None:
    text = text.translate(_PLAIN)
    levels = list(_mentions(text))
    # In near-JSON a mention inside a string value is reasoning: it may contradict the score, but it is none.
    brace = text.find("{") if "{" in text else len(text)
    if not any(True for _ in _mentions(text[:brace] + _STRING_VALUE.sub(":{}", text[brace:]))):
        return None
    flags = [(mention[1].lower(), mention[2]) for mention in _FLAG_MENTION.finditer(text)]
    return (*(("score", level) for level in levels), *flags)


def _mentions(text: str, keys_only: bool = False) -> Iterator[float | None]:
    """What each `score: X` of the text says: a level, or None where X is a value but no level.

    `keys_only`: only those that look like a key of an object, and one whose number is the last of the text may be cut.
    """
    for mention in _MENTION.finditer(text):
        before = text[max(0, mention.start() - 20) : mention.start()].rstrip()
        if mention["other"] or keys_only and not before.endswith(("{", '"', "'", "“", "‘")):
            continue
        tail = text[mention.end() : mention.end() + 200]
        said = _AFTER_MENTION.match(tail)
        if said is None:
            bare = tail.lstrip(" \t\r\n\"'`*_[(\\$~≈<>≤≥±-−+.#{")
            if not bare or bare[0].isnumeric() or _NO_NUMBER.match(bare):
                yield None
            continue
        rest = said["rest"]
        if mention["sign"].lower() == "is" and not _END_OF_STATEMENT.match(rest):
            continue  # "the score is 1.0 only if ..." gives no score
        if (
            _MORE_THAN_A_NUMBER.match(rest)
            or ("\n" in said["lead"] and not _ALONE_ON_ITS_LINE.match(rest))  # a numbered list, perhaps
            or (said["most"] and float(said["most"]) != 1)
            or (keys_only and not rest)
        ):
            yield None
        else:
            level = float(said["number"])
            yield level + 0.0 if 0 <= level <= 1 else None


# ---- what an object says ----


def _values(pairs: JsonObject, key: str) -> list[Any]:
    return [value for name, value in pairs if name.strip().lower() == key]


def _carrier(value: Any, key: str) -> JsonObject | None:
    """The object with the key: the value itself, the one below it, or the one in a list. None without any."""
    if isinstance(value, tuple) and _values(value, key):
        return value
    if isinstance(value, tuple):
        carriers = [child for _, child in value if isinstance(child, tuple) and _values(child, key)]
    else:
        items = value if isinstance(value, list) else []
        carriers = [found for item in items if isinstance(item, tuple) and (found := _carrier(item, key))]
    if len(carriers) > 1:
        raise _Unreadable
    return carriers[0] + (value if isinstance(value, tuple) else ()) if carriers else None


def _agreed_level(verdict: JsonObject) -> float:
    levels = {_level(value) for value in _values(verdict, "score")}
    if len(levels) != 1:
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
    """True, False, None where nothing is said, or "unclear"; a flag said twice and differently is unreadable."""
    flags: set[bool | str] = set()
    for value in _values(verdict, name):
        if isinstance(value, str):
            value = FLAG_WORDS.get(value.strip().lower(), None if value.strip().lower() in ("null", "none") else value)
        if value is not None:
            flags.add(value if isinstance(value, bool) else "unclear")
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


def one_to_one(matches: Sequence[int | None], events: Sequence[Hashable]) -> list[int | None]:
    """Each event (number from 1) is given to one line only: the first that claims it; later ones get None.

    Of equal events a line gets the first that is still free, whichever of them it claims.
    """
    free: dict[Hashable, list[int]] = {}
    for number in range(len(events), 0, -1):
        free.setdefault(events[number - 1], []).append(number)
    return [
        free[events[match - 1]].pop() if match is not None and free[events[match - 1]] else None for match in matches
    ]


def tau_score(order: Sequence[int | None], n_events: int) -> float:
    """(tau-b + 1) / 2 between the reference order 1..n and the response's lines, as in the BEAM paper.

    `order`: for each line its event or None, one-to-one. Both orders rank the union of the events and the unmatched
    lines; what an order lacks ties for its last rank. Where tau is undefined: 1 for identical orders, else 0.
    """
    if not order:
        return 0.0
    rank_of = {event: rank for rank, event in enumerate(order) if event is not None}
    extra = [rank for rank, event in enumerate(order) if event is None]
    if len(rank_of) + len(extra) < len(order) or any(not 1 <= event <= n_events for event in rank_of):
        raise ValueError(f"not a one-to-one alignment with {n_events} events: {list(order)}")
    last = n_events + len(order)
    reference = [*range(n_events), *(last for _ in extra)]
    response = [*(rank_of.get(event, last) for event in range(1, n_events + 1)), *extra]
    tau = kendall_tau_b(reference, response)
    if tau is None:
        return 1.0 if reference == response else 0.0
    return (tau + 1) / 2


def kendall_tau_b(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Kendall's rank correlation with ties counted, -1 to 1; None where one side has no two different values."""
    pairs = sorted(zip(x, y, strict=True))
    seen: list[float] = []
    discordant = 0
    for _, value in pairs:
        discordant += len(seen) - bisect_right(seen, value)
        insort(seen, value)
    every = len(pairs) * (len(pairs) - 1) // 2
    tied_x, tied_y, tied_both = (
        sum(count * (count - 1) // 2 for count in Counter(values).values()) for values in (x, y, pairs)
    )
    if every in (tied_x, tied_y):
        return None
    score = every - tied_x - tied_y + tied_both - 2 * discordant
    return max(-1.0, min(1.0, score / math.sqrt((every - tied_x) * (every - tied_y))))
