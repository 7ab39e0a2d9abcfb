"""Audit `--affected` on a repository of your own: edits of single functions, and real commits.

    python benchmarks/affected_audit.py REPOSITORY PACKAGE [--edits 70] [--seed 1] [--commits 10] [--testmon]
        [--python PYTHON] [--path src] [--json FILE] [-- PYTEST-ARGUMENTS]

REPOSITORY is a git checkout, PACKAGE the folder of its code in it (`src/click`). It is cloned, never changed.
PYTHON has pytest and what the tests need, and pytest-testmon for the comparison.

An edit gives one function a new first statement. The truth is that of `affected_oracle.py`: the tests that ran the
function when each test file ran in a process of its own, or all of the file where it ran while the file was
collected. A commit is checked out after its parent was seeded. Its truth is twofold: tests whose outcome differs
between the two (recall), and tests that ran a function that it changed (precision).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import affected_oracle as oracle

SOURCE = Path(__file__).resolve().parents[1] / "src"
MAP = ".seatrial/affected.json"


@dataclass
class Score:
    """One edit or commit."""

    name: str
    truth: list[str]
    """Tests that ran what was edited; of a commit, also those whose outcome changed."""
    chosen: int
    missed: list[str]
    runs_at_import: bool = False
    """Of a commit: whether it changed more than bodies of functions, which every test runs that imports it."""
    testmon_chosen: int | None = None
    testmon_missed: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """How the tests of a repository are run."""

    python: str
    package: str
    path: str
    arguments: tuple[str, ...]

    def run(self, project: Path, *arguments: str, out: Path | None = None) -> dict[str, str | None]:
        """Run pytest in a project and return the outcome of each test that was selected."""
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("PYTEST_", "SEATRIAL_", "COV"))}
        folders = [str(project / self.path), str(SOURCE), str(Path(__file__).parent)]
        with tempfile.TemporaryDirectory() as folder:
            session = Path(folder, "session.json")
            done = subprocess.run(
                [
                    *(self.python, "-m", "pytest", "-p", "affected_oracle"),
                    *(*self.arguments, *arguments),
                ],
                cwd=project,
                env={
                    **kept,
                    "PYTHONPATH": os.pathsep.join(folders),
                    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                    "PYTHONHASHSEED": "0",
                    "PYTHONDONTWRITEBYTECODE": "",
                    oracle.SESSION_VARIABLE: str(session),
                    oracle.OUT_VARIABLE: str(out or folder),
                },
                capture_output=True,
                text=True,
                timeout=1800,
                check=False,
            )
            if not session.is_file():
                raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
            outcomes: dict[str, str | None] = json.loads(session.read_text())
            return outcomes

    def seed(self, project: Path) -> None:
        """Make the map, or raise if there is none."""
        self.run(project, "-p", "seatrial.pytest_plugin", "--affected")
        if not (project / MAP).is_file():
            raise RuntimeError("seeding left no map")

    def chosen(self, project: Path, *plugin: str) -> set[str]:
        """Return the tests that a selection would run."""
        return set(self.run(project, *plugin, "--collect-only"))

    def affected(self, project: Path) -> set[str]:
        """Return what `--affected` would run."""
        return self.chosen(project, "-p", "seatrial.pytest_plugin", "--affected")

    def testmon(self, project: Path) -> set[str]:
        """Return what testmon would run."""
        return self.chosen(project, "-p", "testmon.pytest_testmon", "--testmon")


def python_files(project: Path, package: str) -> list[Path]:
    """Return the files of a package."""
    return sorted((project / package).rglob("*.py"))


def truth_of(suite: Suite, project: Path, work: Path) -> dict[str, set[str]]:
    """Return the tests that run each function, from a process for every test file."""
    copy = Path(shutil.copytree(project, work / "oracle", symlinks=True))
    for file in python_files(copy, suite.package):
        oracle.rewrite(file, file.relative_to(copy).as_posix())
    found: dict[str, set[str]] = {}
    by_file: dict[str, set[str]] = {}
    # Some tests have the time of day in their parameters, and another name in every run.
    for nodeid in suite.chosen(project) & suite.chosen(project):
        by_file.setdefault(nodeid.partition("::")[0], set()).add(nodeid)
    for number, (path, tests) in enumerate(sorted(by_file.items())):
        out = work / f"ran{number}"
        out.mkdir()
        suite.run(copy, path, out=out)
        for name, ran in oracle.read(out).items():
            found.setdefault(name, set()).update(tests if oracle.AT_IMPORT in ran else ran & tests)
    return found


def score_edits(
    suite: Suite, project: Path, work: Path, count: int, seed: int, *, with_testmon: bool
) -> list[Score]:
    """Edit functions one at a time, drawn from all that any test runs."""
    truth = truth_of(suite, project, work)
    suite.seed(project)
    database = project / ".testmondata"
    if with_testmon:
        suite.run(project, "-p", "testmon.pytest_testmon", "--testmon")
        shutil.copy(database, work / "testmondata")
    names = sorted(name for name, tests in truth.items() if tests)
    scores = []
    for name in random.Random(seed).sample(names, min(count, len(names))):
        path, _, function = name.partition("::")
        file = project / path
        text = file.read_text()
        file.write_text(oracle.with_statement(text, {function}, "_edited = 1"))
        expected, chosen = truth[name], suite.affected(project)
        score = Score(name, sorted(expected), len(chosen), sorted(expected - chosen))
        if with_testmon:
            others = suite.testmon(project)
            score.testmon_chosen, score.testmon_missed = len(others), sorted(expected - others)
            shutil.copy(work / "testmondata", database)
        file.write_text(text)
        scores.append(score)
        print(_row(score), flush=True)
    return scores


def score_commits(suite: Suite, project: Path, work: Path, count: int) -> list[Score]:
    """Check out the last commits that changed the package, each after its parent was seeded."""
    log = _git(
        project, "log", "--no-merges", "--format=%H %s", "-n", str(count * 4), "--", f"{suite.package}/*.py"
    )
    scores: list[Score] = []
    for line in log.splitlines():
        commit, _, subject = line.partition(" ")
        parent = _git(project, "rev-parse", f"{commit}^").strip()
        _checkout(project, parent)
        before = {
            file.relative_to(project).as_posix(): file.read_text()
            for file in python_files(project, suite.package)
        }
        old = suite.run(project)
        shutil.rmtree(project / ".seatrial", ignore_errors=True)
        suite.seed(project)
        _checkout(project, commit)
        changed = _changed_functions(project, suite.package, before)
        new = suite.run(project)
        if not old or not new or not changed:
            continue
        chosen = suite.affected(project)
        # Names that hold the time of day are others in every run.
        new = {nodeid: new[nodeid] for nodeid in suite.chosen(project) & set(new)}
        differing = {nodeid for nodeid, outcome in new.items() if old.get(nodeid) != outcome}
        ran = _that_ran(suite, project, work / commit, changed) & set(new)
        scores.append(
            Score(
                f"{commit[:10]} {subject[:50]}",
                sorted(ran),
                len(chosen & set(new)),
                sorted(differing - chosen),
            )
        )
        scores[-1].missed += sorted(ran & set(old) - chosen - differing)
        scores[-1].runs_at_import = _at_import(project, suite.package) != {
            path: _skeleton(text) for path, text in before.items()
        }
        print(_row(scores[-1]), flush=True)
        if len(scores) == count:
            break
    return scores


def _that_ran(suite: Suite, project: Path, out: Path, changed: dict[str, set[str]]) -> set[str]:
    """Return the tests that run any of the changed functions; all where one ran before any test."""
    out.mkdir()
    for path, names in changed.items():
        oracle.rewrite(project / path, path, names)
    suite.run(project, out=out)
    _git(project, "checkout", "-q", "--", ".")
    tests = set().union(*oracle.read(out).values())
    return suite.chosen(project) if oracle.AT_IMPORT in tests else tests


def _changed_functions(project: Path, package: str, before: dict[str, str]) -> dict[str, set[str]]:
    """Return the functions whose code differs from before, by file; comments and layout do not count."""
    changed = {}
    for file in python_files(project, package):
        path = file.relative_to(project).as_posix()
        old = _bodies(before.get(path, ""))
        names = {name for name, body in _bodies(file.read_text()).items() if old.get(name) != body}
        if names:
            changed[path] = names
    return changed


def _at_import(project: Path, package: str) -> dict[str, str]:
    return {
        file.relative_to(project).as_posix(): _skeleton(file.read_text())
        for file in python_files(project, package)
    }


def _skeleton(text: str) -> str:
    """Return what of a file runs when it is imported."""
    tree = ast.parse(text)
    for _, node in list(oracle.functions_of(tree)):
        node.body = []
    return ast.dump(tree)


def _bodies(text: str) -> dict[str, str]:
    return {name: ast.dump(node) for name, node in oracle.functions_of(ast.parse(text))}


def _git(project: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(project), *words], capture_output=True, text=True, check=True
    ).stdout


def _checkout(project: Path, commit: str) -> None:
    _git(project, "checkout", "-q", "--force", commit)


def _row(score: Score) -> str:
    testmon = (
        "" if score.testmon_chosen is None else f" {score.testmon_chosen:7} {len(score.testmon_missed):6}"
    )
    return f"{score.name[:60]:60} {len(score.truth):6} {score.chosen:6} {len(score.missed):6}{testmon}"


def summary(scores: Sequence[Score], what: str) -> list[str]:
    """Return recall, and how many tests were chosen for each that ran what was edited."""
    ran = sum(len(score.truth) for score in scores)
    missed = sum(len(score.missed) for score in scores)
    ratios = [score.chosen / len(score.truth) for score in scores if score.truth and not score.runs_at_import]
    lines = [f"{len(scores)} {what}: {ran} tests ran what was edited, {missed} missed"]
    if ratios:
        lines[0] += (
            f"; chosen per test that ran it: median {statistics.median(ratios):.2f}, mean {statistics.mean(ratios):.2f}"
        )
    compared = [score for score in scores if score.testmon_chosen is not None and score.truth]
    if compared:
        lost = sum(len(score.testmon_missed) for score in compared)
        ratio = statistics.median((score.testmon_chosen or 0) / len(score.truth) for score in compared)
        lines.append(f"testmon: {lost} missed; chosen per test that ran it: median {ratio:.2f}")
    return lines


def costs(suite: Suite, project: Path, rounds: int = 3) -> str:
    """Return the CPU time of seeding as a multiple of the plain run: medians of rounds that alternate."""

    def seconds(*arguments: str) -> float:
        shutil.rmtree(project / ".seatrial", ignore_errors=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        suite.run(project, *arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds()  # leaves the caches that every later run finds
    pairs = [(seconds(), seconds("-p", "seatrial.pytest_plugin", "--affected")) for _ in range(rounds)]
    plain, seeding = (statistics.median(times) for times in zip(*pairs, strict=True))
    return f"seeding: {seeding:.2f} s of CPU time, {seeding / plain:.2f} times the plain run"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row per edit and commit: tests that ran it, chosen, missed; the same of testmon."""
    words = list(sys.argv[1:] if argv is None else argv)
    own, rest = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=Path)
    parser.add_argument("package")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--path", default="src", help="folder that imports start from (default: src)")
    parser.add_argument("--edits", type=int, default=70)
    parser.add_argument("--seed", type=int, default=20261122, help="which functions are edited")
    parser.add_argument("--commits", type=int, default=10)
    parser.add_argument("--testmon", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(own)
    suite = Suite(
        python=arguments.python, package=arguments.package, path=arguments.path, arguments=tuple(rest)
    )
    with tempfile.TemporaryDirectory(prefix="affected-audit-") as folder:
        work = Path(folder)
        project = work / "project"
        subprocess.run(["git", "clone", "-q", str(arguments.repository), str(project)], check=True)
        head = _git(project, "rev-parse", "HEAD").strip()
        edits = (
            score_edits(suite, project, work, arguments.edits, arguments.seed, with_testmon=arguments.testmon)
            if arguments.edits
            else []
        )
        cost = costs(suite, project)
        commits = score_commits(suite, project, work, arguments.commits) if arguments.commits else []
    for line in [
        f"at {head[:10]}",
        *summary(edits, "edits of one function"),
        *summary(commits, "commits"),
        cost,
    ]:
        print(line)
    if arguments.json:
        found = {"head": head, "edits": [asdict(s) for s in edits], "commits": [asdict(s) for s in commits]}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any(score.missed for score in [*edits, *commits]) else 0


if __name__ == "__main__":
    sys.exit(main())
