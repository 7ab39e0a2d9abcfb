"""`--tracker-baseline` turns tracked values into verdicts through what repeats gave."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seatrial.pytest_plugin.baseline import read_repeats
from seatrial.pytest_plugin.judging import Judge, TrackedMetric, judged_apart
from seatrial.verdict import Outcome

FILE = "tests/unit/test_it.py"
TEST = f"{FILE}::test_it"
COMMIT = "a" * 40
OTHER = "b" * 40

Write = Callable[[dict[str, str]], None]
Run = Callable[..., pytest.RunResult]
Results = Callable[..., dict[str, Any]]

TRACKING = """
def test_it(tracker):
    tracker.track("loss", {value}{more})
"""


@pytest.fixture
def sessions(pytester: pytest.Pytester) -> Callable[..., None]:
    """Write results of earlier sessions: one for each value of `loss`, at a commit."""

    def write_sessions(
        values: Sequence[object],
        commit: str = COMMIT,
        folder: str = "tests/unit/unit_results",
        **changes: Any,
    ) -> None:
        place: Path = pytester.path / folder
        place.mkdir(parents=True, exist_ok=True)
        for value in values:
            test = {"outcome": "passed", "device": "cpu", "key": "test_it::test_it", "not_finite": []}
            if value == "NaN":
                test["not_finite"] = ["loss"]
            content = {
                "exit_status": 0,
                "git_commit": commit,
                "git_dirty": False,
                "start_time": "2026-01-01 00:00:00",
                "metrics": {"test_it::test_it": {"loss": value, "_elapsed": 1.0}},
                "tests": {TEST: test},
            }
            content.update(changes)
            (place / f"{commit[:4]}-{len(list(place.iterdir())):03}.json").write_text(json.dumps(content))

    return write_sessions


def noise(number: int, seed: int = 0) -> list[float]:
    """Return values of mean 10 and standard deviation 1, of which no seed is special."""
    return [float(value) for value in np.random.default_rng(seed).normal(10, 1, number)]


def project(value: object, more: str = "") -> dict[str, str]:
    return {FILE: TRACKING.format(value=value, more=more), "tests/unit/unit_results.json": "{}"}


def test_a_value_within_the_noise_passes_and_one_outside_fails_its_test(
    write: Write, run_pytest: Run, sessions: Callable[..., None], results: Results
) -> None:
    sessions(noise(20))
    write(project(10.5))
    good = run_pytest("--tracker-baseline", COMMIT[:7])
    good.assert_outcomes(passed=1)
    assert good.ret == 0
    good.stdout.fnmatch_lines(
        [
            f"tracker baseline: 20 repeats of 1 metrics at commit {COMMIT[:12]}*",
            "seatrial: tracked metrics compared with the baseline: 1 Pass",
        ]
    )
    [verdict] = results()["tests"][TEST]["baseline"]
    assert (verdict["outcome"], verdict["value"], verdict["source"]) == (
        "Pass",
        10.5,
        "learned from 20 repeats",
    )
    write(project(17.0))
    bad = run_pytest("--tracker-baseline", COMMIT)
    bad.assert_outcomes(failed=1)
    bad.stdout.re_match_lines([r"metric loss is 17, [\d.]+ sd above the mean of 20 repeats, .*"])
    found = results()["tests"][TEST]
    assert (found["outcome"], found["baseline"][0]["outcome"]) == ("failed", "Fail")
    assert re.fullmatch(r"[\d.]+ to [\d.]+", found["baseline"][0]["bound"])


JUDGE = Judge(commit=COMMIT, num_metrics=1, shift_in_sd=6.0)


@pytest.mark.parametrize(
    ("value", "direction", "outcome"),
    [
        (17.0, "lower", Outcome.FAIL),
        (17.0, "higher", Outcome.PASS),
        (3.0, "lower", Outcome.PASS),
        (3.0, "higher", Outcome.FAIL),
        (3.0, None, Outcome.FAIL),
        (10.0, "lower", Outcome.PASS),
    ],
)
def test_with_a_direction_only_the_worse_side_fails(
    value: float, direction: str | None, outcome: Outcome
) -> None:
    assert JUDGE.verdict(TrackedMetric("loss", direction, noise(20), [value])).outcome is outcome


def test_too_few_repeats_are_blocked_with_how_many_would_do(
    write: Write, run_pytest: Run, sessions: Callable[..., None]
) -> None:
    sessions(noise(4))
    write(project(10.0))
    run = run_pytest("--tracker-baseline", COMMIT)
    run.assert_outcomes(passed=1)
    assert run.ret == 3
    [line] = [line for line in run.outlines if line.startswith(f"{TEST}: metric loss is 10")]
    enough = int(re.findall(r"enough are .*?(\d+) repeats with 1 new", line)[0])
    assert 4 < enough < 20
    sessions(noise(enough - 4, seed=1))
    assert run_pytest("--tracker-baseline", COMMIT).ret == 0


def test_what_fails_with_few_repeats_fails(
    write: Write, run_pytest: Run, sessions: Callable[..., None]
) -> None:
    sessions(noise(4))
    write(project(1000.0))
    run = run_pytest("--tracker-baseline", COMMIT)
    run.assert_outcomes(failed=1)
    assert run.ret == 1


def test_earlier_clean_runs_of_the_commit_under_test_count_as_new_ones(
    write: Write, run_pytest: Run, sessions: Callable[..., None], pytester: pytest.Pytester
) -> None:
    """One new run cannot show 3 standard deviations; eight can."""
    write(project(10.0) | {".gitignore": "unit_results*\nstd*\n"})
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        assert pytester.run(*git, *words).ret == 0
    head = pytester.run("git", "rev-parse", "HEAD").outlines[0]
    sessions(noise(20))
    three = ("--tracker-baseline", COMMIT, "--tracker-baseline-shift", "3")
    assert run_pytest(*three).ret == 3
    sessions(noise(7, seed=2), commit=head)
    assert run_pytest(*three).ret == 0
    failed = {"outcome": "failed", "device": "cpu", "key": "test_it::test_it", "baseline": [{}]}
    sessions([1000.0], commit=head, tests={TEST: failed})
    again = run_pytest(*three)
    assert again.ret == 1, "a run that failed by its baseline is not forgotten"
    assert "the mean of 11 runs" in again.stdout.str()


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("repeats", "new", "outcome", "words"),
    [
        ([3.0, 3.0], 3.0, Outcome.PASS, "all 2 repeats gave 3"),
        ([3.0, 3.0], 4.0, Outcome.FAIL, "is 4; all 2 repeats gave 3"),
        ([3.0, NAN, 3.0], 3.0, Outcome.BLOCKED, "not finite"),
        ([3.0, 1e200, 3.0], 3.0, Outcome.BLOCKED, "too large"),
        (noise(20), NAN, Outcome.FAIL, "is nan"),
        (noise(20), INF, Outcome.FAIL, "is inf"),
        ([NAN] * 20, NAN, Outcome.FAIL, "is nan"),
        ([3.0], 3.0, Outcome.BLOCKED, "1 repeats of it passed"),
        ([], 3.0, Outcome.BLOCKED, "0 repeats of it passed"),
    ],
)
def test_values_of_all_kinds(repeats: list[float], new: float, outcome: Outcome, words: str) -> None:
    verdict = JUDGE.verdict(TrackedMetric("loss", None, repeats, [new]))
    assert verdict.outcome is outcome
    assert words in verdict.reason


@pytest.mark.parametrize(
    ("repeats", "new", "outcome"),
    [
        ([50.0, 50.1, 50.2, 49.9], 51.9, Outcome.PASS),
        ([50.0, 50.0, 50.0, 50.0], 51.9, Outcome.PASS),
        ([50.0, 50.1, 50.2, 49.9], 54.0, Outcome.FAIL),
        ([50.0, 90.0, 10.0, 30.0], 51.0, Outcome.BLOCKED),
    ],
)
def test_a_difference_below_the_resolution_of_a_metric_is_none(
    repeats: list[float], new: float, outcome: Outcome
) -> None:
    """A resolution widens a narrow bound, and does not make a noisy metric one that can be judged."""
    verdict = JUDGE.verdict(TrackedMetric("memory", "lower", repeats, [new], resolution=2.0))
    assert verdict.outcome is outcome, verdict.reason


def test_the_statistics_are_not_imported_into_the_session_and_memory_of_equal_code_is_equal(
    write: Write, run_pytest: Run, results: Results
) -> None:
    """The second test ran after the first was judged; repeats without the option had no such import."""
    tracking = "def test_{0}(tracker): tracker.log_max_mem('memory')\n"
    write({FILE: tracking.format("first") + tracking.format("second")})
    # Repeats as an earlier session of a clean tree leaves them.
    for number in range(3):
        assert run_pytest(f"--tracker-results=runs/{number}.json").ret == 0
        content = results(f"runs/{number}.json")
        clean = {**content, "git_commit": COMMIT, "git_dirty": False}
        Path(f"runs/{number}.json").write_text(json.dumps(clean))
    run = run_pytest("--tracker-baseline=runs")
    run.assert_outcomes(passed=2)
    run.stdout.fnmatch_lines(["*compared with the baseline: 2 Pass"])


def test_what_is_judged_in_another_process_is_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a number, infinities and exact values cross the border."""
    metrics = [
        TrackedMetric("loss", None, repeats, [new])
        for repeats, new in (([3.0, 3.0], 4.0), ([3.0, NAN], 3.0), (noise(20), INF), (noise(20), 10.0))
    ]
    here = judged_apart(JUDGE, metrics)
    monkeypatch.delitem(sys.modules, "scipy.stats")
    apart = judged_apart(JUDGE, metrics)
    assert [verdict.to_json() for verdict in apart] == [verdict.to_json() for verdict in here]


