"""Rules are found, chosen by id or family, and brought by other packages."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from seatrial.errors import UsageError
from seatrial.rules.engine import all_rules, rules_of_entry_points, select
from seatrial.rules.healthy import BASELINE
from seatrial.vocabulary import metrics

MISSPELLED = replace(
    next(rule for rule in all_rules() if rule.id == "kl-zero"), id="mine", uses=("grad_nrom",)
)


def test_every_rule_is_explained() -> None:
    """Statement, meaning, remedy, and a source for each figure; it asks for metrics that the vocabulary has."""
    for rule in all_rules():
        assert rule.statement and rule.meaning and rule.remedy
        assert all(parameter.source for parameter in rule.parameters.values())
        assert set(rule.needs) | set(rule.uses) <= {*metrics(), BASELINE}
        assert all(re.fullmatch(r"SB\d{3}", known) for known in rule.catalogue)


def test_rules_are_chosen_by_id_and_family() -> None:
    """And one that is left out stays out."""
    assert {rule.family for rule in select(["entropy"])} == {"entropy"}
    assert [rule.id for rule in select(["kl-drift", "finite"])] == ["finite", "kl-drift"]
    assert "kl-drift" not in {rule.id for rule in select([], without=["kl-drift"])}
    with pytest.raises(UsageError, match="did you mean 'kl-drift'"):
        select(["kl-drif"])


def test_a_package_brings_rules() -> None:
    """By an entry point; one that names something else is refused with its name."""
    point = EntryPoint("mine", "seatrial.rules.families.values:RULES", "seatrial.rules")
    assert [rule.id for rule in rules_of_entry_points([point])] == [
        "finite",
        "out-of-bounds",
        "likelihood-loss-negative",
        "scale-left",
    ]
    wrong = EntryPoint("mine", "seatrial.rules.families:MODULES", "seatrial.rules")
    with pytest.raises(UsageError, match=r"mine .* is no rule: it has no id"):
        rules_of_entry_points([wrong])
    gone = EntryPoint("mine", "seatrial.no_such_module", "seatrial.rules")
    with pytest.raises(UsageError, match="cannot be loaded"):
        rules_of_entry_points([gone])


def test_a_rule_that_needs_an_unknown_metric_is_refused() -> None:
    """A misspelled metric would never be found, so that the rule would never run; the nearest name is given."""
    misspelled = EntryPoint("mine", f"{__name__}:MISSPELLED", "seatrial.rules")
    with pytest.raises(UsageError, match=r"rule mine of mine .*'grad_nrom'.*did you mean 'grad_norm'"):
        rules_of_entry_points([misspelled])
