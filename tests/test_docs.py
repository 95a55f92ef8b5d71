"""The documents say what the programs do: flags, defaults, formats, commands, rules and files, in both languages."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import subprocess
import sys
from argparse import Action, ArgumentParser
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from scripted_endpoint import ScriptedEndpoint

import beam_answers
import beam_common
import beam_details
import beam_generate
import beam_judge
import beam_prompts
from beam_common import AnswerRow, QuestionRow, ScoreRow
from beam_reply import Reply

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
LANGUAGES = ("en", "zh")
PROGRAMS = ("beam_generate", "beam_judge", "prepare_data", "beam_report")
DOCUMENTS = ("README.md", "README_zh.md", "examples/cron.md")
SET_UP = (
    "pip install -r requirements.txt && python examples/quickstart.py",
    "pip install -r requirements.txt -r tests/requirements.txt && python -m pytest",
)
# How the Chinese tables say what is no value.
IN_CHINESE = {
    "required": "必填",
    "none": "无",
    "empty": "空",
    "all": "全部",
    "on": "开",
    "off": "关",
    "download": "下载",
    "built in": "内置",
    "from the tag": "由标签决定",
    "env BEAM_API_KEY": "环境变量 BEAM_API_KEY",
    "env JUDGE_API_KEY": "环境变量 JUDGE_API_KEY",
}


# --- Reading Markdown -----------------------------------------------------------------------------------------------


@cache
def readme(language: str) -> str:
    return (ROOT / {"en": "README.md", "zh": "README_zh.md"}[language]).read_text("utf-8")


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language tag, content) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(text: str) -> list[tuple[int, str]]:
    return [(len(marks), title) for marks, title in re.findall(r"^(#+) (.+)$", prose(text), re.MULTILINE)]


def section(text: str, title: str) -> str:
    """What stands below the heading `title`, up to the next heading of any level."""
    parts = re.split(r"^#+ (.+)$", prose(text), flags=re.MULTILINE)
    return parts[parts.index(title) + 1]


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a text: each a list of rows, each a list of cells, without the rule below the head."""
    found: list[list[list[str]]] = []
    inside = False
    for line in prose(text).splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        if not inside:
            found.append([])
        inside = True
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            found[-1].append(cells)
    return found


def table_with(text: str, first_cell: str) -> list[list[str]]:
    """The rows of the table one of whose rows begins with `first_cell`, without its head."""
    return next(table[1:] for table in tables(text) if any(row[0] == first_cell for row in table))


def code_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- Flags ----------------------------------------------------------------------------------------------------------


def parser_of(program: str) -> ArgumentParser:
    parser = importlib.import_module(program).parser()
    assert isinstance(parser, ArgumentParser)
    return parser


def flags_of(program: str) -> dict[str, Action]:
    actions = (action for action in parser_of(program)._actions if action.dest not in ("help", "version"))
    return {action.option_strings[-1]: action for action in actions if action.option_strings}


def default_in_words(action: Action) -> str:
    """The default of a flag as the English tables give it."""
    said = re.search(r"\(default: ([^()]+)\)", action.help or "")
    if action.required or "(required)" in (action.help or ""):
        return "required"
    if action.nargs == 0:
        return "on" if action.const is True and action.default is True else "off"
    if variable := re.search(r"environment variable (\w+)", action.help or ""):
        return f"env {variable[1]}"
    if isinstance(action.default, Path):
        return f"{action.default.relative_to(ROOT)}/"
    if str(action.default).startswith("https://raw.githubusercontent.com/"):
        return "GitHub"
    if isinstance(action.default, str | int | float) and action.default != "":
        return str(action.default)
    return said[1] if said else "none"


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_flag_table_names_every_flag_in_order_with_its_default(program: str, language: str) -> None:
    (table,) = tables(section(readme(language), f"{program}.py"))
    told = [(row[0].strip("`"), row[1].replace("`", "")) for row in table[1:]]
    known = [(flag, default_in_words(action)) for flag, action in flags_of(program).items()]
    if language == "zh":
        known = [(flag, IN_CHINESE.get(default, default)) for flag, default in known]
    assert told == known


