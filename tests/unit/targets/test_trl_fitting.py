"""Options in the form that a configuration's fields take, and setups that a release does not have."""

from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from typing import Any, Literal, Optional

import pytest

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import RolloutSpec
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone
from seatrial.targets.trl.fitting import admits, fitted, fitted_setup
from seatrial.targets.trl.fused import refusals
from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.listed import SETUPS
from seatrial.targets.trl.specs import spec_for


class Divergence(Enum):
    """Stands for an enumeration of a release."""

    FORWARD = "forward_kl"
    REVERSE = "reverse_kl"


@dataclass
class Config:
    """Stands for a configuration of an older release."""

    loss_type: str = "sigmoid"
    weights: Optional[list[float]] = None  # noqa: UP045  as old releases write it
    scale_rewards: bool = True
    divergence: Divergence = Divergence.REVERSE
    mode: Literal["start", "end"] = "start"
    anything: Any = None
    temperature: float = 1.0
    names: list[str] = field(default_factory=list)


def test_options_take_the_form_of_the_field() -> None:
    """A list of one word is the word where a release takes one, and the other way round; texts name members."""
    given = {
        "loss_type": ["hinge"],
        "names": "one",
        "divergence": "forward_kl",
        "temperature": 1,
        "weights": [1, 0.5],
    }
    assert fitted(Config, given) == {
        "loss_type": "hinge",
        "names": ["one"],
        "divergence": Divergence.FORWARD,
        "temperature": 1,
        "weights": [1, 0.5],
    }


@pytest.mark.parametrize(
    "options",
    [
        {"scale_rewards": "batch"},
        {"loss_type": ["sigmoid", "hinge"]},
        {"divergence": "js_divergence"},
        {"mode": "middle"},
        {"temperature": True},
        {"weights": [None]},
    ],
)
def test_a_value_that_the_field_does_not_take_is_gone(options: dict[str, Any]) -> None:
    """A release with a switch, or with one loss, does not have the setup."""
    with pytest.raises(Gone, match=next(iter(options))):
        fitted(Config, options)


def test_a_type_that_says_nothing_admits_everything() -> None:
    assert admits(Any, object())
    assert admits(dict | str | None, {"power": 2.0})
    assert not admits(int, True)


@dataclass
class GRPOConfig:
    """Stands for that of a release with one mean alone."""

    beta: float = 0.04


class RowMeans:
    """Stands for a trainer that averages each row first."""

    def __init__(self, reward_funcs: Any) -> None: ...

    def loss(self, completion_mask: Any, per_token_loss: Any) -> Any:
        return ((per_token_loss * completion_mask).sum(dim=1) / completion_mask.sum(dim=1)).mean()


def test_a_release_without_loss_types_has_a_mean_of_its_own() -> None:
    """The setup drops the option, and the laws expect the mean of that release; other losses are gone."""
    setup = Setup(
        trainer="GRPO",
        objective=RolloutSpec(beta=0.2),
        data="prompts",
        options={
            "loss_type": "dapo",
            "beta": 0.2,
            "top_p": 0.9,
        },  # sampling that it cannot set is left as it is
    )
    found = fitted_setup(setup, RowMeans, GRPOConfig)
    assert isinstance(found.objective, RolloutSpec)
    assert (found.objective.reduction, dict(found.options)) == ("rows", {"beta": 0.2})
    cispo = Setup(trainer="GRPO", objective=RolloutSpec(), data="prompts", options={"loss_type": "cispo"})
    with pytest.raises(Gone, match="loss_type"):
        fitted_setup(cispo, RowMeans, GRPOConfig)


@dataclass
class SFTConfig:
    """That of a release before 0.16."""

    max_seq_length: int | None = None


def test_supervised_training_of_old_releases_takes_whole_texts() -> None:
    """And has another name for their length."""
    setup = Setup(
        trainer="SFT", objective=ObjectiveSpec(kind="sft"), data="texts", options={"max_length": 64}
    )
    found = fitted_setup(setup, RowMeans, SFTConfig)
    assert (found.data, dict(found.options)) == ("whole", {"max_seq_length": 64})


