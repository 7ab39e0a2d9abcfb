"""report.html leads with what failed, says what results.json says, loads nothing, and reads nothing as markup."""

import hashlib
import json
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import pytest

from seatrial.report.html import report_html, shortened, visible
from seatrial.report.samples import MAX_FILES, NUM_SHOWN, trial_samples
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
    assert_own_script_alone(reader)
    assert "img" not in {tag for tag, _ in reader.tags}
    assert NASTY in "".join(reader.text)


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """No address in any attribute: it reads the same without a network."""
    metrics(tmp_path / "trials" / "0", train__reward={"1": 0.5, "2": 0.75})
    page = report_html(make_results(), tmp_path)
    loading = {"src", "action", "data", "xlink:href", "style"}
    assert not [attributes for _, attributes in read(page).tags if loading & set(attributes)]
    links = [attributes["href"] for _, attributes in read(page).tags if "href" in attributes]
    ids = {attributes.get("id") for _, attributes in read(page).tags}
    assert links and all(link and link.startswith("#") and link[1:] in ids for link in links)
    assert "@import" not in page and "url(" not in page


def test_every_verdict_and_deliverable_is_a_row(tmp_path: Path) -> None:
    """Three verdicts and the requested deliverable, and a heading row for each table; the other trial is counted."""
    reader = read(report_html(make_results(), tmp_path))
    assert [tag for tag, _ in reader.tags].count("tr") == 1 + 1 + 1 + 3
    for word in ("Fail", "Blocked", "Skipped", "1 trial not requested (level 2)"):
        assert any(word in text for text in reader.text), word


def test_the_curves_are_those_of_the_runs_of_the_trial(tmp_path: Path) -> None:
    """One chart per known tag that was logged, a line per run; an unknown tag is not drawn."""
    folder = tmp_path / "trials" / "0"
    metrics(folder / "one", train__reward={"1": 0.5, "2": 0.75}, other={"1": 1.0})
    metrics(folder / "two", train__reward={"1": 0.25, "2": 0.5}, train__loss={"1": 1.0})
    page = report_html(make_results(), tmp_path)
    charts = page.split("<svg")[1:]
    assert [("train/reward" in chart, "train/loss" in chart) for chart in charts] == [
        (True, False),
        (False, True),
    ]
    assert all(f">{name}: train/reward</text>" in charts[0] for name in ("one", "two"))
    assert "Not drawn" not in page


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
    page = report_html(results, tmp_path)
    assert "Blocked</span></h1>" in page
    assert "seatrial run --resume DIR" in page


def test_the_failure_comes_first_with_its_cause_and_the_next_step(tmp_path: Path) -> None:
    """From the table of causes, a rule, a relation that names the usual bug, and the triage of a console log."""
    results = make_results()
    results.trials[0].verdicts = [
        Verdict(name="every trainable tensor moved", outcome=Outcome.FAIL, reason="25 did not", value=0.0, bound="> 0",
                num_samples=25),
        Verdict(name="rule gradient-zero", outcome=Outcome.FAIL, reason="zero", details={"step": 7}),
        Verdict(name="seed 0: packing", outcome=Outcome.FAIL,
                reason="law broken. Cause: positions not reset | law 2 broken. Usually: noise"),
        Verdict(name="the evaluation", outcome=Outcome.FAIL, reason="exit status 1",
                details={"triage": "data: no such file. Next: give data.path", "last_lines": ["<b>Error\n"]}),
        Verdict(name="ledger: rewards recomputed equal the logged", outcome=Outcome.FAIL, reason="step 2 row 5: 0.5",
                details={"rows": [{"step": 2, "index": 5}]}),
    ]  # fmt: skip
    text = " ".join(" ".join(read(report_html(results, tmp_path)).text).split())
    first = text.index("Trial Outcome")
    for words in (
        "The learning rate is 0",
        "Step 7",
        "positions not reset",
        "give data.path",
        "<b>Error",
        "Step 2, row 5",
    ):
        assert 0 < text.index(words) < first, words
    assert text.index("every trainable tensor moved") < text.index("Usual cause:")


