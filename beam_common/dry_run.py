"""What a run would send, without sending it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from beam_common.chats import Chats
from beam_common.messages import plural
from beam_common.rows import QuestionRow


def dry_run(questions: Sequence[QuestionRow], chats: Chats, budget: int | None) -> list[str]:
    row = "{:>8} {:>10} {:>9} {:>9} {:>12} {:>12}".format
    lines = [row("chat", "questions", "messages", "left out", "tokens", "sent")]
    total = distinct = 0
    bound = ""
    for chat_id, n in Counter(str(q["chat_id"]) for q in questions).items():
        prompt = chats.build(chat_id)
        mark = "" if prompt.counted else "≤ "
        bound = bound or mark
        tokens, sent = f"{mark}{prompt.tokens:,}", f"{mark}{prompt.kept_tokens:,}"
        lines.append(row(chat_id, n, prompt.messages, prompt.first, tokens, sent))
        total += n * prompt.kept_tokens
        distinct += prompt.kept_tokens
    limit = "never truncated" if budget is None else f"budget {budget:,} tokens a chat"
    lines += [
        "",
        f"{plural(len(lines) - 1, 'chat')}, {plural(len(questions), 'question')}; {limit}",
        f"prompt tokens in all (without the questions themselves): {bound}{total:,}",
        f"prompt tokens in distinct prefixes, each paid in full once: {bound}{distinct:,}",
    ]
    if bound:
        lines.append("(≤: not counted, as a token has at least one byte)")
    return lines