def test_rows_with_labels_need_a_release_that_reads_them() -> None:
    """One that makes all labels itself trains other tokens, or cannot pad those that it is given."""
    setup = Setup(trainer="SFT", objective=ObjectiveSpec(kind="sft"), data="ids")
    with pytest.raises(Gone, match="takes no labels"):
        fitted_setup(setup, RowMeans, GRPOConfig)


@dataclass
class BestConfig(GRPOConfig):
    """One that chooses a checkpoint."""

    metric_for_best_model: str | None = None
    load_best_model_at_end: bool = False


class Logs(RowMeans):
    """Stands for a trainer that logs its own scalars with those of an evaluation, and returns these alone."""

    def log(self, logs: dict[str, float], metrics: dict[str, float]) -> None:
        logs = {**logs, **metrics}


def test_no_checkpoint_is_chosen_by_a_scalar_that_an_evaluation_does_not_return() -> None:
    """The rest of the setup is judged; the loss is always returned."""
    options = {"load_best_model_at_end": True, "metric_for_best_model": "reward", "beta": 0.2}
    setup = Setup(trainer="GRPO", objective=RolloutSpec(), data="prompts", options=options)
    assert dict(fitted_setup(setup, Logs, BestConfig).options) == {"beta": 0.2}
    assert spec_for(fitted_setup(setup, Logs, BestConfig), {}).best is None
    by_loss = replace(setup, options={**options, "metric_for_best_model": "loss"})
    assert fitted_setup(by_loss, Logs, BestConfig).options == by_loss.options


@dataclass
class CPOConfig:
    """One with two limits, of which the default of one is above many values of the other."""

    max_length: int = 1024
    max_prompt_length: int | None = 512


class Strict(RowMeans):
    """Stands for a trainer that refuses a limit of prompts that is not below that of rows."""

    def __init__(self, args: CPOConfig) -> None:
        if args.max_prompt_length is not None and args.max_prompt_length >= args.max_length:
            raise ValueError(
                f"max_prompt_length ({args.max_prompt_length}) "
                f"should be strictly less than max_length ({args.max_length})."
            )


def test_prompts_are_limited_below_rows_where_a_release_asks_for_it() -> None:
    """And only there: elsewhere, as in the code of a class of the standard library, the setup stays as it is."""
    setup = Setup(
        trainer="CPO", objective=ObjectiveSpec(kind="cpo"), data="pairs", options={"max_length": 64}
    )
    assert fitted_setup(setup, Strict, CPOConfig).options["max_prompt_length"] == 63
    assert dict(fitted_setup(setup, Fraction, CPOConfig).options) == {"max_length": 64}


def test_a_combination_that_a_trainer_refuses_where_it_is_made_is_not_served() -> None:
    """It names the options; an error without their names, or from elsewhere, is no refusal."""
    setup = Setup(trainer="CPO", objective=ObjectiveSpec(kind="cpo"), data="pairs")
    with pytest.raises(NotServed, match="strictly less"), refusals(setup):
        Strict(CPOConfig(max_length=64))
    with pytest.raises(ValueError, match="max_length and max_prompt_length"), refusals(setup):
        raise ValueError("max_length and max_prompt_length")


class Balances(RowMeans):
    """Stands for a trainer that adds the load balancing loss."""

    def total(self, loss: float, aux_loss: float) -> float:
        return loss + aux_loss


def test_a_trainer_without_the_option_balances_experts_if_its_code_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the weight of the model's configuration, which requests the routers' logits."""
    setup = SETUPS["whole-grpo-experts-own"]
    for trainer, weight in ((object, 0.0), (Balances, 0.5)):
        monkeypatch.setattr("seatrial.targets.trl.specs.find_trainer", lambda _, found=trainer: (found, None))
        assert spec_for(setup, {}).balance_weight == weight
