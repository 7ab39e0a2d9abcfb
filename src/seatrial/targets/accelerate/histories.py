"""Any sequence of calls of an `Accelerator`, in each process of a gloo group; see `contracts.loop_histories`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from seatrial.relations.contracts.loop_histories import MOMENTUM, RATE, RATE_DECAY
from seatrial.targets.accelerate.ranked import Linear, collated, new_accelerator


class _Loop:
    """What a script of a user keeps."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        from accelerate.utils import DataLoaderConfiguration

        self.plan = plan
        self.accelerator = new_accelerator(
            gradient_accumulation_steps=plan["accumulation"],
            dataloader_config=DataLoaderConfiguration(
                split_batches=plan["split"], use_seedable_sampler=True, data_seed=plan["seed"]
            ),
        )
        self.prepare()
        torch.manual_seed(plan["seed"] + self.accelerator.process_index)
        shared: list[Any] = [
            tempfile.mkdtemp(prefix="seatrial-") if self.accelerator.is_main_process else None
        ]
        if self.accelerator.num_processes > 1:
            torch.distributed.broadcast_object_list(shared)
        self.folder = Path(shared[0])

    def prepare(self) -> None:
        """Make everything new."""
        plan, num_ranks = self.plan, self.accelerator.num_processes
        size = plan["batch_size"] * (num_ranks if plan["split"] else 1)
        num_rows = plan["num_batches"] * plan["batch_size"] * num_ranks

        def loader(rows: int, *, shuffle: bool) -> Any:
            return DataLoader(list(range(rows)), batch_size=size, shuffle=shuffle, collate_fn=collated)  # type: ignore[arg-type]

        model = Linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
        given = [
            model,
            optimizer,
            torch.optim.lr_scheduler.ExponentialLR(optimizer, RATE_DECAY),
            loader(num_rows, shuffle=True),
            loader(plan["num_evaluated"], shuffle=False),
        ]
        turned = plan["turned"]
        made = self.accelerator.prepare(*given[turned:], *given[:turned])
        back = len(given) - turned
        ordered: list[Any] = [*made[back:], *made[:back]]
        self.model, self.optimizer, self.schedule, self.rows, self.evaluated = ordered

    def state(self) -> dict[str, Any]:
        """Return the weights and the rate."""
        weight = self.accelerator.unwrap_model(self.model).layer.weight
        return {
            "weights": weight.detach().flatten().tolist(),
            "rate": float(self.schedule.get_last_lr()[0]),
        }

    def train(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Train on a part of an epoch."""
        accelerator = self.accelerator
        self.rows.set_epoch(call["epoch"])
        read = accelerator.skip_first_batches(self.rows, call["skip"]) if call["skip"] else self.rows
        seen: dict[str, Any] = {"batches": []}
        for number, batch in enumerate(read, start=call["skip"] + 1):
            norm = None
            with accelerator.accumulate(self.model):
                loss = torch.nn.functional.mse_loss(self.model(batch["x"]), batch["y"])
                accelerator.backward(loss)
                if call["max_norm"] and accelerator.sync_gradients:
                    norm = float(accelerator.clip_grad_norm_(self.model.parameters(), call["max_norm"]))
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
                stepped = bool(accelerator.sync_gradients)
            state = self.state()
            seen["batches"].append((batch["row"].tolist(), stepped, state["weights"], state["rate"], norm))
            if number == call["evaluates_after"]:
                seen |= self.evaluate(call)
            if number == call["stop"]:
                break
        return seen

    def evaluate(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Gather rows and outputs of an evaluation."""
        rows: list[int] = []
        outputs: list[float] = []
        self.model.eval()
        for number, batch in enumerate(self.evaluated, start=1):
            with torch.no_grad():
                made_B = self.model(batch["x"])
            found = self.accelerator.gather_for_metrics((batch["row"], made_B))
            rows += found[0].tolist()
            outputs += found[1].tolist()
            if number == call["reads"]:
                break
        self.model.train()
        return {"rows": rows, "outputs": outputs}

    def save(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Save the state, and draw a random number."""
        self.accelerator.save_state(str(self.folder / str(call["number"])))
        self.accelerator.wait_for_everyone()
        return {"draw": float(torch.rand(()))}

    def load(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Load a state, and draw a random number."""
        self.accelerator.load_state(str(self.folder / str(call["number"])))
        return {"draw": float(torch.rand(()))}

    def renew(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Free what is prepared, and prepare new objects."""
        self.accelerator.free_memory()
        self.prepare()
        return {}

    def split(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the part of this process."""
        items = list(range(call["number"]))
        with self.accelerator.split_between_processes(items, apply_padding=call["padded"]) as part:
            return {"rows": list(part)}

    def trigger(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Set the trigger in one process; all check it."""
        accelerator = self.accelerator
        first = accelerator.check_trigger()
        if accelerator.process_index == call["number"]:
            accelerator.set_trigger()
        return {"triggers": [first, accelerator.check_trigger(), accelerator.check_trigger()]}


def performed(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what this process sees of each call."""
    loop = _Loop(plan)
    calls = {
        "train": loop.train,
        "evaluate": loop.evaluate,
        "save": loop.save,
        "load": loop.load,
        "renew": loop.renew,
        "split": loop.split,
        "trigger": loop.trigger,
    }
    seen = [{**calls[call["name"]](call), **loop.state()} for call in plan["calls"]]
    loop.accelerator.wait_for_everyone()
    if loop.accelerator.is_main_process:
        shutil.rmtree(loop.folder)
    return seen
