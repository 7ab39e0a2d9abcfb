"""report.html says what results.json says, loads nothing, and reads nothing as markup."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from seatrial.report.curves import trial_curves
from seatrial.report.html import report_html
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.verdict import Outcome, Verdict

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' <img src=x onerror=y>"
SHARED = {"summary": NASTY, "proves": "the loop closes", "does_not_prove": "that it learns"}


class Reader(HTMLParser):
    """Collects start tags with their attributes, and text."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep text."""
        self.text.append(data)


def make_results(state: TrialState = TrialState.CONCLUDED) -> Results:
    """Return a run with one trial of every outcome and one not requested."""
    verdicts = [
        Verdict(name=NASTY, outcome=Outcome.FAIL, reason=NASTY, value=float("nan"), bound="< 1", num_samples=3,
                steps=(1, 3), source="hand-set"),
        Verdict(name="origin", outcome=Outcome.BLOCKED, reason="came from elsewhere"),
        Verdict(name="sign", outcome=Outcome.SKIPPED, reason="not triggered"),
    ]  # fmt: skip
    return Results(
        run="run", target=NASTY, requested="level 0", seed=3, timeout_seconds=1.0,
        started_at="2026-01-02T03:04:05+00:00", seatrial_version="0.1.0",
        trials=[
            TrialResult(name="grpo-smoke", level=0, state=state, verdicts=verdicts, directory="trials/0", **SHARED),
            TrialResult(name="refit", level=2, state=TrialState.NOT_REQUESTED, **SHARED),
        ],
    )  # fmt: skip


def read(page: str) -> Reader:
    """Parse a page."""
    reader = Reader()
    reader.feed(page)
    return reader


def metrics(folder: Path, **series: dict[str, float]) -> None:
    """Write a metrics.json of the given tags."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").write_text(
        json.dumps({name.replace("__", "/"): s for name, s in series.items()})
    )


def test_text_of_a_run_is_never_markup(tmp_path: Path) -> None:
    """A check's name, a reason, a target may hold anything."""
    reader = read(report_html(make_results(), tmp_path))
    assert not {"script", "img"} & {tag for tag, _ in reader.tags}
    assert NASTY in "".join(reader.text)


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """No address in any attribute: it reads the same without a network."""
    metrics(tmp_path / "trials" / "0", train__reward={"1": 0.5, "2": 0.75})
    page = report_html(make_results(), tmp_path)
    loading = {"src", "href", "action", "data", "xlink:href"}
    assert not [attributes for _, attributes in read(page).tags if loading & set(attributes)]
    assert "@import" not in page and "url(" not in page


def test_every_verdict_and_deliverable_is_a_row(tmp_path: Path) -> None:
    """Three verdicts and two deliverables, and a heading row for each of the two tables."""
    reader = read(report_html(make_results(), tmp_path))
    assert [tag for tag, _ in reader.tags].count("tr") == 1 + 2 + 1 + 3
    for word in ("Fail", "Blocked", "Skipped", "Not requested"):
        assert any(word in text for text in reader.text), word


def test_the_curves_are_those_of_the_runs_of_the_trial(tmp_path: Path) -> None:
    """One chart per known tag that was logged, a line per run; a tag nobody knows is not drawn."""
    metrics(tmp_path / "one", train__reward={"1": 0.5, "2": 0.75}, other={"1": 1.0})
    metrics(tmp_path / "two", train__reward={"1": 0.25, "2": 0.5}, train__loss={"1": 1.0})
    charts, notes = trial_curves(tmp_path)
    assert [("train/reward" in chart, "train/loss" in chart) for chart in charts] == [
        (True, False),
        (False, True),
    ]
    assert all(f">{name}</text>" in charts[0] for name in ("one", "two"))
    assert notes == []


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"train/reward": {"1": 0.5', "\x00\xff"])
def test_curves_that_cannot_be_read_are_said_to_be_missing(content: str, tmp_path: Path) -> None:
    """The page is whole all the same."""
    folder = tmp_path / "trials" / "0"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(content)
    page = report_html(make_results(), tmp_path)
    assert "Not drawn: " in page
    assert page.endswith("</html>\n")


def test_a_trial_that_did_not_conclude_is_blocked_on_the_page(tmp_path: Path) -> None:
    """Its failed verdict decides; without one it would be Blocked."""
    results = make_results(TrialState.RUNNING)
    results.trials[0].verdicts = []
    assert "Blocked</span></h1>" in report_html(results, tmp_path)
