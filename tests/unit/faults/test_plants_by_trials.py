"""The measure of trials: which lines reach a plant, which trials are asked about it, and what counts as seen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SOURCE = '''\
LIMIT = 3


def first(values, limit=2):
    """Return some."""
    if not values:
        return []
    else:
        kept = [
            value
            for value in values
        ]
    return kept[:limit]


def second(values):
    return values[:LIMIT]
'''


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[ModuleType, ModuleType]]:
    sys.path.insert(0, str(BENCHMARKS))
    import executed_lines  # type: ignore[import-not-found]
    import plants_by_trials  # type: ignore[import-not-found]

    yield executed_lines, plants_by_trials
    sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("LIMIT = 3", "LIMIT = 4", {17}),  # a constant: where it is read
        ("limit=2", "limit=1", {6, 7, 9, 10, 11, 13}),  # a default: the body
        ("return kept[:limit]", "return kept", {13}),
        ("for value in values\n", "for value in values[1:]\n", {11}),
        ("    return kept", "    kept.pop()\n    return kept", {9, 10, 11}),  # inserted: the statement before
        ("            value\n", "            value + 1\n", {10}),
    ],
)
def test_a_change_is_reached_by_its_lines(
    scripts: tuple[ModuleType, ModuleType], old: str, new: str, lines: set[int]
) -> None:
    assert SOURCE.count(old) == 1
    assert scripts[0].changed_lines(SOURCE, SOURCE.replace(old, new)) == lines


def test_processes_record_their_lines(
    scripts: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, folder = tmp_path / "package", tmp_path / "lines"
    package.mkdir()
    folder.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text(SOURCE)
    (tmp_path / "watching").mkdir()
    (tmp_path / "watching/observer.py").write_text(
        "from package.part import first\n\n\ndef watch():\n    first([1])\n    yield\n    first([1])\n"
    )
    monkeypatch.setattr(scripts[0], "OBSERVERS", tmp_path / "watching")
    monkeypatch.setattr(scripts[0], "PACKAGE", package)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # What the observer calls does not count. A forked child is killed before it ends, and what it did is recorded.
    program = (
        "import os, signal\nfrom package.part import first, second\nimport watching.observer as observer\n"
        "watch = observer.watch()\nnext(watch)\nfirst([])\n[*watch]\nchild = os.fork()\n"
        "if not child:\n    second([1])\n    os.kill(os.getpid(), signal.SIGKILL)\nos.waitpid(child, 0)"
    )
    subprocess.run(
        [sys.executable, "-P", "-c", program], env=scripts[0].recording(folder), check=True, timeout=60
    )
    lines = scripts[0].read_lines(folder)
    assert lines == {"part.py": [1, 4, 6, 7, 16, 17]}
    assert scripts[0].executes(lines, {"part.py": [13, 17]})
    assert not scripts[0].executes(lines, {"part.py": [9], "other.py": [17]})


def test_the_lowest_level_and_the_chosen_trial_are_asked(scripts: tuple[ModuleType, ModuleType]) -> None:
    measure = scripts[1]
    Run, Said, Known = measure.Run, measure.Said, measure.Known
    levels = {"a": 0, "b": 1, "c": 1, "d": 2, "e": 1}
    option = Run("d", ("x=1",))
    refused = Run("d", ("y=1",))
    said = {Run(name).key: Said("pass") for name in "abcd"}
    said |= {Run("e").key: Said("blocked"), option.key: Said("fail", "", ["z"]), refused.key: Said("blocked")}
    lines = {Run(name).key: {"m.py": [1, 2] if name != "a" else [1]} for name in levels}
    known = Known(said, lines)
    wanted = {"m.py": [2]}
    runs = measure.runs_for(wanted, option, levels, known)
    assert runs == [Run("b"), Run("c"), option]
    assert measure.runs_for(wanted, refused, levels, known) == [Run("b"), Run("c"), Run("d")]
    assert measure.runs_for({"n.py": [2]}, None, levels, known) == []

    assert measure.conclude("p", wanted, runs, known) is None  # not measured yet
    for run in runs:
        known.said[run._replace(fault="p").key] = Said("fail", "z: why", ["z"])
    del known.lines[Run("c").key]
    known.said[Run("c", (), "p").key] = Said("late")
    found = measure.conclude("p", wanted, runs, known)
    # The sound stack fails `z` as well under the option, so that it does not count there.
    assert found["seen"] and found["executed"] and [*found["by"]] == ["b"]
    assert found["trials"] == {"b": "fail", "c": "late", "d x=1": "fail"}
    unreached = measure.conclude("p", {"n.py": [1]}, runs[1:], known)
    assert not unreached["executed"] and not unreached["seen"]
    words = measure.summary({"p": found, "q": unreached}, ["p", "q", "r"])
    assert words.startswith("1 of 1 ") and "of 1 that none was recorded executing, 0; 1 not measured" in words


def test_what_is_measured_is_kept_for_these_sources(
    scripts: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    lines, measure = scripts
    output = tmp_path / "seen.json"
    run = measure.Run("a", ("x=1",))
    output.write_text(json.dumps({"runs": {run.key: {"outcome": "pass", "failed": []}}, "plants": {}}))
    record = {"sources": lines.digest_of_sources(), "lines": {run.key: {"m.py": [1]}}}
    measure.lines_file(output).write_text(json.dumps(record))
    known = measure.read_known(output)
    assert known.ran(run) and not known.ran(measure.Run("a")) and known.lines == record["lines"]
    # After the time is up nothing begins.
    assert measure.perform(run, seconds=1.0, until=0.0) is None
    measure.lines_file(output).write_text(json.dumps({**record, "sources": "others"}))
    with pytest.raises(Exception, match="refrl has changed since"):
        measure.read_known(output)
