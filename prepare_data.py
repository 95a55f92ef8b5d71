"""Turn the BEAM release into the two files that the benchmark reads; install the authors' judge
prompt and the tokenizer's vocabulary.

In:   a tier directory of the release (--src), or the release's public host: each file is then
      fetched once into <out-dir>/.download and checked by its git blob id
Out:  beam_<tag>_chats.jsonl.gz, beam_<tag>_questions.jsonl and official_criterion_prompt.txt in
      --out-dir, each whole or not at all; the same input gives the same bytes

A download that was stopped goes on where it was: start the same command again. When the files are
made, <out-dir>/.download may be deleted. Exit code 0: done; 1: a download stopped, or --check found
a difference; 2: bad usage or input; 130/143: SIGINT/SIGTERM.

  python prepare_data.py                          the 1M tier
  python prepare_data.py --src BEAM/chats/100K    from a checkout of the release: the tag 128k
  python prepare_data.py --tokenizer hub          the vocabulary of Kimi-K2.6
  python prepare_data.py --check                  verify what is installed
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Sequence
from pathlib import Path

from beam_common.cli import Parser, comma_list
from beam_common.command import command, run, started_by
from beam_common.download import MIRROR, blob_id, fetch_all, release_files
from beam_common.files import write_whole
from beam_common.messages import UsageError, one_line, say
from beam_common.pair import digest_of, read_pair, write_pair
from beam_common.prompts import OFFICIAL_PATH, OFFICIAL_SHA256
from beam_common.release import (
    CHAT,
    QUESTIONS,
    TIERS,
    TRUNCATED_CHAT,
    pair_of,
    read_content,
    recorded,
    tag_hint,
    tag_of,
)
from beam_common.rows import DATA_DIR, TOKENIZER_DIR, Json
from beam_common.tokens import VOCABULARY_FILE, BundledCounter

PROMPT_SOURCE = "src/prompts.py"  # of the release
PROMPT_NAME = "unified_llm_judge_base_prompt"  # in it
PROMPT_FILE = OFFICIAL_PATH.name


# ------------------------------------------------------------------------------------------------
# The chats.


def download(args: argparse.Namespace, tag: str) -> Path:
    """Fetch the files of a tier and of the judge prompt; the tier's directory."""
    tier, blobs = f"chats/{TIERS[tag]}", release_files()
    files = {
        path: blob
        for path, blob in blobs.items()
        if path.startswith(f"{tier}/")
        and (args.prefer_truncated or TRUNCATED_CHAT not in path)
        and (not args.chats or path.split("/")[2] in args.chats)
    }
    files[PROMPT_SOURCE] = blobs[PROMPT_SOURCE]
    cache = Path(args.out_dir, ".download")
    fetch_all(files, args.mirror, cache)
    return cache / tier


def chats_in(folder: Path) -> list[str]:
    """The chats of a tier directory; folders that are no number are left out with a word."""
    names = [path.name for path in folder.glob("*/")]
    chats = list(filter(str.isdecimal, names))
    if not chats:
        raise UsageError(
            f"{folder} holds no folders named by number; --src takes a tier directory such as "
            "BEAM/chats/1M"
        )
    if others := sorted({*names} - {*chats}):
        say(f"note: left out of {folder}, being no numbers: {', '.join(others)}")
    return chats


def chat_files(folder: Path, args: argparse.Namespace) -> list[Path]:
    """The file of each chat in numeric order; one that lacks it or its questions is an error, or
    left out."""
    complete, lacking = [], []
    for chat in sorted(sorted({*(args.chats or chats_in(folder))}), key=len):
        path = folder / chat / TRUNCATED_CHAT
        if not args.prefer_truncated or not path.exists():
            path = folder / chat / CHAT
        absent = [file for file in (path, folder / chat / QUESTIONS) if not file.exists()]
        lacking += [str(file.relative_to(folder)) for file in absent]
        complete += [] if absent else [path]
    if lacking:
        problem = f"{folder} lacks {one_line(', '.join(lacking))}"
        if not (complete and args.allow_missing):
            raise UsageError(f"{problem}; complete it; --allow-missing leaves out incomplete chats")
        say(f"warning: {problem}; such chats are left out")
    return complete


# ------------------------------------------------------------------------------------------------
# The judge prompt and the vocabulary.


def install(path: Path, content: bytes) -> None:
    write_whole(path, lambda file: file.write(content))
    print(f"installed {path}")


def judge_prompt(path: Path) -> str:
    """The authors' prompt, read as a literal from their source; none of it is executed."""
    content = read_content(path)
    if blob_id(path) != release_files()[PROMPT_SOURCE]:
        raise UsageError(f"{path} is not the release's")
    value = next(
        node.value
        for node in ast.walk(ast.parse(content))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == PROMPT_NAME
    )
    return str(ast.literal_eval(value))


def install_prompt(source: Path, target: Path) -> None:
    """Install the judge prompt, or say why not: the data can be used without it."""
    try:
        install(target, judge_prompt(source).encode())
    except UsageError as error:
        if not target.exists():
            say(
                f"warning: the authors' judge prompt is not installed: {error}; download it with "
                f"`{started_by('prepare_data.py')} --tag 128k`, or judge with --criterion-prompt "
                "builtin"
            )


