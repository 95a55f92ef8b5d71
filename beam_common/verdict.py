"""What a judge said: a level, an order, an alignment; a question's score. Pure functions.

A reply counts only where it can mean one thing; else it is unreadable, and asking again is cheaper
than guessing. What counts is the JSON object (or Python literal) with a score, its own or one level
down, that stands outside reasoning, whether it is the whole reply, in a fence or among prose; where
there is none, a line that says only `score: X`. What else mentions a score must agree. Reading
takes time linear in the reply.
"""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import Any

from beam_common.rows import Json, Row

ORDERED = {("all_present", "true"), ("order_correct", "true")}
SHORT_REASON = 3  # words; so few may stand in a prompt by chance
MOST_ALIKE = 2  # a verdict said more often is program text or talk about verdicts
LONGEST_LITERAL = 20_000  # characters
MOST_GROUPS = 3000  # of braces that are looked at
MASK = "\0"  # in the place of JSON that has been read

_BRACE = re.compile("{")
# What counts between braces: braces, and strings, in which they do not count.
_TOKEN = re.compile(
    r"""(?xs) [{}] | " (?:\\.?|[^"\\]++)*+ (?:"|\Z) | ' (?:\\.?|[^'\\]++)*+ (?:'|\Z)"""
)
_LAST_COMMA = re.compile(r",(?=\s*+[}\]])")
_OPENED = re.compile(
    r"""(?ix) [<◁] \|? (?:start_|begin_(?:of_)?)? (?:\w{1,12}:)?
    (?:think(?:ing)?|thoughts?|reasoning|analysis) \|? [>▷] | \[THINK\]
    | <\|(?:channel|message)\|?>"""
)
_CLOSED = re.compile(
    r"""(?ix) [<◁] \|? (?:/|end_(?:of_)?) (?:\w{1,12}:)?
    (?:think(?:ing)?|thoughts?|reasoning|analysis) \|? [>▷] | \[/THINK\] | <channel\|>
    | <\|channel\|> \s{0,9} final [^{\n]{0,60}? <\|message\|>"""
)
# An object that is assigned, passed or returned; a score that is assigned.
_PROGRAM = re.compile(
    r"""(?ix) (?:[=(]|\breturn) \s*+ (?:\0|\{\s*+["']) | \b score ["'\]]*+ \s*+ ="""
)
_NUMBER = r"([+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++))(?:\s*+/\s*+1(?:\.0*+)?)?"
_NUMERIC_TEXT = re.compile(rf"\s*+{_NUMBER}\s*+\.?")
_LINE = re.compile(
    rf"""(?imx) ^[ \t*_`\#>-]*+ score [ \t*_`]*+ [:：] [ \t*_`"']*+ {_NUMBER} [ \t\r*_`"'.]*+ $"""
)
_MENTION = re.compile(
    r"""(?ix) (?<![\w-]) score ["'`*_\])]*+ \s*+ [:：] \s*+ ["'`*_\[(]*+
    ([+-]?[0-9.][^\s,;}\])"'`*_]*+)"""
)


def read_score(reply: str, finish_reason: str | None, prompt: str) -> float | None:
    """The level of a verdict, 0.0 to 1.0 (0.7 stays 0.7), or None where it is unreadable.

    `prompt`: the judge prompt before question, criterion and response were filled in: a reason may
    quote those, but not say what the prompt itself says.
    """
    return _stated(reply, finish_reason, prompt)[0]


def read_ordering(reply: str, finish_reason: str | None, prompt: str) -> float | None:
    """The score of an ordering verdict, 0.0 or 1.0, or None: unreadable, a part of a point, or
    fields that contradict each other."""
    level, verdicts = _stated(reply, finish_reason, prompt)
    flags = {(name, str(value).lower()) for name, _ in ORDERED for value in _values(verdicts, name)}
    agree = flags <= ORDERED if level == 1.0 else level == 0.0 and flags != ORDERED
    return level if agree else None


def read_alignment(
    reply: str, finish_reason: str | None, n_lines: int, events: Sequence[str]
) -> list[int | None] | None:
    """For each line of the response its event (from 1) or None, one-to-one; None: unreadable.

    Each event is given to the first line that claims it; of equal events a line gets the first
    that is still free.
    """
    names = dict(enumerate(events, 1))
    try:
        [matches] = _values(_verdicts(reply, finish_reason, "matches")[0], "matches")
        claims = [names[match] if match else None for match in matches]
    except (ValueError, KeyError, TypeError):  # not one list, or something else in it
        return None
    order: list[int | None] = []
    for claim in claims:
        free = (number for number, name in names.items() if name == claim and number not in order)
        order.append(next(free, None))
    return order if len(order) == n_lines else None


# ------------------------------------------------------------------------------------------------
# Finding the verdict.


def _stated(reply: str, finish_reason: str | None, prompt: str) -> tuple[float | None, list[Json]]:
    """The level on which all of the reply agrees, None where there is none, and its objects."""
    verdicts, rest = _verdicts(reply, finish_reason, "score")
    stated = _values(verdicts, "score")
    if not verdicts and "{" not in rest:
        stated = _LINE.findall(rest)
    levels = {_level(value) for value in stated + _MENTION.findall(rest)}
    clear = stated and len(levels) == 1 and not _is_echo(verdicts, prompt)
    return levels.pop() if clear else None, verdicts


