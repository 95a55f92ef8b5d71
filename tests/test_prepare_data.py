"""From the release's layout to the data files, the judge prompt and the vocabulary: exact bytes,
odd input, checks."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import prepare_data
from beam_common import release
from beam_common.download import blob_id, release_files
from beam_common.prompts import OFFICIAL_SHA256
from beam_common.release import known_data, pair_of, tag_hint, tag_of
from beam_common.rows import ABILITIES, DATA_DIR, PROJECT

OFFICIAL = Path(os.environ.get("BEAM_OFFICIAL") or "nowhere")
needs_release = pytest.mark.skipif(not OFFICIAL.is_dir(), reason="BEAM_OFFICIAL names no release")
TAGS = json.loads((DATA_DIR / "digests.json").read_bytes())["tags"]
Screen = pytest.CaptureFixture[str]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "id": 0, "content": text}


def question(**fields: Any) -> dict[str, Any]:
    return {"question": "Which?", "rubric": ["says so"], **fields}


B = {"role": "assistant", "id": 1, "content": "b"}
BATCH = {"batch_number": 1, "turns": [[user("Hi ->-> 1,3"), B], [user("c")]]}
ASKED = {ability: [question(), question()] for ability in ABILITIES}
ASKED_FILE = "probing_questions/probing_questions.json"
PROMPT_SOURCE = b'other = 1\nunified_llm_judge_base_prompt = """Judge <question>\n"""\n'
PROMPT_FILE = "official_criterion_prompt.txt"


def encoded(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def make_chat(folder: Path, chat: Any = (BATCH,), asked: Any = ASKED) -> Path:
    """A chat's folder; bytes are written as they are, the rest as JSON."""
    (folder / "probing_questions").mkdir(parents=True)
    (folder / "chat.json").write_bytes(encoded(chat))
    (folder / ASKED_FILE).write_bytes(encoded(asked))
    return folder


def make_tier(folder: Path, *chats: str) -> Path:
    for chat in chats:
        make_chat(folder / chat)
    return folder


def prepare(src: Path, out: Path, *arguments: str) -> int:
    return prepare_data.main(["--tag", "t", "--src", str(src), "--out-dir", str(out), *arguments])


def check(out: Path, *arguments: str) -> int:
    return prepare_data.main(["--check", "--out-dir", str(out), *arguments])


def texts(out: Path, tag: str = "t") -> tuple[str, str]:
    """The chats and the questions made."""
    chats, questions = pair_of(out, tag)
    return gzip.decompress(chats.read_bytes()).decode(), questions.read_text("utf-8")


def chats_made(out: Path, tag: str = "t") -> list[str]:
    return [json.loads(line)["chat_id"] for line in texts(out, tag)[0].splitlines()]


def test_both_files_byte_for_byte(tmp_path: Path, capsys: Screen) -> None:
    asked = {"abstention": [question(ideal_response="Not told", difficulty="easy")]}
    turns = [[user('Grüße\u2028 → 1,3\n"x"'), B, user("\ud83d")]]
    make_chat(tmp_path / "src/2", [{"turns": turns}], asked)
    assert prepare(tmp_path / "src", tmp_path / "out") == 0
    assert texts(tmp_path / "out") == (
        '{"chat_id": "2", "messages": [{"role": "user", "content": "Grüße\u2028 → 1,3\\n\\"x\\""}, '
        '{"role": "assistant", "content": "b"}, {"role": "user", "content": "\\ud83d"}]}\n',
        '{"chat_id": "2", "question_type": "abstention", "question_index": 0, "question": '
        '"Which?", "gold_answer": "Not told", "rubric": ["says so"], "difficulty": "easy"}\n',
    )
    packed = (tmp_path / "out/beam_t_chats.jsonl.gz").read_bytes()
    assert packed[3:8] == b"\0\0\0\0\0", "flags (no name), then the time"
    assert "chats with other than 20 questions: 2 (1)" in capsys.readouterr().err


def test_the_sample_is_made_from_its_source(tmp_path: Path, capsys: Screen) -> None:
    flags = ["--src", str(DATA_DIR / "sample"), "--out-dir", str(tmp_path)]
    assert prepare_data.main(flags) == 0
    for name in ("beam_sample_questions.jsonl", "beam_sample_chats.jsonl.gz"):
        assert (tmp_path / name).read_bytes() == (DATA_DIR / name).read_bytes()
    assert 'sample chats: ok: {"number": 3, "sha256": "0dc0e2b7790e' in capsys.readouterr().out


