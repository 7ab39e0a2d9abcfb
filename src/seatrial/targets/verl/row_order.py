"""The order in which verl's trainer reads rows: its loader and sampler, and a resume from its checkpoint."""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch

from seatrial.relations.contracts.loops import Epochs, LoaderPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, since
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.trainers import new_folder, temporary_folder
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.places import in_float32
from seatrial.targets.verl.prompts import DATA_SET
from seatrial.targets.verl.turns import own_settings

SAMPLERS = ("verl.trainer.ppo.utils:create_rl_sampler", "verl.trainer.main_ppo:create_rl_sampler")
BOUNDARY = "R30.rows/resumed at the end of an epoch, the last rows dropped"
FIRST_ORDER = KnownFailure(
    "a resume at the end of an epoch makes a new sampler: the next epoch has the order of the first",
    finding="verl: the order after a resume at the end of an epoch",
    releases=since("verl", "0.8"),
).of(BOUNDARY)
EMPTY_EPOCH = KnownFailure(
    "after a resume at the end of an epoch the loader has no more rows, and the next epoch is empty",
    finding="verl: the order after a resume at the end of an epoch",
    releases=before("verl", "0.8"),
).of(BOUNDARY)

SECOND_EPOCH = KnownFailure(
    "a resume within a later epoch reads that epoch in another order",
    finding="verl: the order after a resume at the end of an epoch",
    releases=before("verl", "0.7"),
).of("R30.rows/resumed second epoch, the last rows dropped")


