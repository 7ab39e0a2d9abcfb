"""`transformers.Trainer` on a causal language model, whichever release is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import TinyCausalModel, tiny_tokenizer
from seatrial.targets.common.trainers import batch_options, configuration, step_of_rows
from seatrial.targets.common.zoo import ZOO, zoo_model


def need_packed_masks() -> None:
    """Check that models keep rows apart that are laid end to end, without a kernel of their own.

    Raises:
        Gone: they do not.
    """
    try:
        find_name("transformers", ["transformers.masking_utils:find_packed_sequence_indices"])
    except Gone:
        raise Gone(
            f"transformers {release('transformers')} keeps flattened rows apart in kernels alone"
        ) from None


FIRST_LABEL = KnownFailure(
    "the divisor counts the first label of every row, which nothing predicts",
    finding="Transformers: the first label of a row",
    releases=before("transformers", "5.10"),
)
OF_LENGTHS = ("R12.objective/gradient, lengths equal", "R12.objective/gradient, lengths unequal")
LOGGED = "R12.objective/logged loss, lengths unequal"


class CausalLM(KnowsFailures, TinyCausalModel):
    """The model's own loss on every token of every row."""

    facts = StackFacts(micro_batch_sizes="equal")
    known_failures: ClassVar[Sequence[KnownFailure]] = (FIRST_LABEL.of(*OF_LENGTHS, LOGGED),)
    objective_spec = ObjectiveSpec(kind="sft", trains="all")
    training: ClassVar[Mapping[str, Any]] = {}
    """Of `TrainingArguments`."""

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        import transformers

        return step_of_rows(
            transformers.Trainer,
            self.objective_model(),
            [self._row(examples[index]) for part in micro_batches for index in part],
            args=configuration(
                transformers.TrainingArguments, {**batch_options(micro_batches), **self.training}
            ),
            data_collator=self._collate,
        )

    def _row(self, example: Example) -> dict[str, list[int]]:
        ids = [*example.prompt_ids, *example.completion_ids]
        prompt = (
            list(example.prompt_ids)
            if self.objective_spec.trains == "all"
            else [-100] * len(example.prompt_ids)
        )
        return {"input_ids": ids, "labels": [*prompt, *example.completion_ids]}

    def _collate(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        """Pad on the right."""
        S = max(len(row["input_ids"]) for row in rows)

        def padded(name: str, fill: int) -> Tensor:
            return torch.tensor([[*row[name], *[fill] * (S - len(row[name]))] for row in rows])

        real = [[1] * len(row["input_ids"]) + [0] * (S - len(row["input_ids"])) for row in rows]
        return {
            "input_ids": padded("input_ids", self.pad_id),
            "attention_mask": torch.tensor(real),
            "labels": padded("labels", -100),
        }


class PlainCausalLM(CausalLM):
    """The adapter that finds the bug of a shown pair, of which it does not know."""

    known_failures: ClassVar[Sequence[KnownFailure]] = ()


class CausalLMCompletions(CausalLM):
    """The model's own loss on the tokens of completions."""

    objective_spec = ObjectiveSpec(kind="sft", trains="completion")
    known_failures = ()


class CausalLMCheckpointed(CausalLMCompletions):
    """The same with activations computed again in the backward pass."""

    training: ClassVar[Mapping[str, Any]] = {"gradient_checkpointing": True}


NOT_DIVIDED = KnownFailure(
    "means of micro-batches are added, not averaged: the model takes a count of items that its loss ignores",
    finding="Transformers: losses of heads that ignore the count of items",
    releases=before("transformers", "5"),
).of("R1.objective")


OF_TRAITS = {"head with layers": (replace(NOT_DIVIDED, releases=before("transformers", "5.17")),)}
"""Bugs of models of the zoo, by trait."""


class CausalLMOfTrait(CausalLMCompletions):
    """The same on a model of the zoo: its own loss, with or without a count of items."""

    trait: ClassVar[str]

    def __init__(self) -> None:
        """Find the model's classes in the installed release."""
        find_model(self.trait)

    def objective_model(self) -> Any:
        return _model(self.trait)


def find_model(trait: str) -> None:
    """Check that the installed release has the model of a trait.

    Raises:
        Gone: it has none.
    """
    import transformers

    own = ZOO[trait]
    for name in (f"{own.family}Config", f"{own.family}{own.causal}"):
        if not hasattr(transformers, name):
            raise Gone(f"transformers {release('transformers')} has no {name}")


@lru_cache(maxsize=2)
def _model(trait: str) -> Any:
    return zoo_model(trait, tiny_tokenizer(), 0)


def _of_trait(trait: str) -> type[CausalLMOfTrait]:
    return type(
        f"CausalLM_{trait}",
        (CausalLMOfTrait,),
        {
            "__doc__": f"On the model with {trait}.",
            "trait": trait,
            "thorough": trait != "learned positions",
            "known_failures": OF_TRAITS.get(trait, ()),
        },
    )


TRAITS = (
    "learned positions",
    "head with layers",
    "logit_scale",
    "logits_scaling",
    "final_logit_softcapping",
    "lm_head_multiplier",
    "tied head",
    "experts",
    "sliding window",
    "recurrent",
    "wide vocabulary",
)
"""Of the zoo, those in float32 and without dropout."""
ADAPTERS: dict[str, type[Any]] = {
    "causal-lm": PlainCausalLM,
    "causal-lm-completions": CausalLMCompletions,
    "causal-lm-checkpointed": CausalLMCheckpointed,
    **{f"causal-lm-{trait.replace(' ', '-').replace('_', '-')}": _of_trait(trait) for trait in TRAITS},
}
