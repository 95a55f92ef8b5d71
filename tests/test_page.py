"""The page: only its own script runs, nothing is fetched, and all that was judged is there."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import socket
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from test_plot import THREE, TITLE, many, part_of, report_of

from beam_common import page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ESCAPES = "\x1b[31mred\x1b[0m \x00"
BREAKS = "line\u2028paragraph\u2029"
RIGHT_TO_LEFT = "\u202egnp.exe"
LONE_SURROGATE = "half \ud83d"
SCRIPT = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)><!--<script>"


class Reader(HTMLParser):
    """The names of a page's elements and of their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def verdict(item: int, level: float | None, reply: str, status: str = "scored") -> dict[str, Any]:
    return {"item": item, "status": status, "level": level, "reply": reply}


def answered(score: float, response: str, *verdicts: dict[str, Any]) -> dict[str, Any]:
    said = {"response": response, "finish_reason": "stop", "error": None}
    return {"score": score, **said, "verdicts": list(verdicts)}


def view(index: int, *runs: dict[str, Any] | None, text: str = "When?") -> dict[str, Any]:
    key = {"chat_id": "3", "question_type": "abstention", "question_index": index}
    asked = {"question": text, "gold_answer": f"gold {text}", "rubric": [f"must say {text}"]}
    return {**key, **asked, "runs": list(runs)}


def written(path: Path, report: Any, views: list[dict[str, Any]], title: str = TITLE) -> str:
    page.write(path / "page.html", {**report, "questions": views, "title": title})
    return (path / "page.html").read_text("utf-8")


def data_of(text: str) -> Any:
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(data)


# ------------------------------------------------------------------------------------------------
# Nothing runs, nothing is fetched.


def test_the_policy_lets_only_our_script_and_style_through(tmp_path: Path) -> None:
    text = written(tmp_path, THREE, [])
    ours = re.findall(r"<(?:style|script)>(.*?)</(?:style|script)>", text, re.DOTALL)
    style, script = [
        base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in ours
    ]
    policy = f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in text


@pytest.mark.parametrize("hostile", [SCRIPT, "<b onclick='x'>", "a & b < c > d \" '"])
def test_no_text_becomes_markup(tmp_path: Path, hostile: str) -> None:
    plain = Reader(written(tmp_path, THREE, []))
    report = report_of(
        (hostile, 0.312, "reference", "reference"),
        ("vendor-a", 0.270, "lower", hostile),
        ("vendor-b", 0.320, "not worse", "not worse by more than 0.03"),
    )
    report["notes"] = [hostile]
    runs = [answered(1.0, hostile, verdict(0, 1.0, hostile)), None, None]
    reader = Reader(written(tmp_path, report, [view(0, *runs, text=hostile)], hostile))
    assert reader.tags == plain.tags
    assert reader.attributes == plain.attributes
    # Twice as the title, and as name, words and note.
    assert reader.text.count(hostile) == 5


@pytest.mark.parametrize(
    "text",
    [SCRIPT, ESCAPES, BREAKS, RIGHT_TO_LEFT, LONE_SURROGATE, "答案 😀", "{data} %s {0}"],
    ids=["script", "escapes", "line breaks", "right to left", "surrogate", "CJK", "braces"],
)
def test_every_text_arrives_as_it_was(tmp_path: Path, text: str) -> None:
    shown = view(0, answered(0.0, text, verdict(0, 0.0, text)), None, None, text=text)
    page_text = written(tmp_path, THREE, [shown], text)  # is valid UTF-8
    (found,) = data_of(page_text)["questions"]
    assert found["question"] == text
    assert found["runs"][0]["response"] == text
    judged = {"item": 0, "status": "scored", "level": 0.0, "reply": text}
    assert found["runs"][0]["verdicts"] == [judged]


# ------------------------------------------------------------------------------------------------
# The table.


def heads_of(text: str) -> list[str]:
    return re.findall(r'<th data-head="(.*?)">', text)


def test_runs_stand_by_score_with_all_that_is_known(tmp_path: Path) -> None:
    text = written(tmp_path, THREE, [])
    assert heads_of(text) == [
        "run", "score", "95 % interval", "forest", "difference", "95 % interval", "p (Holm)",
        "half pts", "cut", "empty", "failed", "tokens", "verdict",
    ]  # fmt: skip
    names = re.findall(r'<td data-head="run">(.*?)<', text)
    assert names == ["vendor-b", "original", "vendor-a"]
    for cell in (
        '"score">0.270<',
        '"95 % interval">0.230 to 0.310<',
        '"difference">-0.042<',
        '"95 % interval">-0.072 to -0.012<',
        '"verdict">lower by 0.042 (0.012 to 0.072)<',
        '"p (Holm)">&lt;0.001<',
        '"cut">1.0%<',  # 7 of 700
        '"tokens">512<',
    ):
        assert cell in text


