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
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beam_common.cli import Parser, comma_list
from beam_common.command import command, run, started_by
from beam_common.download import MIRROR, blob_id, fetch_all, release_files
from beam_common.files import write_whole
from beam_common.messages import UsageError, one_line, say
from beam_common.release import (
    CHAT,
    QUESTIONS,
    TIERS,
    TRUNCATED_CHAT,
    nearest_tag,
    pair_of,
    read_content,
    read_pair,
    recorded,
    tag_of,
    write_pair,
)
from beam_common.rows import DATA_DIR, TOKENIZER_DIR

PROMPT_SOURCE = "src/prompts.py"  # of the release
PROMPT_NAME = "unified_llm_judge_base_prompt"  # in it
PROMPT_FILE = "official_criterion_prompt.txt"
VOCABULARY = "tiktoken.model"

Digests = Mapping[str, Mapping[str, Any]]  # of the parts of what is installed


# ------------------------------------------------------------------------------------------------
# The chats.


def download(args: argparse.Namespace, tag: str) -> Path:
    """Fetch the files of a tier and of the judge prompt; the tier's directory."""
    cache: Path = args.out_dir / ".download"
    tier = f"chats/{TIERS[tag]}"
    chats = "|".join(map(re.escape, args.chats or [])) or "[0-9]+"
    names = ".*" if args.prefer_truncated else f"(?!{TRUNCATED_CHAT}).*"
    wanted = re.compile(f"{tier}/({chats})/{names}|{PROMPT_SOURCE}")
    files = {path: blob for path, blob in release_files().items() if wanted.fullmatch(path)}
    if missing := fetch_all(files, args.mirror, cache):
        say(f"warning: {args.mirror} has no {one_line(', '.join(sorted(missing)))} (HTTP 404)")
    return cache / tier


def chats_in(folder: Path) -> list[str]:
    """The chats of a tier directory; folders that are no number are left out with a word."""
    names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
    chats = list(filter(str.isdecimal, names))
    if not chats:
        raise UsageError(
            f"{folder} holds no folders named by number; --src takes a tier directory such as "
            "BEAM/chats/1M"
        )
    if others := set(names) - set(chats):
        say(f"note: left out of {folder}, being no numbers: {one_line(', '.join(sorted(others)))}")
    return chats


def chat_files(folder: Path, args: argparse.Namespace) -> list[Path]:
    """The file of each chat in numeric order; one that lacks it or its questions is an error, or
    left out."""
    complete, lacking = [], []
    for chat in sorted(set(args.chats or chats_in(folder)), key=lambda name: (len(name), name)):
        path = folder / chat / TRUNCATED_CHAT
        if not args.prefer_truncated or not path.exists():
            path = folder / chat / CHAT
        absent = [file for file in (path, folder / chat / QUESTIONS) if not file.exists()]
        lacking += [str(file.relative_to(folder)) for file in absent]
        complete += [] if absent else [path]
    problem = f"{folder} lacks {one_line(', '.join(lacking))}"
    if lacking and not (complete and args.allow_missing):
        raise UsageError(f"{problem}; complete it; --allow-missing leaves out incomplete chats")
    if lacking:
        say(f"warning: {problem}; such chats are left out")
    return complete


# ------------------------------------------------------------------------------------------------
# The judge prompt and the vocabulary.


def digest_of(path: Path) -> Digests:
    content = read_content(path)
    sha256 = hashlib.sha256(content).hexdigest()
    return {"file": {"bytes": len(content), "sha256": sha256}}


def install(path: Path, content: bytes) -> None:
    try:
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    print(f"installed {path}")


def judge_prompt(path: Path) -> str:
    """The authors' prompt, read as a literal from their source; none of it is executed."""
    content = read_content(path)
    if blob_id(path) != release_files()[PROMPT_SOURCE]:
        raise UsageError(f"{path} is not the release's")
    assigned = [node for node in ast.parse(content).body if isinstance(node, ast.Assign)]
    values = {ast.unparse(node.targets[0]): node.value for node in assigned}
    return str(ast.literal_eval(values[PROMPT_NAME]))


def install_prompt(source: Path, target: Path) -> None:
    """Install the judge prompt, or say why not: the data can be used without it."""
    try:
        install(target, judge_prompt(source).encode())
    except UsageError as error:
        if not target.is_file() or digest_of(target) != recorded()["prompt"]:
            say(
                f"warning: the authors' judge prompt is not installed: {error}; download it with "
                f"`{started_by('prepare_data.py')} --tag 128k`, or judge with --criterion-prompt "
                "builtin"
            )


