"""A loop whose state an `Accelerator` saves and loads, in each process of a gloo group; called by `loops`."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from seatrial.targets.accelerate.ranked import new_accelerator

WIDTH, BATCH, RATE = 4, 2, 0.05


class _Net(torch.nn.Module):
    """Layers with dropout and a batch norm."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.dropout = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B, D]."""
        made_BD: Tensor = self.last(self.dropout(torch.tanh(self.norm(self.first(x_BD)))))
        return made_BD


class _Count:
    """An object of the caller that is saved with the rest."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.steps = state["steps"]


class _Loop:
    """Everything that a run has, made new."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        from accelerate.utils import DataLoaderConfiguration

        self.plan = plan
        self.accelerator = new_accelerator(
            gradient_accumulation_steps=plan["accumulation"],
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        )
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.schedules: list[Any] = []
        for number in range(plan["num_models"]):
            torch.manual_seed(plan["seed"] + number)
            model = _Net(plan["tied"])
            optimizer = torch.optim.AdamW(model.parameters(), lr=RATE * (number + 1))
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9 - 0.1 * number)
            prepared = self.accelerator.prepare(model, optimizer, schedule)
            for kept, one in zip((self.models, self.optimizers, self.schedules), prepared, strict=True):
                kept.append(one)
        self.count = _Count()
        self.accelerator.register_for_checkpointing(self.count)
        rows = torch.arange(plan["num_batches"] * BATCH * self.accelerator.num_processes)
        generator = torch.Generator().manual_seed(plan["seed"])
        loader: Any = DataLoader(rows, batch_size=BATCH, shuffle=True, generator=generator)  # type: ignore[arg-type]
        self.loader = self.accelerator.prepare(loader)
        seed = plan["seed"] + self.accelerator.process_index
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    def run(self, first: int, last: int) -> list[tuple[Any, ...]]:
        """Take the steps after the first so many, and up to the last one; return what is seen after each."""
        plan = self.plan
        seen: list[tuple[Any, ...]] = []
        in_epoch = plan["num_batches"] // plan["accumulation"]
        for epoch in range(first // in_epoch, plan["num_epochs"]):
            self.loader.set_epoch(epoch)
            begun = max(0, first - epoch * in_epoch)
            skipped = begun * plan["accumulation"]
            read = self.accelerator.skip_first_batches(self.loader, skipped) if skipped else self.loader
            rows: list[int] = []
            losses: list[float] = []
            step = epoch * in_epoch + begun
            for batch in read:
                if step == last:
                    return seen
                rows += batch.tolist()
                losses += self._train(batch)
                if self.accelerator.sync_gradients:
                    self.count.steps += 1
                    step += 1
                    rates = [float(one.get_last_lr()[0]) for one in self.schedules]
                    draws = [random.random(), float(np.random.rand()), float(torch.rand(()))]
                    seen.append((rows, losses, rates, draws, self.count.steps))
                    rows, losses = [], []
        return seen

    def _train(self, batch_B: Tensor) -> list[float]:
        x_BD = torch.sin(batch_B[:, None] * torch.arange(1.0, WIDTH + 1))
        losses = []
        with contextlib.ExitStack() as blocks:
            blocks.enter_context(self.accelerator.accumulate(*self.models))
            for model, optimizer, schedule in zip(self.models, self.optimizers, self.schedules, strict=True):
                loss = (model(x_BD) - torch.cos(x_BD)).pow(2).mean()
                self.accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(float(loss))
        return losses

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters, buffers and moments."""
        found = {}
        for number, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            plain = self.accelerator.unwrap_model(model)
            named = dict(plain.named_parameters())
            for name, value in {**named, **dict(plain.named_buffers())}.items():
                found[f"{number}.{name}"] = value.detach().clone()
            for name, value in named.items():
                for key, moment in optimizer.state[value].items():
                    found[f"{number}.{name}.{key}"] = torch.as_tensor(moment).detach().clone()
        return found


def saved_loop(plan: Mapping[str, Any]) -> list[Any]:
    """Return what is seen after each step, and the tensors at the end."""
    loop, num_steps = _Loop(plan), plan["num_epochs"] * (plan["num_batches"] // plan["accumulation"])
    if not plan["saves_after"]:
        return [loop.run(0, num_steps), loop.tensors()]
    loop.run(0, plan["saves_after"])
    folder: list[Any] = [tempfile.mkdtemp(prefix="seatrial-") if loop.accelerator.is_main_process else None]
    if loop.accelerator.num_processes > 1:
        torch.distributed.broadcast_object_list(folder)
    loop.accelerator.save_state(folder[0], safe_serialization=plan["safe"])
    loop.accelerator.wait_for_everyone()
    other = _Loop(plan)
    for model in other.models:
        for value in model.parameters():
            value.data.add_(0.5)
    other.accelerator.load_state(folder[0])
    seen = other.run(plan["saves_after"], num_steps)
    other.accelerator.wait_for_everyone()
    if other.accelerator.is_main_process:
        shutil.rmtree(folder[0])
    return [seen, other.tensors()]
