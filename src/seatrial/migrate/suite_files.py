"""Writes suites as YAML: one per metrics file that a script judges, and per branch that excludes others."""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml

from seatrial.checks.language.nodes import reads_only_numbers
from seatrial.migrate.shell_walk import Branch
from seatrial.migrate.suites import CheckerCall, Migration


def suite_texts(migration: Migration) -> dict[str, str]:
    """Return the YAML of each suite, by file name."""
    texts: dict[str, str] = {}
    metrics_files = list(dict.fromkeys(call.metrics for call in migration.calls))
    number = 0
    for metrics in metrics_files:
        calls = [call for call in migration.calls if call.metrics == metrics]
        if not any(call.carried or _steps(call) is not None for call in calls):
            continue
        number += 1
        stem = migration.script.stem + (f"-{number}" if number > 1 else "")
        ways = _ways(calls)
        for path in ways:
            name = stem + (_suffix(path) if len(ways) > 1 else "")
            name = name if f"{name}.yaml" not in texts else f"{name}-{len(texts) + 1}"
            chosen = [call for call in calls if set(call.path) <= set(path)]
            texts[f"{name}.yaml"] = _suite_text(name, migration.script.name, metrics, chosen, path)
    return texts


def _ways(calls: Sequence[CheckerCall]) -> list[tuple[Branch, ...]]:
    """Return the branches that lead to calls, except those that are only the beginning of another."""
    paths = list(dict.fromkeys(call.path for call in calls))
    return [path for path in paths if not any(set(path) < set(other) for other in paths)]


def _suffix(path: Sequence[Branch]) -> str:
    words = []
    for branch in path:
        label = branch.label if branch.parameter is None else "-".join(branch.parameter)
        words.append(re.sub(r"[^A-Za-z0-9_.]+", "-", label).strip("-")[:40])
    return "-" + "-".join(words) if words else ""


def _steps(call: CheckerCall) -> tuple[int, str | None] | None:
    """Return the step that a run must have logged before a call, and the series whose steps count."""
    known = [(guard.steps, guard.tag) for guard in call.guards if isinstance(guard.steps, int)]
    if known:
        return max(known, key=lambda item: item[0])
    # A branch may stop the run on purpose: then only the script says how far the run comes.
    if call.asked_steps is None or call.guards or call.path or _judges_numbers([call]):
        return None
    return call.asked_steps.steps, None


def _judges_numbers(calls: Sequence[CheckerCall]) -> bool:
    """Return whether calls judge only single numbers, as an evaluation writes them: these have no steps."""
    checks = [item.check for call in calls for item in call.carried]
    return bool(checks) and all(reads_only_numbers(check) for check in checks)


def _suite_text(
    name: str, script: str, metrics: str, calls: Sequence[CheckerCall], path: Sequence[Branch]
) -> str:
    """Return one suite as YAML, with the lint findings of a check as comments above it."""
    head: dict[str, object] = {
        "name": name,
        "description": f"carried over from {script}, which judged {metrics}",
    }
    if path:
        head["description"] = f"{head['description']}, where {' and '.join(branch.label for branch in path)}"
        parameters = dict(branch.parameter for branch in path if branch.parameter is not None)
        if parameters:
            head["parameters"] = parameters
    steps = max((found for call in calls if (found := _steps(call))), key=lambda item: item[0], default=None)
    unknown = "the script does not say how many steps the run takes: add steps"
    comment = f"  # {'numbers without steps are judged' if _judges_numbers(calls) else unknown}"
    if steps is not None:
        head["steps"] = steps[0]
        if steps[1] is not None:
            head["steps_of"] = steps[1]
        guarded = any(call.guards for call in calls)
        asked = next((call.asked_steps for call in calls if call.asked_steps is not None), None)
        source = (
            "the command of the run sets them"
            if asked is None or asked.config is None
            else f"from {asked.config}"
        )
        comment = "" if guarded else f"  # {source}; the script itself does not check"
    lines = yaml.safe_dump(head, sort_keys=False, width=1000, allow_unicode=True).rstrip().splitlines()
    place = next((n for n, line in enumerate(lines) if line.startswith("steps:")), len(lines) - 1)
    lines[place] += comment
    carried = [item for call in calls for item in call.carried]
    lines.append("checks:" if carried else "checks: []")
    for left in [left for call in calls for left in call.left_behind]:
        lines.append(
            f"  # left behind: {' '.join(left.text.split())} ({script} line {left.line}: {left.reason})"
        )
    for item in carried:
        for finding in item.findings:
            lines.append(f"  # {finding.kind.value}: {' '.join(finding.message.split())}")
        entry = {
            "expression": item.check.text,
            "why": f"{script} line {item.line} requires it",
            "source": f"hand-set in {script} line {item.line}",
        }
        text = yaml.safe_dump([entry], sort_keys=False, width=1000, allow_unicode=True).rstrip()
        lines += [f"  {line}" for line in text.splitlines()]
    return "\n".join(lines) + "\n"