@pytest.mark.parametrize("program", PROGRAMS)
def test_choices_are_named_in_the_table(program: str) -> None:
    for language in LANGUAGES:
        (table,) = tables(section(readme(language), f"{program}.py"))
        meaning = {row[0].strip("`"): row[2] for row in table[1:]}
        for flag, action in flags_of(program).items():
            assert set(action.choices or ()) <= set(code_in(meaning[flag])), (language, flag)


# --- Formats --------------------------------------------------------------------------------------------------------


def test_examples_of_rows_have_the_keys_that_are_written() -> None:
    judged = beam_answers.Answer(("2", "abstention", 0), Path("a.jsonl"), 0, 0, "…", None, False, ("…",))
    call = beam_details.Call(0, "…", "…", lambda reply, finish_reason: 0.5)
    detail = beam_details.detail_row(judged, "judged", "strict", [beam_details.verdict(call, Reply("…"), 0.5)])
    question = dict.fromkeys(QuestionRow.__annotations__, "…") | {"question_index": 0}
    wanted = [
        ["chat_id", "messages"],
        list(QuestionRow.__annotations__),
        list(beam_generate.answer_row(question, Reply("…"))),
        list(beam_details.score_row(detail)),
        list(detail),
    ]
    assert wanted[2] == list(AnswerRow.__annotations__)
    assert wanted[3] == list(ScoreRow.__annotations__)
    for language in LANGUAGES:
        rows = [json.loads(content) for tag, content in fenced_blocks(readme(language)) if tag == "json"]
        assert [list(row) for row in rows] == wanted
        assert [list(verdict) for verdict in rows[4]["verdicts"]] == [list(v) for v in detail["verdicts"]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_sidecar_table_names_what_a_run_records(
    language: str, make_pair: Callable, run_generate: Callable, endpoint: Callable
) -> None:
    output = run_generate(make_pair(), endpoint().base_url).output
    recorded = json.loads(output.with_suffix(".run.json").read_bytes())
    rows = {tuple(code_in(row[0])): row[1] for row in table_with(readme(language), "`settings`")}
    assert {name for names in rows for name in names} == recorded.keys() | {"shrunk"}
    for part in ("settings", "data"):
        assert re.split(r"[,、] ?", rows[part,]) == list(recorded[part])


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_binds_the_judge_is_named(language: str) -> None:
    argv = ["--answers", "a.jsonl", "--judge-model", "j", "--judge-base-url", "http://localhost/v1"]
    prompts = beam_details.Prompts(beam_prompts.CRITERION, beam_prompts.ORDERING, tau=False)
    settings = beam_judge.sidecar(beam_judge.parser().parse_args(argv), prompts, {})["settings"]
    for name in settings:
        assert name.endswith("_prompt_sha256") or re.search(rf"\b{name}\b", readme(language)), name


@pytest.mark.parametrize("language", LANGUAGES)
def test_tiers_have_their_recorded_numbers(language: str) -> None:
    recorded = json.loads((ROOT / "data" / "digests.json").read_bytes())["tags"]
    told = {row[0].strip("`"): (int(row[1]), int(row[2])) for row in table_with(readme(language), "`1m`")}
    assert told == {tag: (of["chats"]["number"], of["questions"]["lines"]) for tag, of in recorded.items()}


@pytest.mark.parametrize("language", LANGUAGES)
def test_default_budget_is_the_one_computed(language: str) -> None:
    args = beam_generate.parser().parse_args([])
    budget = beam_generate.content_budget(args.max_context_tokens, args.max_tokens, args.reserve_tokens)
    assert readme(language).count(f"{budget:,}") >= 2


@pytest.mark.parametrize("name", DOCUMENTS)
def test_exit_codes(name: str) -> None:
    rows = table_with((ROOT / name).read_text("utf-8"), "0")
    assert [code for row in rows for code in row[0].split(", ")] == ["0", "1", "2", "130", "143"]
    for module in (beam_generate, beam_judge):
        said = " ".join((module.__doc__ or "").split())
        assert re.search(r"code 0: all .*1: stopped early; 2: bad usage or input; 130/143: SIGINT/SIGTERM", said)


@pytest.mark.parametrize("language", LANGUAGES)
def test_messages_stand_in_the_programs(language: str) -> None:
    sources = "".join(path.read_text("utf-8") for path in sorted(ROOT.glob("*.py")))
    messages = [code_in(row[0])[0] for row in table_with(readme(language), "`no API key`")]
    for part in (part.strip(": ") for message in messages for part in re.split(r"…|\bN\b", message)):
        assert part in sources, part


def test_own_prompts_placeholders_are_named() -> None:
    from beam_prompts import CRITERION_NAMES, ORDERING_NAMES, TAG_NAMES

    wanted = {f"{{{name}}}" for name in {**CRITERION_NAMES, **ORDERING_NAMES}} | {f"<{name}>" for name in TAG_NAMES}
    for language in LANGUAGES:
        assert wanted <= set(code_in(prose(readme(language))))


@pytest.mark.parametrize("language", LANGUAGES)
def test_prompt_is_quoted_exactly(language: str) -> None:
    quoted = beam_generate.FINAL_MESSAGE.partition("{question}")[0]
    assert any(content.startswith(quoted) for _, content in fenced_blocks(readme(language)))


# --- Commands -------------------------------------------------------------------------------------------------------


def commands_in(text: str) -> list[list[str]]:
    """The words of each command in the fenced blocks that runs a Python script of the repository, from its name on.

    A command may go on after a backslash at the end of a line.
    """
    found = []
    for _, content in fenced_blocks(text):
        for line in content.replace("\\\n", " ").splitlines():
            started = re.search(r"python (?=(?:examples/)?\w+\.py)", line)
            if started:
                words = shlex.split(re.split(r" >> ", line[started.end() :])[0])
                found.append(words)
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_are_accepted(name: str) -> None:
    commands = commands_in((ROOT / name).read_text("utf-8"))
    assert len(commands) >= 3
    for script, *argv in commands:
        assert (ROOT / script).is_file(), script
        if Path(script).stem in PROGRAMS and not any(word.startswith("SCORES") for word in argv):
            parser_of(Path(script).stem).parse_args(argv)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("command", SET_UP, ids=["quick start", "tests"])
def test_set_up_command_stands_alone_on_one_line(command: str, language: str) -> None:
    assert readme(language).count(command) == 1
    assert any(content == f"{command}\n" for _, content in fenced_blocks(readme(language)))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_lines_of_commands_are_short(name: str) -> None:
    """A reader need not scroll; JSON lines are what they are."""
    blocks = [content for tag, content in fenced_blocks((ROOT / name).read_text("utf-8")) if tag != "json"]
    assert [line for content in blocks for line in content.splitlines() if len(line) > 120] == []


def test_what_the_cron_page_makes_is_ignored_by_git() -> None:
    ignored = {line for line in (ROOT / ".gitignore").read_text("utf-8").splitlines() if not line.startswith("#")}
    for name in ("keys.sh", "run_beam.sh", "beam.done"):
        assert f"`{name}`" in (EXAMPLES / "cron.md").read_text("utf-8")
        assert f"/{name}" in ignored


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example_explains_itself(script: str) -> None:
    path = EXAMPLES / script
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    assert len(doc) > 40
    if "__main__" in path.read_text("utf-8"):
        shown = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=True).stdout
        assert doc.splitlines()[0] in shown
        assert f"python examples/{script}" in shown


