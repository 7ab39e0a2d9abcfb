"""Transformers' causal language models, one for each trait of the zoo: forward, packed, and sampled from a cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.facts import StackFacts
from seatrial.relations.records import Row, Sampled, StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.zoo import zoo_model
from seatrial.targets.transformers.causal import find_model, need_packed_masks

TRAITS: Sequence[str] = (
    "",
    "learned positions",
    "head with layers",
    "token types",
    "logit_scale",
    "logits_scaling",
    "final_logit_softcapping",
    "tied head",
    "sliding window",
)
"""Traits of the zoo whose models keep rows apart that are laid end to end."""
NOT_PACKED: Sequence[str] = ("recurrent", "lm_head_multiplier")
"""Traits of models with recurrent blocks, which carry a state from one row to the next."""
QUICK: Sequence[str] = ("", "learned positions", "sliding window", "recurrent")
"""Those that every run judges."""


class Model(KnowsFailures):
    """A model that is given batches padded on the left; see `contracts.Policy` and `contracts.Sampler`."""

    facts = StackFacts(dtype="float32")
    trait: ClassVar[str] = ""

    def __init__(self) -> None:
        """Find the model's classes in the installed release."""
        find_model(self.trait)
        self.tokenizer = tiny_tokenizer()

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    @cached_property
    def model(self) -> Any:
        """The model in evaluation mode; the same weights every time."""
        return zoo_model(self.trait, self.tokenizer, 0).eval()

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        with torch.no_grad():
            return [tuple(own.tolist()) for own in self._scores(rows, temperature)]

    def _scores(self, rows: Sequence[Row], temperature: float) -> list[Tensor]:
        """Return the log-probabilities of completions; the batch is padded on the left."""
        sequences = [[*row.prompt_ids, *row.completion_ids] for row in rows]
        S = max(map(len, sequences))
        gaps = [S - len(one) for one in sequences]
        pad = int(self.tokenizer.pad_token_id)
        ids_BS = torch.tensor([[pad] * gap + one for gap, one in zip(gaps, sequences, strict=True)])
        mask_BS = torch.tensor([[0] * gap + [1] * (S - gap) for gap in gaps])
        positions_BS = (mask_BS.cumsum(1) - 1).clamp(min=0)
        logits_BSV = self.model(
            input_ids=ids_BS, attention_mask=mask_BS, use_cache=False, **self.positions(positions_BS)
        ).logits
        return [
            _of_completion(logits_BSV[place, gap:], row, temperature)
            for place, (gap, row) in enumerate(zip(gaps, rows, strict=True))
        ]

    def positions(self, positions_BS: Tensor) -> dict[str, Tensor]:
        """Return the argument that gives positions; none for a model that counts no positions."""
        return {"position_ids": positions_BS}

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> list[Sampled]:
        """Generate in one batch, padded on the left."""
        pad, end = int(self.tokenizer.pad_token_id), int(self.tokenizer.eos_token_id)
        P = max(map(len, prompts))
        ids_BP = torch.tensor([[pad] * (P - len(one)) + list(one) for one in prompts])
        mask_BP = torch.tensor([[0] * (P - len(one)) + [1] * len(one) for one in prompts])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = self.model.generate(
                input_ids=ids_BP,
                attention_mask=mask_BP,
                do_sample=True,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k or 0,
                max_new_tokens=max_new_tokens,
                pad_token_id=pad,
                eos_token_id=end,
                return_dict_in_generate=True,
                output_scores=True,
            )
        logprobs_BTV = torch.stack(found.scores, dim=1).log_softmax(-1)
        given = []
        for place, prompt in enumerate(prompts):
            ids = found.sequences[place, P:].tolist()
            ids = ids[: ids.index(end) + 1] if end in ids else ids
            given.append(
                Sampled(
                    prompt_ids=tuple(prompt),
                    ids=tuple(ids),
                    logprobs=tuple(float(logprobs_BTV[place, step, token]) for step, token in enumerate(ids)),
                    finish_reason="stop" if ids[-1] == end else "length",
                )
            )
        return given


