"""TRL's `SFTTrainer`, whichever release is installed: examples to gradients, and the tokens of its batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar

from packaging.version import Version

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures, since
from seatrial.targets.common.target import release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import (
    CapturingOptimizer,
    batch_options,
    captured_step,
    configuration,
    in_order,
    target_rows,
)
from seatrial.targets.trl.preferences import find_trainer, given_tokenizer

MAX_LENGTH = 64
GRADIENTS = ("R12.objective/gradient, lengths equal", "R12.objective/gradient, lengths unequal")
FIRST_LABEL = KnownFailure(
    "transformers before 5 counts the first label of a row among the predicted ones (num_items_in_batch); "
    "this release of TRL trains on whole texts, whose first token has a label",
    finding="Transformers: the first label of a row",
    releases=lambda adapter: adapter.counts_first_labels,
)
ROUNDED = KnownFailure(
    "adapters of a quantized base are converted to bfloat16, as the code says",
    finding="TRL: adapters in bfloat16 over a quantized base",
    releases=since("trl", "0.26"),
)


class SFT(KnowsFailures, TinyCausalModel):
    """`SFTTrainer` on prompts and completions; on whole texts where a release knows no others."""

    facts = StackFacts(micro_batch_sizes="equal")
    padding_side = "right"
    options: dict[str, Any] = {}  # noqa: RUF012  read only
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        FIRST_LABEL.of(*GRADIENTS, "R12.objective/logged loss, lengths unequal"),
    )

    def __init__(self) -> None:
        """Find the trainer, and what it says about prompts."""
        self.trainer_class, self.config_class = find_trainer("SFT")
        known = {item.name for item in fields(self.config_class)}
        self.takes_prompts = "completion_only_loss" in known
        self.length_option = "max_length" if "max_length" in known else "max_seq_length"
        spec = ObjectiveSpec(kind="sft", trains="completion" if self.takes_prompts else "all")
        self.objective_spec, self.tokens_train = spec, spec.trains
        counts = Version("4.46") <= Version(release("transformers")) < Version("5")
        self.counts_first_labels = counts and not self.takes_prompts

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        model = copy.deepcopy(self.objective_model())
        optimizer = CapturingOptimizer([value for value in model.parameters() if value.requires_grad])
        rows = [examples[index] for part in micro_batches for index in part]
        return captured_step(
            self._trainer(model, rows, batch_options(micro_batches), optimizer), model, optimizer
        )

    def trained_tokens(self, examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        model = copy.deepcopy(self.objective_model())
        everything = batch_options([list(range(len(examples)))])
        trainer = self._trainer(model, examples, everything, CapturingOptimizer(model.parameters()))
        rows = target_rows(next(iter(trainer.get_train_dataloader())))
        if self.options.get("padding_free") and len(rows) < len(examples):
            raise NotServed(f"{len(examples)} examples are laid end to end in {len(rows)} rows")
        return rows

    def _trainer(
        self, model: Any, examples: Sequence[Example], options: dict[str, int], optimizer: CapturingOptimizer
    ) -> Any:
        from datasets import Dataset

        arguments = configuration(
            self.config_class,
            {**options, self.length_option: MAX_LENGTH, **self.options},
            {"dataset_text_field": "text", "packing": False},
        )
        trainer = self.trainer_class(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list([self._row(example) for example in examples]),
            optimizers=(optimizer, None),
            **given_tokenizer(self.trainer_class, self.tokenizer),
        )
        return in_order(trainer)

    def _row(self, example: Example) -> dict[str, str]:
        """Return texts that spell their end token."""
        prompt, completion = self.decode(example.prompt_ids), self.decode(example.completion_ids)
        return (
            {"prompt": prompt, "completion": completion}
            if self.takes_prompts
            else {"text": prompt + completion}
        )


class SFTPadIsEnd(SFT):
    """`SFTTrainer` with a tokenizer whose pad token is its end token."""

    pad_is_end = True


class SFTPaddingFree(SFT):
    """`SFTTrainer` that lays the rows of a batch end to end."""

    options = {"padding_free": True, "max_length": None}  # noqa: RUF012  read only


class SFTQuantizedLoRA(SFT):
    """`SFTTrainer` on a LoRA model of PEFT over a base that says it is loaded in 4 bits (its weights are float32)."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        *SFT.known_failures,
        ROUNDED.of(
            *GRADIENTS,
            *(
                f"R1.objective/gradients add up, lengths {lengths}, in micro-batches of {which}"
                for lengths in ("equal", "unequal")
                for which in ("one example", "two examples")
            ),
        ),
    )

    def objective_model(self) -> Any:
        if not hasattr(self, "_adapted"):
            self._adapted = self._adapt(copy.deepcopy(super().objective_model()))
        return self._adapted

    def _trainer(self, model: Any, *args: Any) -> Any:
        """Set up the trainer of a quantized base; the step itself is of float32 weights, without its kernels."""
        trainer = super()._trainer(model, *args)
        model.get_base_model().is_loaded_in_4bit = False
        return trainer

    def _adapt(self, base: Any) -> Any:
        import torch
        from peft import LoraConfig, get_peft_model

        base.is_loaded_in_4bit = True
        base.is_quantized, base.quantization_method = False, None
        torch.manual_seed(0)
        return get_peft_model(
            base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        )