# --- Both languages -------------------------------------------------------------------------------------------------


def test_both_languages_have_the_same_structure() -> None:
    english, chinese = (readme(language) for language in LANGUAGES)
    assert [level for level, _ in headings(english)] == [level for level, _ in headings(chinese)]
    assert fenced_blocks(english) == fenced_blocks(chinese)
    assert [len(table) for table in tables(english)] == [len(table) for table in tables(chinese)]


def test_both_languages_name_the_same_things() -> None:
    """Flags, files, figures and other code: what stands in backquotes in one language does so in the other."""
    english, chinese = ({*code_in(prose(readme(language)))} for language in LANGUAGES)
    assert english - chinese == set()
    assert chinese - english == set()


def test_both_languages_give_the_same_figures() -> None:
    english, chinese = (re.findall(r"\d+(?:[.,]\d+)+", prose(readme(language))) for language in LANGUAGES)
    assert sorted(english) == sorted(chinese)


# --- What the documents point to ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    text = path.read_text("utf-8")
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for _, title in headings(text)}
    for target in re.findall(r"\]\(([^)]+)\)", prose(text)):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("https://"):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("language", LANGUAGES)
def test_file_tree_is_complete(language: str) -> None:
    (tree,) = (content for _, content in fenced_blocks(readme(language)) if content.startswith("beam_generate.py"))
    listed = [line.split(maxsplit=1) for line in tree.splitlines()]
    assert all((ROOT / name).exists() and clause for name, clause in listed)
    scripts = {path.name for path in ROOT.glob("*.py")}
    assert {name for name, _ in listed if name.endswith(".py")} == scripts