def test_the_consequences_of_a_failed_command_say_so(tmp_path: Path) -> None:
    """The command's own failure keeps its cause; what the run could not leave points to it."""
    results = make_results()
    results.trials[0].verdicts = [
        Verdict(name="training ends with status 0", outcome=Outcome.FAIL, reason="exit status 1",
                details={"last_lines": ["one", "two"]}),
        Verdict(name="ledger: every trained row is there, once", outcome=Outcome.FAIL, reason="no rows",
                details={"rows": [{"step": 2, "index": None}]}),
    ]  # fmt: skip
    text = "".join(read(report_html(results, tmp_path)).text)
    assert (
        text.count("The command did not finish: see 'training ends with status 0'") == 2
    )  # card and summary form
    assert "one\ntwo" in text and "row None" not in text


def ledger(folder: Path, step: int, **cells: object) -> None:
    """Write four rows of a step, with rewards 0 to 3; `cells` are of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"step": step, "index": n, "prompt_id": 1, "prompt": "1+1=", "completion": f"{step}:{n}", "reward": float(n),
         "advantage": n - 1.5, **(cells if n == 0 else {})}
        for n in range(4)
    ]  # fmt: skip
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"train_data_step{step}.jsonl").write_text(text)


def test_rows_are_the_named_the_worst_and_random_ones(tmp_path: Path) -> None:
    """Each row once; the same seed shows the same rows; many files are read in part, and the page says so."""
    for step in range(1, 4):
        ledger(tmp_path / "logs", step)
    found = trial_samples(tmp_path, {(2, 3)}, seed=1)
    assert [(s.why, s.row.step, s.row.index) for s in found.shown[:4]] == [
        ("named by a failed check", 2, 3), ("worst", 1, 0), ("worst", 2, 0), ("worst", 3, 0),
    ]  # fmt: skip
    assert len({(s.row.step, s.row.index) for s in found.shown}) == len(found.shown) <= 1 + 2 * NUM_SHOWN
    assert found == trial_samples(tmp_path, {(2, 3)}, seed=1)
    assert found.num_rows == 12 and not found.notes
    for step in range(4, 60):
        ledger(tmp_path / "logs", step)
    found = trial_samples(tmp_path, set(), seed=1)
    assert found.num_rows == 4 * MAX_FILES and found.notes


def test_hostile_rows_are_text_and_short(tmp_path: Path) -> None:
    """Tags, control characters, direction marks, lone surrogates and 100 kB, in rows, a configuration and tags."""
    folder = tmp_path / "trials" / "0"
    nasty = "</script></pre>" + NASTY + "\x1b[31m\u202eabc\ud800" + "x" * 100_000
    ledger(folder / "logs", 1, completion=nasty, prompt=nasty, finish_reason=nasty, answer=nasty)
    (folder / "logs" / "run_info.json").write_text(
        json.dumps({"config": {nasty: nasty, "api_key": "abcdefgh"}})
    )
    metrics(folder, **{"train/reward": {"1": 1e308, "2": -1e308, "3": 5e-324}, nasty: {"1": 1.0}})
    page = report_html(make_results(), tmp_path)
    page.encode()
    assert len(page) < 150_000
    reader = read(page)
    assert_own_script_alone(reader)
    assert "img" not in {tag for tag, _ in reader.tags}
    text = "".join(reader.text)
    assert r"\x1b[31m\u202eabc\ud800" in text and "more characters)" in text and "\u202e" not in page
    assert "abcdefgh" not in page


def test_long_and_invisible_text() -> None:
    """What is left out is counted; what cannot be seen is escaped."""
    assert shortened("x" * 12, 10) == "xxxxxxxxxx ... (2 more characters)"
    assert visible("a\n\x00\u2066\ud800é") == "a\n\\x00\\u2066\\ud800é"


def assert_own_script_alone(reader: Reader) -> None:
    """The page has one script, whose hash is the only one that its policy allows, and no inline handler."""
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on")]
    policy = next(a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    script = next(text for text in reader.text if text.startswith('"use strict"'))
    assert f"script-src 'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}';" in policy