def _verdicts(text: str, finish_reason: str | None, key: str) -> tuple[list[Json], str]:
    """The objects with `key` that stand outside reasoning, and the text around those in JSON;
    nothing at all where it cannot be told what counts."""
    objects, rest = _objects(text, key)
    if end := max((mark.end() for mark in _CLOSED.finditer(rest)), default=0):
        text = text[end:]
        objects, rest = _objects(text, key)
    was_cut = finish_reason == "length" and _json(text) is None
    verdicts = [value for value in objects if _values([value], key)]
    repeated = len(_values(verdicts, key)) > min(len(verdicts), MOST_ALIKE)
    if was_cut or repeated or _OPENED.search(rest) or _PROGRAM.search(rest):
        return [], ""
    return verdicts, rest


def _objects(text: str, key: str) -> tuple[list[Json], str]:
    """The outermost complete objects of a text that mention `key`, and the text with those in
    JSON masked; those in Python's notation stay in sight."""
    found, rest = [], list(text)
    for start, end in islice(_braced(text), MOST_GROUPS):
        group = text[start:end]
        if key in group.lower():
            value = _json(group)
            if value is not None:
                rest[start:end] = MASK * len(group)
            found.append(value or _json(_LAST_COMMA.sub("", group)) or _literal(group) or {})
    return found, "".join(rest)


def _braced(text: str) -> Iterator[tuple[int, int]]:
    """Where the outermost pairs of braces are; nothing from a brace on that is never closed."""
    depth = start = 0
    token = _BRACE.search(text)
    while token:
        start = start if depth else token.start()
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if not depth:
            yield start, token.end()
        token = (_TOKEN if depth else _BRACE).search(text, token.end())


def _json(text: str) -> Any:
    """A JSON value, with line breaks in strings let through; None where the text is none."""
    try:
        return json.loads(text, strict=False, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None


def _literal(text: str) -> Any:
    """What Python's notation says (single quotes, a comma too many), as JSON; None like `_json`."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return _json(json.dumps(ast.literal_eval(text[:LONGEST_LITERAL])))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _object(pairs: list[tuple[str, Any]]) -> Row:
    """An object with its names in lower case; one that says two things of a name is none."""
    value: Row = {}
    for name, item in pairs:
        if value.setdefault(name.strip().lower(), item) != item:
            raise ValueError(name)
    return value


# ------------------------------------------------------------------------------------------------
# What it says.


def _values(verdicts: Sequence[Json], name: str) -> list[Any]:
    """What the objects say under a name, themselves and in the objects right below them."""
    places = [place for verdict in verdicts for place in (verdict, *verdict.values())]
    return [place[name] for place in places if isinstance(place, dict) and name in place]


def _level(value: Any) -> float | None:
    """A finite number from 0 to 1: as number, as text, over 1, as the one element of a list."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and (number := _NUMERIC_TEXT.fullmatch(value)):
        value = float(number[1])
    return abs(float(value)) if type(value) in (int, float) and 0 <= value <= 1 else None


def _is_echo(verdicts: Sequence[Json], prompt: str) -> bool:
    """Whether a reason is what the prompt itself says: the form was copied, nothing was judged. A
    few words count only where the prompt has them in quotes, as the form has."""
    prompt = " ".join(prompt.split())
    for reason in _values(verdicts, "reason") + _values(verdicts, "explanation"):
        text = " ".join(str(reason).split())
        long = text.count(" ") >= SHORT_REASON
        if f'"{text}"' in prompt or (long and text.strip("[]<>.") in prompt):
            return True
    return False


# ------------------------------------------------------------------------------------------------
# Arithmetic.


def question_score(levels: Sequence[float | None], cut: bool = True) -> float:
    """Mean over a question's levels, at least one, each cut to 0 or 1, or with half points kept;
    None counts 0."""
    return sum(int(level or 0) if cut else level or 0.0 for level in levels) / len(levels)


def tau_score(order: Sequence[int | None], n_events: int) -> float:
    """(Kendall's tau-b + 1) / 2 between the reference order 1..n and a response's lines, as the
    BEAM paper (arXiv 2510.27246) reports event ordering.

    `order`: for each line its event or None, one-to-one. Both orders rank the union of the events
    and the unmatched lines; what an order lacks ties for its last rank. Where tau is undefined: 1
    for identical orders, else 0.
    """
    last = len(order)
    line_of = {event: line for line, event in enumerate(order)}
    events = [line_of.get(event, last) for event in range(1, n_events + 1)]
    unmatched = [line for line, event in enumerate(order) if event is None]
    told = events + unmatched  # in the order of the reference, the latter as one rank
    discordant = sum(one > other for one, other in combinations(told, 2))
    every = math.comb(len(told), 2)
    in_reference = every - math.comb(len(unmatched), 2)  # pairs that are not tied
    in_response = every - math.comb(events.count(last), 2)
    if not in_reference or not in_response:
        return float(order == [1])  # one event, told alone: no other identical orders come here
    score = in_reference + in_response - every - 2 * discordant
    return (score / math.sqrt(in_reference * in_response) + 1) / 2
