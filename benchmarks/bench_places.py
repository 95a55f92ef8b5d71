"""An endpoint that takes 1, 4 or 16 requests at a time and refuses the rest with 429.

    python benchmarks/bench_places.py

Nothing tells the programs how many it takes: they start with 32 in flight. Beside each run one with
--concurrency set to the limit, which is refused nothing. Answers take 2 to 4 s and the programs'
waits are as they are, but a second takes a tenth of one. Exit code 1 when an answer or verdict is
missing, when there is more than one refusal for two answers, or when a run takes more than 1.2
times as long as the one that knew the limit. Takes two minutes.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from bench_measure import VERDICT, Budgets, launcher, run_python, small_run, workplace
from scripted_endpoint import Answer, Recorded, ScriptedEndpoint, after, is_judge, say

UNKNOWING = 32  # in flight
SHORTER = 10  # times, each second
REQUESTS = {1: 60, 4: 120, 16: 320}  # places: requests
ANSWER = "a short answer"
CHANCE = random.Random(1)


def slow(request: Recorded) -> Answer:
    return after(CHANCE.uniform(2, 4) / SHORTER, say(VERDICT if is_judge(request) else ANSWER))


def measured(program: str, places: int, concurrency: int) -> tuple[float, float, int]:
    """Seconds, refused requests an answer, good rows."""
    with workplace() as folder:
        output = Path(folder, "output.jsonl")
        with ScriptedEndpoint(slow, places=places) as endpoint:
            flags = small_run(program, folder, REQUESTS[places], endpoint.base_url)
            limit = ["--concurrency", concurrency, "--output", output]
            run_python(*launcher(program, SHORTER), *flags, *limit)
        rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    refused = sum(request.refused for request in endpoint.requests)
    answered = len(endpoint.requests) - refused
    seconds = max(r.answered or 0 for r in endpoint.requests) - endpoint.requests[0].received
    good = sum(row.get("score") == 1 or row.get("response") == ANSWER for row in rows)
    return seconds, refused / answered, good


def main() -> int:
    budgets = Budgets(f"{UNKNOWING} in flight, seconds shortened to 1/{SHORTER}")
    for program, calls in (("beam_generate.py", 1), ("beam_judge.py", 2)):
        for places, requests in REQUESTS.items():
            ours, refused, good = measured(program, places, UNKNOWING)
            known, _, _ = measured(program, places, places)
            what = f"{program}, {places} at a time: "
            budgets.at_most(f"{what}answers missing", requests // calls - good, 0, digits=0)
            budgets.at_most(f"{what}refused requests an answer", refused, 0.5, digits=2)
            budgets.at_most(f"{what}time over that of the known limit", ours / known, 1.2, digits=2)
    return budgets.show()


if __name__ == "__main__":
    sys.exit(main())