def install_vocabulary(source: str) -> None:
    """Install the vocabulary from a file, its folder or the hub, once it is known right."""
    try:
        if source == "hub":
            from huggingface_hub import hf_hub_download

            source = hf_hub_download("moonshotai/Kimi-K2.6", VOCABULARY_FILE)
    except Exception as error:  # the library and those below it raise whatever they like
        raise UsageError(
            f"--tokenizer hub: {one_line(str(error), 200)}; check network, proxy and HF_ENDPOINT, "
            f"or fetch {VOCABULARY_FILE} elsewhere and pass its path"
        ) from error
    path = Path(source, VOCABULARY_FILE) if Path(source).is_dir() else Path(source)
    install(TOKENIZER_DIR / VOCABULARY_FILE, BundledCounter(path, TOKENIZER_DIR).read())


# ------------------------------------------------------------------------------------------------
# Comparing with what is recorded.


def report(name: str, found: Json, expected: Json) -> bool:
    """Print how digests compare with what is recorded; False where one differs."""
    fine = True
    for part, digest in found.items():
        known = expected.get(part, {})
        verdict = "ok" if "sha256" in known else "no digest is recorded"
        if not known.items() <= digest.items():
            verdict, fine = f"differs from {json.dumps(known)}", False
        print(f"{name} {part}: {verdict}: {json.dumps(digest)}")
    return fine


def compare(name: str, paths: Sequence[Path], expected: Json) -> bool | None:
    """Report on a pair or on one file; whether it is right, None where nothing is installed."""
    if not any(path.exists() for path in paths):
        print(f"{name}: not installed")
        return None
    try:
        found = read_pair(*paths) if len(paths) > 1 else {"file": digest_of(*paths)}
        return report(name, found, expected)
    except UsageError as error:
        print(f"{name}: differs: {error}")
        return False


def check(folder: Path, tag: str) -> int:
    """Report on all that is installed, or on one tag, which has to be; the exit code."""
    tags, kimi = recorded()["tags"], BundledCounter(folder=TOKENIZER_DIR)
    names = [tag] if tag else tags
    found = [compare(name, pair_of(folder, name), tags.get(name, {})) for name in names]
    if not tag:
        prompt = {"file": {"sha256": OFFICIAL_SHA256}}
        vocabulary = {"file": {"sha256": kimi.sha256}}
        found.append(compare("judge prompt", [folder / PROMPT_FILE], prompt))
        found.append(compare("vocabulary", [TOKENIZER_DIR / VOCABULARY_FILE], vocabulary))
    return 1 if False in found or found == [None] else 0


# ------------------------------------------------------------------------------------------------
# The command.


def parser() -> Parser:
    p = Parser(__doc__, "prepare_data.py")
    add = p.flag
    add("--tag", str, None, "TAG", "name of the output pair, and the tier to download: "
        f"{', '.join(TIERS)} (default: from --src's folder name, else 1m)")  # fmt: skip
    add("--src", Path, None, "DIR", "a tier directory of a BEAM checkout, e.g. BEAM/chats/1M "
        "(default: download)")  # fmt: skip
    add("--out-dir", Path, DATA_DIR, "DIR", "where the files go (default: data/ next to the "
        "script)")  # fmt: skip
    p.switch("--prefer-truncated", "use chat_trunecated.json where a chat has one, as the authors' "
             "answer generation does; the published benchmark files use chat.json")  # fmt: skip
    add("--chats", comma_list, None, "IDS", "comma-separated chat ids (default: all)")
    p.switch("--allow-missing", "leave out chats that lack their chat or their questions")
    add("--tokenizer", str, None, "SRC", "install the Kimi vocabulary from a file or folder, or "
        "hub for the official release; alone, only that")  # fmt: skip
    add("--mirror", str, MIRROR, "URL", "where downloads come from: <URL>/chats/1M/… (default: the "
        "release's public host)")  # fmt: skip
    p.switch("--check", "verify the installed data, prompt and vocabulary")
    return p


def prepare(args: argparse.Namespace, tag: str) -> None:
    """Make the pair, read it back, and install the judge prompt."""
    if not args.src and tag not in TIERS:
        raise UsageError(f"--tag {tag} is no tier of the release and needs --src; {tag_hint(tag)}")
    args.out_dir.mkdir(parents=True, exist_ok=True)
    folder = args.src or download(args, tag)
    write_pair(args.out_dir, tag, chat_files(folder, args))
    pair = pair_of(args.out_dir, tag)
    print("wrote", *pair)
    report(tag, read_pair(*pair), recorded()["tags"].get(tag, {}))
    install_prompt(folder.resolve().parent.parent / PROMPT_SOURCE, args.out_dir / PROMPT_FILE)


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    tag = tag_of(args.tag or (args.src.resolve().name if args.src else ""))
    try:
        if args.tokenizer:
            install_vocabulary(args.tokenizer)
        if args.check:
            return check(args.out_dir, tag)
        if tag or not args.tokenizer:
            prepare(args, tag or "1m")
    except BrokenPipeError:
        raise
    except OSError as error:
        place = error.filename or args.out_dir
        raise UsageError(f"{place}: {error.strerror}; no file was left half-made") from error
    return 0


if __name__ == "__main__":
    run(main)
