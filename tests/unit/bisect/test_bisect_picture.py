"""The search as a picture: lanes of the graph, one mark for each run, nothing from outside left unescaped."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from seatrial.bisect.console import picture_lines, plain, remaining, waiting_text, wrapped
from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import MOST_LANES, Commit, History, graph_of
from seatrial.bisect.likelihood import Noise, Settings
from seatrial.bisect.outcomes import Run, RunOutcome
from seatrial.bisect.report import picture
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


def test_nothing_is_drawn_where_nothing_was_judged() -> None:
    """A uniform belief once filled the whole row with full bars."""
    search = Search(History.linear(40), Question.PASS_FAIL)
    row = picture_lines(search, [])[0]
    assert "nothing was judged" in row
    assert not set(row) & set("▁▂▃▄▅▆▇█")
    assert "nothing was judged" in picture(search, []) and "<rect" not in picture(search, [])


def test_bars_are_full_only_where_a_commit_stands_out() -> None:
    search = Search(History.linear(40), Question.PASS_FAIL)
    search.record(Observation(position=0, failed=False))
    assert "█" not in picture_lines(search, [])[0]
    for position in (39, 39, 39, 40, 40, 40, 38, 38, 38):
        search.record(Observation(position=position, failed=position > 38))
    assert picture_lines(search, [])[0].count("█") == 1


@pytest.mark.parametrize("columns", [60, 80, 132])
@pytest.mark.parametrize("question", list(Question))
def test_the_picture_fits_the_terminal(columns: int, question: Question) -> None:
    history = History.linear(500)
    value = 123456.789 if question is Question.METRIC else None
    runs = [
        _run(n, history.commit(p).sha, RunOutcome.PASS, value and value * n)
        for n, p in enumerate((0, 500, 250))
    ]
    lines = picture_lines(_searched(history, question, runs), runs, columns)
    assert max(map(len, lines)) <= columns


def test_lines_are_folded_for_a_terminal_and_whole_for_a_file() -> None:
    line = "run   1  " + "word " * 40
    assert wrapped(line, None) == line
    folded = wrapped(line, 80).split("\n")
    assert max(map(len, folded)) <= 80
    assert " ".join(" ".join(folded).split()) == " ".join(line.split())


def test_what_is_waited_for_is_told_with_the_queue_and_the_time_that_is_left() -> None:
    history = History.linear(128)
    runs = [_run(1, history.good.sha, RunOutcome.PASS), _run(2, history.commit(128).sha, RunOutcome.FAIL)]
    runs = [replace(run, seconds=1200.0) for run in runs]
    search = Search(history, Question.PASS_FAIL, Settings(noise=Noise.NONE))
    for failed, position in ((False, 0), (True, 128)):
        search.record(Observation(position=position, failed=failed))
    told = waiting_text(search, runs, {3: "squeue: PENDING", 4: ""}, jobs=1)
    assert told == "run 3 (squeue PENDING) and 1 more: about 7 more runs, 2 h"
    assert remaining(search, runs, jobs=4) == "about 7 more runs, 40 min"
    assert remaining(search, [], jobs=1) == "about 7 more runs"
