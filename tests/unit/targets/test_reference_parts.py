"""refrl offers every component; its options are all turned; its cases know every verifier."""

import pytest

from refrl.config import GRPORunConfig
from refrl.config_loading import leaf_annotations
from refrl.rewards import VERIFIERS
from seatrial.relations.contracts import COMPONENTS
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference_components import ReferenceComponents
from seatrial.verdict import Outcome

STACK = ReferenceComponents()
ADDED = (
    "R10.update", "R14.prompts", "R15.clamp", "R16.chat", "R17.filter", "R17.reward", "R18.knobs", "R23.evaluation",
    "R24.learning_rate", "R24.staleness",
)  # fmt: skip


@pytest.mark.parametrize("component", sorted(COMPONENTS))
def test_every_component_is_offered(component: str) -> None:
    """Nothing of the battery is left out on refrl."""
    assert isinstance(STACK, COMPONENTS[component])


@pytest.mark.parametrize("name", ADDED)
def test_the_law_holds(name: str) -> None:
    """One seed; the battery itself runs more."""
    (relation,) = select([name])
    verdict = run_relation(relation, STACK, seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason


def test_every_option_of_these_sections_is_turned() -> None:
    """A new option without a knob would be an option that nothing watches."""
    sections = (
        "loss_fn.", "grpo.advantage.", "policy.optimizer.", "policy.scheduler.", "policy.generation.",
    )  # fmt: skip
    options = {name for name in leaf_annotations(GRPORunConfig) if name.startswith(sections)}
    # One engine only; a copy of its own must change nothing (configs/equivalence/grpo-colocated.yaml); and a forced
    # ratio saves a pass where the ratio is 1 anyhow: the schema refuses it elsewhere.
    untouched = {
        "policy.generation.backend",
        "policy.generation.colocated.enabled",
        "loss_fn.force_on_policy_ratio",
    }
    assert options - set(STACK.knobs()) == untouched


def test_every_verifier_has_a_right_and_a_wrong_answer() -> None:
    """A verifier that always says yes, or no, would be seen."""
    rewards = {name: set() for name in VERIFIERS}
    for problem, _, reward in STACK.reward_cases():
        rewards[problem.verifier].add(reward)
    assert [name for name, seen in rewards.items() if not seen] == []
    assert [name for name, seen in rewards.items() if len(seen) < 2] == ["byte_closeness"]


class DrawsWhenItEvaluates(ReferenceComponents):
    """Evaluation takes numbers from the stream that trains."""

    def train_with_evaluation(self, *, evaluate, seed):
        """Move one stream."""
        state = dict(super().train_with_evaluation(evaluate=evaluate, seed=seed))
        return {**state, "torch stream": state["torch stream"] + int(evaluate)}


def test_an_evaluation_that_moves_a_stream_is_seen() -> None:
    """The law can fail."""
    (relation,) = select(["R23.evaluation"])
    verdict = run_relation(relation, DrawsWhenItEvaluates(), seeds=[0])
    assert verdict.outcome is Outcome.FAIL
    assert "torch stream" in verdict.reason
