"""What the documents say against what the programs do: flags, commands, outputs, links, the map of
rules; and the few rules on how the project is laid out."""

from __future__ import annotations

import argparse
import ast
import graphlib
import importlib
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import ScriptedEndpoint

from beam_common.cli import Parser
from beam_common.rows import PROJECT

PROGRAMS = ("beam_generate", "beam_judge", "beam_report", "prepare_data")
READMES = ("README.md", "README_zh.md")
DOCUMENTS = sorted(
    str(path.relative_to(PROJECT))
    for folder in (".", "docs", "data", "tokenizer")
    for path in PROJECT.joinpath(folder).glob("*.md")
)
COMMAND = re.compile(
    rf"(?:python|requirements\.txt) \S*?({'|'.join(PROGRAMS)})\.py"
    r"""((?:[^`|;&<>#'"\n]|'[^'\n]*'|"[^"\n]*")*)"""
)
OTHERS_FLAGS = {  # of servers, of the stand-in
    *("--enable-prompt-tokens-details", "--reasoning-parser", "--max-model-len"),
    *("--enable-cache-report", "--context-length", "--interrupt_requests"),
}
TOP_LEVEL = {
    *(".ci", ".gitignore", "LICENSE", "pyproject.toml", "requirements.txt", *READMES),
    *("beam_common", "benchmarks", "data", "docs", "examples", "tests", "tokenizer"),
    *(f"{program}.py" for program in PROGRAMS),
}


def text_of(name: str) -> str:
    return (PROJECT / name).read_text("utf-8")


def sections(text: str, level: str) -> Iterator[tuple[str, str]]:
    """(heading, text below it) of each section of a level such as `##`."""
    parts = re.split(rf"^{level} (.*)$", text, flags=re.M)
    return zip(parts[1::2], parts[2::2], strict=True)


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a document: rows of cells, without the line below the heads."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
    split = [[re.split(r" *\| *", row.strip("|\n ")) for row in b.splitlines()] for b in blocks]
    return [[rows[0], *rows[2:]] for rows in split]


def code_blocks(text: str) -> list[str]:
    return re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S)


@pytest.fixture
def parser_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Parser]:
    """The parser that a program makes, caught when it is first used."""
    parse = Parser.parse_args

    def get(program: str) -> Parser:
        made: list[Parser] = []

        def caught(parser: Parser, *_: Any) -> None:
            made.append(parser)
            raise SystemExit

        monkeypatch.setattr(Parser, "parse_args", caught)
        with pytest.raises(SystemExit):
            importlib.import_module(program).main([])
        monkeypatch.setattr(Parser, "parse_args", parse)
        return made[0]

    return get


# ------------------------------------------------------------------------------------------------
# Flags, commands, outputs.


def default_of(action: argparse.Action) -> str:
    """The default as the program's help says it."""
    if isinstance(action, argparse._StoreTrueAction | argparse._StoreFalseAction):
        return "on" if action.default and action.const else "off"
    told = argparse.HelpFormatter("")._expand_help(action)
    found = re.search(r"\(default: (.*)\)|\((required)\)", told)
    if found:
        return (found[1] or found[2]).replace("environment variable", "env")
    return "required" if action.required else "none"


@pytest.mark.parametrize("program", PROGRAMS)
def test_flag_tables_are_the_parsers(program: str, parser_of: Callable[[str], Parser]) -> None:
    found = dict(sections(text_of("docs/reference.md"), "##"))[f"Flags of {program}.py"]
    [[_, *rows]] = tables(found)
    said = {row[0].strip("`"): row[1].replace("`", "") for row in rows}
    actions = {
        (action.option_strings or [str(action.metavar)])[-1]: action
        for action in parser_of(program)._actions
        if action.dest not in ("help", "version")
    }
    assert said == {name: default_of(action) for name, action in actions.items()}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_are_understood(name: str, parser_of: Callable[[str], Parser]) -> None:
    text = text_of(name).replace("\\\n", " ")
    parsers = {program: parser_of(program) for program in PROGRAMS}
    for program, arguments in COMMAND.findall(text):
        plain = re.sub(r"\$\(.*?\)|\$\{.*?\}|\$\w+", "1", arguments)
        argv = shlex.split(plain)
        if argv and not {"--help", "--version"} & {*argv}:
            parsers[program].parse_args(argv)
    known = {name for p in parsers.values() for a in p._actions for name in a.option_strings}
    shown = {*re.findall(r"`(--[a-z][\w-]*)[^`]*`", text)}
    assert shown <= known | OTHERS_FLAGS