def test_numeric_order_and_folders_that_are_no_number(tmp_path: Path, capsys: Screen) -> None:
    src = make_tier(tmp_path / "src", "10", "9", "1", "notes")
    assert prepare(src, tmp_path / "out") == 0
    assert chats_made(tmp_path / "out") == ["1", "9", "10"]
    rows = [json.loads(line) for line in texts(tmp_path / "out")[1].splitlines()]
    numbers = [(row["chat_id"], row["question_type"], row["question_index"]) for row in rows]
    assert numbers == list(itertools.product(("1", "9", "10"), ABILITIES, (0, 1)))
    assert f"note: left out of {src}, being no numbers: notes\n" in capsys.readouterr().err


TURNS = [[user("a"), B], [user("c")]]
ODD = [user("a"), {"role": "system", "content": "s"}, user(""), {"role": "user"}, user(None)]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param([{"turns": TURNS}], id="batches"),
        pytest.param([{"turns": TURNS[0]}, {"turns": TURNS[1]}], id="no inner lists"),
        pytest.param([{"plan-1": [{"turns": TURNS[:1]}]}, {"plan-2": [{"turns": TURNS[1:]}]}],
                     id="plans"),
        pytest.param([{"turns": [ODD, [B, user("c")]]}], id="other roles, no content: left out"),
        pytest.param(b"\xef\xbb\xbf" + encoded([{"turns": TURNS}]), id="a byte order mark"),
    ],
)  # fmt: skip
def test_layouts_are_told_apart_by_content(layout: Any, tmp_path: Path) -> None:
    (tmp_path / "chat.json").write_bytes(encoded(layout))
    messages = [tuple(m.values()) for m in release.read_messages(tmp_path / "chat.json")]
    assert messages == [("user", "a"), ("assistant", "b"), ("user", "c")]


@pytest.mark.parametrize(
    ("ability", "fields", "gold"),
    [
        ("abstention", {"ideal_response": "A", "answer": "x"}, "A"),
        ("contradiction_resolution", {"ideal_answer": "A", "answer": "x"}, "A"),
        ("summarization", {"ideal_summary": "A", "ideal_answer": "x"}, "A"),
        ("event_ordering", {"answer": ["a", "b"]}, "a\nb"),
        ("information_extraction", {"answer": "A"}, "A"),
        ("knowledge_update", {"answer": "A"}, "A"),
        ("multi_session_reasoning", {"answer": "A"}, "A"),
        ("temporal_reasoning", {"answer": 45}, "45"),
        ("instruction_following", {"answer": "x"}, "one\ntwo"),
        ("preference_following", {"ideal_answer": "x"}, "one\ntwo"),
        pytest.param("abstention", {"answer": "x"}, "one\ntwo", id="field absent"),
        pytest.param("summarization", {"ideal_summary": None}, "one\ntwo", id="field null"),
        pytest.param("abstention", {"rubric": "one\ntwo"}, "one\ntwo", id="rubric a bare text"),
    ],
)
def test_gold_answer(ability: str, fields: dict[str, Any], gold: str, tmp_path: Path) -> None:
    make_chat(tmp_path / "1", asked={ability: [question(**{"rubric": ["one", "two"], **fields})]})
    (row,) = release.read_questions(tmp_path / "1" / ASKED_FILE, "1")
    assert (row["gold_answer"], row["difficulty"]) == (gold, "unknown")
    assert "\n".join(row["rubric"]) == "one\ntwo"


# --- Odd input: one line that names file and place, exit code 2, what was there stays -------------

