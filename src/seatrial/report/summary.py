"""The summary form: whether the requested deliverables pass, on what evidence, with what limits.

Its headings are those of the seed documents on end-to-end testing: Result, Requested coverage, Model,
Deliverables, Evidence, Limitations, Follow-ups. Every requested deliverable has a line; the other trials are
one line with their number.
"""

from __future__ import annotations

import re
from collections import Counter

from seatrial.report.causes import advice_of, by_importance
from seatrial.report.rows import WORDS, format_value
from seatrial.trials.results import Results, TrialResult, TrialState
from seatrial.verdict import Outcome, Verdict
from seatrial.words import counted


def summary_text(results: Results) -> str:
    """Return the summary form as plain text, which is also Markdown."""
    sections = [
        f"Result: {WORDS[results.outcome]} - {_sentence(results)}",
        f"Requested coverage: {results.requested} on target {results.target}",
        f"Model: {', '.join(sorted({t.model for t in results.requested_trials() if t.model})) or 'none was reached'}",
        _section("Deliverables", _deliverables(results)),
        _section("Evidence", _evidence(results)),
        _section("Limitations", _limitations(results)),
        _section("Follow-ups", _follow_ups(results)),
    ]
    return "\n\n".join(sections) + "\n"


def _section(heading: str, lines: list[str]) -> str:
    return "\n".join([f"{heading}:", *(f"- {line}" for line in lines or ["none"])])


def _sentence(results: Results) -> str:
    requested = results.requested_trials()
    counts = Counter(trial.outcome for trial in requested)
    tally = ", ".join(f"{number} {WORDS[outcome]}" for outcome, number in counts.items())
    if results.outcome is Outcome.PASS:
        proven = "; ".join(trial.proves for trial in requested if trial.outcome is Outcome.PASS)
        return f"{tally} of {len(requested)} requested: {proven}"
    first = next((trial for trial in requested if trial.outcome is results.outcome), None)
    reason = f": {first.name}: {_first_reason(first)}" if first else ""
    blocked = (
        "; blocked by the environment, this is no evidence against the stack"
        if results.outcome is Outcome.BLOCKED
        else ""
    )
    return f"{tally} of {len(requested)} requested{reason}{blocked}"


def _first_reason(trial: TrialResult) -> str:
    wanted = [verdict for verdict in by_importance(trial.verdicts) if verdict.outcome is trial.outcome]
    if wanted:
        return f"{wanted[0].name}: {wanted[0].reason}"
    return unfinished(trial)


def unfinished(trial: TrialResult) -> str:
    """Say why a trial has no conclusion."""
    return {
        TrialState.PENDING: "not begun when the run ended",
        TrialState.RUNNING: "the harness was stopped before it concluded",
        TrialState.INTERRUPTED: "interrupted before it concluded",
    }.get(trial.state, trial.state.value)


def not_requested_line(results: Results) -> str:
    """Return how many trials of which levels are not requested; empty where there are none."""
    levels = sorted({trial.level for trial in results.trials if not trial.requested})
    number = sum(not trial.requested for trial in results.trials)
    if not number:
        return ""
    return (
        f"{counted(number, 'trial')} not requested (level{'s' if len(levels) > 1 else ''} "
        f"{', '.join(map(str, levels))})"
    )


def _deliverables(results: Results) -> list[str]:
    lines = [_deliverable(trial) for trial in results.requested_trials()]
    return [*lines, line] if (line := not_requested_line(results)) else lines


def _deliverable(trial: TrialResult) -> str:
    words = f"level {trial.level} {trial.name}: {WORDS[trial.outcome]}"
    if trial.outcome is Outcome.PASS:
        counts = Counter(verdict.outcome for verdict in trial.verdicts)
        tally = ", ".join(f"{number} {WORDS[outcome]}" for outcome, number in counts.items())
        return f"{words} - {tally}; proves: {trial.proves}; does not prove: {trial.does_not_prove}"
    return f"{words} - {_first_reason(trial)}"


def _evidence(results: Results) -> list[str]:
    lines = [f"{name}: {state}" for name, state in results.repositories.items()]
    for trial in results.requested_trials():
        lines += [f"Command ({trial.name}): {command}" for command in trial.commands]
        judged = [verdict for verdict in trial.verdicts if verdict.name in trial.key_verdicts]
        lines += [
            f"Key line ({trial.name}): {verdict.name}: {_measured(verdict)}"
            + (f", bound {verdict.bound}" if verdict.bound else "")
            for verdict in judged
        ]
        if trial.directory:
            lines.append(f"Files ({trial.name}): {trial.directory}/")
    return lines


def _measured(verdict: Verdict) -> str:
    return verdict.reason if verdict.value is None else format_value(verdict.value)


def _limitations(results: Results) -> list[str]:
    lines = [f"{name}: not requested: {reason}" for name, reason in results.left_out.items()]
    for trial in results.requested_trials():
        lines.append(f"{trial.name} does not prove: {trial.does_not_prove}")
        lines += [f"{trial.name}: {words}" for words in trial.limitations]
        skipped = [verdict for verdict in trial.verdicts if verdict.outcome is Outcome.SKIPPED]
        known = [verdict for verdict in skipped if "expected_failure" in verdict.details]
        lines += [f"{trial.name}: {verdict.name}: {verdict.reason}" for verdict in known]
        silent = [verdict.name for verdict in skipped if verdict not in known]
        if silent:
            lines.append(f"{trial.name}: skipped, no evidence either way: {'; '.join(_grouped(silent))}")
    return lines


def _grouped(names: list[str]) -> list[str]:
    """Return each name once, followed by the seeds that it has."""
    seeds: dict[str, list[str]] = {}
    for name in names:
        of_seed = re.fullmatch(r"seed (\d+): (.*)", name, re.DOTALL)
        seeds.setdefault(of_seed[2] if of_seed else name, []).extend([of_seed[1]] if of_seed else [])
    return [f"{name} (seeds {', '.join(of)})" if of else name for name, of in seeds.items()]


def _follow_ups(results: Results) -> list[str]:
    lines = []
    for trial in results.requested_trials():
        lines += [
            f"{trial.name}: {verdict.name}: {verdict.reason}. Usual cause: {advice.cause}. Next: {advice.next}"
            for verdict in by_importance(trial.verdicts)
            for advice in [advice_of(verdict, trial.verdicts)]
        ]
        if trial.state is not TrialState.CONCLUDED:
            lines.append(f"{trial.name}: {unfinished(trial)}; continue with: seatrial run --resume DIR")
    return lines
