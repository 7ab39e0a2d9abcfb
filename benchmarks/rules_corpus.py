"""Checks the list of public logs that were labelled by reading them, and takes the logs out of clones.

    python benchmarks/rules_corpus.py                                 # check the list, print labels by half
    python benchmarks/rules_corpus.py --fetch CLONES --into FOLDER    # write FOLDER/ID/NAME for each log

The list is `rules_corpus.yaml`; no log is kept here. CLONES holds the repositories, each as OWNER/NAME or OWNER+NAME, a
plain clone or a bare one (`git clone https://github.com/OWNER/NAME CLONES/OWNER/NAME`). A log that no clone has, or
whose size differs, is named, and the script exits 1. `--half tuning` takes only the half that rules are set on; the
held-out half is measured once, at the end. `--list` takes another list of the same fields, all of it held out.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

LIST = Path(__file__).with_suffix(".yaml")
HALVES = ("tuning", "held-out")
LABELS = (
    "healthy, learns",
    "healthy, solved",
    "stuck",
    "at the limit",
    "length runs away",
    "collapsed",
    "exploded",
    "saturated",
    "hacked",
    "cannot say",
)


def digest(repository: str, path: str) -> str:
    """Return the sha256 that names a log and decides its half."""
    return hashlib.sha256(f"{repository}/{path}".encode()).hexdigest()


def half(repository: str, path: str) -> str:
    """Return the half of a log: tuning if the first hex digit is 0 to 7."""
    return HALVES[digest(repository, path)[0] not in "01234567"]


def load(path: Path = LIST) -> list[dict[str, Any]]:
    """Return the labelled logs of a list."""
    logs: list[dict[str, Any]] = yaml.safe_load(path.read_text())["logs"]
    return logs


def faults(logs: list[dict[str, Any]], *, split: bool = True) -> list[str]:
    """Return what is wrong with a list: ids, halves, labels, doubles; one that is not split is held out whole."""
    found = []
    for log in logs:
        name = f"{log['repository']}/{log['path']}"
        if log["id"] != digest(log["repository"], log["path"])[:10]:
            found.append(f"{name}: the id is not the hash")
        if log["half"] != (half(log["repository"], log["path"]) if split else HALVES[1]):
            found.append(f"{name}: the wrong half")
        if log["label"] not in LABELS or log.get("also", LABELS[0]) not in LABELS:
            found.append(f"{name}: an unknown label")
    ids = Counter(log["id"] for log in logs)
    return found + [f"{name}: listed {count} times" for name, count in ids.items() if count > 1]


def read_blob(clones: Path, log: dict[str, Any]) -> bytes | None:
    """Return a log's bytes at its commit, or None where no clone has them."""
    repository = log["repository"]
    names = (repository, repository.replace("/", "+"))
    for folder in (clones / name / inner for name in names for inner in ("", "repo")):
        if not folder.is_dir():
            continue
        command = ["git", "-C", str(folder), "cat-file", "blob", f"{log['commit']}:{log['path']}"]
        ran = subprocess.run(command, capture_output=True, check=False)
        if ran.returncode == 0:
            return ran.stdout
    return None


def fetch(logs: list[dict[str, Any]], clones: Path, into: Path) -> list[str]:
    """Write the logs below a folder and return what could not be had."""
    missing = []
    for log in logs:
        content = read_blob(clones, log)
        if content is None or len(content) != log["size"]:
            missing.append(f"{log['repository']}/{log['path']} at {log['commit']}")
            continue
        target = into / log["id"] / PurePosixPath(log["path"]).name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return missing


def main() -> int:
    """Check the list and take the logs if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", type=Path, metavar="CLONES", help="folder of clones to take the logs from")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where to write them")
    parser.add_argument("--half", choices=HALVES, help="only this half")
    parser.add_argument("--list", type=Path, default=LIST, help="another list, all of it held out")
    options = parser.parse_args()
    if (options.fetch is None) != (options.into is None):
        parser.error("--fetch and --into go together")
    logs = load(options.list)
    problems = faults(logs, split=options.list == LIST)
    chosen = [log for log in logs if options.half in (None, log["half"])]
    if options.fetch is not None:
        problems += fetch(chosen, options.fetch, options.into)
    counts = Counter((log["label"], log["half"]) for log in chosen)
    for label in LABELS:
        print(f"{label:18}" + "".join(f"{counts[label, name]:5} {name}" for name in HALVES))
    print(f"{len(chosen)} logs of {len({log['repository'] for log in chosen})} repositories")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
