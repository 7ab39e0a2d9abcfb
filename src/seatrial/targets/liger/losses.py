"""Liger's chunked losses of preferences, labels and distillation; see `contracts.objectives.Objective`.

They take hidden states and the head's weight, so that the logits of all tokens never exist at once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import TinyCausalModel

IGNORED = -100


class ChunkedLoss(KnowsFailures, TinyCausalModel):
    """One loss on the tiny model; examples go through it in one batch, padded on the right."""

    facts = StackFacts(micro_batch_sizes="equal")
    objective_spec: ObjectiveSpec
    loss_name: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        """Find the loss."""
        self._loss_class = find_name("liger-kernel", [f"liger_kernel.chunked_loss:{self.loss_name}"])

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        if len(micro_batches) > 1 and self.objective_spec.nll_weight:
            raise NotServed("the likelihood term is a mean over the tokens of one call")
        model = copy.deepcopy(self.objective_model())
        total = 0.0
        for part in micro_batches:
            loss = self._loss(model, [examples[index] for index in part]) / len(micro_batches)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        gradients = {
            name: torch.zeros_like(value) if value.grad is None else value.grad
            for name, value in model.named_parameters()
        }
        return StepResult(loss=total, gradients=gradients)

    def _loss(self, model: Any, examples: Sequence[Example]) -> Tensor:
        hidden_BSD, targets_BS = self._states(model, self._sequences(examples))
        made = self._loss_class(
            compiled=False, ignore_index=IGNORED, beta=self.objective_spec.beta, **self.options
        )
        given = self._given(examples)
        return self._first(made.forward(*self._inputs(model, hidden_BSD, targets_BS), **given))

    def _inputs(self, model: Any, hidden_BSD: Tensor, targets_BS: Tensor) -> tuple[Tensor, ...]:
        return model.lm_head.weight, hidden_BSD, targets_BS

    def _given(self, examples: Sequence[Example]) -> dict[str, Any]:
        """Return further arguments of the loss."""
        return {}

    def _sequences(self, examples: Sequence[Example]) -> list[tuple[Sequence[int], Sequence[int]]]:
        """Return prompts and completions: all chosen ones, then all rejected ones."""
        chosen = [(one.prompt_ids, one.completion_ids) for one in examples]
        return [*chosen, *((one.prompt_ids, one.rejected_ids or ()) for one in examples)]

    def _states(
        self, model: Any, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> tuple[Tensor, Tensor]:
        """Return the hidden states that predict tokens, [B, S - 1, D], and their targets, [B, S - 1]."""
        S = max(len(prompt) + len(completion) for prompt, completion in sequences)
        ids_BS = torch.full((len(sequences), S), self.pad_id)
        mask_BS, targets_BS = torch.zeros_like(ids_BS), torch.full_like(ids_BS, IGNORED)
        for row, (prompt, completion) in enumerate(sequences):
            whole = torch.tensor([*prompt, *completion])
            ids_BS[row, : len(whole)] = whole
            mask_BS[row, : len(whole)] = 1
            targets_BS[row, len(prompt) : len(whole)] = whole[len(prompt) :]
        hidden_BSD = model.model(input_ids=ids_BS, attention_mask=mask_BS, use_cache=False).last_hidden_state
        return hidden_BSD[:, :-1], targets_BS[:, 1:]

    def _reference(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Tensor, Tensor]:
        """Return the reference's hidden states and the weight of its head."""
        reference = self.objective_reference()
        assert reference is not None
        with torch.no_grad():
            hidden_BSD, _ = self._states(reference, sequences)
        return hidden_BSD, reference.lm_head.weight.detach()

    def _first(self, found: Any) -> Tensor:
        loss: Tensor = found[0] if isinstance(found, tuple) else found
        return loss


class DPO(ChunkedLoss):
    """`LigerFusedLinearDPOLoss`."""

    loss_name = "LigerFusedLinearDPOLoss"
    objective_spec = ObjectiveSpec(kind="dpo", beta=0.1)

    def _given(self, examples: Sequence[Example]) -> dict[str, Any]:
        hidden_BSD, head_VD = self._reference(self._sequences(examples))
        return {"ref_input": hidden_BSD, "ref_weight": head_VD}


class DPOHinge(DPO):
    """With the hinge of SLiC."""

    objective_spec = ObjectiveSpec(kind="dpo", beta=0.1, form="hinge")
    options: ClassVar[dict[str, Any]] = {"loss_type": "hinge"}


