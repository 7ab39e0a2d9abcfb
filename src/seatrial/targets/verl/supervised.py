"""verl's supervised trainer before its engines, and the rows of its data set, in releases up to 0.7."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import CapturingOptimizer, equal_size, new_folder
from seatrial.targets.verl.places import in_float32, no_memory_log, one_process
from seatrial.targets.verl.workers import source_of, worker_class

LONG = 64
"""Beyond every example."""
PLAIN = "{{ messages[0]['content'] }}"
"""A template that shows a prompt as it is."""
OWN_MEAN = KnownFailure(
    "each micro-batch's mean counts alike, however many tokens it has",
    finding="verl: the supervised trainer's means of micro-batches",
).of("R1.objective")
SHIFTED_TWICE = KnownFailure(
    "the data set shifts its mask to the places that predict, and the trainer shifts it again: the end token does "
    "not train, and the last token of the prompt does",
    finding="verl: the mask of SFTDataset, shifted twice",
    releases=lambda adapter: adapter.shifts,  # since 0.6, and trees before it
).of("R12.objective")


def written(rows: Sequence[dict[str, Any]]) -> str:
    """Return the path of a new Parquet file of these rows."""
    import pyarrow
    import pyarrow.parquet

    path = Path(new_folder()) / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return str(path)


def made_data_set(
    data_class: Any, files: Sequence[str] | str, tokenizer: Any, options: dict[str, Any], **more: Any
) -> Any:
    """Return a data set of files; before 0.3 its options are arguments, and no configuration.

    Args:
        data_class: of verl.
        files: paths, or one.
        tokenizer: of its rows.
        options: of its configuration.
        more: further arguments.
    """
    from omegaconf import OmegaConf

    takes = inspect.signature(data_class.__init__).parameters
    given: dict[str, Any] = {"config": OmegaConf.create(options)}
    if "config" not in takes:
        older = {"filter_prompts": options.get("filter_overlong_prompts"), **options}
        given = {name: value for name, value in older.items() if name in takes and value is not None}
    name = "data_files" if "data_files" in takes else "parquet_files"
    return data_class(**{name: files}, tokenizer=tokenizer, **given, **more)


class VerlSupervisedTrainer(KnowsFailures, TinyCausalModel):
    """`FSDPSFTTrainer.training_step` on rows of `SFTDataset`; see `contracts.Objective`."""

    facts = StackFacts(micro_batch_sizes="equal", epsilon=1e-8, dtype="float32")
    objective_spec = ObjectiveSpec(kind="sft", trains="completion")
    padding_side = "right"
    known_failures: ClassVar[Sequence[KnownFailure]] = (OWN_MEAN, SHIFTED_TWICE)

    def __init__(self) -> None:
        """Find the trainer and its data set."""
        self.trainer_class = worker_class("verl.trainer.fsdp_sft_trainer", "FSDPSFTTrainer")
        self.data_class = find_name("verl", ["verl.utils.dataset:SFTDataset"])
        self.shifts = '"loss_mask")[:, 1:]' in source_of(self.trainer_class)
        self._plain = copy.deepcopy(super().tokenizer)
        self._plain.chat_template = PLAIN

    @property
    def tokenizer(self) -> Any:
        """The tokenizer with the plain template."""
        return self._plain

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        from tensordict import TensorDict

        one_process()
        no_memory_log()
        given = [examples[index] for part in micro_batches for index in part]
        rows = self._rows(given)
        batch = TensorDict(
            {name: torch.stack([row[name] for row in rows]) for name in rows[0]}, batch_size=[len(rows)]
        )
        model = copy.deepcopy(self.objective_model())
        optimizer = CapturingOptimizer(model.parameters())
        trainer = self._trainer(model, optimizer, equal_size(micro_batches))
        with in_float32():
            found = trainer.training_step(batch)
        gradients = {name: optimizer.captured[id(value)] for name, value in model.named_parameters()}
        return StepResult(loss=float(found["train/loss"]), gradients=gradients)

    def _rows(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        # The data set ends each response with the end token.
        texts = [
            {"prompt": self.decode(one.prompt_ids), "response": self.decode(one.completion_ids[:-1])}
            for one in examples
        ]
        # Named as they are by default since 0.3, which before it have no default.
        options = {
            "prompt_key": "prompt", "response_key": "response", "max_length": LONG, "truncation": "error",
        }  # fmt: skip
        with in_float32():
            try:
                data = made_data_set(self.data_class, written(texts), self.tokenizer, options)
            except AttributeError as error:  # between 0.2 and 0.3 columns are texts within dictionaries
                if "'DataFrame' object has no attribute 'tolist'" not in str(error):
                    raise
                raise NotServed(
                    f"the data set of verl {release('verl')} reads no columns of texts"
                ) from error
            return [data[place] for place in range(len(texts))]

    def _trainer(self, model: Any, optimizer: Any, size: int) -> Any:
        from omegaconf import OmegaConf

        trainer = object.__new__(self.trainer_class)
        model.clip_grad_norm_ = lambda max_norm: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        found = {
            "config": OmegaConf.create(
                {
                    "data": {"micro_batch_size_per_gpu": size, "balance_dp_token": False},
                    "model": {"strategy": "fsdp"},
                    "optim": {"clip_grad": 1e9},
                    "ulysses_sequence_parallel_size": 1,
                }
            ),
            "device_name": "cpu",
            "use_remove_padding": False,
            "fsdp_model": model,
            "model": model,
            "optimizer": optimizer,
            "lr_scheduler": SimpleNamespace(step=lambda: None, get_last_lr=lambda: [1.0]),
        }
        for name, value in found.items():
            setattr(trainer, name, value)
        return trainer


ADAPTERS: dict[str, type[Any]] = {"supervised-trainer": VerlSupervisedTrainer}