def test_a_metric_named_like_a_value_is_called_a_metric(
    write: Write, run_pytest: Run, sessions: Callable[..., None]
) -> None:
    sessions(noise(20))
    write({FILE: "def test_it(tracker): tracker.track('inf', float('-inf'))\n"})
    run = run_pytest("--tracker-baseline", COMMIT)
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["metric inf is -inf", f"FAILED {TEST} - metric inf is -inf*"])


@pytest.mark.parametrize(
    ("new", "status", "words"),
    [("'text', direction='lower'", 0, "1 tests with tracked metrics"), ("10**400", 1, "loss is inf")],
)
def test_what_is_no_number_is_not_compared(
    new: str, status: int, words: str, write: Write, run_pytest: Run, sessions: Callable[..., None]
) -> None:
    sessions(noise(20))
    write(project(new))
    run = run_pytest("--tracker-baseline", COMMIT)
    assert run.ret == status
    assert words in run.stdout.str()


def test_a_metric_that_is_no_longer_tracked_fails_and_a_new_one_is_blocked(
    write: Write, run_pytest: Run, sessions: Callable[..., None]
) -> None:
    sessions(noise(20))
    write({FILE: "def test_it(tracker): tracker.track('lost', 1)\n"})
    run = run_pytest("--tracker-baseline", COMMIT)
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(
        ["*loss was not tracked; 20 repeats*", f"{TEST}: metric lost 0 repeats of it passed*"]
    )