class VerlRowOrder(KnowsFailures):
    """`RayPPOTrainer`: its data loader, and `_load_checkpoint`; see `contracts.loops.RowLoader`.

    One process reads a batch for all, which is then divided; the rows that do not fill a batch are dropped.
    """

    known_failures: ClassVar[Sequence[KnownFailure]] = (FIRST_ORDER, EMPTY_EPOCH, SECOND_EPOCH)

    def __init__(self) -> None:
        """Find the trainer and its sampler; a stand-in for `torchdata` reads nothing."""
        try:
            version("torchdata")
        except PackageNotFoundError as error:
            raise ModuleNotFoundError("No module named 'torchdata'", name="torchdata") from error
        unused = [name for name in UNUSED if name != "torchdata"]
        self.trainer_class = import_without("verl.trainer.ppo.ray_trainer", unused).RayPPOTrainer
        create = inspect.getsource(self.trainer_class._create_dataloader)
        self._shuffles = "shuffle=True" in create  # to 0.1, with any options
        self._resumes = "StatefulDataLoader" in inspect.getsource(sys.modules[self.trainer_class.__module__])
        # Before 0.9 it is in the main module, which the command starts.
        self.make_sampler = None
        if "train_sampler" in inspect.signature(self.trainer_class._create_dataloader).parameters:
            import_without("verl.trainer.main_ppo", unused)
            self.make_sampler = find_name("verl", SAMPLERS)

    def loaded_rows(self, plan: LoaderPlan) -> Sequence[Epochs]:
        if plan.split or plan.dispatch or plan.iterable or plan.drawn is not None:
            raise NotServed("the trainer reads a list of rows, in one process")
        if plan.shuffled_by != "generator" or plan.batched_by != "loader" or plan.own_draws:
            raise NotServed("order and batches are those of the configuration")
        if not plan.drop_last and plan.num_rows % plan.rows_of_step:
            raise NotServed("the rows that do not fill a batch are dropped, as the code says")
        if self._shuffles and not plan.shuffle:
            raise NotServed(f"the trainer of verl {release('verl')} shuffles always, as the code says")
        with in_float32():
            if self._shuffles:  # with numbers of the process
                torch.manual_seed(plan.seed)
            trainer = self._trainer(plan)
            steps = plan.first_epoch * len(trainer.train_dataloader) + plan.skip
            if steps:
                if not self._resumes:
                    raise NotServed(f"the loader of verl {release('verl')} has no state")
                state = self._state_after(trainer, steps)
                trainer = self._trainer(plan)
                self._resume(trainer, state, steps)
            found = [
                [batch["row"].tolist() for batch in trainer.train_dataloader]
                for _ in range(plan.first_epoch, plan.num_epochs)
            ]
        size = plan.batch_size
        return [
            [[batch[rank * size : (rank + 1) * size] for batch in epoch] for epoch in found]
            for rank in range(plan.num_ranks)
        ]

    def validated_rows(self, plan: LoaderPlan) -> Sequence[int]:
        if self._shuffles and plan.shuffle:
            raise NotServed(f"the trainer of verl {release('verl')} shuffles validations, as the code says")
        with in_float32():
            loader = self._trainer(plan, num_validated=plan.num_rows, validated_at_once=4).val_dataloader
            return [row for batch in loader for row in batch["row"].tolist()]

    def _trainer(self, plan: LoaderPlan, num_validated: int = 1, validated_at_once: int | None = None) -> Any:
        """Return a trainer with its loaders."""
        from omegaconf import OmegaConf

        rows = [{"row": row} for row in range(plan.num_rows)]
        trainer = object.__new__(self.trainer_class)
        trainer.config = OmegaConf.create(
            {
                "data": {
                    "train_batch_size": plan.rows_of_step,
                    "val_batch_size": validated_at_once or num_validated,
                    "dataloader_num_workers": 0,
                    "shuffle": plan.shuffle,
                    "validation_shuffle": False,
                    "seed": plan.seed,
                    "sampler": None,
                },
                "trainer": {
                    "total_epochs": plan.num_epochs,
                    "total_training_steps": None,
                    "resume_mode": "resume_path",
                    "resume_from_path": "",
                    "default_hdfs_dir": None,
                    "default_local_dir": temporary_folder(),
                    "del_local_ckpt_after_load": False,
                },
            }
        )
        if self.make_sampler is None:
            self._create_of_files(trainer, [rows, rows[:num_validated]])
            return trainer
        sampler = self.make_sampler(trainer.config.data, rows)
        trainer._create_dataloader(rows, rows[:num_validated], _collate, sampler)
        return trainer

    def _create_of_files(self, trainer: Any, data: Sequence[Any]) -> None:
        """Make the loaders of a trainer that reads files itself, those of training first, as before 0.3."""
        from omegaconf import OmegaConf, open_dict

        module, given = sys.modules[self.trainer_class.__module__], iter(data)
        if not hasattr(module, "RLHFDataset"):  # to 0.1 the function imports them
            module = sys.modules[find_name("verl", [f"{DATA_SET}:RLHFDataset"]).__module__]
        with open_dict(trainer.config):
            own = {"train_files": [], "val_files": [], "prompt_key": "prompt", "max_prompt_length": 8}
            settings = own_settings("ppo_trainer.yaml").get("data", {})
            trainer.config.data = OmegaConf.merge(settings, trainer.config.data, own)
            trainer.config.actor_rollout_ref = {"actor": {"optim": {}}}
            trainer.config.critic = {"optim": {}}
        trainer.tokenizer = trainer.processor = None
        with (
            mock.patch.object(module, "RLHFDataset", lambda *_, **__: _Rows(next(given))),
            mock.patch.object(module, "collate_fn", _collate),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            trainer._create_dataloader()

    def _state_after(self, trainer: Any, steps: int) -> Any:
        """Return the loader's state after so many steps, as a checkpoint of the last of them has it."""
        done = 0
        while True:
            for _ in trainer.train_dataloader:
                done += 1
                if done == steps:
                    return trainer.train_dataloader.state_dict()

    def _resume(self, trainer: Any, state: Any, steps: int) -> None:
        folder = Path(new_folder()) / f"global_step_{steps}"
        folder.mkdir()
        torch.save(state, folder / "data.pt")
        by_mode = "in self.config.trainer.resume_mode" in inspect.getsource(trainer._load_checkpoint)
        option = "resume_mode" if by_mode else "resume_from_path"
        trainer.config.trainer[option] = str(folder)  # to 0.2 the mode is the path
        trainer.use_critic = False
        trainer.actor_rollout_wg = SimpleNamespace(load_checkpoint=lambda *_, **__: None)
        trainer._load_checkpoint()


class _Rows(list[Any]):
    """Rows of a data set that says what becomes of long prompts, as trainers before 0.3 require."""

    truncation = "error"


def _collate(rows: Sequence[dict[str, int]]) -> dict[str, Any]:
    return {"row": torch.tensor([row["row"] for row in rows])}


ADAPTERS: dict[str, type[Any]] = {"row-order": VerlRowOrder}
