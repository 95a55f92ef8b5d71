"""What a run would send, without sending it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from beam_common.chats import Chats
from beam_common.messages import plural
from beam_common.rows import QuestionRow


def dry_run(questions: Sequence[QuestionRow], chats: Chats, budget: int | None) -> list[str]:
    """Statistics of the prompts that a run would send."""
    rows = [["chat", "questions", "messages", "left out", "tokens", "sent"]]
    total = distinct = 0
    bound = ""
    for chat_id, n in Counter(str(q["chat_id"]) for q in questions).items():
        prompt = chats.build(chat_id)
        mark = "" if prompt.counted else "≤ "
        bound = bound or mark
        tokens = [f"{mark}{size:,}" for size in (prompt.tokens, prompt.kept_tokens)]
        rows.append([chat_id, str(n), f"{prompt.messages:,}", f"{prompt.first:,}", *tokens])
        total += n * prompt.kept_tokens
        distinct += prompt.kept_tokens
    limit = "never truncated" if budget is None else f"budget {budget:,} tokens a chat"
    lines = [" ".join(f"{cell:>11}" for cell in row) for row in rows]
    lines += [
        "",
        f"{plural(len(rows) - 1, 'chat')}, {plural(len(questions), 'question')}; {limit}",
        f"prompt tokens in all (without the questions themselves): {bound}{total:,}",
        f"prompt tokens in distinct prefixes, each paid in full once: {bound}{distinct:,}",
    ]
    if bound:
        lines.append("(≤: not counted, as a token has at least one byte)")
    return lines