def test_only_clean_finished_sessions_of_tests_that_passed_are_repeats(
    write: Write, run_pytest: Run, sessions: Callable[..., None], pytester: pytest.Pytester
) -> None:
    sessions(noise(20))
    sessions([1e6] * 5, git_dirty=True)
    sessions([1e6] * 5, exit_status=None)
    sessions([1e6] * 5, tests={TEST: {"outcome": "failed", "device": "cpu", "key": "test_it::test_it"}})
    sessions([1e6] * 5, tests={TEST: {"outcome": "passed", "device": "H100", "key": "test_it::test_it"}})
    sessions([1e6] * 5, commit=OTHER)
    (pytester.path / "tests/unit/unit_results/broken.json").write_text('{"git_commit"')
    write(project(10.0))
    run = run_pytest("--tracker-baseline", COMMIT)
    assert run.ret == 0
    run.stdout.fnmatch_lines(
        ["tracker baseline: 30 repeats*1 unreadable left out, 10 unfinished or of a changed tree*"]
    )


@pytest.mark.nightly
def test_a_folder_of_results_with_xdist_and_parameters(
    write: Write, run_pytest: Run, sessions: Callable[..., None]
) -> None:
    sessions(noise(20), folder="recorded")
    write(
        {
            FILE: "import pytest\n"
            + TRACKING.format(value="17.0", more="")
            + "@pytest.mark.parametrize('n', [1, 2])\ndef test_new(tracker, n): tracker.track('n', n)\n"
        }
    )
    run = run_pytest("--tracker-baseline", "recorded", "-n", "2")
    run.assert_outcomes(failed=1, passed=2)
    run.stdout.fnmatch_lines(["seatrial: tracked metrics compared with the baseline: 2 Blocked, 1 Fail"])


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nowhere", "neither a folder of session results nor a commit"),
        (
            "ccccccc",
            f"holds no clean, finished session of that commit (it holds {COMMIT[:12]}, {OTHER[:12]})",
        ),
        ("tests/unit/unit_results", f"it holds {COMMIT[:12]}, {OTHER[:12]}: name one of these"),
        ("tests", "it holds none"),
    ],
)
def test_a_baseline_that_is_not_there_is_wrong_usage(
    where: str, words: str, sessions: Callable[..., None], pytester: pytest.Pytester
) -> None:
    sessions([1.0, 1.0])
    sessions([1.0], commit=OTHER)
    with pytest.raises(pytest.UsageError, match=re.escape(words)):
        read_repeats(where, pytester.path / "tests/unit/unit_results", pytester.path)