class PackedModel(Model):
    """The same with rows laid end to end, whose positions begin again; see `contracts.Packing`."""

    def __init__(self) -> None:
        """Find the model, and whether the release keeps rows apart without a kernel of its own."""
        super().__init__()
        need_packed_masks()

    def score_packed(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        with torch.no_grad():
            return [tuple(own.tolist()) for own in self._packed_scores(rows, temperature)]

    def _packed_scores(self, rows: Sequence[Row], temperature: float) -> list[Tensor]:
        sequences = [[*row.prompt_ids, *row.completion_ids] for row in rows]
        ids_1S = torch.tensor([[token for one in sequences for token in one]])
        positions_1S = torch.tensor([[place for one in sequences for place in range(len(one))]])
        logits_SV = self.model(input_ids=ids_1S, position_ids=positions_1S, use_cache=False).logits[0]
        parts = logits_SV.split([len(one) for one in sequences])
        return [_of_completion(part, row, temperature) for part, row in zip(parts, rows, strict=True)]

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        return self._step(
            [self._scores([rows[place] for place in part], 1.0) for part in micro_batches],
            rows,
            micro_batches,
        )

    def gradients_packed(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        return self._step(
            [self._packed_scores([rows[place] for place in part], 1.0) for part in micro_batches],
            rows,
            micro_batches,
        )

    def _step(
        self, scores: Sequence[Sequence[Tensor]], rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        """Return the gradient of the mean over training tokens of minus advantage times log-probability."""
        total = sum(sum(row.completion_mask) for row in rows)
        loss = torch.zeros(())
        for part, found in zip(micro_batches, scores, strict=True):
            for place, own in zip(part, found, strict=True):
                row = rows[place]
                loss = loss - row.advantage * (own * torch.tensor(row.completion_mask)).sum() / total
        self.model.zero_grad()
        torch.autograd.backward(loss)
        gradients = {
            name: value.grad.clone()
            for name, value in self.model.named_parameters()
            if value.grad is not None
        }
        return StepResult(loss=float(loss.detach()), gradients=gradients)


class RecurrentModel(Model):
    """A model with a state in place of positions."""

    def positions(self, positions_BS: Tensor) -> dict[str, Tensor]:
        return {}


def _of_completion(logits_SV: Tensor, row: Row, temperature: float) -> Tensor:
    """Return the log-probabilities of a row's completion, of the logits of its own tokens."""
    first, T = len(row.prompt_ids) - 1, len(row.completion_ids)
    logprobs_TV = (logits_SV[first : first + T].float() / temperature).log_softmax(-1)
    return logprobs_TV.gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]


KNOWN: dict[str, Sequence[KnownFailure]] = {
    "token types": [
        KnownFailure(
            "positions that begin again do not reach the mask: rows laid end to end see each other",
            finding="Transformers: flattened rows in a BERT that decodes",
        ).of(
            "R4.packing/log-probabilities",
            "R4.packing/neighbours are not seen",
            "R4.packing/gradient",
        )
    ]
}


def _adapter(trait: str) -> type[Model]:
    # Experts may be modules of which a small batch does not reach each: gradients are left out.
    base = PackedModel if trait in TRAITS else Model if trait == "experts" else RecurrentModel
    return type(
        f"Model_{trait}",
        (base,),
        {
            "__doc__": f"The model with {trait or 'no trait'}.",
            "trait": trait,
            "thorough": trait not in QUICK,
            "known_failures": tuple(KNOWN.get(trait, ())),
        },
    )


ADAPTERS: dict[str, type[Any]] = {
    f"model-{(trait or 'plain').replace(' ', '-').replace('_', '-')}": _adapter(trait)
    for trait in (*TRAITS, "experts", *NOT_PACKED)
}
