"""Every view says what results.json says: nothing is lost, nothing is read as markup."""

import io
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from seatrial.cli.run import print_trial
from seatrial.report.causes import advice_of, by_importance
from seatrial.report.console import make_console, print_conclusion, print_results
from seatrial.report.files import write_views
from seatrial.report.html import report_html
from seatrial.report.junit import junit_xml
from seatrial.report.markdown import report_markdown
from seatrial.report.rows import format_value, row
from seatrial.report.summary import summary_text
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.verdict import Outcome, Verdict

NASTY = 'min(data["a|b"]) > 0 [bold]x[/bold] <script>`_*_` \x00'


def make_results() -> Results:
    """Return a run with every outcome, a trial that did not conclude, and one not requested."""
    verdicts = [
        Verdict(
            name='max(data["x"]) < 1.05', outcome=Outcome.PASS, reason="fine", value=1.00000012, bound="< 1.05",
            num_samples=3, steps=(1, 3), source="hand-set",
        ),
        Verdict(name=NASTY, outcome=Outcome.FAIL, reason="NaN at\nstep 2", value=float("nan"), bound="> 0",
                num_samples=3, steps=(1, 3), source="learned from 5 repeats"),
        Verdict(name="origin", outcome=Outcome.BLOCKED, reason="came from /elsewhere", value="/elsewhere"),
        Verdict(name="sign", outcome=Outcome.SKIPPED, reason="not triggered"),
    ]  # fmt: skip
    common = {"summary": "s", "proves": "the loop closes", "does_not_prove": "that it learns"}
    return Results(
        run="run", target="reference", requested="level 0,6", seed=3, timeout_seconds=1.0,
        started_at="2026-01-02T03:04:05+00:00", seatrial_version="0.1.0", overrides=["grpo.max_num_steps=2"],
        repositories={"refrl": "commit abc, clean"},
        trials=[
            TrialResult(name="grpo-smoke", level=0, state=TrialState.CONCLUDED, verdicts=verdicts, seconds=4.5,
                        commands=["python -m refrl grpo"], directory="trials/0-grpo-smoke", model="tiny", **common),
            TrialResult(name="learning-signal", level=6, state=TrialState.INTERRUPTED, **common),
            TrialResult(name="refit", level=2, state=TrialState.NOT_REQUESTED, **common),
        ],
    )  # fmt: skip


HEADINGS = ["Result", "Requested coverage", "Model", "Deliverables", "Evidence", "Limitations", "Follow-ups"]


def test_the_summary_has_the_seeds_headings_in_their_order() -> None:
    """Result first, then what it rests on."""
    text = summary_text(make_results())
    places = [text.index(f"{heading}:") for heading in HEADINGS]
    assert places == sorted(places)
    assert text.startswith("Result: Fail - ")


def test_every_requested_deliverable_has_a_line() -> None:
    """Pass, Fail, Skipped or Blocked: none is implicit; the trials that are not requested are counted."""
    lines = summary_text(make_results()).splitlines()
    assert [line for line in lines if line.startswith("- level ")] == [
        f"- level 0 grpo-smoke: Fail - {NASTY}: NaN at",
        "- level 6 learning-signal: Blocked - interrupted before it concluded",
    ]
    assert "- 1 trial not requested (level 2)" in lines


def test_the_failure_closest_to_the_cause_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    """On the console, in the summary and on the page, with its usual cause and the next step."""
    moved, penalty = (
        Verdict(name=name, outcome=Outcome.FAIL, reason="no", value=0, num_samples=1)
        for name in ("every trainable tensor moved", 'max(data["train/kl_penalty"]) > 0')
    )
    blocked = Verdict(name="origin of refrl", outcome=Outcome.BLOCKED, reason="no")
    results = make_results()
    trial = results.trials[0]
    trial.verdicts = [blocked, penalty, moved]
    assert by_importance(trial.verdicts) == [moved, penalty, blocked]
    print_trial(trial)
    shown = capsys.readouterr().out
    first, cause, following, second, other, third, environment = (
        line.strip() for line in shown.splitlines()[1:8]
    )
    assert first.startswith("Fail      every trainable tensor moved")
    assert cause.startswith("usual cause: The learning rate is 0")
    assert following.startswith("next: Check the learning rate")
    assert second.startswith("Fail      max(")
    assert other.startswith("usual cause: The policy is still equal to its reference")
    assert third.startswith("Blocked   origin of refrl")
    assert environment.startswith("usual cause: The environment prevented the evidence")
    assert shown.count("next: ") == 1
    for text in (summary_text(results), report_html(results, Path("nowhere"))):
        assert 0 < text.find("every trainable tensor moved") < text.find("kl_penalty")


def test_a_cause_that_several_failures_share_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    trial = make_results().trials[0]
    trial.verdicts = [
        Verdict(name=name, outcome=Outcome.FAIL, reason="exit status 1")
        for name in ("training ends with status 0", "steps reached", "every series finite")
    ]
    print_trial(trial)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "Fail      training ends with status 0",
        "usual cause",
        "next",
        "Fail      steps reached",
        "usual cause",
        "Fail      every series finite",
    ]


def test_a_series_that_is_not_logged_has_that_cause_unless_the_command_failed() -> None:
    missing = Verdict(
        name='min(data["train/grad_norm"]) > 0',
        outcome=Outcome.FAIL,
        reason='"train/grad_norm" is not in the log; it holds train/reward',
    )
    assert advice_of(missing).cause.startswith("The stack does not log this series")
    ended = Verdict(name="training ends with status 0", outcome=Outcome.FAIL, reason="exit status 1")
    assert advice_of(missing, [ended, missing]).cause.startswith("The command did not finish")


