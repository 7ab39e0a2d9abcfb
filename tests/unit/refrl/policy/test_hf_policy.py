"""Scoring equals the plain forward of each row; an update does not depend on how it is cut."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from refrl.algorithms.batching import Batch

from .conftest import MakePolicy


def mean_logprob_loss(
    logprobs_BT: Tensor,
    entropy_BT: Tensor,
    batch: Batch,
    *,
    global_valid_tokens: Tensor,
    global_valid_seqs: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss whose gradient is known: minus the advantage-weighted mean log-probability."""
    assert batch.advantages_B is not None
    weighted_BT = batch.advantages_B.unsqueeze(1) * logprobs_BT * batch.mask_BT
    share = -weighted_BT.sum() / global_valid_tokens
    return share, {
        "loss": share.detach(),
        "rows": torch.tensor(float(batch.num_rows)),
        "global_valid_toks": global_valid_tokens,
        "global_valid_seqs": global_valid_seqs,
    }


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows_at_once", [1, 2, 64])
def test_scores_are_those_of_each_row_alone(
    make_policy: MakePolicy, batch: Batch, temperature: float, rows_at_once: int
) -> None:
    """Row by row, unpadded, through the model's own forward; padding positions are exactly 0."""
    policy = make_policy(temperature=temperature, logprob_batch_size=rows_at_once)
    scores_BT = policy.logprobs(batch)
    for row in range(batch.num_rows):
        first = int(batch.prompt_lens_B[row])
        length = int(batch.completion_lens_B[row])
        ids = batch.input_ids_BS[row : row + 1, : first + length]
        with torch.no_grad():
            logprobs_SV = (policy.model(ids).logits[0] / temperature).log_softmax(-1)
        expected = [float(logprobs_SV[first + t - 1, ids[0, first + t]]) for t in range(length)]
        assert scores_BT[row, :length].tolist() == pytest.approx(expected, abs=2e-5)
        assert not scores_BT[row, length:].any()
    assert not scores_BT.requires_grad


@pytest.mark.parametrize("micro", [1, 2, 3])
def test_micro_batches_do_not_change_the_update(make_policy: MakePolicy, batch: Batch, micro: int) -> None:
    """Rows of unequal length weigh the same however they are cut; only rounding differs."""
    whole, cut = make_policy(), make_policy(train_micro_batch_size=micro)
    metrics = whole.train(batch, mean_logprob_loss), cut.train(batch, mean_logprob_loss)
    assert metrics[0]["loss"] == pytest.approx(metrics[1]["loss"], rel=1e-5)
    assert metrics[0]["grad_norm"] == pytest.approx(metrics[1]["grad_norm"], rel=1e-4)
    assert metrics[0]["global_valid_toks"] == metrics[1]["global_valid_toks"] == 19
    assert metrics[1]["rows"] == 5
    # Adam turns a gradient that is 0 but for rounding into a whole step: compare where it is not.
    for one, other in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        assert float(((one - other).abs() < 1e-4).float().mean()) > 0.99


