"""refrl obeys every relation, in every cell of the options that its schema allows."""

import itertools

import pytest
from pydantic import ValidationError

from refrl.config import AdvantageConfig, LossConfig
from seatrial.relations import parametrize_with_relations
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference_components import Cell, ReferenceComponents
from seatrial.verdict import Outcome


@parametrize_with_relations(ReferenceComponents())
def test_the_default_cell_obeys(relation) -> None:
    """The whole battery, default seeds."""
    relation()


def advantage_cells() -> list[AdvantageConfig]:
    """Return every advantage that the schema allows."""
    cells = []
    for estimator, scale in itertools.product(
        ("grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"), (None, "group", "batch", "none")
    ):
        try:
            cells.append(AdvantageConfig(estimator=estimator, scale=scale))
        except ValidationError:
            continue
    return cells


def loss_cells() -> list[LossConfig]:
    """Return every loss that the schema allows: kind x reduction x KL x clip x correction x entropy."""
    cells = []
    for kind, reduction, kl, gradient, penalty, clip, correction, entropy in itertools.product(
        ("ppo_clip", "gspo", "cispo"),
        ("token", "sequence", "fixed_length"),
        ("k1", "k2", "k3"),
        ("estimator", "k2"),
        (0.0, 0.1),
        ((0.2, 0.2, None), (0.1, 0.28, None), (0.2, 0.2, 1.5)),
        ("none", "truncated", "masked"),
        (0.0, 0.01),
    ):
        try:
            cells.append(
                LossConfig(
                    kind=kind,
                    reduction=reduction,
                    fixed_length=24 if reduction == "fixed_length" else None,
                    reference_policy_kl_type=kl,
                    reference_policy_kl_gradient=gradient,
                    reference_policy_kl_penalty=penalty,
                    ratio_clip_min=clip[0],
                    ratio_clip_max=clip[1],
                    ratio_clip_c=clip[2],
                    importance_sampling=correction,
                    importance_sampling_max=1.2,
                    importance_sampling_min=0.9,
                    entropy_coefficient=entropy,
                )
            )
        except ValidationError:
            continue
    return cells


def disobeyed(cell: Cell, names: list[str], seeds: list[int]) -> list[str]:
    """Return what the relations that a cell breaks say."""
    stack = ReferenceComponents(cell)
    verdicts = [run_relation(relation, stack, seeds=seeds) for relation in select(names)]
    return [f"{cell}: {v.reason}" for v in verdicts if v.outcome not in (Outcome.PASS, Outcome.NOT_REQUESTED)]


@pytest.mark.parametrize("config", advantage_cells(), ids=lambda config: f"{config.estimator}-{config.scale}")
def test_every_advantage_obeys(config: AdvantageConfig) -> None:
    """Oracle, algebra and permutation."""
    names = ["R12.advantages", "R17.advantages", "R5.advantages", "R27.advantages"]
    assert not disobeyed(Cell(advantage=config), names, [0, 1, 2])


@pytest.mark.parametrize("kind", ["ppo_clip", "gspo", "cispo"])
@pytest.mark.parametrize("reduction", ["token", "sequence", "fixed_length"])
def test_every_loss_obeys(kind: str, reduction: str) -> None:
    """Oracle on every cell; the other laws of the loss on every seventh, each cell with a seed of its own."""
    cells = [cell for cell in loss_cells() if (cell.kind, cell.reduction) == (kind, reduction)]
    assert bool(cells) == (kind != "gspo" or reduction == "sequence")
    broken = []
    for number, config in enumerate(cells):
        rest = (
            ["R1.loss", "R3.loss", "R5.loss", "R9.loss", "R11", "R22", "R27.loss"] if number % 7 == 0 else []
        )
        broken += disobeyed(Cell(loss=config), ["R12.loss", *rest], [number % 3])
    assert not broken


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("scoring", ["plain", "chunked"])
@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_every_path_through_the_model_obeys(layout: str, scoring: str, padding_side: str) -> None:
    """Rows to gradients, padded or packed, plain or chunked, either side."""
    cell = Cell(layout=layout, scoring=scoring, padding_side=padding_side)
    names = [
        "R1.step",
        "R3.step",
        "R5.policy",
        "R10.step",
        "R12.logprobs",
        "R15.batch",
        "R27.step",
        "R27.batch",
    ]
    assert not disobeyed(cell, names, [0])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_twenty_seeds_obey(seed: int) -> None:
    """The default cell under seeds beyond the default ones."""
    verdicts = [run_relation(relation, ReferenceComponents(), seeds=[seed]) for relation in select([])]
    # R18 turns every knob once, at seed 0, and is skipped elsewhere.
    assert not [verdict.reason for verdict in verdicts if verdict.outcome is Outcome.FAIL]
    assert sum(verdict.outcome is Outcome.PASS for verdict in verdicts) >= len(verdicts) - 1