PLACEHOLDERS = [
    (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
    (b"\n<!DOCTYPE html><html>", "an HTML page"),
    (b"404: Not Found", 'a server\'s "404: Not Found"'),
]
NO_JSON = [(b"", "not JSON"), (b'["\xff"]', "not JSON"), (b"[" * 100_000, "recursion depth")]
BAD = [*PLACEHOLDERS, *NO_JSON]
BAD_CHATS = [
    ([], "no message of a user or an assistant"),
    ([BATCH, {"turn": []}], "chat[1] is no list, batch"),
    ([{"turns": None}], "chat[0].turns is no list"),
    ([{"plan-1": [BATCH, {"turns": [[B], ["b"]]}]}], "chat[0].plan-1[1].turns[1][0] is no list"),
]
BAD_QUESTIONS = [
    ([], "not JSON in the release's form"),
    ({"telepathy": [question()]}, "telepathy[0]: there is no such ability"),
    ({"abstention": None}, "not JSON in the release's form"),
    ({"abstention": [question(), {}]}, "abstention[1]: 'question' is null"),
    ({"abstention": [question(rubric=[" "])]}, "abstention[0]: the rubric is empty"),
]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [("chat.json", *case) for case in BAD + BAD_CHATS]
    + [(ASKED_FILE, *case) for case in BAD + BAD_QUESTIONS],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_bad_input(name: str, content: Any, problem: str, tmp_path: Path, capsys: Screen) -> None:
    out, src = tmp_path / "out", make_tier(tmp_path / "src", "1")
    assert prepare(src, out) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (make_chat(src / "2") / name).write_bytes(encoded(content))
    capsys.readouterr()
    assert prepare(src, out) == 2
    screen = capsys.readouterr().err
    assert screen.startswith("error: ")
    assert screen.count("\n") == 1
    assert problem in screen
    assert f"2/{name}" in screen
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("place", "arguments", "problem"),
    [
        pytest.param("no", [], "takes a tier directory such as BEAM", id="no folder"),
        pytest.param(".", [], "takes a tier directory such as BEAM", id="the folder above"),
        pytest.param("src", ["--chats", "1,7"], "src lacks 7/chat.json, 7/probing", id="no chat 7"),
        pytest.param("src", ["--chats", ","], "--chats: nothing is listed", id="no chat named"),
        pytest.param("src", ["--chats", "7", "--allow-missing"], "lacks 7/chat", id="none is left"),
        pytest.param("src", ["--out-dir", "/dev/null/x"], "/dev/null", id="no place for outputs"),
        pytest.param("pipe", [], "1/chat.json: there is no such file, or it is no", id="a FIFO"),
        pytest.param("", ["--mirror", "host"], "host is no URL such as https://host", id="mirror"),
        pytest.param("", ["--tag", "128m"], "did you mean --tag 128k?", id="misspelt tier"),
        pytest.param(
            "", ["--tag", "sample"], "needs --src; did you mean --tag 128k or", id="no tier"
        ),
    ],
)
def test_bad_usage(
    place: str, arguments: list[str], problem: str, tmp_path: Path, capsys: Screen
) -> None:
    make_tier(tmp_path / "src", "1", "2")
    (make_chat(tmp_path / "pipe/1") / "chat.json").unlink()
    os.mkfifo(tmp_path / "pipe/1/chat.json")
    flags = ["--src", str(tmp_path / place)] if place else []
    assert prepare_data.main([*flags, "--out-dir", str(tmp_path / "out"), *arguments]) == 2
    screen = capsys.readouterr().err
    assert problem in screen
    assert screen.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize("absent", ["chat.json", ASKED_FILE])
def test_missing_files(absent: str, tmp_path: Path, capsys: Screen) -> None:
    src = make_tier(tmp_path / "src", "1", "3", "20")
    (src / "3" / absent).unlink()
    assert prepare(src, tmp_path / "out") == 2
    assert f"{src} lacks 3/{absent}; complete it; --allow-missing" in capsys.readouterr().err
    assert prepare(src, tmp_path / "out", "--allow-missing") == 0
    assert chats_made(tmp_path / "out") == ["1", "20"]
    assert f"{src} lacks 3/{absent}; such chats are left out" in capsys.readouterr().err


def test_tags_in_any_spelling() -> None:
    spelt = "100K 100k 128K 500K 1M 10M sample Mine"
    assert " ".join(map(tag_of, spelt.split())) == "128k 128k 128k 500k 1m 10m sample Mine"
    assert tag_hint("10O0k") == "did you mean --tag 100k?"


@pytest.mark.parametrize(
    ("folder", "arguments", "tag"),
    [("100K", [], "128k"), ("1M", [], "1m"), ("mine", [], "mine"),
     ("100K", ["--tag", "other"], "other"), ("mine", ["--tag", "500K"], "500k")],
)  # fmt: skip
def test_the_tag_comes_from_the_folder(
    folder: str, arguments: list[str], tag: str, tmp_path: Path
) -> None:
    src = make_tier(tmp_path / folder, "1")
    flags = ["--src", str(src), "--out-dir", str(tmp_path / "out"), *arguments]
    assert prepare_data.main(flags) == 0
    assert len(list((tmp_path / "out").glob(f"beam_{tag}_*"))) == 2


