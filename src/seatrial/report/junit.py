"""junit.xml: a suite per trial, a case per verdict; Fail is a failure, Blocked an error, Skipped a skip.

Source: the JUnit XML format as CI systems read it (testsuites/testsuite/testcase with properties).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from seatrial.report.rows import format_value, row
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.verdict import Outcome, Verdict

_ELEMENTS = {Outcome.FAIL: "failure", Outcome.BLOCKED: "error", Outcome.SKIPPED: "skipped"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(results: Results) -> str:
    """Return the run as JUnit XML; a trial that did not conclude has a case of its own that is an error."""
    root = ET.Element("testsuites", name=f"seatrial {_clean(results.target)}")
    for trial in results.requested_trials():
        root.append(_suite(trial, results))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def verdicts_junit(name: str, verdicts: Sequence[Verdict], started_at: str) -> str:
    """Return verdicts that belong to no trial, such as those of `seatrial check`, as JUnit XML."""
    root = ET.Element("testsuites", name=f"seatrial {_clean(name)}")
    root.append(_suite_of(name, verdicts, seconds=0.0, started_at=started_at))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(trial: TrialResult, results: Results) -> ET.Element:
    verdicts = list(trial.verdicts)
    if trial.state is not TrialState.CONCLUDED or not verdicts:
        verdicts.append(
            Verdict(
                name="concluded",
                outcome=Outcome.BLOCKED,
                reason=f"the trial did not conclude: {trial.state.value}",
            )
        )
    return _suite_of(
        f"level{trial.level}.{trial.name}", verdicts, trial.seconds or 0.0, started_at=results.started_at
    )


def _suite_of(name: str, verdicts: Sequence[Verdict], seconds: float, started_at: str) -> ET.Element:
    outcomes = [verdict.outcome for verdict in verdicts]
    suite = ET.Element(
        "testsuite",
        name=_clean(name),
        tests=str(len(verdicts)),
        failures=str(outcomes.count(Outcome.FAIL)),
        errors=str(outcomes.count(Outcome.BLOCKED)),
        skipped=str(outcomes.count(Outcome.SKIPPED)),
        time=f"{seconds:.3f}",
        timestamp=started_at,
    )
    for verdict in verdicts:
        suite.append(_case(verdict, name))
    return suite


def _case(verdict: Verdict, suite: str) -> ET.Element:
    case = ET.Element("testcase", classname=_clean(suite), name=_clean(verdict.name), time="0")
    properties = ET.SubElement(case, "properties")
    cells = row(verdict)
    for name, value in (
        ("value", format_value(verdict.value)),
        ("bound", cells.bound),
        ("steps", cells.steps),
        ("samples", str(verdict.num_samples)),
        ("source", verdict.source or "-"),
        ("reason", verdict.reason),
    ):
        ET.SubElement(properties, "property", name=name, value=_clean(value))
    if element := _ELEMENTS.get(verdict.outcome):
        child = ET.SubElement(case, element, message=_clean(verdict.reason))
        if element != "skipped":
            child.set("type", verdict.outcome.value)
    return case


def _clean(text: str) -> str:
    """Drop characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)
