"""Puts every rule to a log, and says what is missing for those that could not speak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from seatrial.evidence.runlog import RunLog
from seatrial.rules.healthy import BASELINE, BASELINE_MEANING, Beside
from seatrial.rules.rule import Finding, Level, Rule, verdict_of
from seatrial.rules.streams import Streams, streams_of
from seatrial.verdict import Verdict
from seatrial.vocabulary import Stack, metrics


class Judged(NamedTuple):
    """A rule and what it says."""

    rule: Rule
    finding: Finding

    @property
    def verdict(self) -> Verdict:
        """What the rule says, in the algebra of verdicts."""
        return verdict_of(self.rule, self.finding)


class Missing(NamedTuple):
    """A metric that would arm rules."""

    metric: str
    meaning: str
    rules: tuple[str, ...]
    """Ids of rules for which it is the only thing that lacks, then of those that lack others too."""
    alone: int
    """For how many of them it is the only thing that lacks."""


def judge_log(
    log: RunLog, rules: Sequence[Rule], stack: Stack | None = None, beside: Beside | None = None
) -> list[Judged]:
    """Put rules to a log, beside healthy runs where they are given."""
    return judge_streams(streams_of(log, stack, beside), rules)


def judge_streams(streams: Streams, rules: Sequence[Rule]) -> list[Judged]:
    """Put rules to named series."""
    return [Judged(rule, rule.judge(streams)) for rule in rules]


def missing_metrics(judged: Sequence[Judged]) -> list[Missing]:
    """Return the metrics that would arm rules, those that arm most of them first."""
    lacking = [(item.rule.id, item.finding.missing) for item in judged if item.finding.missing]
    alone = Counter(names[0] for _, names in lacking if len(names) == 1)
    found: dict[str, list[str]] = {}
    for rule_id, names in sorted(lacking, key=lambda item: len(item[1])):
        for name in names:
            found.setdefault(name, []).append(rule_id)
    order = sorted(found, key=lambda name: (-alone[name], -len(found[name]), name))
    meanings = {BASELINE: BASELINE_MEANING, **{name: metric.meaning for name, metric in metrics().items()}}
    return [Missing(name, meanings.get(name, ""), tuple(found[name]), alone[name]) for name in order]


def loudest(judged: Sequence[Judged]) -> Level:
    """Return the loudest level among findings."""
    return max((item.finding.level for item in judged), default=Level.NOT_TRIGGERED)
