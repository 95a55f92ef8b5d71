"""Names and lines for people: how many columns a text takes, and how it is cut, wrapped or filled to a width.

East Asian characters take two columns each, on a terminal as in a plot.
"""

from __future__ import annotations

import textwrap
import unicodedata

from beam_common import one_line

WIDTH = 80
_SECOND = "\0"  # stands for the second column of the character before it; texts for people hold no other NUL


def _columns(text: str) -> str:
    """The text with one character for each column that it takes."""
    return "".join(char + _SECOND * (unicodedata.east_asian_width(char) in "WF") for char in text)


def columns(text: str) -> int:
    return len(_columns(text))


def filled(text: str, width: int) -> str:
    """The text with blanks up to `width` columns."""
    return text + " " * (width - columns(text))


def shortened(text: str, limit: int) -> str:
    """A name of at most `limit` columns that keeps both ends, where names differ."""
    spread = _columns(text)
    if len(spread) <= limit:
        return text
    limit -= spread != text  # the cut may leave a wide character without its second column
    return f"{spread[: limit // 2]}…{spread[-(limit - limit // 2 - 1) :]}".replace(_SECOND, "")


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """A text in lines of at most `width` columns."""
    spread = _columns(text)
    width -= spread != text  # as above, where a long word has to be broken
    lines = textwrap.wrap(spread, width, subsequent_indent="  ", break_on_hyphens=False)
    return [line.replace(_SECOND, "") for line in lines]


def label(text: str, limit: int) -> str:
    """A name that may hold anything, fit to be shown: one line that can be encoded, of at most `limit` columns."""
    return shortened(one_line(text, 1000).encode("utf-8", "backslashreplace").decode("utf-8"), limit)
