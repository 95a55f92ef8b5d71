"""What a run would send, without sending it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from beam_common.chats import Chats
from beam_common.messages import plural
from beam_common.rows import QuestionRow


def dry_run(questions: Sequence[QuestionRow], chats: Chats, budget: int | None) -> list[str]:
    """Statistics of the prompts that a run would send."""
    heads = ("questions", "messages", "left out", "characters", "tokens", "sent")
    lines = [f"{'chat':>8} " + " ".join(f"{head:>11}" for head in heads)]
    total = distinct = 0
    bound = ""
    for chat_id, n in Counter(str(q["chat_id"]) for q in questions).items():
        prompt = chats.build(chat_id)
        counted = prompt.kept_tokens is not None
        size = prompt.kept_tokens if prompt.kept_tokens is not None else prompt.kept_bytes
        tokens = f"{prompt.tokens:,}" if prompt.tokens is not None else "-"
        sent = f"{size:,}" if counted else f"≤ {size:,}"
        numbers = (f"{x:,}" for x in (n, prompt.messages, prompt.first, prompt.characters))
        cells = " ".join(f"{cell:>11}" for cell in (*numbers, tokens, sent))
        lines.append(f"{chat_id:>8} {cells}")
        total, distinct = total + n * size, distinct + size
        bound = bound if counted else "at most "
    limit = "never truncated" if budget is None else f"budget {budget:,} tokens a chat"
    lines += [
        "",
        f"{plural(len(lines) - 1, 'chat')}, {plural(len(questions), 'question')}; {limit}",
        f"prompt tokens in all (without the questions themselves): {bound}{total:,}",
        f"prompt tokens in distinct prefixes, each paid in full once: {bound}{distinct:,}",
    ]
    if bound:
        lines.append("(- and ≤: not counted, as a token has at least one byte)")
    return lines
