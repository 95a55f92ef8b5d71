"""Measure beam_generate.py: CPU time a question, memory, stalls of the event loop, against two other ways of asking.

    python benchmarks/bench_generate.py [--runs 3] [--tier 1m|10m]

Makes a data set of 35 chats of a million tokens with 20 questions each (8 texts used again and again), starts an endpoint
that answers at once (bench_endpoint.py) and runs beam_generate.py as a user does, its start-up included. Beside it, in the
same run: the plain way, the SDK's typed call with the chat counted with tiktoken for each question, and the bare way, the
same bytes posted with the SDK's HTTP client (bench_clients.py). Of several runs the best counts, for each way. Needs 150 MB
of disk and takes four minutes; exit code 1 when a budget is missed.

One request is what 300 further questions about 5 chats cost, divided by their number. Stalls are read from a heartbeat
every 5 ms beside the run, in runs of their own, without the time that the loop's thread was ready but other programs had
the processors (Linux tells that); `by the clock` is with it.

--tier 10m measures chats of 20,000 messages and 40 MB instead, sent whole (--max-context-tokens 12000000) and truncated to
the default budget, beside chats of a million tokens. Nothing may grow faster than the data.

Where the Kimi vocabulary is not installed, tokens of a made-up one are counted, and a note says so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_endpoint import EndpointProcess
from bench_measure import (
    VOCABULARY,
    Used,
    beside,
    conditions,
    make_chats,
    question_rows,
    run_child,
    script,
    table,
    verdict,
    workplace,
    write_rows,
)

CHARACTERS = 3_950_000  # of a chat of a million tokens
MESSAGES = 1_760
FEW, MORE = 5, 60  # chats and questions each of the runs that show what one request costs
PLAIN_REQUESTS, BARE_REQUESTS = 20, 100
EVENTS = (20, 300)
MIB = 2**20

# The budgets. Times are ratios, seconds or milliseconds as their names say.
PLAIN_OVER_OURS = 20.0
REQUEST_OVER_BARE = 4.0
MEMORY = 250 * MIB
STALL_MS = 100.0
DRY_RUN_SECONDS = 30.0


@dataclass
class Place:
    """Where the data are and how the scripts are started."""

    folder: Path
    endpoint: EndpointProcess
    made_up: bool  # vocabulary
    runs: int
    started: int = field(default=0)

    def generate(self, chats: str, questions: str, more: Sequence[str] = (), stalls: Path | None = None) -> Used:
        """One run of beam_generate.py, into a new output. Raises ChildFailed unless it answers everything."""
        self.started += 1
        data = ["--chats-file", str(self.folder / chats), "--questions-file", str(self.folder / questions)]
        program = [script("beam_generate.py")]
        if self.made_up or stalls:
            launch = [beside("bench_launch.py")] + ["--made-up-vocabulary"] * self.made_up
            program = [*launch, *(["--stalls", str(stalls)] if stalls else []), "beam_generate.py"]
        return run_child([*program, *data, *more]).checked()

    def asking(self, events: int) -> list[str]:
        output = self.folder / f"answers{self.started}.jsonl"
        return [
            "--model",
            "m",
            "--base-url",
            self.endpoint.url(f"stream{events}"),
            "--api-key",
            "none",
            "--output",
            str(output),
        ]

    def ask(self, chats: str, questions: str, events: int, more: Sequence[str] = ()) -> Used:
        return self.generate(chats, questions, [*self.asking(events), *more])

    def stall(self, chats: str, questions: str, events: int, more: Sequence[str] = ()) -> tuple[float, float]:
        """Milliseconds of the longest stall, without waits for a processor and by the clock."""
        file = self.folder / "stalls.json"
        self.generate(chats, questions, [*self.asking(events), *more], stalls=file)
        longest = json.loads(file.read_text("utf-8"))[0]
        return longest["late"] * 1000, longest["by_the_clock"] * 1000

    def client(self, way: str, events: int, requests: int) -> tuple[float, float]:
        """CPU and wall milliseconds of one request of another way."""
        chats = str(self.folder / "few.jsonl.gz")
        arguments = [beside("bench_clients.py"), way, self.endpoint.url(f"stream{events}"), "--chats", chats]
        arguments += ["--requests", str(requests)] + ["--made-up-vocabulary"] * (self.made_up and way == "plain")
        took = run_child(arguments).report()
        return took["cpu"] / requests * 1000, took["wall"] / requests * 1000


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ms(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def least(runs: Iterable[Used]) -> Used:
    return min(runs, key=lambda used: used.cpu)


# ---------------------------------------------------------------------------------------------------------------
# A million tokens.


def million(place: Place, chats: int, each: int) -> bool:
    folder, total = place.folder, chats * each
    say("making the data")
    make_chats(folder / "many.jsonl.gz", chats, 8, MESSAGES, CHARACTERS)
    make_chats(folder / "few.jsonl.gz", FEW, FEW, MESSAGES, CHARACTERS)
    write_rows(folder / "many.jsonl", question_rows(chats, each))
    write_rows(folder / "one.jsonl", question_rows(FEW, 1))
    write_rows(folder / "more.jsonl", question_rows(FEW, 1 + MORE))
    stalled = folder / "stalled.jsonl"
    write_rows(stalled, question_rows(min(chats, 12), each))
    whole: list[Used] = []
    base: list[Used] = []
    more: dict[int, list[Used]] = {events: [] for events in EVENTS}
    plain: list[tuple[float, float]] = []
    bare: dict[int, list[tuple[float, float]]] = {events: [] for events in EVENTS}
    stalls: dict[int, list[tuple[float, float]]] = {events: [] for events in EVENTS}
    dry: list[Used] = []
    served: list[float] = []
    for number in range(place.runs):
        say(f"run {number + 1} of {place.runs}")
        place.endpoint.used()
        whole.append(place.ask("many.jsonl.gz", "many.jsonl", EVENTS[0]))
        used = place.endpoint.used()
        served.append(used["cpu"] / used["requests"] * 1000)
        base.append(place.ask("few.jsonl.gz", "one.jsonl", EVENTS[0]))
        for events in EVENTS:
            more[events].append(place.ask("few.jsonl.gz", "more.jsonl", events))
            bare[events].append(place.client("bare", events, BARE_REQUESTS))
            stalls[events].append(place.stall("many.jsonl.gz", "stalled.jsonl", events))
        plain.append(place.client("plain", EVENTS[0], PLAIN_REQUESTS))
        dry.append(place.generate("many.jsonl.gz", "many.jsonl", ["--dry-run"]))
    ours = least(whole)
    question = ours.cpu / total * 1000
    rows = [
        ["beam_generate.py, everything counted", ms(question), ms(min(u.wall for u in whole) / total * 1000),
         mib(min(u.memory for u in whole)), "1"],
        [f"plain way, of {PLAIN_REQUESTS} questions", ms(min(plain)[0]), ms(min(w for _, w in plain)), "",
         f"{min(plain)[0] / question:.1f}"],
        ["bare way, nothing but the request", ms(min(bare[EVENTS[0]])[0]), ms(min(w for _, w in bare[EVENTS[0]])), "",
         f"{min(bare[EVENTS[0]])[0] / question:.2f}"],
        ["the endpoint itself", ms(min(served)), "", "", f"{min(served) / question:.2f}"],
    ]  # fmt: skip
    print(
        f"{chats} chats × {each} questions of a million tokens, 16 in flight, 2 open chats, replies of {EVENTS[0]} events"
    )
    print(table(["a question", "CPU ms", "wall ms", "peak MiB", "CPU ratio"], rows) + "\n")
    few = min(used.memory for used in more[EVENTS[0]])
    budgets = [
        budget("CPU of the plain way over ours", min(plain)[0] / question, PLAIN_OVER_OURS, "", least_wanted=True)
    ]
    for events in EVENTS:
        # The base run's few requests had replies of the first kind; its cost is once-per-chat work all but for them.
        one = (least(more[events]).cpu - least(base).cpu) / (FEW * MORE) * 1000
        label = f"one request of {events} events: {ms(one)} ms CPU, bare {ms(min(bare[events])[0])} ms; ratio"
        budgets.append(budget(label, one / min(bare[events])[0], REQUEST_OVER_BARE, ""))
    budgets.append(budget(f"memory with {chats} chats, MiB", min(u.memory for u in whole) / MIB, MEMORY / MIB, ""))
    budgets.append([f"memory with {FEW} chats, MiB", f"{few / MIB:.0f}", "", ""])
    for events in EVENTS:
        late, clock = min(stalls[events])
        budgets.append(budget(f"longest stall, {events} events ({ms(clock)} by the clock), ms", late, STALL_MS, ""))
    budgets.append(budget(f"dry run over {chats} chats, s", min(u.wall for u in dry), DRY_RUN_SECONDS, ""))
    print(table(["budget", "measured", "budget", ""], budgets))
    return all(row[-1] != verdict(False) for row in budgets)


def mib(size: float) -> str:
    return f"{size / MIB:.0f}"


def budget(what: str, measured: float, limit: float, unit: str, *, least_wanted: bool = False) -> list[str]:
    fine = measured >= limit if least_wanted else measured <= limit
    return [what, f"{measured:.1f}{unit}", f"{'≥' if least_wanted else '≤'} {limit:g}{unit}", verdict(fine)]


# ---------------------------------------------------------------------------------------------------------------
# Ten million tokens.

LARGE_CHATS, LARGE_QUESTIONS = 3, 4
WAYS = ("whole", "truncated")
WHOLE = {"1m": "1150000", "10m": "12000000"}  # --max-context-tokens for which chats are counted and sent whole


def ten_million(place: Place) -> bool:
    folder = place.folder
    say("making the data")
    sizes = {"1m": (MESSAGES, CHARACTERS), "10m": (20_000, 40_000_000)}
    for tier, (messages, characters) in sizes.items():
        make_chats(folder / f"{tier}.jsonl.gz", LARGE_CHATS, 1, messages, characters)
    write_rows(folder / "few.jsonl", question_rows(LARGE_CHATS, LARGE_QUESTIONS))
    found: dict[tuple[str, str], tuple[Used, tuple[float, float]]] = {}
    for way in WAYS:
        for tier in sizes:
            say(f"{tier}, {way}")
            more = ["--max-context-tokens", WHOLE[tier]] if way == "whole" else []
            used = least(place.ask(f"{tier}.jsonl.gz", "few.jsonl", EVENTS[0], more) for _ in range(place.runs))
            found[tier, way] = used, place.stall(f"{tier}.jsonl.gz", "few.jsonl", EVENTS[0], more)
    rows = []
    fine = True
    growth = sizes["10m"][1] / sizes["1m"][1]
    for way in WAYS:
        small, large = found["1m", way][0], found["10m", way][0]
        for tier in sizes:
            used, (late, clock) = found[tier, way]
            rows.append(
                [f"{tier}, {way}", f"{used.cpu:.1f}", f"{used.wall:.1f}", mib(used.memory), f"{ms(late)} ({ms(clock)})"]
            )
        times = large.cpu / small.cpu
        grown = large.memory / small.memory
        fine &= max(times, grown) <= growth
        rows.append(
            [
                f"  times as much (data: {growth:.1f})",
                f"{times:.1f}",
                f"{large.wall / small.wall:.1f}",
                f"{grown:.1f}",
                "",
            ]
        )
    print(
        f"{LARGE_CHATS} chats × {LARGE_QUESTIONS} questions; 10m: 20,000 messages, 40 MB a chat; 16 in flight, 2 open chats"
    )
    print(table(["run", "CPU s", "wall s", "peak MiB", "longest stall ms (by the clock)"], rows))
    print(f"nothing grows faster than the data: {verdict(fine)}")
    return fine


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", type=int, default=3, help="of each measurement; the best counts (default: %(default)s)"
    )
    parser.add_argument("--tier", choices=("1m", "10m"), default="1m", help="size of the chats (default: %(default)s)")
    parser.add_argument("--chats", type=int, default=35, help="(default: %(default)s)")
    parser.add_argument("--questions", type=int, default=20, help="of each chat (default: %(default)s)")
    parser.add_argument("--folder", help="where to put the data, and leave them (default: a temporary folder)")
    args = parser.parse_args(argv)
    made_up = not VOCABULARY.exists()
    notes = [f"best of {args.runs}; endpoint on this machine, in a process of its own, one chunk an event"]
    if made_up:
        notes.append("NOTE: the Kimi vocabulary is not installed: counted with tiktoken and a made-up one")
    print(conditions(["openai", "httpx2", "tiktoken"], notes) + "\n", flush=True)
    with workplace(args.folder) as folder, EndpointProcess() as endpoint:
        place = Place(folder, endpoint, made_up, args.runs)
        fine = ten_million(place) if args.tier == "10m" else million(place, args.chats, args.questions)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
