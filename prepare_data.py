"""Turns the BEAM release into the two files that the benchmark reads, and installs the tokenizer's vocabulary.

In:  a tier directory of the release (--src), or the release's public host: each file is then fetched once into
     <out-dir>/.download, verified by its git blob id, and taken from there.
Out: beam_<tag>_chats.jsonl.gz and beam_<tag>_questions.jsonl in --out-dir. Both are read back and checked before
     they replace earlier ones; they appear whole, as a pair, or not at all. The same input gives the same bytes.
     Afterwards <out-dir>/.download may be deleted.

An interrupted download goes on where it was: start the same command again.

    python prepare_data.py                                      the 1M tier
    python prepare_data.py --tag 128k --src BEAM/chats/100K     from a checkout of the release
    python prepare_data.py --tokenizer hub                      the vocabulary of Kimi-K2.6
    python prepare_data.py --check                              verify what is installed

Exit codes: 0 done; 1 a download stopped (start again to go on), or --check found a difference; 2 bad usage or input;
130/143 signal.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from beam_cli import Parser, comma_list, command, shown_address, shown_url, started_by
from beam_common import DATA_DIR, TOKENIZER_DIR, UsageError, keep_secret, one_line, plural, say, write_whole
from beam_download import MANIFEST, MIRROR, fetch_all, files_for, foreign, read_manifest
from beam_pair import Content, Pair, differing, read_pair, write_pair
from beam_release import TIERS, ChatFiles, chat_ids, choose, complete_chats, numeric

DIGESTS = DATA_DIR / "digests.json"
VOCABULARY = "tiktoken.model"
HUB_REPOSITORY = "moonshotai/Kimi-K2.6"
SELECTION_NOTE = "a selection made with --chats, --prefer-truncated or --allow-missing differs for that reason"
MOST_NAMED = 5  # files that are not the release's


# ---------------------------------------------------------------------------------------------------------------
# The vocabulary.


def install_vocabulary(source: str, folder: Path) -> Path:
    """Put `tiktoken.model` from a file, a folder or the hub beside the manifest in `folder`, once it is known right."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    path = _from_hub() if source == "hub" else Path(source) / VOCABULARY if Path(source).is_dir() else Path(source)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"--tokenizer {path}: {error.strerror}; name {VOCABULARY}, its folder, or hub") from error
    problem = vocabulary_problem(content, manifest)
    if problem:
        raise UsageError(f"{path} is not the vocabulary of Kimi-K2.6: {problem}; nothing was installed")
    target = folder / VOCABULARY

    def write(file: BinaryIO) -> None:
        file.write(content)

    try:
        write_whole(target, write)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}") from error
    return target


def vocabulary_problem(content: bytes, manifest: dict[str, Any]) -> str:
    """What keeps `content` from being the vocabulary that the manifest describes; empty when nothing does."""
    found = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return "; ".join(differing({name: manifest[name] for name in found}, found))


def _from_hub() -> Path:
    try:
        import httpx2
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, XetDownloadError
    except ImportError as error:
        raise UsageError(f"--tokenizer hub: {error}; pip install -r requirements.txt first") from error
    try:
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries fill the screen
        say(f"fetching {VOCABULARY} of {HUB_REPOSITORY} from {shown_url(constants.ENDPOINT)}")
        return Path(hf_hub_download(HUB_REPOSITORY, VOCABULARY))
    except (OSError, ValueError, ImportError, httpx2.HTTPError, httpx2.InvalidURL, EntryNotFoundError,
            XetDownloadError) as error:  # fmt: skip  # ImportError: a SOCKS proxy without its package
        cause = error.__cause__ or error  # what lies behind "check your connection"
        raise UsageError(
            f"--tokenizer hub: {one_line(str(cause) or type(cause).__name__, 200)}; check network, proxy, HF_ENDPOINT, "
            f"or fetch {VOCABULARY} of {HUB_REPOSITORY} elsewhere and pass its path"
        ) from error


# ---------------------------------------------------------------------------------------------------------------
# Checking.


def check(tags: Sequence[str], folder: Path, tokenizer: Path, named: bool) -> int:
    """Print a line for each file; returns 0 when all that is installed is right (and there, if a tag was `named`)."""
    recorded = json.loads(DIGESTS.read_bytes())["tags"]
    fine = True
    for tag in tags:
        pair = Pair.of(folder, tag)
        missing = [path.name for path in (pair.chats, pair.questions) if not path.exists()]
        if len(missing) == 2:
            print(f"{tag}: not installed")
            fine &= not named
        elif missing:
            print(f"{tag}: differs: {missing[0]} is missing")
            fine = False
        else:
            fine &= _check_pair(tag, pair, recorded.get(tag, {}))
    return 0 if _check_vocabulary(tokenizer) and fine else 1


