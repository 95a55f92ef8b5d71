"""The picture: what is refused, what is drawn where, and that every text has its room."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

import pytest

from beam_common import plot

matplotlib = pytest.importorskip("matplotlib")

TITLE = "BEAM, the published 1M files · judge some-judge · 35 chats"
UNDECIDED = (
    "undecided: this comparison sees differences from 0.042 on; "
    "about 4 runs of each would settle 0.03"
)
LONG_NAME = "organisation/Model-With-A-Long-Name-Instruct-0905-fp8@inference.some-provider.example"
VERDICTS = ["lower", "lower within margin", "undecided", "not worse", "higher"]


def part_of(score: float, difference: float | None) -> dict[str, Any]:
    """A score with an interval of ±0.04, and a difference with one of ±0.03."""
    low, high = (None, None) if difference is None else (difference - 0.03, difference + 0.03)
    p = None if difference is None else 0.0004
    return {
        "n": 700, "score": score, "low": score - 0.04, "high": score + 0.04, "p": p, "p_holm": p,
        "difference": difference, "difference_low": low, "difference_high": high,
    }  # fmt: skip


def report_of(*runs: tuple[str, float, str, str]) -> dict[str, Any]:
    """A report of runs given as (name, score, verdict, words); the first is the reference."""
    rows: list[dict[str, Any]] = []
    for name, score, verdict, words in runs:
        difference = round(score - runs[0][1], 3) if rows else None
        row = {
            "name": name, "files": ["scores.jsonl"], "chats": 35, **part_of(score, difference),
            "half_points": score + 0.1, "half_points_difference": difference,
            "cut": 7, "empty": 0, "failed": 0, "mean_completion_tokens": 512.4,
            "detectable": None, "runs_needed": None, "verdict": verdict, "hides": {},
            "abilities": {"event_ordering": part_of(0.2, None), "summary": part_of(0.5, None)},
        }  # fmt: skip
        ends = (None, None) if difference is None else (difference - 0.05, difference + 0.05)
        drawn = {"point": difference if rows else 0, "adjusted": ends}
        drawn["ends"] = (row["difference_low"], row["difference_high"])
        rows.append({**row, **drawn, "words": words, "hidden": [], "answers": 700})
    report = {"margin": 0.03, "reference": runs[0][0], "notes": ["judges differ"], "runs": rows}
    return {**report, "title": TITLE, "questions": []}


def many(n: int) -> dict[str, Any]:
    """A reference and n others, of every verdict."""
    others = [
        (f"{LONG_NAME}/{i}", 0.25 + i / 1000, VERDICTS[i % len(VERDICTS)], UNDECIDED)
        for i in range(n)
    ]
    return report_of(("original", 0.312, "reference", "reference"), *others)


THREE = report_of(
    ("original", 0.312, "reference", "reference"),
    ("vendor-a", 0.270, "lower", "lower by 0.042 (0.012 to 0.072)"),
    ("vendor-b", 0.320, "not worse", "not worse by more than 0.03"),
)


# ------------------------------------------------------------------------------------------------
# Refusals and files.


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("picture.jpg", "must end in .png, .svg or .pdf"),
        ("picture", "must end in .png, .svg or .pdf"),
        ("missing/picture.png", "in a folder that exists"),
        ("folder.png", "in a folder that exists"),
        ("link.png", "no link or device"),
    ],
)
def test_a_picture_that_could_not_be_written_is_refused_early(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "link.png").symlink_to(tmp_path / "elsewhere.png")
    with pytest.raises(ArgumentTypeError, match=said):
        plot.picture(str(tmp_path / name))


def test_without_matplotlib_the_message_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ArgumentTypeError, match="pip install matplotlib"):
        plot.picture("picture.png")


@pytest.mark.parametrize(
    ("name", "begins"),
    [("p.png", b"\x89PNG\r\n"), ("p.SVG", b"<?xml"), ("p.pdf", b"%PDF-")],
)
def test_the_ending_says_the_format_and_no_setting_stays_changed(
    tmp_path: Path, name: str, begins: bytes
) -> None:
    before = dict(matplotlib.rcParams)
    plot.write(plot.picture(str(tmp_path / name)), THREE)
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    ("text", "columns", "expected"),
    [
        pytest.param("short", 10, "short", id="fits"),
        pytest.param("two words", 5, "two\nwords", id="between words"),
        pytest.param("provider.example", 8, "provider\n.example", id="a long word"),
        pytest.param("模型名称", 4, "模型\n名称", id="wide characters take two columns"),
        pytest.param("a b c d e f g", 1, "a\nb\nc\nd\n…", id="too long: five lines and a sign"),
    ],
)
def test_texts_are_wrapped_by_columns(text: str, columns: int, expected: str) -> None:
    assert plot.wrapped(text, columns) == expected


# ------------------------------------------------------------------------------------------------
# What is drawn.


def lines_at(figure: Any) -> list[list[tuple[float, ...]]]:
    """The x values of adjusted interval, interval and point, row by row from the top."""
    lines = [tuple(line.get_xdata()) for line in figure.axes[0].lines if len(line.get_xdata()) < 3]
    rows = [line for line in lines if line != (0, 0)]  # the line at 0 is no row
    return [rows[start : start + 3] for start in range(0, len(rows), 3)]


def test_runs_are_drawn_by_score_with_both_intervals() -> None:
    best, reference, worst = lines_at(plot.draw(THREE))
    assert best[0] == pytest.approx((-0.042, 0.058))  # 0.320 - 0.312 = 0.008 ± 0.05
    assert best[1] == pytest.approx((-0.022, 0.038))  # ± 0.03
    assert best[2] == pytest.approx((0.008,))
    assert reference == [(None, None), (None, None), (0,)]
    assert worst[2] == pytest.approx((-0.042,))


def test_a_run_without_a_common_question_has_no_point() -> None:
    report = report_of(
        ("original", 0.312, "reference", "reference"), ("other", 0.2, "undecided", "undecided")
    )
    unknown = {"point": None, "ends": (None, None), "adjusted": (None, None)}
    report["runs"][1] |= part_of(0.2, None) | unknown
    assert lines_at(plot.draw(report))[1] == [(None, None), (None, None), (None,)]


def test_a_single_run_shows_its_abilities_on_the_scale_of_scores() -> None:
    figure = plot.draw(many(0))
    points = [row[2] for row in lines_at(figure)]
    assert points == [(0.312,), (0.2,), (0.5,)]
    assert figure.axes[0].get_xlim() == (0, 1)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "event ordering" in texts
    assert "0.160 to 0.240, n=700" in texts


def test_words_and_what_hides_behind_the_score_stand_beside_the_run() -> None:
    report = report_of(
        ("original", 0.312, "reference", "reference"), ("$x_1$", 0.2, "lower", "lower by 0.112")
    )
    report["runs"][1]["hidden"].append("21 of 700 answers failed")
    texts = plot.draw(report).axes[0].texts
    assert "lower by 0.112\n21 of 700 answers failed" in [text.get_text() for text in texts]
    assert "$x_1$" in [text.get_text() for text in texts]


@pytest.mark.parametrize("others", [0, 1, 40])
@pytest.mark.parametrize(
    "name",
    [LONG_NAME, "超长上下文模型版本" * 5, "VENDOR/MODEL-" * 6, r"$\frac{$"],
    ids=["long", "CJK", "capitals", "no formula"],
)
@pytest.mark.filterwarnings("ignore:Glyph")
def test_no_text_meets_another_or_leaves_the_picture(others: int, name: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    report = many(others)
    report["runs"][-1]["name"] = name
    with matplotlib.rc_context(plot.STYLE):
        figure = plot.draw(report)
        figure.canvas = FigureCanvasAgg(figure)
        figure.canvas.draw()
    axes = figure.axes[0]
    texts = [text for text in (*axes.texts, axes.xaxis.label) if text.get_text()]
    boxes = [text.get_window_extent() for text in texts]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)
    places = range(len(boxes))
    meeting = [(a, b) for a in places for b in range(a) if boxes[a].overlaps(boxes[b])]
    assert [(texts[a].get_text(), texts[b].get_text()) for a, b in meeting] == []
