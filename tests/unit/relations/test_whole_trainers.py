"""The laws of whole trainers hold for a plain trainer, and each fault in it breaks the law about it."""

from dataclasses import replace

import pytest
from tests.unit.relations.plain_trainers import PlainTrainer

from seatrial.relations.contracts.trainers import Scalar
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = ("R2.whole", "R10.whole", "R12.whole", "R13.whole", "R22.whole", "R23.whole")
FAULTS = {
    "shifted mask": "R12.whole",
    "mean of micro-batches": "R12.whole",
    "rows served twice": "R12.whole",
    "clipped twice": "R10.whole",
    "frozen tensor moves": "R10.whole",
    "moments lost at a resume": "R13.whole",
    "order of the first epoch after a resume": "R13.whole",
    "another rate logged": "R10.whole",
    "norm after clipping": "R22.whole",
    "scalar of a part": "R22.whole",
    "last step logged": "R22.whole",
    "scalar not logged": "R22.whole",
    "evaluation takes rows": "R23.whole",
    "evaluation over rows": "R23.whole",
    "evaluation with dropout": "R23.whole",
}


@pytest.mark.parametrize("name", RELATIONS)
def test_a_trainer_without_a_fault_passes(name: str) -> None:
    """Every law is exercised and holds, apart from those of sampled completions, of which the trainer has none."""
    (relation,) = select([name])
    verdict = run_relation(relation, PlainTrainer(), seeds=[0], thorough=True)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    # Planted in TRL (tests/peers/test_trl_faults.py), and among the tests of its tables.
    completions = {
        "logged loss of completions",
        "tables of completions",
        "gradient, generations that begin within a step",
    }
    assert set(verdict.details["laws"]) == {law.name for law in relation.laws} - completions


@pytest.mark.parametrize(("fault", "name"), FAULTS.items())
def test_each_fault_breaks_the_law_about_it(fault: str, name: str) -> None:
    """A fault is a broken law of its relation."""
    (relation,) = select([name])
    verdict = run_relation(relation, PlainTrainer(fault), seeds=[0], shrink_seconds=0)
    assert verdict.outcome is Outcome.FAIL


def test_an_evaluation_of_one_process_breaks_the_law_of_several() -> None:
    """In one process there is nothing wrong with it."""
    (evaluates,) = select(["R23.whole"])
    stack = PlainTrainer("evaluation of one process")
    verdict = run_relation(evaluates, stack, seeds=[0], shrink_seconds=0, thorough=True)
    assert verdict.details["laws_broken"] == ["logged loss and scalars, two processes"]


def test_a_scalar_that_the_release_does_not_have_is_named_and_not_judged() -> None:
    """A scalar that is neither named nor logged is not exercised; one that is logged is judged all the same."""
    (logs,) = select(["R22.whole"])
    (evaluates,) = select(["R23.whole"])
    stack = PlainTrainer("scalar not logged")
    assert run_relation(evaluates, stack, seeds=[0]).outcome is Outcome.FAIL
    stack.trainer_spec = replace(stack.trainer_spec, unnamed_scalars=frozenset({"entropy"}))
    verdict = run_relation(logs, stack, seeds=[0])
    assert verdict.outcome is Outcome.SKIPPED
    assert "the release neither names nor logs entropy" in verdict.reason
    assert run_relation(evaluates, stack, seeds=[0]).outcome is Outcome.PASS
    wrong = PlainTrainer("scalar of a part")
    wrong.trainer_spec = stack.trainer_spec
    assert run_relation(logs, wrong, seeds=[0], shrink_seconds=0).outcome is Outcome.FAIL


def test_an_entropy_after_each_token_is_not_that_of_the_tokens_that_train() -> None:
    """Where a release averages over prompts too, a mean over completions alone breaks the law of policies' scalars."""
    (logs,) = select(["R22.whole"])
    stack = PlainTrainer()
    stack.trainer_spec = replace(
        stack.trainer_spec, scalars={"entropy": Scalar(quantity="entropy after each token")}
    )
    broken = run_relation(logs, stack, seeds=[0], shrink_seconds=0).details["laws_broken"]
    assert "entropy, divergence and clipping, two micro-batches a step" in broken