def _check_pair(tag: str, pair: Pair, recorded: dict[str, Any]) -> bool:
    try:
        content = read_pair(pair)
    except UsageError as error:
        print(f"{tag}: differs: {error}")
        return False
    sizes = {"chats": sizes_of_chats(content), "questions": plural(content.questions_digest["lines"], "question")}
    fine = not content.problems
    for name, found in (("chats", content.chats_digest), ("questions", content.questions_digest)):
        expected = recorded.get(name, {})
        differences = differing(expected, found)
        fine &= not differences
        if differences:
            print(f"{tag} {name}: differs: {'; '.join(differences)} ({SELECTION_NOTE})")
        elif not expected.get("sha256"):
            print(f"{tag} {name}: ok as far as is known: {sizes[name]}; SHA-256 {found['sha256']}, none is recorded")
        else:
            print(f"{tag} {name}: ok: {sizes[name]}")
    for problem in content.problems[:10]:
        print(f"{tag}: differs: {problem}")
    return fine


def _check_vocabulary(folder: Path) -> bool:
    path = folder / VOCABULARY
    if not path.exists():
        print("vocabulary: not installed")
        return True
    manifest = json.loads((folder / "manifest.json").read_bytes())
    try:
        problem = vocabulary_problem(path.read_bytes(), manifest)
    except OSError as error:
        problem = f"{path}: {error.strerror}"
    print(f"vocabulary: differs: {problem}" if problem else f"vocabulary: ok: {manifest['tokens']:,} tokens")
    return not problem


def sizes_of_chats(content: Content) -> str:
    return f"{plural(content.chats_digest['number'], 'chat')}, {plural(content.chats_digest['messages'], 'message')}"


# ---------------------------------------------------------------------------------------------------------------
# The command.


def parser() -> argparse.ArgumentParser:
    flags = Parser(__doc__, prog="prepare_data.py")
    add = flags.add_argument
    add("--tag", help=f"name of the output pair, and the tier to download: {', '.join(TIERS)} (default: 1m)")
    add("--src", type=Path, metavar="DIR", help="a tier directory of a BEAM checkout, e.g. BEAM/chats/1M "
        "(default: download)")  # fmt: skip
    add("--out-dir", type=Path, metavar="DIR", default=DATA_DIR, help="where the pair goes (default: data/ next to the "
        "script)")  # fmt: skip
    add("--prefer-truncated", action="store_true", help="use chat_trunecated.json where a chat has one, as the "
        "authors' answer generation does; the published benchmark files use chat.json")  # fmt: skip
    add("--chats", type=comma_list, metavar="IDS", help="comma-separated chat ids (default: all)")
    add("--allow-missing", action="store_true", help="leave out chats whose directory lacks the chat or the questions, "
        "or for which the server says 404")  # fmt: skip
    add("--tokenizer", metavar="SRC", help="install the Kimi vocabulary from a file or folder, or `hub` for the "
        "official release; alone, only that; with --tag or --src, the data too")  # fmt: skip
    add("--mirror", metavar="URL", default=MIRROR, help="where downloads come from: <URL>/chats/1M/… (default: "
        "the release's own host)")  # fmt: skip
    add("--check", action="store_true", help="verify the installed data and vocabulary against the recorded digests "
        "and counts")  # fmt: skip
    return flags


def sources(args: argparse.Namespace, tag: str) -> list[ChatFiles]:
    """The files of the chats to prepare, downloaded if need be."""
    if args.src:
        folder = args.src
        chats = choose(chat_ids(folder), args.chats, str(folder))
        tier = {name: other for other, name in TIERS.items()}.get(folder.resolve().name, tag)
        if tier != tag and tag in TIERS:
            say(f"warning: {folder} is the tier of --tag {tier}, but the files will be named {tag}")
        found = complete_chats(folder, chats, args.prefer_truncated, args.allow_missing)
        warn_of_foreign(found, folder)
        return found
    else:
        release = read_manifest(MANIFEST, TIERS[tag])
        chats = choose(sorted({file.chat_id for file in release}, key=numeric), args.chats, f"the {tag} tier")
        cache = args.out_dir / ".download"
        fetch_all(files_for(release, chats, args.prefer_truncated), args.mirror, cache, args.allow_missing)
        folder = cache / "chats" / TIERS[tag]
    return complete_chats(folder, chats, args.prefer_truncated, args.allow_missing)


def warn_of_foreign(chats: Sequence[ChatFiles], folder: Path) -> None:
    """Name the files of a tier directory whose content is not the release's; a tier is known by its folder's name."""
    tier = folder.resolve().name
    listed = {file.path: file for file in read_manifest(MANIFEST, tier)}
    warnings = []
    for path in (path for files in chats for path in (files.chat, files.questions)):
        name = path.relative_to(folder).as_posix()
        file = listed.get(f"chats/{tier}/{name}")
        if file and (difference := foreign(file, path)):
            warnings.append(f"{name} is not the release's file ({difference})")
    for warning in warnings[:MOST_NAMED]:
        say(f"warning: {warning}")
    if len(warnings) > MOST_NAMED:
        say(f"warning: and {len(warnings) - MOST_NAMED:,} more")


