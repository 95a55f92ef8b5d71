"""Measure beam_judge.py: calls a second at several concurrencies, against the SDK's HTTP client posting the same bodies.

    python benchmarks/bench_judge.py [--answers 600] [--criteria 4] [--runs 3]

Judges made-up answers at an endpoint that answers at once (bench_endpoint.py, a process of its own). beam_judge.py runs as
a user starts it, with everything it does: prompts, calls, reading verdicts, details and scores on the disk. Beside it, in
the same run, the bodies it sends are posted with the SDK's HTTP client and the replies' bytes read (bench_clients.py).

Calls a second are counted at the endpoint, from the first call to the last, so start-up is not in them; `whole run` has it.
CPU ms is of everything a process does, start-up included for beam_judge.py, divided by the calls. Best of several runs.
Takes two minutes; exit code 1 when the ratio at 32 calls in flight is below 0.6.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench_endpoint import EndpointProcess
from bench_measure import (
    beside,
    conditions,
    question_rows,
    run_child,
    script,
    sentences,
    table,
    verdict,
    workplace,
    write_rows,
)

CONCURRENCIES = (8, 32, 64)
DEFAULT_CONCURRENCY = 32
SHARE = 0.6  # of the bare client's calls a second


def write_answers(path: Path, answers: int, criteria: int) -> Path:
    """Answers of a few sentences, as short as most are."""
    pool = sentences(200, 2)
    rows = []
    for number, row in enumerate(question_rows(-(-answers // 20), 20)[:answers]):
        row["rubric"] = [f"The response should state: {pool[(number + index) % 200]}" for index in range(criteria)]
        if row["question_type"] == "event_ordering":
            row["question_type"], row["question_index"] = "summarization", row["question_index"] + 1000
        del row["difficulty"]
        response = "".join(pool[number % 190 : number % 190 + 4])
        rows.append({**row, "response": response, "finish_reason": "stop", "prompt_tokens": 1_000_000,
                     "completion_tokens": 80, "error": None})  # fmt: skip
    return write_rows(path, rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=600, help="(default: %(default)s)")
    parser.add_argument("--criteria", type=int, default=4, help="of each answer (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=3, help="of each measurement; the best counts (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    calls = args.answers * args.criteria
    note = (
        f"{args.answers} answers × {args.criteria} criteria, best of {args.runs}; endpoint on this machine, own process"
    )
    print(conditions(["openai", "httpx2"], [note]) + "\n", flush=True)
    rows, fine = [], True
    with workplace() as folder, EndpointProcess() as endpoint:
        answers = write_answers(folder / "answers.jsonl", args.answers, args.criteria)
        url, started = endpoint.url("verdict"), 0
        for concurrency in CONCURRENCIES:
            ours, bare, whole, cpu, bare_cpu = [], [], [], [], []
            for _ in range(args.runs):
                started += 1
                endpoint.used()
                output = str(folder / f"scores{started}.jsonl")
                asking = ["--judge-model", "m", "--judge-base-url", url, "--judge-api-key", "none", "--output", output]
                limit = ["--concurrency", str(concurrency)]
                used = run_child([script("beam_judge.py"), "--answers", str(answers), *asking, *limit]).checked()
                seen = endpoint.used()
                if seen["requests"] != calls:
                    raise ValueError(f"the endpoint saw {seen['requests']:.0f} calls instead of {calls}")
                ours.append(calls / seen["span"])
                whole.append(calls / used.wall)
                cpu.append(used.cpu / calls * 1000)
                way = [beside("bench_clients.py"), "judge", url, "--answers", str(answers), *limit]
                took = run_child(way).report()
                bare.append(calls / took["wall"])
                bare_cpu.append(took["cpu"] / calls * 1000)
            share = max(ours) / max(bare)
            judged = concurrency == DEFAULT_CONCURRENCY
            fine &= share >= SHARE or not judged
            rows.append([str(concurrency), f"{max(ours):,.0f}", f"{max(whole):,.0f}", f"{max(bare):,.0f}", f"{share:.2f}",
                         f"≥ {SHARE} {verdict(share >= SHARE)}" if judged else "", f"{min(cpu):.2f}",
                         f"{min(bare_cpu):.2f}"])  # fmt: skip
    head = ["in flight", "calls/s", "whole run", "bare client", "ratio", "budget", "CPU ms a call", "bare CPU ms"]
    print(table(head, rows))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
