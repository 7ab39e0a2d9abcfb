"""Finds every rule, runs rules on a log, and reports what is missing for those without inputs.

Our own rules are in `families`. Another package adds rules with an entry point of the group `seatrial.rules` that
names a rule, or a sequence of them:

    [project.entry-points."seatrial.rules"]
    my-rules = "my_package.rules:RULES"
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple, cast

from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog
from seatrial.nearest import hint
from seatrial.rules.healthy import BASELINE, BASELINE_MEANING, Baseline
from seatrial.rules.rule import Finding, Level, Rule, Streams, streams_of, verdict_of
from seatrial.verdict import Verdict
from seatrial.vocabulary import Stack, metrics

GROUP = "seatrial.rules"
_PARTS = [
    "id",
    "family",
    "statement",
    "needs",
    "uses",
    "parameters",
    "meaning",
    "remedy",
    "catalogue",
    "judge",
]


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return our rules and those of entry points, in the order of their families.

    Raises:
        UsageError: an entry point cannot be loaded or names no rule; two rules share an id; a rule needs a metric
            that no vocabulary knows.
    """
    return _distinct([*own_rules(), *rules_of_entry_points(entry_points(group=GROUP))])


def own_rules() -> list[Rule]:
    """Return the rules of the modules that `seatrial.rules.families` lists."""
    families = importlib.import_module("seatrial.rules.families")
    modules = (importlib.import_module(f"{families.__name__}.{name}") for name in families.MODULES)
    return [rule for module in modules for rule in module.RULES]


def rules_of_entry_points(found: Iterable[EntryPoint]) -> list[Rule]:
    """Return what entry points name.

    Raises:
        UsageError: see `all_rules`.
    """
    rules: list[Rule] = []
    known = {*metrics(), BASELINE}
    for point in found:
        try:
            loaded: Any = point.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"rules of {point.name} ({point.value}) cannot be loaded: {error}; fix or uninstall that package"
            ) from error
        group = loaded if isinstance(loaded, Sequence) else (loaded,)
        for item in group:
            if missing := [part for part in _PARTS if not hasattr(item, part)]:
                raise UsageError(f"{point.name} ({point.value}) is no rule: it has no {', '.join(missing)}")
            if unknown := [name for name in (*item.needs, *item.uses) if name not in known]:
                raise UsageError(
                    f"rule {item.id} of {point.name} needs the metric {unknown[0]!r}, which no vocabulary knows; "
                    f"{hint(unknown[0], sorted(known))}"
                )
        rules += cast("Sequence[Rule]", group)
    return rules


def select(names: Sequence[str], without: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Return the rules with these ids or of these families, all for no names, less those left out.

    Raises:
        UsageError: a name is unknown; the nearest are given.
    """
    known = {name for rule in all_rules() for name in (rule.id, rule.family)}
    for name in (*names, *without):
        if name not in known:
            raise UsageError(f"no rule or family {name!r}; {hint(name, sorted(known))}")
    return tuple(
        rule
        for rule in all_rules()
        if (not names or {rule.id, rule.family} & set(names)) and not {rule.id, rule.family} & set(without)
    )


def _distinct(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    chosen: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in chosen:
            raise UsageError(f"two rules have the id {rule.id}")
        chosen[rule.id] = rule
    return tuple(chosen.values())


class Judged(NamedTuple):
    """A rule and its finding."""

    rule: Rule
    finding: Finding

    @property
    def verdict(self) -> Verdict:
        """The finding as a verdict."""
        return verdict_of(self.rule, self.finding)


_NOT_OF_LEARNING = frozenset(
    ("finite", "bounds", "arithmetic", "steps", "performance", "schedule", "staleness")
)


def is_evidence(judged: Sequence[Judged]) -> bool:
    """Say whether a rule of learning or stability could run; always where none of them was chosen."""
    asked = [item for item in judged if item.rule.family not in _NOT_OF_LEARNING]
    return not asked or any(item.finding.level is not Level.NOT_TRIGGERED for item in asked)


class Missing(NamedTuple):
    """A missing metric that rules need."""

    metric: str
    meaning: str
    rules: tuple[str, ...]
    """Ids of rules for which only this metric is missing, then of those that miss others too."""
    alone: int
    """For how many of them only this metric is missing."""


def judge_log(
    log: RunLog, rules: Sequence[Rule], stack: Stack | None = None, baseline: Baseline | None = None
) -> list[Judged]:
    """Run rules on a log, with healthy runs where they are given."""
    return judge_streams(streams_of(log, stack, baseline), rules)


def judge_streams(streams: Streams, rules: Sequence[Rule]) -> list[Judged]:
    """Run rules on named series."""
    return [Judged(rule, rule.judge(streams)) for rule in rules]


def missing_metrics(judged: Sequence[Judged]) -> list[Missing]:
    """Return the missing metrics that rules need, those that most rules need first."""
    unmet = [(item.rule.id, item.finding.missing) for item in judged if item.finding.missing]
    alone = Counter(names[0] for _, names in unmet if len(names) == 1)
    found: dict[str, list[str]] = {}
    for rule_id, names in sorted(unmet, key=lambda item: len(item[1])):
        for name in names:
            found.setdefault(name, []).append(rule_id)
    order = sorted(found, key=lambda name: (-alone[name], -len(found[name]), name))
    meanings = {BASELINE: BASELINE_MEANING, **{name: metric.meaning for name, metric in metrics().items()}}
    return [Missing(name, meanings.get(name, ""), tuple(found[name]), alone[name]) for name in order]
