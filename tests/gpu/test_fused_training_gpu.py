"""On a CUDA device, the kernels of a training pass compute what the model's own code computes, with its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.ops import compute_logprobs
from refrl.policy.fused import FusedForward, why_not_fused
from refrl.policy.scoring import padded_forward, probe_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def gradients_of_scores(
    score: object, hidden: Tensor, head: Tensor, weights: Tensor, with_entropy: bool
) -> list[Tensor]:
    """Return log-probabilities, entropies and the gradients of a weighted sum of them."""
    hidden, head = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    logprobs, entropy = score(hidden, head)  # type: ignore[operator]
    total = (weights * logprobs).sum()
    if with_entropy:
        total = total + (weights.flip(0) * entropy).sum()
    gradients = torch.autograd.grad(total, [hidden, head])
    return [logprobs.detach().double(), entropy.detach().double(), *(one.double() for one in gradients)]


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("keep_bytes", [0, 2**30])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_tiles_of_logits_score_and_differentiate_like_all_logits_in_float64(
    dtype: torch.dtype, bound: float, keep_bytes: int, temperature: float, with_entropy: bool
) -> None:
    torch.manual_seed(0)
    B, S, D, V, T = 5, 40, 64, 9001, 31
    hidden = torch.randn(B, S, D, device="cuda").to(dtype)
    head = (torch.randn(V, D, device="cuda") * 0.3).to(dtype)
    ids = torch.randint(V, (B, T), device="cuda")
    lens = torch.tensor([1, 9, 4, 2, 7], device="cuda")
    mask = torch.ones(B, T, device="cuda")
    mask[1, 20:] = 0
    weights = torch.randn(B, T, device="cuda")
    found = gradients_of_scores(
        lambda h, w: compute_logprobs_chunked(
            h,
            w,
            ids,
            lens,
            temperature=temperature,
            vocab_chunk=5000,
            row_chunk=33,
            keep_bytes=keep_bytes,
            mask_BT=mask,
        ),
        hidden,
        head,
        weights,
        with_entropy,
    )
    expected = gradients_of_scores(
        lambda h, w: compute_logprobs(h @ w.T, ids, lens, temperature=temperature, mask_BT=mask),
        hidden.double(),
        head.double(),
        weights.double(),
        with_entropy,
    )
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        assert float((one - other).norm() / other.norm()) < bound


@pytest.fixture
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=503,
        hidden_size=96,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
    )
    built = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return built.eval().cuda()


def test_fused_passes_have_the_gradients_of_the_models_own_and_leave_no_trace(model: PreTrainedModel) -> None:
    pytest.importorskip("liger_kernel")
    assert why_not_fused(model) is None
    batch = probe_batch(model).to(model.device)
    plain = padded_forward(0.7)
    fused = FusedForward(plain)
    found = []
    for forward in (plain, fused):
        logprobs, entropy = forward(model, batch)
        (logprobs.sum() + entropy.sum()).backward()
        found.append([logprobs.detach(), *(weight.grad for weight in model.parameters())])
        model.zero_grad(set_to_none=True)
    for one, other in zip(*found, strict=True):
        assert one is not None and other is not None
        assert float((one - other).norm() / one.norm()) < 1e-4
    assert not any("forward" in module.__dict__ for module in model.modules())
    again = plain(model, batch)[0].detach()
    assert torch.equal(again, found[0][0])


def test_a_model_on_the_processor_is_not_served(model: PreTrainedModel) -> None:
    assert why_not_fused(model.cpu()) == "the model is on cpu"
