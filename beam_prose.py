"""`score: X` as judges write it in prose and near-JSON: which levels a text mentions, and where one is mentioned.

The last resort of reading a verdict (beam_verdict.py), and its check for a second, broken verdict beside a good one; also
the list of an alignment in near-JSON.
A number that is part of something else (10, 1e5, 1,0, 0.5-1.0, 1/5, 100%) is a mention that gives no level.
"""

import re
from collections.abc import Iterator

# Typographic quotes and full-width signs are made plain first. Every quantifier is bounded or possessive: the time
# taken is linear in the text.
_PLAIN = str.maketrans(dict.fromkeys("“”„", '"') | dict.fromkeys("‘’", "'") | {"：": ":", "＝": "="})

_MENTION = re.compile(
    r"""(?<!\w)(?<!\w-)
    (?P<other>(?:max(?:im(?:um|al))?|min(?:im(?:um|al))?|possible|highest|lowest|achievable|confidence)\.?[ \t]{1,8})?
    score ["'`*_\\]{0,6} [ \t]{0,8} (?:\([^()\n]{0,40}\))? ["'`*_\\ \t]{0,6}
    (?P<sign>(?:\bis\b[ \t]{0,4})? (?: := | [:=]=?>? ) | \bis\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_NUMBER = re.compile(
    r"""(?P<lead>[\s"'`*_\[(\\$]{0,40}+)
    (?P<number>[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))
    (?:(?:[^\S\n]*(?:points?|pts?))?[*_`]{0,3}[^\S\n]*[(\[]?[^\S\n]*
       (?:/|out[ ]of|of)[^\S\n]*(?P<most>[0-9]{1,9}(?:\.[0-9]{0,9})?))?
    (?P<rest>.*)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_LONGEST_NUMBER = 200  # characters looked at behind a mention

# What may follow the number, closing marks aside, and shows that it is not the whole value.
_GOES_ON = re.compile(
    r"""["'`*_\])}$\\]*+ (?: [^\W_] | \.+\d | [+?] | -[^\W_] | [^\S\n]*+(?:[%％‰]|/(?![/*]))
    | [^\S\n]*+[(\[]?(?:of|on[ ]an?|percent|only|if|when|unless)\b
    | [^\S\n]*+(?:[(\[](?=or\b|to\b))?
      (?:[^\w\n.;!?()\[\]{}"']|\b(?:or|to|and|through|vs)\b)*+[\d¼½¾])""",
    re.IGNORECASE | re.VERBOSE,
)
_ALONE_ON_ITS_LINE = re.compile(r"""["'`*_\])}$\\.,;\s]*?(?:\n|\Z)""")
_END_OF_STATEMENT = re.compile(
    r"""["'`*_\])}$\\]*+(?:\s*+(?:[.;!](?!\d)|\Z|because\b|since\b|as\b)|[^\S\n]*+\n)""", re.IGNORECASE
)
_VALUE_WITHOUT_NUMBER = re.compile(r"(?:none|null|nan|true|false|inf(?:inity)?|n/a)\b", re.IGNORECASE)
# A string value of near-JSON: it ends at a quote that a comma or bracket follows, so that quotes inside do not end it.
_STRING_VALUE = re.compile(
    r"""[:\[]\s*+(["'])(?!\s*+[-+.\d/ ]{1,16}\1)(?:\\.|(?!\1\s*+(?:[,}\]]|\Z)).)*+(?:\1|\Z)""", re.DOTALL
)
# Near-JSON whose string values are emptied, if nothing but pairs is left of it: then they were told apart rightly.
_ONLY_PAIRS = re.compile(
    r"""\{(?:\s*+["']?\w++["']?\s*+:\s*+(?:\{\}|["'[]{0,2}[-+.\w/ ]{1,40}["'\]]{0,2})\s*+(?:,|(?=\})))*+\s*+\}[`\s]*+"""
)
# A flag as a key, as a label in Markdown or in a row of a table: `**Order correct:** no`, `| order_correct | false |`.
_FLAG = re.compile(
    r"""(?<![^\W_])(?<![^\W_]_)(all[_ ]?present|order[_ ]?correct)["'`*_\\]{0,6}[ \t]{0,8}[:=|]
    ["'`*_\\(\s]{0,12}([^\s"'`*_|,;.()}]{1,20})""",
    re.IGNORECASE | re.VERBOSE,
)
_FLAG_NAMES = {"a": "all_present", "o": "order_correct"}
_MATCHES = re.compile(r"""[{,]\s*+["']?matches["']?\s*+:\s*+\[([^\[\]{}]*+)\]""", re.IGNORECASE)


def mentioned_levels(text: str, keys_only: bool = False) -> Iterator[float | None]:
    """What each `score: X` of the text says: a level from 0 to 1, or None where X is a value but no level.

    `keys_only`: only those that look like a key of an object; one whose number ends the text may be cut, and is None.
    """
    text = text.translate(_PLAIN)
    for mention in _MENTION.finditer(text):
        before = text[max(0, mention.start() - 20) : mention.start()].rstrip()
        if mention["other"] or (keys_only and not before.endswith(("{", '"', "'"))):
            continue
        tail = text[mention.end() : mention.end() + _LONGEST_NUMBER]
        said = _NUMBER.match(tail)
        if said is None:
            bare = tail.lstrip(" \t\r\n\"'`*_[({\\$~≈<>≤≥±-−+.#")
            if not bare or bare[0].isnumeric() or _VALUE_WITHOUT_NUMBER.match(bare):
                yield None
            continue
        rest = said["rest"]
        if mention["sign"].lower() == "is" and not _END_OF_STATEMENT.match(rest):
            continue  # "the score is 1.0 only if ..." gives no score
        level = float(said["number"])
        is_whole_value = (
            not _GOES_ON.match(rest)
            and ("\n" not in said["lead"] or _ALONE_ON_ITS_LINE.match(rest))  # else perhaps a numbered list
            and (said["most"] is None or float(said["most"]) == 1)
            and (rest or not keys_only)
        )
        yield level if is_whole_value and 0 <= level <= 1 else None


def prose_verdict(text: str) -> tuple[tuple[str, float | str | None], ...] | None:
    """All levels and flags that a text mentions, as (name, value) pairs; None when it gives no score.

    In near-JSON a mention inside a string value is reasoning: it is none, but where strings and keys cannot be told
    apart for sure it can contradict the score.
    """
    prose, near_json, emptied = _parts(text)
    if not list(mentioned_levels(prose + emptied)):
        return None
    said = prose + (emptied if _ONLY_PAIRS.fullmatch(emptied) else near_json)
    levels = [("score", level) for level in mentioned_levels(said)]
    return (*levels, *((_FLAG_NAMES[flag[1][0].lower()], flag[2]) for flag in _FLAG.finditer(said)))


def near_json_matches(text: str) -> tuple[tuple[str, list[str]], ...] | None:
    """The list of an alignment in near-JSON, its items as texts; None without one, or where two lists differ."""
    _, _, emptied = _parts(text)
    lists = {
        tuple(item.strip(" \t\r\n\"'") for item in said[1].rstrip().removesuffix(",").split(","))
        for said in _MATCHES.finditer(emptied)
    }
    if len(lists) != 1:
        return None
    items = list(lists.pop())
    return (("matches", items if items != [""] else []),)


def _parts(text: str) -> tuple[str, str, str]:
    """The prose before the first brace, the rest, and the rest with its string values emptied; all with plain signs."""
    plain = text.translate(_PLAIN)
    brace = plain.find("{") if "{" in plain else len(plain)
    return plain[:brace], plain[brace:], _STRING_VALUE.sub(":{}", plain[brace:])
