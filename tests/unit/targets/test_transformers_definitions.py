"""Definitions of experts and windows of Transformers' families, on numbers worked out by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from seatrial.targets.transformers.architectures import UNSUITED, page
from seatrial.targets.transformers.family_routers import Block
from seatrial.targets.transformers.family_scales import seen_places
from seatrial.targets.transformers.family_table import FAMILIES
from seatrial.targets.transformers.routing_table import ROUTINGS


def _block(bias: list[float], **options: object) -> Block:
    """Return a layer of four experts whose router has the logits 3, 2, 1 and 0."""
    tensors = {f"experts.{number}.w1.weight": torch.zeros(1, 4) for number in range(4)}
    tensors |= {"gate.weight": torch.eye(4).double(), "gate.e_score_correction_bias": torch.tensor(bias)}
    states_ND = torch.tensor([[3.0, 2.0, 1.0, 0.0]], dtype=torch.float64)
    return Block(states_ND, states_ND, tensors, SimpleNamespace(**options))


def test_weights_of_mixtral_sum_to_one() -> None:
    found = _block([0.0] * 4).weights(ROUTINGS["mixtral"])[0].tolist()
    first = math.e / (math.e + 1)
    assert found == pytest.approx([first, 1 - first, 0, 0])


def test_weights_of_jamba_do_not() -> None:
    assert float(_block([0.0] * 4).weights(ROUTINGS["jamba"]).sum()) < 0.9


def test_a_bias_chooses_and_does_not_weigh() -> None:
    found = _block([-9.0, 0.0, -9.0, 0.0]).weights(ROUTINGS["minimax_m2"])[0]
    second, last = 1 / (1 + math.exp(-2)), 0.5
    assert found.tolist() == pytest.approx([0, second / (second + last), 0, last / (second + last)])


def test_experts_are_of_the_chosen_group_though_their_scores_are_negative() -> None:
    options = {"n_group": 2, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 2.0}
    found = _block([-2.0] * 4, **options).weights(ROUTINGS["deepseek_v3"])[0]
    assert found.tolist() == pytest.approx([2 / (1 + math.exp(-3)), 2 / (1 + math.exp(-2)), 0, 0])


@pytest.mark.parametrize(
    ("kinds", "places"),
    [
        (["full_attention"], [0, 1, 2, 3, 4, 5, 6]),
        (["sliding_attention"], [4, 5, 6]),
        (["sliding_attention", "sliding_attention"], [2, 3, 4, 5, 6]),
        (["chunked_attention"], [4, 5, 6]),
        (["full_attention", "chunked_attention"], [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_places_that_the_last_one_sees(kinds: list[str], places: list[int]) -> None:
    assert seen_places(kinds, 7, window=3, chunk=4) == places


def test_a_sparse_mixer_weighs_each_expert_among_those_near_it() -> None:
    found = _block([0.0] * 4, router_jitter_noise=0.2).weights(ROUTINGS["phimoe"])[0]
    # (3 - 2) / 3 is at most 0.4 and (3 - 1) / 3 is not; (2 - 1) / 2 is not.
    assert found.tolist() == pytest.approx([1 / (1 + math.exp(-1)), 1, 0, 0])


def test_experts_of_gpt_oss_clamp_gates_and_values_in_turn() -> None:
    tensors = {
        "experts.gate_up_proj": torch.tensor([[[9.0, -9.0], [0.0, 0.0]]]).double(),
        "experts.gate_up_proj_bias": torch.zeros(1, 2).double(),
        "experts.down_proj": torch.tensor([[[2.0, 0.0]]]).double(),
        "experts.down_proj_bias": torch.tensor([[0.5, 0.0]]).double(),
    }
    given_ND = torch.tensor([[1.0, 0.0]]).double()
    block = Block(given_ND, given_ND, tensors, SimpleNamespace(swiglu_limit=7.0, swiglu_alpha=1.0))
    found = block.expert(0, given_ND, ROUTINGS["gpt_oss"])
    assert float(found[0, 0]) == pytest.approx(7 / (1 + math.exp(-7)) * (-7 + 1) * 2 + 0.5)


def test_experts_without_a_gate_are_two_matrices() -> None:
    tensors = {
        "experts.0.up_proj.weight": torch.tensor([[3.0]]).double(),
        "experts.0.down_proj.weight": torch.tensor([[2.0]]).double(),
    }
    given_ND = torch.ones(1, 1).double()
    block = Block(given_ND, given_ND, tensors, SimpleNamespace(mlp_hidden_act="relu2"))
    assert float(block.expert(0, given_ND, ROUTINGS["nemotron_h"])) == pytest.approx(18)


def test_a_family_is_judged_or_has_a_reason() -> None:
    assert not {*UNSUITED} & {*FAMILIES}
    found = page("")
    assert all(f"| {name} |" in found for name in (*UNSUITED, *FAMILIES))
