"""Setups of several options on releases that do not have all of them."""

from dataclasses import dataclass, replace

from seatrial.relations.contracts.trainers import RolloutSpec
from seatrial.targets.trl.setups.rollouts import grpo
from seatrial.targets.trl.shedding import MEANINGS, shed


@dataclass
class Config:
    """Stands for a configuration of an older release, whose scale of rewards is a switch."""

    loss_type: str = "bnpo"
    scale_rewards: bool = True
    num_iterations: int = 1


class Trainer:
    """Stands for a trainer of an older release, whose reward functions return numbers."""


DEFAULTS = {"loss_type": "bnpo", "scale_rewards": True, "num_iterations": 1}
ASKED = grpo(
    {
        "loss_type": "bnpo",
        "scale_rewards": "batch",
        "num_iterations": 2,
        "steps_per_generation": 4,
        "importance_sampling_level": "sequence",
    },
    reduction="micro_batch",
    scale="batch",
    ratio="mean",
    num_uses=2,
    num_slices=2,
    unscored=True,
)


def test_what_a_release_does_not_have_is_left_out_with_what_it_means() -> None:
    """Options that are missing have their defaults in the objective; those that the release has are kept."""
    left = shed(replace(ASKED, sheds=(*MEANINGS, "unscored")), (Trainer, Config), DEFAULTS)
    assert isinstance(left.objective, RolloutSpec)
    assert (left.objective.scale, left.objective.ratio, left.objective.num_uses) == ("group", "token", 2)
    assert (left.num_slices, left.unscored, left.options["scale_rewards"]) == (1, False, True)
    assert not {"steps_per_generation", "importance_sampling_level"} & set(left.options)


def test_a_setup_that_names_no_options_is_left_as_it_is() -> None:
    """A setup that is about one option is not run without it."""
    assert shed(ASKED, (Trainer, Config), DEFAULTS) == ASKED
