"""Each fault of the table of claims fails its trial at the named checks."""

from pathlib import Path

import pytest
from tests.faulty_trials import failed_checks

from seatrial.faults.claims import FaultyRun, faulty_runs

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]

ON_EVERY_COMMIT = {("grpo-smoke", "padding-seen-in-prefill")}
"""A quick one; the others run at night."""
IN_OTHER_ENVIRONMENTS = ("generation-vllm", "parallel-ray-dp2")
"""tests/peers/test_vllm.py and tests/peers/ray_ranks_flow.py run these."""


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(
            one,
            id=f"{one.trial}-{one.fault}",
            marks=[] if (one.trial, one.fault) in ON_EVERY_COMMIT else [pytest.mark.nightly],
        )
        for one in faulty_runs()
        if one.trial not in IN_OTHER_ENVIRONMENTS
    ],
)
def test_the_trial_fails_at_the_checks(one: FaultyRun, tmp_path: Path) -> None:
    """With the fault planted."""
    assert set(one.breaks.values()) <= failed_checks(one, tmp_path)