def test_the_forest_has_the_scale_of_its_intervals(tmp_path: Path) -> None:
    text = written(tmp_path, THREE, [])
    # The farthest end is -0.072: the axis reaches 1.3 times as far, ±0.0936.
    assert '<rect class="point" x="27.56%" width="0.00%"/>' in text  # 50 - 50 · 0.042 / 0.0936
    assert '<rect class="thick" x="11.54%" width="32.05%"/>' in text  # from -0.072, 0.06 wide
    assert '<rect class="band" x="33.97%" width="32.05%"/>' in text  # ±0.03
    assert re.findall(r"<text [^>]*>(.*?)</text>", text) == ["-0.07", "0", "0.07"]


def test_a_single_run_shows_its_abilities(tmp_path: Path) -> None:
    text = written(tmp_path, many(0), [view(0, answered(0.0, "I do not know."))])
    names = re.findall(r'<td data-head="run">(.*?)<', text)
    assert names == ["original", "event ordering", "summary"]
    known = ["run", "score", "95 % interval", "forest", "cut", "empty", "failed", "tokens"]
    assert heads_of(text) == known


def test_what_is_unknown_breaks_nothing(tmp_path: Path) -> None:
    report = report_of(
        ("original", 0.312, "reference", "reference"), ("other", 0.2, "undecided", "undecided")
    )
    report["runs"][1] |= part_of(0.2, None) | {"low": None, "high": None}
    text = written(tmp_path, report, [view(0, None, None)])
    assert '"score">0.200<' in text


# ------------------------------------------------------------------------------------------------
# In a browser.


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_in_a_browser_questions_open_filters_hold_and_nothing_hostile_runs(
    tmp_path: Path,
) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    hostile = f"{SCRIPT}<img src='{address}/image'><link rel=stylesheet href='{address}/style'>"
    reason = json.dumps({"score": 1.0, "reason": f"because {hostile}"})
    same = [answered(1.0, "the same answer", verdict(0, 1.0, reason))] * 2
    differing = [
        answered(1.0, f"first answer {hostile}", verdict(0, 1.0, reason)),
        answered(0.0, "second answer", verdict(0, None, "no idea", "unreadable")),
    ]
    report = report_of(
        (f"original {hostile}", 0.5, "reference", "reference"), ("other", 0.4, "lower", "lower")
    )
    written(tmp_path, report, [view(0, *same), view(1, *differing, text=hostile)])

    def opened(fragment: str) -> str:
        command = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
            f"file://{tmp_path / 'page.html'}{fragment}",
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    dom = opened("#3%2Fabstention%2F1")
    assert "1 of 2 questions" in dom  # only those whose scores differ
    body = dom[dom.index("<main>") : dom.index('<script type="application/json">')]
    for shown in ("first answer", "second answer", "gold &lt;/script", "because &lt;/script"):
        assert shown in body
    assert ">unreadable<" in body
    assert "the same answer" not in body
    dom = opened("#3%2Fabstention%2F0")
    assert "2 of 2 questions" in dom  # a link shows its question, whatever is filtered
    assert "the same answer" in dom[: dom.index('<script type="application/json">')]
    assert "<title>owned" not in dom
    assert len(re.findall("<script|<img|<link", dom)) == 2  # the data and our script
    server.setblocking(False)
    with server, pytest.raises(BlockingIOError):
        server.accept()  # nobody came


def test_a_page_of_many_long_answers_stays_small_and_says_what_is_left_out(tmp_path: Path) -> None:
    long = "x" * 19_999 + "end"
    few = data_of(written(tmp_path, THREE, [view(0, *[answered(1, long)] * 3)]))
    (shown,) = {run["response"] for run in few["questions"][0]["runs"]}
    assert len(shown) < 20_100
    assert "[… 2 characters left out …]" in shown
    assert shown.endswith("xend")
    many_long = [view(n, *[answered(1, long)] * 3) for n in range(250)]
    assert len(written(tmp_path, THREE, many_long)) < 15_000_000