@contextmanager
def only_process_in(folder: Path) -> Iterator[None]:
    """Refuse to work in a folder in which another process prepares data; the kernel's lock dies with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another prepare_data.py is at work in {folder}; wait for it, or use another --out-dir"
            ) from None
        except OSError as error:
            say(f"warning: {folder}: no lock to be had here ({error.strerror}); start no second prepare_data.py on it")
        yield
    finally:
        os.close(fd)


def prepare(args: argparse.Namespace, tag: str) -> None:
    """Make the pair and print what was made and what to do next."""
    pair = Pair.of(args.out_dir, tag)
    try:
        with only_process_in(args.out_dir):
            content = write_pair(pair, sources(args, tag))
    except OSError as error:
        problem = f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
        raise UsageError(f"--out-dir {args.out_dir} cannot be written: {problem}; nothing was installed") from error
    chats, questions = content.chats_digest, content.questions_digest
    packed = pair.chats.stat().st_size
    print(f"wrote {pair.chats}: {sizes_of_chats(content)}, {packed:,} bytes ({chats['bytes']:,} unpacked)")
    print(f"wrote {pair.questions}: {plural(questions['lines'], 'question')}, {questions['bytes']:,} bytes")
    recorded = json.loads(DIGESTS.read_bytes())["tags"].get(tag)
    if recorded:
        differs = differing(recorded["chats"], chats) + differing(recorded["questions"], questions)
        print(f"not the recorded {tag} files: {reason(args)}" if differs else f"they are the recorded {tag} files")
    here = args.out_dir.resolve() == DATA_DIR
    paths = (shlex.quote(str(path)) for path in (pair.chats, pair.questions))
    files = f"--tag {tag}" if here else "--chats-file {} --questions-file {}".format(*paths)
    print(f"next: {started_by('beam_generate.py')} --dry-run {files}")
    if chats["bytes"] > 1_000_000 and not (TOKENIZER_DIR / VOCABULARY).exists():
        print(
            f"before that, for chats this long: {started_by('prepare_data.py')} --tokenizer hub (or a local file instead "
            "of hub)"
        )


def reason(args: argparse.Namespace) -> str:
    """Why the files made are not the recorded ones, as far as the command line tells."""
    selection = {
        "--chats": args.chats,
        "--prefer-truncated": args.prefer_truncated,
        "--allow-missing": args.allow_missing,
    }
    used = [flag for flag, value in selection.items() if value]
    return f"a selection made with {' and '.join(used)} differs for that reason" if used else "--check says in what"


def refuse_misuse(args: argparse.Namespace, tag: str) -> None:
    """Raise UsageError for flags that say nothing sensible, or not together."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", tag):
        raise UsageError(
            f"--tag {one_line(tag, 40)!r} becomes part of a file name: only letters, digits, '.', '_', '-'"
        )
    if args.check and (args.src or args.tokenizer):
        raise UsageError("--check verifies what is installed; --src and --tokenizer install: give one or the other")
    alone = args.tokenizer is not None and not args.tag and not args.src
    if alone and (args.chats is not None or args.prefer_truncated or args.allow_missing):
        raise UsageError("--tokenizer alone installs only the vocabulary; for the data too, add --tag or --src")
    shipped = tag == "sample" and args.out_dir.resolve() == DATA_DIR
    if shipped and args.src and args.src.resolve() != DATA_DIR / "sample":
        raise UsageError("--tag sample would replace the sample that comes with the programs; name another --tag")
    if not args.check and not args.src and tag not in TIERS:
        raise UsageError(f"--tag {tag} is none of the release's ({', '.join(TIERS)}); another name needs --src")
    _refuse_mirror(args.mirror)


def _refuse_mirror(text: str) -> None:
    """Raise UsageError for what is no URL to which a path can be added; a password in it is kept off the screen."""
    try:
        mirror = urlsplit(text)
        usable = mirror.scheme in ("http", "https") and mirror.hostname
    except ValueError:
        usable = None
    if not usable:
        raise UsageError(
            f"--mirror {shown_address(text)!r} is no URL; a path is added to one such as https://host/BEAM"
        )
    if mirror.password:
        keep_secret(mirror.password)
    if "?" in text or "#" in text:
        raise UsageError(
            f"--mirror {shown_url(text)} has a query or a fragment, but a path is added to it: leave it out"
        )


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    tag = args.tag or "1m"
    refuse_misuse(args, tag)
    if args.check:
        known = [args.tag] if args.tag else list(json.loads(DIGESTS.read_bytes())["tags"])
        return check(known, args.out_dir, TOKENIZER_DIR, named=bool(args.tag))
    if args.tokenizer is not None:
        print(f"installed {install_vocabulary(args.tokenizer, TOKENIZER_DIR)}")
    if args.tokenizer is None or args.tag or args.src:
        prepare(args, tag)
    return 0


if __name__ == "__main__":
    sys.exit(main())