def test_known_data() -> None:
    questions = {tag: known["questions"]["sha256"] for tag, known in TAGS.items()}
    chats = {tag: TAGS[tag]["chats"]["sha256"] for tag in ("1m", "sample")}
    assert known_data(questions["1m"], chats["1m"]) == "the published 1M files"
    assert known_data(questions["sample"], chats["sample"]) == "the sample files"
    others = "the published 100K questions, chats 01234567"
    assert known_data(questions["128k"], "0123456789") == others
    assert known_data(questions["10m"], "x") == "the published 10M questions, chats x"
    assert known_data("x", chats["1m"]) == ""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small release: chats 2 and 10 of 1M, and the source of its judge prompt."""
    root = tmp_path / "BEAM"
    tier = make_tier(root / "chats/1M", "2", "10")
    (tier / "10/chat_trunecated.json").write_bytes(encoded([user("short")]))
    (root / "src").mkdir()
    (root / "src/prompts.py").write_bytes(PROMPT_SOURCE)
    paths = [path for path in root.rglob("*") if path.is_file()]
    blobs = {path.relative_to(root).as_posix(): blob_id(path) for path in paths}
    monkeypatch.setattr(prepare_data, "release_files", lambda: blobs)
    return root


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        pytest.param(None, "there is no such file", id="none"),
        pytest.param(PROMPT_SOURCE + b"#", "prompts.py is not the release's", id="another file"),
        pytest.param(b"<html>", "prompts.py is an HTML page", id="HTML"),
    ],
)
def test_without_the_right_prompt_the_data_are_made_all_the_same(
    source: bytes | None, problem: str, checkout: Path, tmp_path: Path, capsys: Screen
) -> None:
    (checkout / "src/prompts.py").unlink()
    if source is not None:
        (checkout / "src/prompts.py").write_bytes(source)
    assert prepare(checkout / "chats/1M", tmp_path) == 0
    assert chats_made(tmp_path) == ["2", "10"]
    screen = capsys.readouterr().err
    assert problem in screen
    assert "--criterion-prompt builtin" in screen
    assert screen.count("\n") == 1
    assert not (tmp_path / PROMPT_FILE).exists()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Also as much of a hub as one file needs."""

    def end_headers(self) -> None:
        self.send_header("ETag", '"0123"')
        self.send_header("X-Repo-Commit", "0" * 40)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serving() -> Iterator[Any]:
    """Starts a server over a folder; gives its URL."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def serve(folder: Path) -> str:
        handler = functools.partial(Quiet, directory=str(folder))
        servers.append(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("arguments", "chats"),
    [
        ([], ["2", "10"]),
        (["--chats", "10,2, 10", "--prefer-truncated"], ["2", "10"]),
        (["--chats", "10"], ["10"]),
    ],
    ids=["whole tier", "truncated variants", "selection"],
)
def test_downloading_equals_the_checkout(
    arguments: list[str], chats: list[str], checkout: Path, tmp_path: Path, serving: Any
) -> None:
    for flags in (["--mirror", serving(checkout)], ["--src", str(checkout / "chats/1M")]):
        out = tmp_path / flags[0]
        assert prepare_data.main(["--out-dir", str(out), *flags, *arguments]) == 0
        assert (out / PROMPT_FILE).read_bytes() == b"Judge <question>\n"
        assert chats_made(out, "1m") == chats
        assert ("short" in texts(out, "1m")[0]) == ("--prefer-truncated" in arguments)
    assert texts(tmp_path / "--mirror", "1m") == texts(tmp_path / "--src", "1m")


def test_missing_on_the_server(
    checkout: Path, tmp_path: Path, serving: Any, capsys: Screen
) -> None:
    (checkout / "chats/1M/2/chat.json").unlink()
    (checkout / "src/prompts.py").unlink()
    flags = ["--out-dir", str(tmp_path), "--mirror", serving(checkout)]
    assert prepare_data.main(flags) == 2
    screen = capsys.readouterr().err
    assert ": HTTP 404: the server has no such file\nthe same 1 more time" in screen
    assert "1M lacks 2/chat.json; complete it; --allow-missing" in screen
    assert prepare_data.main([*flags, "--allow-missing"]) == 0
    assert "the authors' judge prompt is not installed" in capsys.readouterr().err
    assert chats_made(tmp_path, "1m") == ["10"]


RANKS = b"aGVsbG8= 0\nd29ybGQ= 1\n"  # "hello" and "world"


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer folder whose manifest describes RANKS, in the place of the project's."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    manifest = {"sha256": hashlib.sha256(RANKS).hexdigest(), "bytes": len(RANKS)}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(prepare_data, "TOKENIZER_DIR", folder)
    return folder


@pytest.mark.parametrize("named", ["folder", "folder/tiktoken.model"])
def test_vocabulary_from_a_file_or_folder(
    named: str, tokenizer: Path, tmp_path: Path, capsys: Screen
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/tiktoken.model").write_bytes(RANKS)
    assert prepare_data.main(["--tokenizer", str(tmp_path / named)]) == 0
    assert (tokenizer / "tiktoken.model").read_bytes() == RANKS
    assert capsys.readouterr().out == f"installed {tokenizer / 'tiktoken.model'}\n", "alone"
    src = make_tier(tmp_path / "src", "1")
    assert prepare(src, tmp_path / "out", "--tokenizer", str(tmp_path / named)) == 0
    assert chats_made(tmp_path / "out") == ["1"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [*PLACEHOLDERS, (RANKS[:-1], "is not the vocabulary of Kimi-K2.6")],
    ids=["LFS", "HTML", "404", "short"],
)
def test_wrong_vocabulary(
    content: bytes, problem: str, tokenizer: Path, tmp_path: Path, capsys: Screen
) -> None:
    (tmp_path / "tiktoken.model").write_bytes(content)
    (tokenizer / "tiktoken.model").write_bytes(b"the one before")
    assert prepare_data.main(["--tokenizer", str(tmp_path / "tiktoken.model")]) == 2
    screen = capsys.readouterr().err
    assert problem in screen
    assert screen.count("\n") == 1
    assert (tokenizer / "tiktoken.model").read_bytes() == b"the one before"


@pytest.mark.parametrize(
    ("offline", "code", "said"), [("0", 0, "installed "), ("1", 2, "error: --tokenizer hub: ")]
)
def test_vocabulary_from_the_hub(
    offline: str, code: int, said: str, tokenizer: Path, tmp_path: Path, serving: Any
) -> None:
    program = "import pathlib, sys, prepare_data as p; p.TOKENIZER_DIR = pathlib.Path(sys.argv[1])"
    command = [sys.executable, "-c", f"{program}; sys.exit(p.main(['--tokenizer', 'hub']))"]
    place = tmp_path / "hub/moonshotai/Kimi-K2.6/resolve/main"
    place.mkdir(parents=True)
    (place / "tiktoken.model").write_bytes(RANKS)
    url = serving(tmp_path / "hub")[:-1]
    hub = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": offline}
    result = subprocess.run([*command, str(tokenizer)], env={**os.environ, **hub}, cwd=PROJECT,
                            capture_output=True, text=True, check=False)  # fmt: skip
    assert result.returncode == code, result.stderr
    assert (result.stdout + result.stderr).splitlines()[-1].startswith(said)
    assert (tokenizer / "tiktoken.model").exists() == (code == 0)


@pytest.fixture
def sample(tmp_path: Path, tokenizer: Path) -> Path:
    """A folder with the sample's pair; no vocabulary is installed."""
    for path in DATA_DIR.glob("beam_sample_*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_check_of_what_is_right(sample: Path, capsys: Screen) -> None:
    assert check(sample) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('sample chats: ok: {"number": 3, "sha256": "0dc0e2b7790e')
    assert lines[1].startswith('sample questions: ok: {"lines": 60, "bytes": 34495, "sha256": ')
    absent = ("128k", "500k", "1m", "10m", "judge prompt", "vocabulary")
    assert lines[2:] == [f"{name}: not installed" for name in absent]
    assert check(sample, "--tag", "1M") == 1, "asked for by name and not there"
    assert prepare(make_tier(sample / "src", "1"), sample) == 0
    assert check(sample, "--tag", "t") == 0
    assert 't chats: no digest is recorded: {"number": 1, ' in capsys.readouterr().out
    (sample / "beam_t_questions.jsonl").unlink()
    assert check(sample, "--tag", "t") == 1, "half a pair"


def repacked(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda packed: gzip.compress(gzip.decompress(packed).replace(old, new, 1))


QUESTIONS, CHATS = "beam_sample_questions.jsonl", "beam_sample_chats.jsonl.gz"


@pytest.mark.parametrize(
    ("name", "damage", "problem"),
    [
        (QUESTIONS, lambda b: b.replace(b"rubric", b"rub", 1), f"{QUESTIONS} line 1: no 'rubric'"),
        (QUESTIONS, lambda b: b.replace(b'x": 0', b'x": 1', 1), "chat 1 abstention 1 stands twice"),
        (QUESTIONS, lambda b: b.replace(b"the", b"The", 1), 'questions: differs from {"lines": 60'),
        (CHATS, lambda packed: packed[:-100], "damaged gzip file"),
        (CHATS, repacked(b'"user"', b'"tool"'), 'chats: differs from {"number": 3'),
        (CHATS, repacked(b"content", b"text"), "line 1: a message: no 'content'"),
        (CHATS, repacked(b'"1"', b'"7"'), "chat 1 abstention/0 is about a chat that is not in"),
        (CHATS, lambda _: b"version https://git-lfs.github.com/", "is a Git LFS pointer"),
        (PROMPT_FILE, lambda _: b"x", 'judge prompt file: differs from {"sha256": "d349c9'),
        ("tokenizer/tiktoken.model", lambda _: b"<html>", "tiktoken.model is an HTML page"),
    ],
    ids="rubric,index,edited,cut,role,content,chat gone,LFS,prompt,vocabulary".split(","),
)
def test_check_of_what_is_wrong(
    name: str, damage: Callable[[bytes], bytes], problem: str, sample: Path, capsys: Screen
) -> None:
    path = sample / name
    path.write_bytes(damage(path.read_bytes() if path.exists() else b""))
    assert check(sample) == 1
    assert problem in capsys.readouterr().out


# --- The release, as much of it as is here --------------------------------------------------------


def flattened(content: list[Any]) -> Iterator[dict[str, str]]:
    """The messages of a chat file, in the plainest way."""
    for batch in content:
        for key, value in batch.items():
            if key.startswith("plan-"):
                yield from flattened(value)
            elif key == "turns":
                messages = [message for turn in value for message in turn]
                yield from ({"role": m["role"], "content": m["content"]} for m in messages)


@needs_release
@pytest.mark.parametrize("tag", release.TIERS)
def test_the_release(tag: str, tmp_path: Path, capsys: Screen) -> None:
    """A stand-in for a chat that is not there. Chats go through unchanged; what is there whole
    is as recorded."""
    tier, expected = tmp_path / release.TIERS[tag], {}
    for asked in (OFFICIAL / "chats" / tier.name).glob("*/probing_questions"):
        chat, source = asked.parent.name, asked.parent / "chat.json"
        (tier / chat).mkdir(parents=True)
        (tier / chat / "probing_questions").symlink_to(asked)
        content = source.read_bytes() if source.exists() else encoded([BATCH])
        (tier / chat / "chat.json").write_bytes(content)
        expected[chat] = list(flattened(json.loads(content)))
    if not expected:
        pytest.skip(f"nothing of {tag} is here")
    assert prepare_data.main(["--src", str(tier), "--out-dir", str(tmp_path)]) == 0
    assert texts(tmp_path, tag)[0].split("\n")[:-1] == [
        json.dumps({"chat_id": chat, "messages": expected[chat]}, ensure_ascii=False)
        for chat in sorted(expected, key=int)
    ]
    screen = capsys.readouterr().out
    assert f"{tag} questions: ok" in screen or len(expected) < TAGS[tag]["chats"]["number"]
    if len([*(OFFICIAL / "chats" / tier.name).glob("*/chat.json")]) == TAGS[tag]["chats"]["number"]:
        assert f"{tag} chats: ok" in screen


@needs_release
@pytest.mark.parametrize("way", ["--mirror", "--src"])
def test_the_judge_prompt_of_the_release(way: str, tmp_path: Path, serving: Any) -> None:
    """With a chat whose files are those of the pinned commit, if there is one."""
    here = {path for path, blob in release_files().items() if blob_id(OFFICIAL / path) == blob}
    folders = [str(Path(path).parent) for path in sorted(here) if path.endswith("/chat.json")]
    chats = [folder for folder in folders if f"{folder}/{ASKED_FILE}" in here]
    if not chats:
        pytest.skip("no chat of the pinned commit is here")
    _, tier, chat = chats[0].split("/")
    source = serving(OFFICIAL) if way == "--mirror" else str(OFFICIAL / "chats" / tier)
    flags = ["--tag", tier, "--chats", chat, way, source, "--out-dir", str(tmp_path)]
    assert prepare_data.main(flags) == 0
    assert chats_made(tmp_path, tag_of(tier)) == [chat]
    prompt = (tmp_path / PROMPT_FILE).read_bytes()
    assert hashlib.sha256(prompt).hexdigest() == OFFICIAL_SHA256
    assert len(prompt.decode()) == 3882