def rules() -> list[list[str]]:
    """The rows of the rule map: question, functions, tests."""
    return table_with(readme("en"), "What identifies a question?")


@pytest.mark.parametrize("row", rules(), ids=lambda row: row[0])
def test_rule_map_names_functions_that_exist(row: list[str]) -> None:
    names = code_in(row[1])
    assert names
    for name in names:
        module, *path = name.split(".")
        thing: object = importlib.import_module(module)
        for part in path:
            thing = getattr(thing, part)
        assert callable(thing)


@pytest.mark.parametrize("row", rules(), ids=lambda row: row[0])
def test_rule_map_names_tests_that_exist(row: list[str]) -> None:
    names = code_in(row[2])
    assert names
    for name in names:
        file, _, test = name.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test.startswith("test_"), name
        assert test in defined, name


@pytest.mark.parametrize("name", [*DOCUMENTS, "examples/slurm_array.sh"])
def test_documents_name_no_machine(name: str) -> None:
    """Nothing in them depends on where they were written: no home or scratch folder, no package index, no address."""
    text = (ROOT / name).read_text("utf-8")
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|data)\b\S*", text) == []
    assert re.findall(r"--(?:extra-)?index-url|\bpypi\b|[\w.]+@[\w-]+\.\w+", text) == []


# --- The worked example ---------------------------------------------------------------------------------------------


