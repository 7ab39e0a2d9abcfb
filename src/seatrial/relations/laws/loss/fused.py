"""R12 for fused scoring: tiles of tokens and vocabulary give what the plain form gives, in value and gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.logits import LogitsCase, make_logits_case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.worst import Worst

BOUND = 3e-5
WIDTH = 11

FUSED = Relation(
    id="R12.fused",
    name="fused-equals-plain",
    component="fused_logprobs",
    statement="Fused scoring equals the plain form in value and gradient where chunks divide nothing evenly.",
    catalogue="SB124 SB163 SB164 SB190 SB202 SB215",
    cost="CPU, milliseconds",
    cases=make_logits_case,
)


@FUSED.law(
    "value and gradient",
    "a last chunk left out, a gradient overwritten instead of added, temperature missing in it",
)
def fused_equals_plain(stack: Any, case: LogitsCase) -> Measure:
    """Compare log-probabilities, entropies and gradients of fused scoring with the definition in float64."""
    exact = _inputs(case, torch.float64)
    outputs = _plain(*exact, case.temperature)
    generator = torch.Generator().manual_seed(case.seed + 2)
    weights = [torch.randn(outputs[0].shape, generator=generator, dtype=torch.float64) for _ in outputs]
    expected = torch.autograd.grad(_weighted(outputs, weights), exact[:2])
    fused = _inputs(case, torch.float32)
    given_outputs = stack.fused_logprobs(*fused, case.temperature)
    given = torch.autograd.grad(_weighted(given_outputs, weights), fused[:2])
    worst = Worst()
    names = ("log-probability", "entropy", "gradient of the hidden states", "gradient of the head")
    for name, one, right in zip(names, (*given_outputs[:2], *given), (*outputs, *expected), strict=True):
        worst.add(_distance(one.detach(), right.detach()), name)
    return Measure(
        error=worst.error, bound=BOUND, what=f"{worst.place}, fused against float64, relative difference"
    )


def _inputs(case: LogitsCase, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return hidden states, head, ids and prompt lengths; the head's scale makes peaked logits."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    T = max(case.completion_lens)
    shape = (len(case.prompt_lens), max(case.prompt_lens) + T, WIDTH)
    hidden_BSD = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    head_VD = (
        torch.randn(case.vocab_size, WIDTH, generator=generator, dtype=torch.float64) * case.sharpness / 3
    )
    ids_BT = torch.randint(case.vocab_size, (shape[0], T), generator=generator)
    return hidden_BSD, head_VD.to(dtype).requires_grad_(), ids_BT, torch.tensor(case.prompt_lens)


def _plain(
    hidden_BSD: Tensor, head_VD: Tensor, ids_BT: Tensor, prompt_lens_B: Tensor, temperature: float
) -> list[Tensor]:
    """Return log-probabilities and entropies by the definition, row by row."""
    logprobs, entropies = [], []
    for row, prompt_len in enumerate(prompt_lens_B.tolist()):
        states_TD = hidden_BSD[row, prompt_len - 1 : prompt_len - 1 + ids_BT.shape[1]]
        all_TV = (states_TD @ head_VD.T / temperature).log_softmax(-1)
        logprobs.append(all_TV[torch.arange(ids_BT.shape[1]), ids_BT[row]])
        entropies.append(-(all_TV.exp() * all_TV).sum(-1))
    return [torch.stack(logprobs), torch.stack(entropies)]


def _weighted(outputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Return one number that depends on every output in its own way."""
    return torch.stack(
        [(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]
    ).sum()


def _distance(given: Tensor, expected: Tensor) -> float:
    scale = max(1.0, float(expected.abs().max()))
    return float((given.double() - expected.double()).abs().max()) / scale
