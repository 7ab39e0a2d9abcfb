"""A loss or an estimator of the user's own: found by name, its options held against its schema, trained as it says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.advantages import specification as advantage_specification
from refrl.algorithms.losses import policy_loss
from refrl.algorithms.losses.base import specification
from refrl.config import AdvantageConfig, ConfigError, GRPORunConfig, LossConfig, validate_config

OWN = """
import torch
from pydantic import Field
from refrl.algorithms.advantages import AdvantageEstimator
from refrl.algorithms.losses.base import Surrogate, TokenLoss
from refrl.config.base import Section


class Power(TokenLoss):
    class Options(Section):
        exponent: float = Field(gt=0)
        wide: bool = False

    def surrogate(self, inputs):
        ratio_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).exp()
        loss_BT = -(ratio_BT**self.options.exponent) * inputs.advantages_B1
        return Surrogate(loss_BT.unsqueeze(0) if self.options.wide else loss_BT, ratio_BT, ratio_BT)


class Centred(AdvantageEstimator):
    class Options(Section):
        times: float

    def advantages(self, rewards, index_B):
        return self.options.times * (rewards - rewards.mean())


class Missing(AdvantageEstimator):
    def advantages(self, rewards, index_B):
        return rewards / 0


not_a_loss = 3
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write a module of the user's own."""
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_parts", None)


def test_a_loss_by_import_path_is_what_is_trained(make_case: Callable[..., Any]) -> None:
    """Value and gradient by hand: the ratio to the power 2, times the advantage, in the mean of each sequence."""
    case = make_case()
    logprobs_BT = case.logprobs_BT.clone().requires_grad_()
    config = LossConfig(
        kind="own_parts:Power",
        options={"exponent": 2.0},
        reference_policy_kl_penalty=0.0,
        reduction="sequence",
    )
    loss, metrics = policy_loss(
        logprobs_BT, case.batch, config, global_valid_tokens=case.num_tokens, global_valid_seqs=case.num_seqs
    )
    loss.backward()
    wanted, slopes = 0.0, torch.zeros_like(logprobs_BT)
    for row, valid in enumerate(case.valid()):
        for t in valid:
            ratio = float((case.logprobs_BT[row, t] - case.batch.old_logprobs_BT[row, t]).exp())
            share = -(ratio**2) * float(case.batch.advantages_B[row]) / len(valid) / case.num_seqs
            wanted += share
            slopes[row, t] = 2 * share
    assert float(loss.detach()) == pytest.approx(wanted, rel=1e-12)
    torch.testing.assert_close(logprobs_BT.grad, slopes, rtol=1e-10, atol=1e-14)
    assert metrics["probs_ratio"] > 0


def test_a_loss_of_the_wrong_shape_is_refused(make_case: Callable[..., Any]) -> None:
    """Broadcasting would weigh every row by its neighbours."""
    case = make_case()
    config = LossConfig(
        kind="own_parts:Power", options={"exponent": 1.0, "wide": True}, reference_policy_kl_penalty=0
    )
    with pytest.raises(ValueError, match=r"own_parts:Power gave a loss of shape \(1, 6, 7\)"):
        policy_loss(case.logprobs_BT, case.batch, config, global_valid_tokens=1, global_valid_seqs=1)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"kind": "gpso"},
            "loss_fn.kind='gpso' is unknown; did you mean 'gspo'? known: cispo, gspo, ppo_clip",
        ),
        ({"kind": "own_parts:Power"}, "required key 'loss_fn.options.exponent' is missing"),
        (
            {"kind": "own_parts:Power", "options": {"exponent": "2"}},
            "loss_fn.options.exponent: input should be a valid number",
        ),
        (
            {"kind": "own_parts:Power", "options": {"exponent": 1.0, "wyde": True}},
            "unknown key 'loss_fn.options.wyde'; the nearest known key is 'loss_fn.options.wide'",
        ),
        ({"options": {"exponent": 1.0}}, "loss_fn.options.exponent is unknown; there are no options"),
        (
            {"kind": "own_parts:not_a_loss"},
            "loss_fn.kind=own_parts:not_a_loss is no loss: it must be a class",
        ),
        ({"kind": "own_parts:Centred"}, "is no loss: it must be a class"),
    ],
)
def test_wrong_losses_are_refused_when_the_configuration_is_read(section: dict[str, Any], words: str) -> None:
    """Name, schema of the options, and what is no loss at all."""
    with pytest.raises(ConfigError) as caught:
        validate_config(GRPORunConfig, {"loss_fn": section}, source="run")
    assert words in str(caught.value)


def test_an_estimator_by_import_path_is_what_is_computed() -> None:
    """Three times the reward less the mean of the batch, whatever the groups."""
    config = AdvantageConfig(estimator="own_parts:Centred", options={"times": 3.0})
    advantages_B = compute_advantages(torch.tensor([1.0, 0.0, 0.5]), torch.tensor([7, 7, 2]), config)
    assert advantages_B.tolist() == pytest.approx([1.5, -1.5, 0.0])
    assert advantages_B.dtype == torch.float32


def test_advantages_that_are_not_finite_are_refused() -> None:
    """They would train nothing and say nothing."""
    with pytest.raises(ValueError, match="own_parts:Missing gave advantages"):
        compute_advantages(
            torch.ones(2), torch.tensor([1, 1]), AdvantageConfig(estimator="own_parts:Missing")
        )


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"estimator": "rlo"}, "grpo.advantage.estimator='rlo' is unknown; did you mean 'rloo'?"),
        ({"estimator": "rloo", "options": {"times": 1.0}}, "grpo.advantage.options has no effect"),
        (
            {"estimator": "own_parts:Centred", "options": {"times": 1.0}, "scale": "group"},
            "grpo.advantage.scale has no effect",
        ),
        ({"estimator": "own_parts:Centred"}, "required key 'grpo.advantage.options.times' is missing"),
    ],
)
def test_wrong_estimators_are_refused_when_the_configuration_is_read(
    section: dict[str, Any], words: str
) -> None:
    """Name, options, and a scale that an estimator of one's own would not see."""
    with pytest.raises(ConfigError) as caught:
        validate_config(GRPORunConfig, {"grpo": {"advantage": section}}, source="run")
    assert words in str(caught.value)


def test_built_in_parts_say_what_they_claim_and_others_need_not() -> None:
    """The claim follows the options; a KL in the reward is no term of the loss."""
    claimed = specification(LossConfig(kind="cispo", ratio_clip_max=0.3, kl_in="reward"))
    assert claimed is not None
    assert (claimed["kind"], claimed["ratio_clip_max"], claimed["kl_penalty"]) == ("cispo", 0.3, 0.0)
    assert specification(LossConfig(kind="own_parts:Power", options={"exponent": 1.0})) is None
    assert advantage_specification(AdvantageConfig(estimator="rloo")) == {
        "estimator": "rloo",
        "scale": "none",
        "epsilon": 1e-6,
        "unbiased": True,
    }
    own = AdvantageConfig(estimator="own_parts:Centred", options={"times": 1.0})
    assert advantage_specification(own) is None
