"""A wrong scalar of TRL, as it is installed with one line patched, is seen beside one that its adapter declares."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import judged_in_full
from tests.peers.test_trl_faults import ADAPTERS, NAMES

MEANS = "means of a step are over all its rows"
DECLARED = ["logits/chosen", "logits/rejected"]
LAST = """
def of_the_last(f):
    def called(self, logs, *words):
        own = self._metrics["train"]
        if "rewards/margins" in own:
            own["rewards/margins"] = own["rewards/margins"][-1:]
        return f(self, logs, *words)
    return called
replace(trl.DPOTrainer, "log", of_the_last)
"""
"""One scalar is that of the last micro-batch."""


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "wrong"), [("", []), (LAST, ["rewards/margins"])], ids=["sound", "patched"]
)
def test_a_second_wrong_scalar_fails_beside_the_declared_ones(
    peer_python: Callable[[str], Path], fault: str, wrong: list[str]
) -> None:
    """In the same law; the declared ones stay expected, and are no failure of the sound release."""
    outcome, details = judged_in_full(peer_python("trl"), [NAMES, fault, ADAPTERS], "whole-dpo", "R22.whole")
    assert (outcome == "Fail") == bool(wrong)
    assert details["parts"][MEANS] == {"expected": DECLARED, "broken": wrong}
    assert (MEANS in details.get("laws_broken", [])) == bool(wrong)
