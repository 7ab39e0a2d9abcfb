"""TRL's trainers of preferences: DPO, CPO and ORPO on pairs, KTO on labels, whichever release is installed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar, Literal

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.conversations import PairRow, TokenRow
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import (
    CapturingOptimizer,
    batch_options,
    captured_step,
    configuration,
    in_order,
)
from seatrial.targets.trl.kernels import provide_kernels
from seatrial.targets.trl.named import parameters_of

MAX_LENGTH = 24
LONG = 200
"""Beyond every example: of CPO and ORPO, which truncate prompt and completion by rules of their own."""


MODULES: Mapping[str, str] = {
    "OnlineDPO": "online_dpo",
    "NashMD": "nash_md",
    "IWOPD": "iw_opd",
    "ServerDistillation": "server_distillation",
    "AsyncDistillation": "async_distillation",
}
"""Modules whose name is not the algorithm's in lowercase."""


def find_trainer(name: str) -> tuple[Any, Any]:
    """Return the trainer and the configuration of an algorithm, from where the installed release keeps them."""
    folder = MODULES.get(name, name.lower())
    places = ("trl", f"trl.experimental.{folder}", f"trl.trainer.{folder}_trainer")
    trainer = find_name("trl", [f"{place}:{name}Trainer" for place in places])
    config = find_name(
        "trl", [f"{place}:{name}Config" for place in (*places[:2], f"trl.trainer.{folder}_config")]
    )
    _take_data_set(trainer)
    provide_kernels()
    return trainer, config


def _take_data_set(trainer: Any) -> None:
    """Let a trainer's sampler be asked for with the data set, as Transformers does since 4.52."""
    base = next((one for one in trainer.__mro__ if "_get_train_sampler" in vars(one)), None)
    if base is not None and len(signature(own := base._get_train_sampler).parameters) == 1:
        base._get_train_sampler = lambda self, *_: own(self)


