"""Answers and verdicts by comparing words: what a scripted endpoint says when nobody scripts it.

A question is answered with the sentences of the chat that share most words with it, a criterion is judged by the share
of its words that occur in the response. There is no knowledge and no answer key in here, so the scores that come out
show that the programs work together and nothing else. The thresholds are the same for every ability.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

SENTENCES_SHOWN = 3
LONGEST_SENTENCE = 400  # characters of one sentence that go into an answer
ENOUGH = 0.4  # share of a question's weighted words that the best sentence must hold
FULL, PART = 0.6, 0.3  # shares of a criterion's words that earn 1.0 and 0.5

WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]+")  # a Chinese character counts as a word
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
LEAD = re.compile(r"^[^:\n]{0,60}\b(?:should|must)\b[^:\n]{0,40}:")  # "LLM response should state:"
NUMBER_WEIGHT = 3  # a word with a digit counts so often: what is asked for is often a number
COMMON_WORDS = """
    a about across after all also am an and any are as at be been before being both but by can could d did do does
    during each for from get give had has have he her his how i if in into is it its just ll m me might more most my no
    not of on one only or our out over re s she should so some such t than that the their them then there these they
    this those through to too up us ve was we were what when where which while who why will with would you your
"""
WORDS_OF_ASKING = """
    based chat contain conversations items list llm many mention much order please provide provided response state
    summarise summarize summary tell throughout walk
"""
STOP_WORDS = frozenset((COMMON_WORDS + WORDS_OF_ASKING).split())


def content_words(text: str) -> list[str]:
    """Lower-case words without stop words, a closing s and what goes beyond six letters: a stemmer of one line."""
    return [(word.rstrip("s") or word)[:6] for word in WORD.findall(text.lower()) if word not in STOP_WORDS]


def share_of_words(wanted: str, text: str) -> float:
    """Share, 0 to 1, of the content words of `wanted` that occur in `text`; 0 when `wanted` has none."""
    found = set(content_words(text))
    weights = {word: NUMBER_WEIGHT if any(map(str.isdigit, word)) else 1 for word in content_words(wanted)}
    return sum(weights[word] for word in weights if word in found) / sum(weights.values()) if weights else 0.0


def sentences_of(text: str) -> list[str]:
    return [part.strip() for part in SENTENCE_END.split(text) if part.strip()]


class ChatIndex:
    """Which content words stand in which sentences of a chat. Built once for a prefix, asked by many questions."""

    def __init__(self, contents: list[str]) -> None:
        self.messages = len(contents)
        self.sentences: list[str] = []
        self.places: dict[str, list[int]] = {}  # word -> numbers of the sentences that hold it
        self.spread: Counter[str] = Counter()  # word -> number of messages that hold it
        for content in contents:
            in_message: set[str] = set()
            for sentence in sentences_of(content):
                words = set(content_words(sentence))
                for word in words:
                    self.places.setdefault(word, []).append(len(self.sentences))
                in_message |= words
                self.sentences.append(sentence)
            self.spread.update(in_message)

    def answer(self, question: str) -> str:
        """The sentences that share most with the question, in order of occurrence. Of equals the later one wins."""
        words = sorted(set(content_words(question)))
        weights = {word: math.log(1 + self.messages / (1 + self.spread[word])) for word in words}
        overlap: defaultdict[int, float] = defaultdict(float)
        for word, weight in weights.items():
            for number in self.places.get(word, ()):
                overlap[number] += weight
        chosen: dict[str, int] = {}
        for number in sorted(overlap, key=lambda number: (overlap[number], number), reverse=True):
            chosen.setdefault(self.sentences[number][:LONGEST_SENTENCE], number)
            if len(chosen) == SENTENCES_SHOWN:
                break
        best = max(overlap.values(), default=0)
        if not chosen or best < ENOUGH * sum(weights.values()):
            return f"The chat holds no information about this: {question}"
        return "\n".join(sorted(chosen, key=lambda sentence: chosen[sentence]))


# --- Judging ------------------------------------------------------------------------------------------------------


def sections_of(prompt: str) -> dict[str, str]:
    """The parts of a judge prompt that stand between <name-K> and </name-K>, by name; K is that of the first tag."""
    first = re.search(r"^<(?:question|criterion|reference)-(\d+)>$", prompt, re.MULTILINE)
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
    return {"score": score, "reason": f"{share:.0%} of the criterion's words occur in the response"}


def ordering_verdict(reference: list[str], response: str) -> dict[str, Any]:
    """Each event stands where the response overlaps most with it; all must be found, at rising places."""
    lines = sentences_of(response)
    places: list[int] = []
    for event in reference:
        shares = [share_of_words(event, line) for line in lines]
        if max(shares, default=0.0) >= FULL:
            places.append(shares.index(max(shares)))
    complete = len(places) == len(reference)
    ordered = complete and all(a < b for a, b in pairwise(places))
    score = 1.0 if complete and ordered else 0.0
    why = f"{len(places)} of {len(reference)} events found by their words"
    return {"all_present": complete, "order_correct": ordered, "score": score, "explanation": why}


def alignment_verdict(reference: list[str], lines: list[str]) -> dict[str, Any]:
    """For each line the number of a reference event, counted from 1, or null; best overlaps are dealt first."""
    pairs = [(share_of_words(event, line), -i, -j) for i, event in enumerate(reference) for j, line in enumerate(lines)]
    matches: dict[int, int] = {}
    for share, i, j in sorted(pairs, reverse=True):
        if share >= PART and -j not in matches and 1 - i not in matches.values():
            matches[-j] = 1 - i
    return {"matches": [matches.get(j) for j in range(len(lines))]}


def judge(sections: Mapping[str, str]) -> str:
    if "criterion" in sections:
        verdict = criterion_verdict(sections["criterion"], sections.get("response", ""))
    elif "lines" in sections:
        verdict = alignment_verdict(numbered(sections["reference"]), numbered(sections["lines"]))
    else:
        verdict = ordering_verdict(numbered(sections.get("reference", "")), sections.get("response", ""))
    return json.dumps(verdict, ensure_ascii=False)
