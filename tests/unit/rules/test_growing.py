"""A rule says the same of the first points of a run, whether the rest is there or not."""

from __future__ import annotations

import numpy as np
import pytest

from seatrial.rules.engine import all_rules
from seatrial.rules.rule import Limits, Marks, StepRule, Values

RULES = [rule for rule in all_rules() if isinstance(rule, StepRule)]


def marked(rule: StepRule, values: Values, limits: Limits) -> Marks:
    """Return the marks as `judge` takes them."""
    with np.errstate(all="ignore"):
        return rule.mark(values, limits)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_marks_of_a_prefix_are_the_prefix_of_the_marks(rule: StepRule) -> None:
    """On walks with plateaus and zeros, for every length."""
    random = np.random.default_rng(0)
    limits = {name: parameter.value for name, parameter in rule.parameters.items()}
    values = {}
    for name in (*rule.needs, *rule.uses):
        walk = np.round(np.cumsum(random.standard_normal(160)) / 2) * random.choice([0, 1, 1, 30], 160)
        walk[60:120] = walk[60]
        values[name] = walk
    values["step"] = 5.0 * np.arange(160)
    whole = marked(rule, values, limits)
    for length in range(1, 160):
        part = marked(rule, {name: column[:length] for name, column in values.items()}, limits)
        np.testing.assert_array_equal(part.alarm, whole.alarm[:length])
        if whole.notice is not None and part.notice is not None:
            np.testing.assert_array_equal(part.notice, whole.notice[:length])