@pytest.mark.parametrize("revision", ["HEAD", "HEAD~0", "main", "v1", "v1^{commit}", "refs/tags/v1"])
def test_any_revision_names_a_commit(
    revision: str, sessions: Callable[..., None], pytester: pytest.Pytester
) -> None:
    git = [
        "git",
        "-C",
        str(pytester.path),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "tag.gpgsign=false",
    ]
    for words in (
        ["init", "-q", "-b", "main"],
        ["commit", "-q", "--allow-empty", "-m", "one"],
        ["tag", "-am", "t", "v1"],
    ):
        subprocess.run([*git, *words], check=True)
    named = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    sessions([1.0, 2.0], commit=named)
    sessions([3.0], commit=OTHER)
    repeats = read_repeats(revision, pytester.path / "tests/unit/unit_results", pytester.path)
    assert (repeats.commit, len(repeats.sessions)) == (named, 2)


@pytest.mark.parametrize("revision", ["--all", "-n", "nobody", "HEAD:tests"])
def test_what_is_no_revision_is_refused(revision: str, pytester: pytest.Pytester) -> None:
    with pytest.raises(pytest.UsageError, match="nor a commit that git knows here"):
        read_repeats(revision, pytester.path / "none", pytester.path)


def test_wrong_usage_is_one_message(write: Write, run_pytest: Run) -> None:
    write(project(1.0))
    run = run_pytest("--tracker-baseline", "nowhere")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    assert "neither a folder of session results nor a commit" in run.stderr.str()
    assert "Traceback" not in run.stderr.str()


def test_false_alarms_are_as_rare_as_promised_and_the_wanted_shift_is_found() -> None:
    """Eight hundred sessions of ten metrics: at most 1 % of unchanged ones fail, and 95 % of shifted ones do."""
    generator = np.random.default_rng(0)
    judge = Judge(commit=COMMIT, num_metrics=10, shift_in_sd=6.0)
    trials = 800
    alarms = found = 0
    for _ in range(trials):
        old, new = generator.normal(size=(10, 20)), generator.normal(size=(10, 1))
        alarms += any(
            judge.verdict(TrackedMetric("m", None, old[m], new[m])).outcome is Outcome.FAIL for m in range(10)
        )
        found += judge.verdict(TrackedMetric("m", None, old[0], new[0] + 6.0)).outcome is Outcome.FAIL
    assert alarms / trials < 0.01 + 3 * (0.01 * 0.99 / trials) ** 0.5
    assert found / trials > 0.95