class CPO(ChunkedLoss):
    """`LigerFusedLinearCPOLoss` with its likelihood term."""

    loss_name = "LigerFusedLinearCPOLoss"
    objective_spec = ObjectiveSpec(kind="cpo", beta=0.1, nll_weight=1.0)


class CPOWithoutLikelihood(ChunkedLoss):
    """`LigerFusedLinearCPOLoss` without its likelihood term."""

    loss_name = "LigerFusedLinearCPOLoss"
    objective_spec = ObjectiveSpec(kind="cpo", beta=0.1)
    options: ClassVar[dict[str, Any]] = {"compute_nll_loss": False}


class SimPO(ChunkedLoss):
    """`LigerFusedLinearSimPOLoss` without a margin: CPO of means over tokens."""

    loss_name = "LigerFusedLinearSimPOLoss"
    objective_spec = ObjectiveSpec(kind="cpo", beta=0.5, per_token=True)
    options: ClassVar[dict[str, Any]] = {"gamma": 0.0, "compute_nll_loss": False}


class ORPO(ChunkedLoss):
    """`LigerFusedLinearORPOLoss`."""

    loss_name = "LigerFusedLinearORPOLoss"
    objective_spec = ObjectiveSpec(kind="orpo", beta=0.1, nll_weight=1.0)


class KTO(ChunkedLoss):
    """`LigerFusedLinearKTOLoss` with a reference point of 0."""

    loss_name = "LigerFusedLinearKTOLoss"
    objective_spec = ObjectiveSpec(kind="kto", beta=0.1, reference_point="zero")
    options: ClassVar[dict[str, Any]] = {"use_ref_model": True}

    def _sequences(self, examples: Sequence[Example]) -> list[tuple[Sequence[int], Sequence[int]]]:
        return [(one.prompt_ids, one.completion_ids) for one in examples]

    def _inputs(self, model: Any, hidden_BSD: Tensor, targets_BS: Tensor) -> tuple[Tensor, ...]:
        return hidden_BSD, model.lm_head.weight, targets_BS

    def _given(self, examples: Sequence[Example]) -> dict[str, Any]:
        hidden_BSD, head_VD = self._reference(self._sequences(examples))
        return {
            "preference_labels": torch.tensor([bool(one.desirable) for one in examples]),
            "ref_input": hidden_BSD,
            "ref_weight": head_VD,
            "kl": torch.zeros(()),
        }


class JSD(ChunkedLoss):
    """`LigerFusedLinearJSDLoss` of a teacher, without the loss on labels."""

    loss_name = "LigerFusedLinearJSDLoss"
    objective_spec = ObjectiveSpec(kind="gkd", beta=0.3)
    options: ClassVar[dict[str, Any]] = {"weight_hard_loss": 0.0, "weight_soft_loss": 1.0}

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        if len(micro_batches) > 1:
            raise NotServed("the divergence is a mean over the tokens of one call")
        return super().objective_step(examples, micro_batches)

    def _sequences(self, examples: Sequence[Example]) -> list[tuple[Sequence[int], Sequence[int]]]:
        return [(one.prompt_ids, one.completion_ids) for one in examples]

    def _loss(self, model: Any, examples: Sequence[Example]) -> Tensor:
        sequences = self._sequences(examples)
        hidden_BSD, targets_BS = self._states(model, sequences)
        teacher_BSD, teacher_VD = self._reference(sequences)
        made = self._loss_class(
            compiled=False, ignore_index=IGNORED, beta=self.objective_spec.beta, **self.options
        )
        return self._first(
            made(
                hidden_BSD.flatten(0, 1),
                model.lm_head.weight,
                teacher_BSD.flatten(0, 1),
                teacher_VD,
                targets_BS.flatten(),
            )
        )


class JSDForward(JSD):
    """At beta 0: KL of the teacher from the student."""

    objective_spec = ObjectiveSpec(kind="gkd", beta=0.0)


class JSDReverse(JSD):
    """At beta 1: KL of the student from the teacher."""

    objective_spec = ObjectiveSpec(kind="gkd", beta=1.0)


ADAPTERS: dict[str, type[Any]] = {
    "dpo": DPO,
    "dpo-hinge": DPOHinge,
    "cpo": CPO,
    "cpo-without-likelihood": CPOWithoutLikelihood,
    "simpo": SimPO,
    "orpo": ORPO,
    "kto": KTO,
    "jsd": JSD,
    "jsd-forward": JSDForward,
    "jsd-reverse": JSDReverse,
}