def test_the_gradient_norm_is_that_of_the_whole_loss(make_policy: MakePolicy, batch: Batch) -> None:
    """Computed here from the rows one by one, with autograd on the sum."""
    policy = make_policy(train_micro_batch_size=2)
    model = policy.model
    assert batch.advantages_B is not None
    total = torch.zeros(())
    for row in range(batch.num_rows):
        first, length = int(batch.prompt_lens_B[row]), int(batch.completion_lens_B[row])
        ids = batch.input_ids_BS[row : row + 1, : first + length]
        logprobs_SV = model(ids).logits[0].log_softmax(-1)
        picked = logprobs_SV[first - 1 : first + length - 1].gather(1, ids[0, first:].unsqueeze(1))
        total = total - batch.advantages_B[row] * picked.sum() / 19
    gradients = torch.autograd.grad(total, list(model.parameters()))
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    assert policy.train(batch, mean_logprob_loss)["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_one_optimizer_step_per_global_batch(make_policy: MakePolicy, batch: Batch) -> None:
    """Five rows in steps of two are three steps; losses are averaged over them, the rates follow the schedule."""
    policy = make_policy(train_global_batch_size=2, scheduler={"name": "linear"}, optimizer={"lr": 1e-3})
    metrics = policy.train(batch, mean_logprob_loss)
    assert metrics["lr"] == pytest.approx(1e-3 * (10 + 9 + 8) / 30)
    assert metrics["rows"] == pytest.approx(5 / 3)
    assert metrics["global_valid_toks"] == pytest.approx(19 / 3)


def test_every_weight_moves_and_the_reference_does_not(make_policy: MakePolicy, batch: Batch) -> None:
    """Before the update policy and reference agree; after it only the policy has moved."""
    policy = make_policy(with_reference=True, optimizer={"lr": 1e-2})
    weights = [parameter.detach().clone() for parameter in policy.model.parameters()]
    before_BT = policy.logprobs(batch)
    reference_BT = policy.reference_logprobs(batch)
    assert reference_BT is not None
    assert torch.equal(before_BT, reference_BT)
    policy.train(batch, mean_logprob_loss)
    after_BT = policy.reference_logprobs(batch)
    assert after_BT is not None
    assert torch.equal(after_BT, reference_BT)
    assert not torch.allclose(policy.logprobs(batch), before_BT)
    assert not any(torch.equal(old, new) for old, new in zip(weights, policy.model.parameters(), strict=True))


def test_training_raises_what_is_rewarded(make_policy: MakePolicy, batch: Batch) -> None:
    """Rows with positive advantage become likelier, rows with negative advantage less likely."""
    policy = make_policy(optimizer={"lr": 3e-3})
    before_B = policy.logprobs(batch).sum(1)
    for _ in range(5):
        policy.train(batch, mean_logprob_loss)
    assert batch.advantages_B is not None
    assert torch.equal((policy.logprobs(batch).sum(1) - before_B).sign(), batch.advantages_B.sign())


def test_without_a_reference_there_are_no_reference_scores(make_policy: MakePolicy, batch: Batch) -> None:
    """And no second copy of the weights."""
    assert make_policy().reference_logprobs(batch) is None


def test_a_gradient_that_is_not_finite_stops_the_batch(make_policy: MakePolicy, batch: Batch) -> None:
    """The second of three steps breaks: the first has moved the weights, the third is not taken."""
    policy = make_policy(train_global_batch_size=2)
    assert batch.advantages_B is not None
    batch.advantages_B[2] = math.nan
    metrics = policy.train(batch, mean_logprob_loss)
    assert math.isnan(metrics["grad_norm"])
    assert metrics["rows"] == 2
    assert all(parameter.isfinite().all() for parameter in policy.model.parameters())


def test_generation_starts_without_gradients(make_policy: MakePolicy, batch: Batch) -> None:
    """Their memory belongs to the cache then."""
    policy = make_policy()
    policy.model(batch.input_ids_BS).logits.sum().backward()
    policy.free_gradients()
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_bfloat16_trains_and_scores_near_float32(make_policy: MakePolicy, batch: Batch) -> None:
    """The model computes in bfloat16, log-probabilities come out in float32."""
    half, full = make_policy(precision="bfloat16", optimizer={"lr": 1e-3}), make_policy()
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    scores_BT = half.logprobs(batch)
    assert scores_BT.dtype == torch.float32
    torch.testing.assert_close(scores_BT, full.logprobs(batch), rtol=0, atol=0.05)
    before_B = scores_BT.sum(1)
    for _ in range(5):
        half.train(batch, mean_logprob_loss)
    assert batch.advantages_B is not None
    assert torch.equal((half.logprobs(batch).sum(1) - before_B).sign(), batch.advantages_B.sign())


def test_an_export_is_the_trained_model(make_policy: MakePolicy, batch: Batch, tmp_path: Path) -> None:
    """Read back by plain transformers it gives the same logits."""
    policy = make_policy()
    policy.train(batch, mean_logprob_loss)
    policy.save(tmp_path / "final")
    loaded = AutoModelForCausalLM.from_pretrained(str(tmp_path / "final"))
    with torch.no_grad():
        assert torch.equal(loaded(batch.input_ids_BS).logits, policy.model(batch.input_ids_BS).logits)


def test_a_batch_of_several_steps_is_not_scored_in_training(make_policy: MakePolicy, batch: Batch) -> None:
    """After the first step the weights are no longer those of the sampler; one step leaves its scores."""
    make_policy(train_global_batch_size=2, train_micro_batch_size=2).train(batch, mean_logprob_loss)
    assert batch.old_logprobs_BT is None
    policy = make_policy(train_micro_batch_size=2)
    expected_BT = policy.logprobs(batch)
    policy.train(batch, mean_logprob_loss)
    assert batch.old_logprobs_BT is not None
    assert torch.allclose(batch.old_logprobs_BT, expected_BT, atol=1e-5)
