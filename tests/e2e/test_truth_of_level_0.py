"""Level 0 passes on sound configurations, and does not where nothing was learned from."""

import pytest
from tests.e2e.conftest import RunTrial

from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]


@pytest.mark.parametrize(
    "overrides",
    [
        ("policy.generation.top_p=0.5",),
        pytest.param(
            ("policy.tokenizer.chat_template=byte", "policy.max_total_sequence_length=96"),
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["filtered", "chat"],
)
def test_a_sound_configuration_passes(run_trial: RunTrial, overrides: tuple[str, ...]) -> None:
    """A filter is scored as it was sampled; a prompt is its template's rendering."""
    result = run_trial(ReferenceTarget(), GrpoSmoke(), overrides)
    assert result.outcome is Outcome.PASS, [
        verdict for verdict in result.verdicts if verdict.outcome is not Outcome.PASS
    ]


def test_a_run_whose_verifier_fails_does_not_pass(run_trial: RunTrial) -> None:
    """Every reward is an error's 0, every gradient 0."""
    result = run_trial(ReferenceTarget(), GrpoSmoke(), ("data.verifier=code_output",))
    assert result.outcome is Outcome.FAIL
    assert any("verifier" in verdict.reason for verdict in result.verdicts if verdict.outcome is Outcome.FAIL)
