"""Answers and verdicts by comparing words: what a scripted endpoint says when nobody scripts it.

A question is answered with the sentences of the chat that share most words with it, a criterion is
judged by the share of its words that occur in the response. There is no knowledge and no answer
key in here: the scores show that the programs work together, and nothing else.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

LONGEST_SENTENCE = 400  # characters of one sentence that go into an answer
ENOUGH = 0.4  # share of a question's weighted words that the best sentence must hold
FULL, PART = 0.6, 0.3  # shares of a criterion's words that earn 1.0 and 0.5

WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")  # a Chinese character is a word
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
LEAD = re.compile(r"^[^:\n]{0,60}\b(?:should|must)\b[^:\n]{0,40}:")  # "LLM response should state:"
NUMBER_WEIGHT = 3  # a word with a digit counts so often: what is asked for is often a number


def content_words(text: str) -> list[str]:
    """Words that may mean something, in lower case, as the first six letters without a last s."""
    words = WORD.findall(text.lower())
    meaningful = (word for word in words if len(word) > 3 or not word.isascii() or has_digit(word))
    return [(word.rstrip("s") or word)[:6] for word in meaningful]


def has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


def share_of_words(wanted: str, text: str) -> float:
    """Share, 0 to 1, of the content words of `wanted` that occur in `text`; 0 where it has none."""
    words = content_words(wanted)
    if not words:
        return 0.0
    weights = {word: NUMBER_WEIGHT if has_digit(word) else 1 for word in words}
    found = weights.keys() & set(content_words(text))
    return sum(weights[word] for word in found) / sum(weights.values())


def sentences_of(text: str) -> list[str]:
    return [part.strip() for part in SENTENCE_END.split(text) if part.strip()]


class ChatIndex:
    """Which words stand in which sentences of a chat. Built once, asked by many questions."""

    def __init__(self, contents: Sequence[str]) -> None:
        self.messages = len(contents)
        self.sentences: list[str] = []
        self.places: defaultdict[str, list[int]] = defaultdict(list)  # word -> its sentences
        self.spread: Counter[str] = Counter()  # word -> number of messages that hold it
        for content in contents:
            self.spread.update(set(content_words(content)))
            for sentence in sentences_of(content):
                for word in set(content_words(sentence)):
                    self.places[word].append(len(self.sentences))
                self.sentences.append(sentence)

    def answer(self, question: str, most: int) -> str:
        """At most so many sentences that share most with the question, in order of occurrence."""
        weights = {
            word: math.log(1 + self.messages / (1 + self.spread[word]))
            for word in sorted(set(content_words(question)))
        }
        overlap: defaultdict[int, float] = defaultdict(float)
        for word, weight in weights.items():
            for number in self.places.get(word, ()):
                overlap[number] += weight
        if not overlap or max(overlap.values()) < ENOUGH * sum(weights.values()):
            return f"The chat holds no information about this: {question}"
        chosen: dict[str, int] = {}
        for number in sorted(overlap, key=lambda number: (overlap[number], number), reverse=True):
            chosen.setdefault(self.sentences[number][:LONGEST_SENTENCE], number)
            if len(chosen) == most:
                break
        return "\n".join(sorted(chosen, key=lambda sentence: chosen[sentence]))


def sections_of(prompt: str) -> dict[str, str]:
    """The texts that a built-in judge prompt holds between fences, by name: all of one key."""
    first = re.search(r"^<(?:question|criterion|reference)-(\w+)>$", prompt, re.MULTILINE)
    if first is None:
        return {}
    part = rf"^<([a-z]+)-{first[1]}>\n(.*?)\n</\1-{first[1]}>$"
    return dict(re.findall(part, prompt, re.MULTILINE | re.DOTALL))


def numbered(text: str) -> list[str]:
    """The texts of lines like "1. Text"."""
    return [re.sub(r"^\s*\d+[.)]\s*", "", line) for line in text.split("\n") if line.strip()]


def criterion_verdict(criterion: str, response: str) -> dict[str, Any]:
    share = share_of_words(LEAD.sub("", criterion), response)
    score = 1.0 if share >= FULL else 0.5 if share >= PART else 0.0
    return {"score": score, "reason": f"{share:.0%} of the criterion's words are in the response"}


def ordering_verdict(reference: Sequence[str], response: str) -> dict[str, Any]:
    """Each event stands where the response overlaps most with it; all must be found, in order."""
    lines = sentences_of(response)
    places = []
    for event in reference:
        shares = [share_of_words(event, line) for line in lines]
        if max(shares, default=0.0) >= FULL:
            places.append(shares.index(max(shares)))
    complete = len(places) == len(reference)
    ordered = complete and all(a < b for a, b in pairwise(places))
    why = f"{len(places)} of {len(reference)} events found by their words"
    score = 1.0 if ordered else 0.0
    return {"all_present": complete, "order_correct": ordered, "score": score, "explanation": why}


def alignment_verdict(reference: Sequence[str], lines: Sequence[str]) -> dict[str, Any]:
    """For each line the number of a reference event, or null; best overlaps are dealt first."""
    pairs = [
        (share_of_words(event, line), i, j)
        for j, line in enumerate(lines)
        for i, event in enumerate(reference, start=1)
    ]
    matches: dict[int, int] = {}
    for share, i, j in sorted(pairs, key=lambda pair: -pair[0]):
        if share >= PART and j not in matches and i not in matches.values():
            matches[j] = i
    return {"matches": [matches.get(j) for j in range(len(lines))]}


def judge(sections: Mapping[str, str]) -> str:
    response = sections.get("response", "")
    reference = numbered(sections.get("reference", ""))
    if "criterion" in sections:
        verdict = criterion_verdict(sections["criterion"], response)
    elif "lines" in sections:
        verdict = alignment_verdict(reference, numbered(sections["lines"]))
    else:
        verdict = ordering_verdict(reference, response)
    return json.dumps(verdict, ensure_ascii=False)
