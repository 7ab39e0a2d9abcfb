"""The search as a picture: lanes of the graph, one mark for each run, nothing from outside left unescaped."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from seatrial.bisect.console import picture_lines
from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.graph import MOST_LANES, graph_of
from seatrial.bisect.history import Commit, History
from seatrial.bisect.outcomes import RunOutcome
from seatrial.bisect.picture import picture
from seatrial.bisect.plain import plain
from seatrial.bisect.records import Run
from seatrial.bisect.search import Search

EVIL = '</title><script>alert("1")</script> & \x1b[31m'


def _merged() -> History:
    """GOOD - a - b - m - z, with the side branch s - t from a merged by m."""
    parents = {"a": ("g",), "b": ("a",), "s": ("a",), "t": ("s",), "m": ("b", "t"), "z": ("m",)}
    commits = [Commit(sha=sha, parents=found, subject=EVIL) for sha, found in parents.items()]
    return History.of(Commit(sha="g"), commits)


def _run(number: int, commit: str, outcome: RunOutcome, value: float | None = None) -> Run:
    return Run(number=number, commit=commit, outcome=outcome, reason=EVIL, value=value, evidence="x")


def _searched(history: History, question: Question, runs: list[Run]) -> Search:
    search = Search(history, question)
    for run in runs:
        position = history.position(run.commit)
        assert position is not None
        if run.outcome in (RunOutcome.PASS, RunOutcome.FAIL):
            failed = run.outcome is RunOutcome.FAIL
            search.record(Observation(position=position, failed=failed, value=run.value))
    return search


def test_a_straight_history_has_one_lane_and_an_edge_to_each_commit() -> None:
    graph = graph_of(History.linear(5))
    assert graph.lanes == (0,) * 6
    assert graph.edges == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))


def test_a_side_branch_has_a_lane_of_its_own_and_first_parents_stay_on_the_first() -> None:
    history = _merged()
    graph = graph_of(history)
    lane = {history.commit(p).sha: graph.lanes[p] for p in range(history.num_suspects + 1)}
    assert lane == {"g": 0, "a": 0, "b": 0, "m": 0, "z": 0, "s": 1, "t": 1}
    names = {(history.commit(p).sha, history.commit(c).sha) for p, c in graph.edges}
    assert names == {("g", "a"), ("a", "b"), ("a", "s"), ("s", "t"), ("b", "m"), ("t", "m"), ("m", "z")}


def test_many_branches_at_once_share_the_last_lane() -> None:
    sides = [Commit(sha=f"s{n:02}", parents=("g",)) for n in range(MOST_LANES + 5)]
    history = History.of(Commit(sha="g"), [*sides, Commit(sha="m", parents=tuple(c.sha for c in sides))])
    assert graph_of(history).num_lanes == MOST_LANES


@pytest.mark.parametrize("question", list(Question))
def test_the_picture_shows_every_run_once_and_every_commit_once(question: Question) -> None:
    valued = question is Question.METRIC
    runs = [
        _run(1, "g", RunOutcome.PASS, 1.0 if valued else None),
        _run(2, "z", RunOutcome.PASS if valued else RunOutcome.FAIL, 4.0 if valued else None),
        _run(3, "b", RunOutcome.FAIL),
        _run(4, "b", RunOutcome.SKIP),
        _run(5, "t", RunOutcome.BLOCKED),
    ]
    history = _merged()
    drawn = picture(_searched(history, question, runs), runs)
    root = ElementTree.fromstring(drawn)
    classes = [item.get("class") for item in root.iter()]
    assert classes.count("run") == len(runs)
    assert classes.count("commit") == history.num_suspects + 1
    assert "<script" not in drawn
    titles = " ".join(item.text or "" for item in root.iter("title"))
    assert "run 5 t: Blocked" in titles and "<script>" in titles


def test_a_metrics_values_stand_at_their_heights() -> None:
    values = {"g": 1.0, "a": 2.0, "z": 5.0}
    runs = [_run(n, sha, RunOutcome.PASS, value) for n, (sha, value) in enumerate(values.items(), start=1)]
    root = ElementTree.fromstring(picture(_searched(_merged(), Question.METRIC, runs), runs))
    heights = [
        float((item.get("d") or "").split()[1].split("a")[0]) for item in root if item.get("class") == "run"
    ]
    lowest, middle, highest = heights
    assert lowest > middle > highest
    assert (lowest - middle) / (lowest - highest) == pytest.approx(0.25, abs=0.01)


def test_the_console_shows_branches_probes_and_mean_values() -> None:
    runs = [_run(1, "g", RunOutcome.PASS, 1.0), _run(2, "z", RunOutcome.PASS, 3.0)]
    runs += [_run(3, "s", RunOutcome.PASS, 1.0), _run(4, "s", RunOutcome.FAIL)]
    lines = picture_lines(_searched(_merged(), Question.METRIC, runs), runs)
    rows = [line.split("|")[1] for line in lines]
    assert [line[:9].strip() for line in lines] == ["posterior", "graph", "", "probes", "value"]
    assert rows[1:3] == ["oo──oo", "──oo─ "]
    assert rows[3] == "  ?  ·"
    assert rows[4] == "▁ ▁  █"


def test_control_characters_of_others_do_not_reach_the_terminal() -> None:
    assert plain("a\x1b[31mb\r\nc\x07") == "a [31mb  c "
