"""`score: X` as judges write it in prose and near-JSON: which levels a text mentions, and where one is mentioned.

The last resort of reading a verdict (beam_verdict.py), and its check for a second, broken verdict beside a good one;
also the flags of an ordering verdict, and the list of an alignment in near-JSON.
A number that is part of something else (10, 1e5, 1,0, 0.5-1.0, 1/5, 100%) or on another scale is a mention that gives
no level. In prose so is the score of another thing, and one that is denied, a draft or on a condition.
"""

import re
from collections.abc import Iterator

# Typographic quotes and full-width signs are made plain first. Every quantifier is bounded or possessive: the time
# taken is linear in the text.
_PLAIN = str.maketrans("“”„‘’：＝（），。；", '"""\'\':=(),.;')

_MENTION = re.compile(
    r"""(?<!\w)(?<!\w-)
    (?P<other>(?:(?P<top>max(?:im(?:um|al))?|possible|highest|achievable)|min(?:im(?:um|al))?|lowest|confidence)
       \.?[ \t_]{1,8})?
    score ["'`*_\\]{0,6} [ \t]{0,8} (?P<note>\([^()\n]{0,40}\))? ["'`*_\\ \t]{0,6}
    (?P<sign>(?:\bis\b[ \t]{0,4})? (?: := | [:=]=?>? ) | \bis\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_NUMBER = re.compile(
    r"""(?P<lead>[\s"'`*_\[(\\$]{0,40}+)
    (?P<number>[+-]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20}))
    (?:(?:[^\S\n]*+(?:points?|pts?))?[*_`]{0,3}[^\S\n]*+[,(\[]{0,2}[^\S\n]*+
       (?:/|(?:out[ ])?of
         |[-–—;]?[^\S\n]*+(?:(?:on|in|from)[ ](?:an?|the)[ ])?(?:scale|range|max(?:im(?:um|al))?|满分)[^\d\n]{0,12}
          (?:0(?:\.0)?[^\S\n]*+(?:[-–]|to\b))?
         |(?<=[(\[])(?:from[ ])?0(?:\.0)?[^\S\n]*+(?:[-–]|to\b))
       [^\S\n]*+(?P<most>[0-9]{1,9}(?:\.[0-9]{0,9})?))?
    (?P<rest>.*)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
# A key in quotes, or the first one in braces: it needs no look at the words before it.
_IS_KEY = re.compile(r"""\{\s*score|(?:\A|[^\w\s])\s*\\?["']\s*score\s*\\?["']""", re.IGNORECASE)
_LONGEST_NUMBER = 200  # characters looked at behind a mention

_DRAFT = r"\b(?:(?:initial|tentative|provisional)(?:ly)?|preliminary|draft)\b"
# What may follow the number, closing marks aside, and shows that it is not the whole value, or not the verdict.
_GOES_ON = re.compile(
    rf"""["'`*_\])}}$\\]*+ (?: [^\W_] | \s*+\.+[^\S\n]*+\d | \.\. | … | [+?] | -[^\W_] | [^\S\n]*+(?:[%％‰]|/(?![/*]))
    | [^\S\n]*+[(\[]?(?:(?:points?[ ])?of|on[ ]an?|percent|when|only[ ](?:if|when))\b
    | [^\S\n]*+(?:(?:in|over|from)[ ]\d | [,(\[][^\S\n]*+(?:where[ ]|with[ ])?
      (?:[01][^\S\n]*+(?:is|being|=)[^)\]\n]{{1,60}}?(?<![\w.-]))?(?:[2-9]|\d\d)\d{{0,9}}[^\S\n]*+(?:is|being|=)\s)
    | [^\S\n]*+[-–—,(\[]?[^\S\n]*+(?:(?:if|unless|out[ ]of)\b | {_DRAFT}\s*+(?:[^\w\s]|\Z)
         |(?:then[ ])?\w{{2,9}}ed[ ]to[ ][01]\b)
    | [^\S\n]*+(?-i:(?:is|was|were|does|did|would|could|should|had|must|need|ca|wo)(?:n't)?|cannot|can|might|may|will
         |requires?|needs|demands|means|applies|seems|appears|looks|feels|sounds|only|or|minus|at[ ](?:best|most|least)
         |provided|assuming|not[ ](?:warranted|justified|deserved|appropriate|possible))\b
    | [^\S\n]*+[(\[][\d.]{{1,9}}[^\S\n]*+(?:[-–]|to\b)[^\S\n]*+[\d.]{{1,9}}[^\S\n]*+(?:scale|points)?[)\]]
    | [^\S\n]*+(?:[(\[](?=or\b|to\b))?
      (?:[^\w\n.;!?()\[\]{{}}"']|\b(?:or|to|and|through|vs)\b)*+[\d¼½¾])""",
    re.IGNORECASE | re.VERBOSE,
)
# In prose. Any other word directly before "score" makes it the score of another thing.
_OWN = frozenset(
    "a an and appropriate assign assigned assigns award awarded awards correct criterion deserves earns evaluation final"
    " get gets give given gives giving hence i is its judge's judgment merits my numeric numerical our overall receives"
    " response resulting revised rubric so the therefore this thus total updated verdict we with 最终 得分 评分 总分".split()
)
_NO_WORD = re.compile(r"[^\w'-]")
# A second level in the statement, on its own: not in a name ("TLS 1.0") and not one that is denied ("not 0.5").
_LEVEL = re.compile(
    r"(?:[,:(\[–—-]|\b(?:and|but|then|though|although|actually|becomes|wait))[^\S\n]*(0\.0|0\.5|1\.0)(?![\d%]|[.,/]\d)",
    re.IGNORECASE,
)
_LONGEST_SENTENCE = 160  # characters looked at before a mention
_SENTENCE_END = re.compile(r"[.!?;|](?!\d)|\n")
_CLAUSE_END = re.compile(r"[^\w\s'\"`*-]|\s-")
_CONCLUSION = re.compile(r"(?<!if )\bso(?=\s)|\b(?:thus|therefore|hence|consequently)\b", re.IGNORECASE)
_NEGATION = re.compile(r"n't\b|\b(?:not?|cannot|never|neither|nor|without|instead|rather)\b", re.IGNORECASE)
_CONDITION = re.compile(
    rf"""\b(?:if|unless|would|(?:initial|tentative|provisional)ly|at[ ]first)\b | {_DRAFT}(?:[ ]\w{{1,20}})?:
    | (?:\A|,)[^\w,]*+(?:when|were|had|should|assuming|suppos(?:e|ing)|provided)\b
    | \bto[ ](?:get|give|assign|award|deserve|earn|merit|receive)\b""",
    re.IGNORECASE | re.VERBOSE,
)
# A scale that is not up to 1: as a label, or the judge's own words. Elsewhere it may be one that the response names.
_OTHER_SCALE = re.compile(
    r"""^\W{0,6}(?:\w{1,9}[ ]a[ ])?scale\b[^\d\n]{0,12}[01](?:\.0)?\W{1,3}(?:to\W)?(?:[2-9]|\d\d)
    | \bscore\b[^\n]{0,40}?\b(?:[2-9]|\d\d|three|four|five|ten)[- ]point[- ]scale\b""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
# In the brackets of "Score (0-10): 1".
_OTHER_NOTE = re.compile(rf"(?:{_DRAFT}|possible|max(?:imum)?)\W*\Z|(?<![\d.])(?:[2-9]|\d\d)", re.IGNORECASE)
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
_FLAG_NAME = r"""(?:is[ _-]?|are[ _-]?)?(?:
    (?P<all_present>all[ _-]?(?:(?:the[ ])?(?:reference[ _-]?)?(?:events|items)[ _-]?)?(?:are[ _-]?|were[ ])?present)
    | (?P<order_correct>order(?:[ ]of[ ]events)?[ _-]?(?:is[ _-]?)?correct | correct[ _-]?order))"""
_FLAG_KEY = re.compile(_FLAG_NAME, re.IGNORECASE | re.VERBOSE)
_FLAG = re.compile(
    rf"""(?<![^\W_])(?<![^\W_]_)(?<!\bnot[ ])(?P<flag>{_FLAG_NAME})["'`*_\\]{{0,6}}[ \t]{{0,8}}
    (?:[:=|?]{{1,2}}|\bis\b(?=\W{{1,9}}(?:not\s{{1,3}})?(?:true|false|yes|no)\b))
    ["'`*_\\(\s]{{0,12}}(?P<value>[^\s"'`*_|,;.()}}]{{1,20}})""",
    re.IGNORECASE | re.VERBOSE,
)
_MATCHES = re.compile(r"""[{,]\s*+["']?matches["']?\s*+:\s*+\[([^\[\]{}]*+)\]""", re.IGNORECASE)


def mentioned_levels(text: str, keys_only: bool = False) -> Iterator[float | None]:
    """What each `score: X` of the text says: a level from 0 to 1, or None where X is a value but no level.

    `keys_only`: only those that look like a key of an object; one whose number ends the text may be cut, and is None.
    """
    text = text.translate(_PLAIN)
    for mention in _MENTION.finditer(text):
        begin = mention.start()
        before = text[max(0, begin - 20) : begin].rstrip()
        if keys_only and (mention["other"] or not before.endswith(("{", '"', "'"))):
            continue
        tail = text[mention.end() : mention.end() + _LONGEST_NUMBER]
        said = _NUMBER.match(tail)
        if mention["other"]:
            if mention["top"] and said and float(said["number"]) != 1:
                yield None  # the score is on another scale
            continue
        if said is None:
            bare = tail.lstrip(" \t\r\n\"'`*_[({\\$~≈<>≤≥±-−+.#")
            if not bare or bare[0].isnumeric() or _VALUE_WITHOUT_NUMBER.match(bare):
                yield None
            continue
        rest = said["rest"]
        if mention["sign"].lower() == "is" and not _END_OF_STATEMENT.match(rest):
            continue  # "the score is 1.0 only if ..." gives no score
        is_key = _IS_KEY.search(text, max(0, begin - 20), mention.end())
        level = float(said["number"])
        is_whole_value = (
            not _GOES_ON.match(rest)
            and ("\n" not in said["lead"] or _ALONE_ON_ITS_LINE.match(rest))  # else perhaps a numbered list
            and (said["most"] is None or float(said["most"]) == 1)
            and (rest or not keys_only)
            and (keys_only or is_key or _is_the_verdict(text[max(0, begin - _LONGEST_SENTENCE) : begin]))
            and (keys_only or is_key or {*map(float, _LEVEL.findall(_SENTENCE_END.split(rest)[0]))} <= {level})
            and not _OTHER_NOTE.search(mention["note"] or "")
        )
        yield level if is_whole_value and 0 <= level <= 1 else None


def _is_the_verdict(before: str) -> bool:
    """Whether a score after this text is the judge's: no other thing's, not denied, on no condition and no draft."""
    sentence = _SENTENCE_END.split(before)[-1]
    word = _NO_WORD.split(sentence.rstrip(" \t\"'`*_\\"))[-1].strip("'_-").lower()
    if (word and word not in _OWN) or (sentence.count('"') % 2 and sentence.strip() != '"'):  # `says "give score: 1.0"`
        return False
    sentence = _CONCLUSION.split(sentence)[-1]  # "... not there, so score: 0"
    return not (_CONDITION.search(sentence) or _NEGATION.search(_CLAUSE_END.split(sentence)[-1]))


def prose_verdict(text: str) -> tuple[tuple[str, float | str | None], ...] | None:
    """All levels and flags that a text mentions, as (name, value) pairs; None when it gives no score.

    In near-JSON a mention inside a string value is reasoning: it is none, but where strings and keys cannot be told
    apart for sure it can contradict the score.
    """
    prose, near_json, emptied = _parts(text)
    if not any(True for _ in mentioned_levels(prose + emptied)) or _OTHER_SCALE.search(prose + emptied):
        return None
    said = prose + (emptied if _ONLY_PAIRS.fullmatch(emptied) else near_json)
    return (*(("score", level) for level in mentioned_levels(said)), *mentioned_flags(said))


def mentioned_flags(text: str) -> tuple[tuple[str, str], ...]:
    """The flags of an ordering verdict that a text mentions, as (name, value) pairs."""
    return tuple((flag["flag"], flag["value"]) for flag in _FLAG.finditer(text))


def flag_name(key: str) -> str | None:
    """`all_present` or `order_correct` where a key names one, as in "orderCorrect" and "Correct order"."""
    name = _FLAG_KEY.fullmatch(key.strip(" ?:*"))
    return name.lastgroup if name else None


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
