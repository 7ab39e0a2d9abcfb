"""Finds private words of this project in source and pages: `python tests/house/words.py [PATH ...]`, all by default."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("words.yaml")
PLACES = ("src", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples")
SUFFIXES = (".py", ".md", ".yaml", ".txt", ".html", ".toml")


@dataclass(frozen=True)
class Word:
    """A private word and what to write instead."""

    pattern: re.Pattern[str]
    write: str
    allowed: tuple[str, ...]


def bounded(pattern: str) -> re.Pattern[str]:
    """Return the pattern between letters' ends, without regard to case; an underscore ends a word."""
    return re.compile(rf"(?<![A-Za-z])(?:{pattern})(?![A-Za-z])", re.IGNORECASE)


@cache
def words() -> tuple[Word, ...]:
    """Return the list of `words.yaml`."""
    entries = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return tuple(
        Word(
            pattern=bounded(entry["pattern"]),
            write=entry["write"],
            allowed=tuple(entry.get("except", ())),
        )
        for entry in entries
    )


@cache
def any_word() -> re.Pattern[str]:
    """Return a pattern that finds any of the words, to pass over most lines quickly."""
    entries = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return bounded("|".join(entry["pattern"] for entry in entries))


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, the word, what to write instead)."""
    for number, line in enumerate(text.splitlines(), start=1):
        # Names in CamelCase are split, so that `ToldRun` is found.
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", line)
        if not any_word().search(spaced):
            continue
        for word in words():
            for match in word.pattern.finditer(spaced):
                if not any(phrase in spaced for phrase in word.allowed):
                    yield number, match.group(), word.write


def files(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the text files below these places."""
    for place in places:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and ".egg-info" not in str(path):
                yield path


def main() -> int:
    """Print `file:line: word -> what to write` for each match; exit 1 if there is one."""
    places = [Path(name).resolve() for name in sys.argv[1:]] or [ROOT / name for name in PLACES]
    count = 0
    for path in files(places):
        for number, word, write in found_in(path.read_text(encoding="utf-8")):
            count += 1
            print(f"{path.relative_to(ROOT)}:{number}: {word!r} -> {write}")
    print(f"{count} private words")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
