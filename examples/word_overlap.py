"""Answers and verdicts by comparing words: what a scripted endpoint says when nobody scripts it.

A question is answered with the sentences of the chat that share most words with it, a criterion is
judged by the share of its words that occur in the response. There is no knowledge and no answer
key in here: the scores show that the programs work together, and nothing else.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

ENOUGH = 0.4  # share of a question's weighted words that the best sentence must hold
FULL, PART = 0.4, 0.2  # shares of a criterion's words that earn 1.0 and 0.5

# Words of four letters and more, numbers; a Chinese character is a word.
WORD = re.compile(r"[\u3400-\u9fff]|[^\W_\u3400-\u9fff]{4,}|\d+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])|\n+")
LEAD = re.compile(r"^[^:\n]{0,60}\b(?:should|must)\b[^:\n]{0,40}:")  # "LLM response should state:"


def content_words(text: str) -> set[str]:
    """The words in lower case, as their first six letters without a last s."""
    return {(word.rstrip("s") or word)[:6] for word in WORD.findall(text.lower())}


def share_of_words(wanted: str, text: str) -> float:
    """Share, 0 to 1, of the words of `wanted` that occur in `text`; 0 where it has none."""
    words = content_words(wanted)
    return len(words & content_words(text)) / len(words) if words else 0.0


def sentences_of(text: str) -> list[str]:
    return [part.strip() for part in SENTENCE_END.split(text) if part.strip()]


@functools.lru_cache(maxsize=4)
def words_of(*chat: str) -> list[tuple[str, set[str]]]:
    """The sentences of a chat with their words; the last few chats are remembered."""
    sentences = (sentence for content in chat for sentence in sentences_of(content))
    return [(sentence, content_words(sentence)) for sentence in sentences]


def answer(chat: Sequence[str], question: str, most: int) -> str:
    """At most so many sentences that share most with the question, in the order of the chat."""
    sentences = words_of(*chat)
    spread = Counter(word for _, words in sentences for word in words)
    weights = {
        word: math.log(1 + len(sentences) / (1 + spread[word]))
        for word in sorted(content_words(question))
    }
    overlap = [sum(weights[word] for word in weights if word in words) for _, words in sentences]
    if not any(overlap) or max(overlap) < ENOUGH * sum(weights.values()):
        return f"The chat holds no information about this: {question}"
    best = sorted((share, n) for n, share in enumerate(overlap) if share)[-most:]
    places = sorted(n for _, n in best)
    return "\n".join(dict.fromkeys(sentences[n][0] for n in places))


def sections_of(prompt: str) -> dict[str, str]:
    """The texts that a built-in judge prompt holds between marks, by name: all of one key."""
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


def aligned(reference: Sequence[str], lines: Sequence[str]) -> list[int | None]:
    """For each line in turn the number of the reference event that fits it best, or None."""
    free = dict(enumerate(reference, start=1))
    matches = []
    for line in lines:
        shares = {number: share_of_words(event, line) for number, event in free.items()}
        best = max(shares, key=shares.__getitem__, default=None)
        matches.append(best if best and shares[best] >= PART else None)
        free.pop(matches[-1] or 0, None)
    return matches


def ordering_verdict(reference: Sequence[str], response: str) -> dict[str, Any]:
    found = [number for number in aligned(reference, sentences_of(response)) if number]
    complete = len(found) == len(reference)
    ordered = complete and found == sorted(found)
    why = f"{len(found)} of {len(reference)} events found by their words"
    score = 1.0 if ordered else 0.0
    return {"all_present": complete, "order_correct": ordered, "score": score, "explanation": why}


def judge(prompt: str) -> str:
    """The reply to a built-in judge prompt."""
    sections = sections_of(prompt)
    response = sections.get("response", "")
    reference = numbered(sections.get("reference", ""))
    if "criterion" in sections:
        verdict = criterion_verdict(sections["criterion"], response)
    elif '"matches"' in prompt.rpartition("</")[2]:
        verdict = {"matches": aligned(reference, numbered(response))}
    else:
        verdict = ordering_verdict(reference, response)
    return json.dumps(verdict, ensure_ascii=False)