def test_commands_on_the_sample_print_what_is_shown(tmp_path: Path) -> None:
    blocks = code_blocks(text_of("README.md"))
    with ScriptedEndpoint() as endpoint:
        for commands, shown in itertools.pairwise(blocks):
            if "--tag sample" not in commands:
                continue
            port = endpoint.base_url.partition("127.0.0.1:")[2]
            script = commands.replace("8000/v1", port)
            script = re.sub("^python ", f"{sys.executable} {PROJECT}/", script, flags=re.M)
            keys = "export BEAM_API_KEY=none JUDGE_API_KEY=none\n"
            ran = subprocess.run(
                ["bash", "-ec", keys + script],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert ran.returncode == 0, ran.stdout
            lines = iter(re.sub("elapsed: .*", "elapsed:", ran.stdout).splitlines())
            for line in shown.splitlines():  # in that order, with others between where it says …
                wanted = re.sub("elapsed: .*", "elapsed:", line)
                assert line == "…" or wanted in lines, f"{line}\n\n{ran.stdout}"


def test_messages_in_the_reference_are_the_programs() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in SOURCES]
    constants = [n.value for t in trees for n in ast.walk(t) if isinstance(n, ast.Constant)]
    texts = [value for value in constants if isinstance(value, str)]
    rows = tables(dict(sections(text_of("docs/reference.md"), "##"))["Messages and what to do"])[0]
    shown = [message for row in rows[1:] for message in re.findall("`([^`]+)`", row[0])]
    assert len(shown) >= 10
    for message in shown:
        for part in filter(None, re.split(r"…|HTTP \d+|^stopped:", message)):
            assert any(part.strip(" ,;:") in text for text in texts), part


# ------------------------------------------------------------------------------------------------
# The documents among each other.


def test_both_readmes_say_the_same() -> None:
    english, chinese = map(text_of, READMES)
    assert code_blocks(english) == code_blocks(chinese)
    for pattern in (r"^#+ ", r"\]\((?!README)[^)]*\)", r"^- \*\*"):
        assert re.findall(pattern, english, re.M) == re.findall(pattern, chinese, re.M)
    pairs = list(zip(tables(english), tables(chinese), strict=True))
    assert pairs
    for ours, theirs in pairs:
        assert [len(row) for row in ours] == [len(row) for row in theirs]
        for row, other in zip(ours, theirs, strict=True):
            assert re.findall("`[^`]+`", "".join(row)) == re.findall("`[^`]+`", "".join(other))


def test_readme_is_a_front_door() -> None:
    assert text_of("README.md").count("\n") <= 220
    setups = re.findall(
        r"^pip install -r requirements\.txt .*&& python .*", text_of("README.md"), re.M
    )
    assert [line.split("&& python ")[1] for line in setups] == [
        "examples/quickstart.py",
        "-m pytest",
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(name)):
        if not target.startswith("https://"):
            assert (PROJECT / name).parent.joinpath(target).exists(), target


def test_every_document_is_reached_from_the_readme() -> None:
    linked = text_of("README.md") + text_of("docs/internals.md") + text_of("docs/endpoints.md")
    assert all(path.name in linked for path in PROJECT.glob("docs/*"))


def test_rule_map_leads_to_functions() -> None:
    rows = tables(dict(sections(text_of("docs/internals.md"), "##"))["Where a rule stands"])[0]
    places = [place for row in rows[1:] for place in re.findall("`([^`-]+)`", row[1])]
    assert len(places) >= 30
    for place in places:
        module, *names = place.split(".")
        found: Any = importlib.import_module(
            module if module in PROGRAMS else f"beam_common.{module}"
        )
        for name in names:
            found = getattr(found, name)


# ------------------------------------------------------------------------------------------------
# The layout.

SOURCES = [
    *PROJECT.glob("beam_*.py"),
    PROJECT / "prepare_data.py",
    *PROJECT.glob("beam_common/*.py"),
]


def test_imports_go_one_way() -> None:
    found = {path.stem: path.read_text("utf-8") for path in PROJECT.glob("beam_common/*.py")}
    imported = {
        name: {*re.findall(r"beam_common\.(\w+) import", text)} for name, text in found.items()
    }
    list(graphlib.TopologicalSorter(imported).static_order())  # CycleError
    programs = rf"^\s*(?:import|from) (?:{'|'.join(PROGRAMS)})\b"
    assert not [name for name, text in found.items() if re.search(programs, text, re.M)]


def test_nothing_else_stands_at_the_top() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True)
    if listed.returncode or not listed.stdout:
        pytest.skip("not a git checkout")
    assert {name.partition("/")[0] for name in listed.stdout.splitlines()} <= TOP_LEVEL
