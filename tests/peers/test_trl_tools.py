"""Faults planted in the turns of TRL's GRPO with tools, as it is installed, break laws of the whole trainer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import by_day, judged
from tests.peers.test_trl_faults import ADAPTERS, NAMES

GRADIENT = "gradient, two micro-batches a step"
FAULTS = [
    (
        "whole-grpo-tools", "R12.whole", GRADIENT,
        "replace(trl.GRPOTrainer, '_get_tool_suffix_ids', lambda f: lambda self, messages: f(self, messages)[1:])",
    ),
    (
        "whole-grpo-tools", "R12.whole", GRADIENT,
        "def loop(f):\n    def called(self, *a):\n        found = f(self, *a)\n"
        "        return ([[1] * len(one) for one in found[0]], *found[1:])\n    return called\n"
        "replace(trl.GRPOTrainer, '_tool_call_loop', loop)",
    ),
    (
        "whole-grpo-tools-limited", "R12.whole", GRADIENT,
        "after_init(trl.GRPOTrainer, lambda self: setattr(self, 'max_tool_calling_iterations', 9))",
    ),
    (
        "whole-grpo-tools", "R22.whole", "scalars, two micro-batches a step",
        "def loop(f):\n    def called(self, *a):\n        found = f(self, *a)\n"
        "        return (*found[:4], found[4] + found[5], *found[5:])\n    return called\n"
        "replace(trl.GRPOTrainer, '_tool_call_loop', loop)",
    ),
    (
        "whole-grpo-environment", "R12.whole", GRADIENT,
        "from seatrial.targets.trl.tools import Environment\none = Environment()\n"
        "Environment.__new__ = lambda cls: one\nreplace(Environment, '__init__', lambda f: lambda self: None)\n"
        "one._number = 0",
    ),
]  # fmt: skip
"""An adapter, a relation, the law that breaks, and the fault."""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("adapter", "relation", "law", "fault"), by_day(FAULTS, 1))
def test_a_planted_fault_breaks_its_law(
    peer_python: Callable[[str], Path], adapter: str, relation: str, law: str, fault: str
) -> None:
    """The first of each relation by day, the others at night."""
    outcome, broken = judged(peer_python("trl"), [NAMES, fault, ADAPTERS], adapter, relation)
    assert outcome == "Fail"
    assert law in broken