def given_tokenizer(trainer_class: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the tokenizer under the name that a trainer takes it by."""
    takes = parameters_of(trainer_class)
    is_old = "tokenizer" in takes and "processing_class" not in takes
    return {"tokenizer" if is_old else "processing_class": tokenizer}


class PairTrainer(KnowsFailures, TinyCausalModel):
    """A trainer of pairs as an adapter; see `contracts.Objective`."""

    facts = StackFacts(micro_batch_sizes="equal")
    objective_spec: ObjectiveSpec
    algorithm: str
    has_reference = False

    def __init__(self) -> None:
        """Find the trainer in the installed release."""
        self.trainer_class, self.config_class = find_trainer(self.algorithm)

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        model = copy.deepcopy(self.objective_model())
        optimizer = CapturingOptimizer(model.parameters())
        rows = [examples[index] for part in micro_batches for index in part]
        options = {**batch_options(micro_batches), "max_length": self.objective_spec.max_length or LONG}
        return captured_step(self.trainer_of(model, optimizer, rows, options), model, optimizer)

    def trainer_of(
        self,
        model: Any,
        optimizer: CapturingOptimizer,
        examples: Sequence[Example],
        options: Mapping[str, int],
    ) -> Any:
        """Return the trainer of these examples, which it serves in their order."""
        from datasets import Dataset

        truncation = "keep_end" if self.objective_spec.keep == "end" else "keep_start"
        arguments = configuration(
            self.config_class,
            {**options, "beta": self.objective_spec.beta},
            {"truncation_mode": truncation, "max_prompt_length": None, "max_completion_length": None},
        )
        reference = {"ref_model": copy.deepcopy(self.objective_reference())} if self.has_reference else {}
        trainer = self.trainer_class(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list([self._row(example) for example in examples]),
            optimizers=(optimizer, None),
            **given_tokenizer(self.trainer_class, self.tokenizer),
            **reference,
        )
        return in_order(trainer)

    def _row(self, example: Example) -> dict[str, Any]:
        """Return texts; the trainer adds the end token itself."""
        assert example.rejected_ids is not None
        return {
            "prompt": self.decode(example.prompt_ids),
            "chosen": self.decode(example.completion_ids[:-1]),
            "rejected": self.decode(example.rejected_ids[:-1]),
        }


class KTO(PairTrainer):
    """`KTOTrainer` at its defaults, on completions that are labelled; see `contracts.Objective`."""

    algorithm = "KTO"
    has_reference = True
    objective_spec = ObjectiveSpec(kind="kto", beta=0.1)

    def _row(self, example: Example) -> dict[str, Any]:
        return {
            "prompt": self.decode(example.prompt_ids),
            "completion": self.decode(example.completion_ids[:-1]),
            "label": bool(example.desirable),
        }


class DPO(PairTrainer):
    """`DPOTrainer` at its defaults, with a longest sequence of which the start is kept."""

    algorithm = "DPO"
    has_reference = True
    objective_spec = ObjectiveSpec(kind="dpo", beta=0.1, max_length=MAX_LENGTH)


class DPOKeepEnd(DPO):
    """`DPOTrainer` where the end of a longer sequence is kept."""

    objective_spec = ObjectiveSpec(kind="dpo", beta=0.1, max_length=MAX_LENGTH, keep="end")


class _DPOPadIsEnd(DPO):
    pad_is_end = True


class DPOPairs(TinyCausalModel):
    """Rows of `DPOTrainer`'s batches, where the pad token is the end token; see `contracts.Pairs`."""

    pad_is_end = True
    pair_keeps: Literal["start", "end"] | None = "start"

    def __init__(self) -> None:
        """Find the trainer in the installed release."""
        self.dpo = _DPOPadIsEnd()

    def pair_rows(self, examples: Sequence[Example], *, max_length: int | None) -> list[PairRow]:
        model = copy.deepcopy(self.dpo.objective_model())
        options = {**batch_options([range(len(examples))]), "max_length": max_length or LONG}
        trainer = self.dpo.trainer_of(model, CapturingOptimizer(model.parameters()), examples, options)
        batch = next(iter(trainer.get_train_dataloader()))
        if "completion_mask" not in batch:
            raise NotServed("batches of this release keep prompts apart from completions")
        parts = [batch[name] for name in ("input_ids", "attention_mask", "completion_mask")]
        # 0.29 cuts rows before it computes with them, and not in batches.
        ids_BS, shown_BS, counted_BS = (
            trainer._truncate_inputs(*parts) if hasattr(trainer, "_truncate_inputs") else parts
        )
        rows = [
            TokenRow(ids[shown].tolist(), counted[shown].tolist())
            for ids, shown, counted in zip(ids_BS, shown_BS.bool(), counted_BS, strict=True)
        ]
        half = len(rows) // 2
        return [PairRow(*pair) for pair in zip(rows[:half], rows[half:], strict=True)]


NLL_PER_MICRO_BATCH = KnownFailure(
    "the negative log-likelihood is a mean over the tokens of each micro-batch",
    finding="TRL: the likelihood term of CPO and ORPO",
).of(
    *(
        f"R1.objective/{law}, lengths unequal, in micro-batches of {which}"
        for law, which in (
            ("gradients add up", "one example"),
            ("gradients add up", "two examples"),
            ("logged losses add up", "one example"),
        )
    )
)


class CPO(PairTrainer):
    """`CPOTrainer` at its defaults."""

    algorithm = "CPO"
    known_failures: ClassVar[Sequence[KnownFailure]] = (NLL_PER_MICRO_BATCH,)
    objective_spec = ObjectiveSpec(kind="cpo", beta=0.1, nll_weight=1.0)


class ORPO(PairTrainer):
    """`ORPOTrainer` at its defaults; its likelihood is that of prompt and chosen completion, as its code says."""

    algorithm = "ORPO"
    known_failures: ClassVar[Sequence[KnownFailure]] = (NLL_PER_MICRO_BATCH,)
    objective_spec = ObjectiveSpec(kind="orpo", beta=0.1, nll_weight=1.0, nll_over="all")