def install_vocabulary(source: str) -> None:
    """Install the vocabulary from a file, its folder or the hub, once it is known right."""
    path = Path(source)
    if source == "hub":
        path = _from_hub()
    elif path.is_dir():
        path = path / VOCABULARY
    if digest_of(path) != vocabulary_digest():
        raise UsageError(f"--tokenizer {path} is not the vocabulary of Kimi-K2.6; see tokenizer/")
    install(TOKENIZER_DIR / VOCABULARY, path.read_bytes())


def vocabulary_digest() -> Digests:
    manifest = json.loads((TOKENIZER_DIR / "manifest.json").read_bytes())
    return {"file": {name: manifest[name] for name in ("bytes", "sha256")}}


def _from_hub() -> Path:
    import httpx2
    from huggingface_hub import errors, hf_hub_download

    failures = (OSError, ValueError, ImportError, httpx2.HTTPError, errors.XetDownloadError)
    try:
        return Path(hf_hub_download("moonshotai/Kimi-K2.6", VOCABULARY))
    except failures as error:
        raise UsageError(
            f"--tokenizer hub: {one_line(str(error), 200)}; check network, proxy and HF_ENDPOINT, "
            f"or fetch {VOCABULARY} elsewhere and pass its path"
        ) from error


# ------------------------------------------------------------------------------------------------
# Comparing with what is recorded.


def in_words(digest: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in digest.items())


def report(name: str, found: Digests, expected: Digests) -> bool:
    """Print how digests compare with what is recorded; False where one differs."""
    fine = True
    for part, digest in found.items():
        known = expected.get(part, {})
        verdict = "ok" if "sha256" in known else "no digest is recorded"
        if known != {key: digest[key] for key in known}:
            fine = False
            verdict = f"differs from {in_words(known)}"
        print(f"{name} {part}: {verdict}: {in_words(digest)}")
    return fine


def check(folder: Path, tag: str) -> int:
    """Report on all that is installed, or on one tag, which has to be; the exit code."""
    known = recorded()
    files = {"judge prompt": folder / PROMPT_FILE, "vocabulary": TOKENIZER_DIR / VOCABULARY}
    digests = {"judge prompt": known["prompt"], "vocabulary": vocabulary_digest()}
    expected = {**known["tags"], **digests}
    fine = True
    for name in [tag] if tag else expected:
        paths = [files[name]] if name in files else pair_of(folder, name)
        try:
            if any(path.exists() for path in paths):
                found = digest_of(*paths) if name in files else read_pair(*paths)
                fine = report(name, found, expected.get(name, {})) and fine
            else:
                print(f"{name}: not installed")
                fine = fine and not tag
        except UsageError as error:
            print(f"{name}: differs: {error}")
            fine = False
    return 0 if fine else 1


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
    """Make the pair, and say what was made and what to do next."""
    try:
        args.out_dir.mkdir(parents=True, exist_ok=True)
        folder = args.src or download(args, tag)
        found = write_pair(args.out_dir, tag, chat_files(folder, args))
    except OSError as error:
        place = error.filename or args.out_dir
        raise UsageError(f"{place}: {error.strerror}; nothing was installed") from error
    chats, questions = map(str, pair_of(args.out_dir, tag))
    print(f"wrote {chats}\nwrote {questions}")
    report(tag, found, recorded()["tags"].get(tag, {}))
    install_prompt(folder.resolve().parent.parent / PROMPT_SOURCE, args.out_dir / PROMPT_FILE)
    files = ["--chats-file", chats, "--questions-file", questions]
    if args.out_dir.resolve() == DATA_DIR:
        files = ["--tag", tag]
    print(f"next: {started_by('beam_generate.py')} --dry-run {shlex.join(files)}")


def tag_for(args: argparse.Namespace) -> str:
    """The tag of the pair to make; UsageError for one that cannot be made."""
    tag = tag_of(args.tag or (args.src.resolve().name if args.src else "1m"))
    if not args.src and tag not in TIERS:
        near = nearest_tag(tag)
        hint = f"did you mean {near}?" if near in TIERS else "another name needs --src"
        raise UsageError(f"--tag {tag} is no tier of the release ({', '.join(TIERS)}); {hint}")
    return tag


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    args.mirror = args.mirror.rstrip("/")
    if not args.mirror.startswith(("http://", "https://")):
        raise UsageError(f"--mirror {one_line(args.mirror)} is no URL such as https://host/BEAM")
    if args.check and (args.src or args.tokenizer):
        raise UsageError("--check verifies what is installed; leave out --src and --tokenizer")
    if args.check:
        return check(args.out_dir, tag_of(args.tag or ""))
    if args.tokenizer:
        install_vocabulary(args.tokenizer)
    if not args.tokenizer or args.tag or args.src:
        prepare(args, tag_for(args))
    return 0


if __name__ == "__main__":
    run(main)