def test_worked_example_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kimi_counter: Callable
) -> None:
    """The commands of the README, but for the address, the place of the files and the picture."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("beam_generate.load_counter", lambda spec, trust_remote_code: kimi_counter())
    for name in ("BEAM_API_KEY", "JUDGE_API_KEY"):
        monkeypatch.setenv(name, "none")
    (block,) = (content for _, content in fenced_blocks(readme("en")) if "--model full-history" in content)
    (shown,) = (content for _, content in fenced_blocks(readme("en")) if content.startswith("=== "))
    with ScriptedEndpoint() as endpoint:
        for script, *argv in commands_in(f"```\n{block}```"):
            address = [endpoint.base_url if word.startswith("http:") else word for word in argv]
            without_picture = address[: address.index("--plot")] if "--plot" in address else address
            capsys.readouterr()
            assert importlib.import_module(Path(script).stem).main(without_picture) == 0
    assert capsys.readouterr().out.endswith(f"\n\n{shown}")


@pytest.fixture
def kimi_counter(tmp_path: Path, request: pytest.FixtureRequest) -> Callable:
    """Makes counters of the bundled tokenizer; skips where its vocabulary is not at hand."""
    import os

    from beam_tokenizer import bundled_counter

    folder = beam_common.TOKENIZER_DIR
    given = os.environ.get("KIMI_VOCABULARY")
    if given:
        source = Path(given) / "tiktoken.model" if Path(given).is_dir() else Path(given)
        folder = tmp_path / "tokenizer"
        folder.mkdir()
        (folder / "manifest.json").write_bytes((beam_common.TOKENIZER_DIR / "manifest.json").read_bytes())
        (folder / "tiktoken.model").symlink_to(source)
    if not (folder / "tiktoken.model").exists():
        pytest.skip("the vocabulary is neither installed nor named by KIMI_VOCABULARY")
    return lambda: bundled_counter(folder)


def test_the_picture_is_a_picture() -> None:
    data = (EXAMPLES / "comparison.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 300_000


# --- The cluster script ---------------------------------------------------------------------------------------------


@pytest.fixture
def slurm_array(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`slurm_array("judge", SHARDS="2", …)`: the script run by bash with these variables, from another folder."""

    def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "OUT": str(tmp_path / "out"), "TAG": "sample",
            "BEAM_API_KEY": "none", "JUDGE_API_KEY": "none", **variables,
        }  # fmt: skip
        command = ["bash", str(EXAMPLES / "slurm_array.sh"), *argv]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    return run


def test_array_tasks_are_judged_into_one_file(tmp_path: Path, slurm_array: Callable) -> None:
    with ScriptedEndpoint() as endpoint:
        place = {"BASE_URL": endpoint.base_url, "JUDGE_BASE_URL": endpoint.base_url, "SHARDS": "2"}
        first = slurm_array(SLURM_ARRAY_TASK_ID="1", **place)
        assert first.returncode == 0, first.stderr
        early = slurm_array("judge", **place)  # 2 of 3 chats are there
        assert "shard 2 of 2 has no answers" in early.stderr
        assert "=== BEAM summary (n=40) ===" in early.stdout
        second = slurm_array(SLURM_ARRAY_TASK_ID="2", **place)
        assert second.returncode == 0, second.stderr
        asked = len(endpoint.requests)
        assert slurm_array(SLURM_ARRAY_TASK_ID="2", **place).returncode == 0
        assert len(endpoint.requests) == asked  # a task that is done asks nothing
        judged = slurm_array("judge", **place)
    assert judged.returncode == 0, judged.stderr
    assert judged.stderr.count("has no answers") == 0
    assert "=== BEAM summary (n=60) ===" in judged.stdout
    rows = [json.loads(line) for line in (tmp_path / "out" / "scores.jsonl").read_text().splitlines()]
    assert len({beam_common.key_of(row) for row in rows}) == len(rows) == 60


@pytest.mark.parametrize(
    ("argv", "variables", "code", "said"),
    [
        ((), {}, 1, "SLURM_ARRAY_TASK_ID: is not set"),
        ((), {"SLURM_ARRAY_TASK_ID": "5", "SHARDS": "4"}, 2, "the part must be from 1 to 4"),
        (("judge",), {}, 2, "nothing to judge"),
    ],
    ids=["no task", "more tasks than shards", "judge before any answer"],
)
def test_array_script_refuses(
    slurm_array: Callable, argv: tuple[str, ...], variables: dict[str, str], code: int, said: str
) -> None:
    ran = slurm_array(*argv, **variables)
    assert ran.returncode == code
    assert said in ran.stderr


def test_array_numbers_match_its_shards() -> None:
    script = (EXAMPLES / "slurm_array.sh").read_text("utf-8")
    assert re.search(r"^#SBATCH --array=1-(\d+)$", script, re.MULTILINE)[1] == re.search(r"SHARDS:-(\d+)", script)[1]  # type: ignore[index]
