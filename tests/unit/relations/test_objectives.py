"""The laws of objectives pass a plain trainer, and see each fault that is planted in it."""

import pytest
from tests.unit.relations.plain_objectives import EOS_ID, PlainTrainer, TinyModel

from seatrial.relations.cases.examples import Example, ObjectiveSpec, make_examples
from seatrial.relations.engine import run_relation
from seatrial.relations.oracles.objectives import objective
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = ("R1.objective", "R10.objective", "R12.objective")
SPECS = {
    "sft": ObjectiveSpec(kind="sft"),
    "sft-all": ObjectiveSpec(kind="sft", trains="all"),
    "dpo": ObjectiveSpec(kind="dpo", max_length=8, keep="end"),
    "cpo": ObjectiveSpec(kind="cpo"),
    "kto": ObjectiveSpec(kind="kto", desirable_weight=1.3, undesirable_weight=0.7),
    "kto-zero": ObjectiveSpec(kind="kto", reference_point="zero", max_length=8),
    "gkd": ObjectiveSpec(kind="gkd", beta=0.3, temperature=0.7),
    "gkd-forward": ObjectiveSpec(kind="gkd", beta=0.0, max_length=8, keep="end"),
    "reward": ObjectiveSpec(kind="reward"),
}


def trainer_of(name: str, fault: str | None = None) -> PlainTrainer:
    """Return a plain trainer; models that are far from one another where a reference point is to differ from 0."""
    trainer = PlainTrainer(SPECS[name], frozenset() if fault is None else frozenset({fault}))
    if name.startswith("kto"):
        trainer.model, trainer.reference = TinyModel(0, 4.0), TinyModel(1, 4.0)
    return trainer


def broken_laws(trainer: PlainTrainer, tidy: bool = False) -> list[str]:
    """Return the laws that a trainer breaks."""
    verdicts = [run_relation(relation, trainer, seeds=[0], tidy=tidy) for relation in select(RELATIONS)]
    if trainer.objective_spec.of_mates:
        verdicts = verdicts[1:]  # no law of micro-batches applies
    assert all(verdict.outcome in (Outcome.PASS, Outcome.FAIL) for verdict in verdicts), verdicts
    return [law for verdict in verdicts for law in verdict.details.get("laws_broken", [])]


@pytest.mark.parametrize("name", SPECS)
def test_a_plain_trainer_obeys(name: str) -> None:
    """Whole, in parts, and truncated."""
    assert broken_laws(trainer_of(name)) == []


@pytest.mark.parametrize(
    ("fault", "name", "law"),
    [
        ("summed micro-batches", "dpo", "gradients add up, lengths equal, in micro-batches of one example"),
        ("local counts", "sft", "gradients add up, lengths unequal, in micro-batches of one example"),
        ("first token counted", "sft-all", "gradient, lengths equal"),
        ("last column cut", "cpo", "gradient, lengths equal"),
        ("end by pad id", "sft", "gradient, lengths equal"),
        ("other side cut", "dpo", "gradient, beyond the maximum length"),
        ("undivided log", "cpo", "logged losses add up, lengths unequal, in micro-batches of one example"),
        ("frozen head", "cpo", "no dead tensor"),
        ("own completions", "kto", "gradient, reference point above 0"),
        ("point with gradient", "kto", "gradient, reference point above 0"),
        ("point not held", "kto", "gradient, reference point clipped to 0"),
        ("weights exchanged", "kto", "gradient, all examples desirable"),
        ("mean of the labels", "kto", "gradient, all examples undesirable"),
        ("exchanged", "gkd", "gradient, lengths equal"),
        ("no temperature", "gkd", "gradient, lengths equal"),
        ("whole rows", "gkd", "gradient, lengths unequal"),
        ("local counts", "gkd", "gradients add up, lengths unequal, in micro-batches of one example"),
        ("score of padding", "reward", "gradient, lengths unequal"),
        (
            "summed micro-batches",
            "reward",
            "gradients add up, lengths equal, in micro-batches of one example",
        ),
    ],
)
def test_a_planted_fault_is_seen(fault: str, name: str, law: str) -> None:
    """By the law that is about it."""
    assert law in broken_laws(trainer_of(name, fault))


def test_tidy_examples_hide_local_counts() -> None:
    """With equal lengths a mean over each micro-batch is the mean over the batch."""
    trainer = PlainTrainer(SPECS["sft"], frozenset({"local counts"}))
    law = "gradients add up, lengths unequal, in micro-batches of one example"
    assert law in broken_laws(trainer) and law not in broken_laws(trainer, tidy=True)


def test_a_loss_that_depends_on_its_micro_batch_is_not_held_to_any_split() -> None:
    """The reference point of KTO is the micro-batch's own; that is declared, and printed."""
    (relation,) = select(["R1.objective"])
    verdict = run_relation(relation, PlainTrainer(SPECS["kto"]), seeds=[0])
    assert verdict.outcome is Outcome.SKIPPED
    assert "objective_spec.reference_point='batch'" in verdict.reason


def test_the_oracles_of_equal_models_in_closed_form() -> None:
    """No divergence from itself; with equal models KTO is half the weight of each label."""
    trainer = PlainTrainer(SPECS["gkd"])
    trainer.reference = trainer.model
    good, bad = (
        Example(prompt_ids=(3, 4), completion_ids=(token, EOS_ID), desirable=label)
        for token, label in ((5, True), (6, False))
    )
    assert objective(trainer, [good]).loss == pytest.approx(0, abs=1e-12)
    trainer.objective_spec = SPECS["kto"]
    assert objective(trainer, [good, bad]).loss == pytest.approx((1.3 / 2 + 0.7 / 2) / 2)


def test_the_oracle_of_a_uniform_model_is_the_logarithm_of_its_vocabulary() -> None:
    """Closed forms: log V a token; log 2 where policy and reference agree."""
    trainer = PlainTrainer(SPECS["sft"])
    for value in trainer.model.head.parameters():
        value.data.zero_()
    one = Example(prompt_ids=(3, 4), completion_ids=(5, EOS_ID), rejected_ids=(6, 7, EOS_ID))
    assert objective(trainer, [one]).loss == pytest.approx(2.833213344)  # log 17
    trainer.objective_spec, trainer.reference = SPECS["dpo"], trainer.model
    assert objective(trainer, [one]).loss == pytest.approx(0.693147181)  # log 2


def test_unequal_examples_hold_a_short_and_a_longest_completion() -> None:
    """The trap that the laws of unequal lengths rest on."""
    case = make_examples(0, ordinary_ids=range(2, 17), eos_id=EOS_ID, pairs=True)
    lengths = [len(one.completion_ids) for one in case.examples]
    assert (
        min(lengths) == 2
        and max(lengths) == 11
        and all(one.completion_ids[-1] == EOS_ID for one in case.examples)
    )
    assert all(len(smaller.examples) <= 4 for smaller in case.smaller())