def test_the_summary_says_what_is_not_proven_and_what_to_do() -> None:
    """Limits and follow-ups come from the verdicts."""
    text = summary_text(make_results())
    assert "grpo-smoke does not prove: that it learns" in text
    assert "skipped, no evidence either way: sign" in text
    assert "grpo-smoke: origin: came from /elsewhere" in text
    assert (
        "learning-signal: interrupted before it concluded; continue with: seatrial run --resume DIR" in text
    )
    assert "Command (grpo-smoke): python -m refrl grpo" in text
    assert "refrl: commit abc, clean" in text


def test_what_was_skipped_is_named_once_and_a_known_failure_is_evidence() -> None:
    """Three seeds leave the same law unexercised; what fails as is known has been seen to fail."""
    results = make_results()
    results.trials[0].verdicts = [
        *(
            Verdict(name=name, outcome=Outcome.SKIPPED, reason="needs more")
            for name in ("seed 0: law", "seed 12: law", "seed 0: other", "alone")
        ),
        Verdict(
            name="counters", outcome=Outcome.SKIPPED, reason="fails as expected (begins again): 256",
            details={"expected_failure": "begins again"},
        ),
    ]  # fmt: skip
    lines = summary_text(results).splitlines()
    assert "- grpo-smoke: skipped, no evidence either way: law (seeds 0, 12); other (seeds 0); alone" in lines
    assert "- grpo-smoke: counters: fails as expected (begins again): 256" in lines


def test_a_blocked_whole_is_no_evidence_against_the_stack() -> None:
    """The seed document requires these words."""
    results = make_results()
    results.trials = results.trials[1:2]
    assert "no evidence against the stack" in summary_text(results).splitlines()[0]


def test_a_pass_names_what_it_proves() -> None:
    """And no more."""
    results = make_results()
    results.trials = results.trials[:1]
    results.trials[0].verdicts = results.trials[0].verdicts[:1]
    text = summary_text(results)
    assert text.startswith("Result: Pass - 1 Pass of 1 requested: the loop closes")
    assert "Follow-ups:\n- none" in text


def test_the_console_shows_every_cell_and_no_markup() -> None:
    """Square brackets of a check are text."""
    stream = io.StringIO()
    console = make_console(stream)
    print_results(console, make_results())
    print_conclusion(console, make_results(), Path("runs/run/report.md"))
    # Cells are folded at the column's width: compare without the frame.
    shown = "".join(character for character in stream.getvalue() if character not in "│ \n")
    for wanted in ("1.00000012", "[bold]x[/bold]", "learnedfrom5repeats", "1-3", "cannotbe", "nottriggered"):
        assert (wanted in shown) == (wanted != "cannotbe"), wanted
    assert "Fail-reference,level0,6,seed3" in shown
    assert "report:runs/run/report.md" in shown


def test_the_table_of_the_report_has_the_right_cells() -> None:
    """A pipe in a check does not make a column, a line end no row."""
    lines = report_markdown(make_results()).splitlines()
    table = [line for line in lines if line.startswith("|")]
    for line in table:
        assert line.replace("\\|", "").count("|") == 8, line
    assert any("NaN at step 2" in line for line in table)
    assert not any("<script>" in line for line in table)
    assert sum(line.startswith("| Pass ") for line in table) == 1


def test_junit_counts_what_it_holds() -> None:
    """Fail is a failure, Blocked an error; a trial that did not conclude is an error of its own."""
    root = ET.fromstring(junit_xml(make_results()))
    first, second = root.findall("testsuite")
    assert {key: first.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1",
    }  # fmt: skip
    assert len(first.findall("testcase")) == 4
    assert [len(first.findall(f"testcase/{kind}")) for kind in ("failure", "error", "skipped")] == [1, 1, 1]
    assert (second.get("tests"), second.get("errors")) == ("1", "1")
    properties = {
        item.get("name"): item.get("value") for item in first.findall("testcase")[0].iter("property")
    }
    assert properties == {
        "value": "1.00000012", "bound": "< 1.05", "steps": "1-3", "samples": "3", "source": "hand-set",
        "reason": "fine",
    }  # fmt: skip
    assert first.findall("testcase")[1].get("name") == NASTY.replace("\x00", "?")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (1.00000012, "1.00000012"), (0.0, "0"), (174.0, "174"), (4.7684e-07, "4.7684e-07"),
        (float("inf"), "inf"), ("exit status 0", "exit status 0"), (-0.25, "-0.25"), (1e12, "1e+12"),
    ],
)  # fmt: skip
def test_values_show_their_digits(value: float | str | None, text: str) -> None:
    """Near one, the distance from it is what matters."""
    assert format_value(value) == text


def test_where_a_bound_came_from_is_shown_unless_hand_set() -> None:
    """A learned bound says from how many repeats."""
    learned, hand_set = make_results().trials[0].verdicts[1], make_results().trials[0].verdicts[0]
    assert row(learned).bound == "> 0 (learned from 5 repeats)"
    assert row(hand_set).bound == "< 1.05"


def test_views_are_drawn_from_the_results_alone(tmp_path: Path) -> None:
    """The same results give the same files, byte for byte, wherever they are drawn."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_views(tmp_path / name, Results.from_text(make_results().to_text()))
    for file in ("report.md", "junit.xml"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
