"""Measure what the programs take of CPU time, memory and the event loop.

    python benchmarks/bench_speed.py [--runs 3] [--tokenizer PATH]

generate  35 chats of a million tokens with 20 questions each, an endpoint that answers at once,
          beam_generate.py as a user starts it. Beside it, in the same run, two other ways of asking
          (bench_children.py). One request is what 300 further questions about 5 chats cost, divided
          by their number
judge     600 answers of 4 criteria, 32 calls in flight; calls a second from the first to the last,
          beside the SDK's HTTP client posting the same bodies

Of several runs the best counts, for each way. Takes five minutes and 150 MB of disk; exit code 1
when a budget is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import bench_measure as measure
from bench_measure import HERE, PROJECT, USAGE, VERDICT, Budgets, Used, run_python
from scripted_endpoint import Answer, Recorded, ScriptedEndpoint, chunk, completion, sse, status

CHATS, QUESTIONS, TEXTS, IN_FLIGHT = 35, 20, 8, 16
CHARACTERS, MESSAGES = 3_950_000, 1_760  # of a chat of a million tokens
FEW, MORE = 5, 60  # chats and questions each of the runs that show what one request costs
PLAIN_REQUESTS, BARE_REQUESTS = 20, 100
EVENTS = (20, 300)
ANSWERS, CRITERIA, JUDGE_IN_FLIGHT = 600, 4, 32
CALLS = ANSWERS * CRITERIA
CHILDREN = HERE / "bench_children.py"


def reply_of(events: int) -> Answer:
    """A stream of so many events that leave at once, each a chunk of its own; 0: a verdict."""
    if not events:
        return status(200, {**completion(VERDICT), "usage": USAGE})
    parts = [chunk(f" word{number}") for number in range(events - 3)]
    parts += [chunk(finish_reason="stop"), {**chunk(), "choices": [], "usage": USAGE}]
    return Answer(b"".join(packet for packet, _ in sse(parts).packets()))


class InstantEndpoint(ScriptedEndpoint):
    """Answers at once with `answer` and looks at nothing; keeps the first `wanted` bodies."""

    def __init__(self) -> None:
        super().__init__(self.instant, keep_bodies=False)
        self.answer, self.wanted, self.bodies = Answer(), 1, list[bytes]()

    def instant(self, request: Recorded) -> Answer:
        if len(self.bodies) < self.wanted:
            self.bodies.append(request.body)
        return self.answer


class Bench:
    """The figures of each kind of run, by name."""

    def __init__(self, folder: Path, tokenizer: str) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.found: dict[str, list[float]] = defaultdict(list)
        self.outputs = 0
        measure.write_chats(folder / "many.gz", CHATS, TEXTS, MESSAGES, CHARACTERS)
        measure.write_chats(folder / "few.gz", FEW, FEW, MESSAGES, CHARACTERS)
        measure.write_rows(folder / "answers.jsonl", measure.answer_rows(ANSWERS, CRITERIA))

    def output(self) -> Path:
        self.outputs += 1
        return self.folder / f"output{self.outputs}.jsonl"

    def generate(self, url: str, chats: str, count: int, each: int, *launch: object) -> Used:
        questions = measure.question_rows(count, each)
        return run_python(
            *(launch or [PROJECT / "beam_generate.py"]),
            *["--chats-file", self.folder / f"{chats}.gz", "--questions-file"],
            *[measure.write_rows(self.folder / "questions.jsonl", questions)],
            *["--model", "m", "--base-url", url, "--api-key", "none", "--output", self.output()],
            *["--tokenizer", self.tokenizer, "--concurrency", IN_FLIGHT],
        )

    def bare(self, endpoint: InstantEndpoint, requests: int, in_flight: int) -> Used:
        file = self.folder / "bodies.jsonl"
        file.write_bytes(b"\n".join(endpoint.bodies))
        return run_python(CHILDREN, "bare", endpoint.base_url, file, requests, in_flight)

    def generator(self, endpoint: InstantEndpoint) -> None:
        found, url, few = self.found, endpoint.base_url, self.folder / "few.gz"
        endpoint.answer = reply_of(EVENTS[0])
        whole = self.generate(url, "many", CHATS, QUESTIONS)
        found["question"].append(whole.cpu / (CHATS * QUESTIONS))
        found["memory"].append(whole.memory)
        plain = run_python(CHILDREN, "plain", url, few, PLAIN_REQUESTS, IN_FLIGHT, self.tokenizer)
        found["plain"].append(plain.report()["cpu"] / PLAIN_REQUESTS)
        base = self.generate(url, "few", FEW, 1).cpu
        for events in EVENTS:
            endpoint.answer = reply_of(events)
            more = self.generate(url, "few", FEW, 1 + MORE).cpu
            found[f"one {events}"].append((more - base) / (FEW * MORE))
            bare = self.bare(endpoint, BARE_REQUESTS, IN_FLIGHT)
            found[f"bare {events}"].append(bare.report()["cpu"] / BARE_REQUESTS)
            launch = (CHILDREN, "heartbeat", "beam_generate.py")
            stalled = self.generate(url, "many", 12, QUESTIONS, *launch)
            found[f"stall {events}"].append(stalled.report())
        launch = (PROJECT / "beam_generate.py", "--dry-run")
        found["dry"].append(self.generate(url, "many", CHATS, QUESTIONS, *launch).wall)

    def judge(self, endpoint: InstantEndpoint) -> None:
        endpoint.answer, endpoint.wanted = reply_of(0), CALLS
        run_python(
            *[PROJECT / "beam_judge.py", "--answers", self.folder / "answers.jsonl"],
            *["--judge-model", "m", "--judge-base-url", endpoint.base_url],
            *["--judge-api-key", "none", "--criterion-prompt", "builtin"],
            *["--concurrency", JUDGE_IN_FLIGHT, "--output", self.output()],
        )
        times = [request.received for request in endpoint.requests]
        assert len(times) == CALLS, f"{len(times)} calls instead of {CALLS}"
        self.found["call"].append((max(times) - min(times)) / CALLS)
        bare = self.bare(endpoint, CALLS, JUDGE_IN_FLIGHT)
        self.found["bare call"].append(bare.report()["wall"] / CALLS)

    def compare(self, budgets: Budgets) -> None:
        best = {name: min(figures) for name, figures in self.found.items()}

        def against(name: str, other: str) -> str:
            return f"{best[name] * 1000:.1f} ms against {best[other] * 1000:.1f} ms"

        ratio = best["plain"] / best["question"]
        budgets.at_least(f"plain way over ours, CPU ({against('plain', 'question')})", ratio, 20)
        for events in EVENTS:
            one, bare = f"one {events}", f"bare {events}"
            what = f"one request of {events} events over the bare way ({against(one, bare)})"
            budgets.at_most(what, best[one] / best[bare], 4)
            budgets.at_most(f"longest stall, {events} events, ms", best[f"stall {events}"], 100)
        budgets.at_most(f"memory with {IN_FLIGHT} in flight, MiB", best["memory"], 250)
        budgets.at_most(f"dry run over {CHATS} chats, s", best["dry"], 30)
        what = f"judge's calls a second over the bare client's ({against('call', 'bare call')})"
        budgets.at_least(what, best["bare call"] / best["call"], 0.6, digits=2)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--tokenizer", default="Kimi-K2.6", help="or where its vocabulary is")
    args = parser.parse_args()
    budgets = Budgets(f"best of {args.runs}")
    with measure.workplace() as folder:
        bench = Bench(folder, args.tokenizer)
        for work in [bench.generator, bench.judge] * args.runs:
            with InstantEndpoint() as endpoint:
                work(endpoint)
        bench.compare(budgets)
    return budgets.show()


if __name__ == "__main__":
    sys.exit(main())
