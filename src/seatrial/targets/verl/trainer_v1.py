"""verl's `PPOTrainer.fit` of `trainer/ppo/v1` in this process, with stand-ins as in `trainer_loop`."""

from __future__ import annotations

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from seatrial.relations.contracts.trainer_flow import (
    FlowPlan,
    FlowRecord,
    FlowRow,
    answer_ids,
    logprob_of,
    prompt_ids,
    read_answer,
    score_of,
    source_of,
)
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.asynchronous import stack_module
from seatrial.targets.verl.trainer_parts import (
    Loader,
    Tokenizer,
    configuration,
    logger_of,
    read_dumped,
    rows_of,
    validated,
)

V1 = "verl.trainer.ppo.v1"
Row = dict[str, Any]


class VerlTrainerV1(KnowsFailures):
    """`PPOTrainerSync.fit`: rows are in a store, which a fake keeps, and all else is as in `trainer-loop`."""

    thorough: ClassVar[bool] = True

    def __init__(self) -> None:
        """Find the trainer and the modules that read its store."""
        self._base = stack_module(f"{V1}.trainer_base")
        self.trainer = stack_module(f"{V1}.trainer_sync").PPOTrainerSync
        self._buffers = stack_module(f"{V1}.replay_buffer")
        os.environ.setdefault("VERL_FORCE_DEVICE", "cpu")
        self.utilities: Mapping[str, Callable[..., Any]] = dict.fromkeys(
            ("trainer loop", "trainer loop that writes rows"), self._run
        )

    def _run(self, plan: FlowPlan) -> FlowRecord:
        """Return what a run does."""
        record, store = FlowRecord(), _Store()
        silent: dict[str, Any] = {
            "Tracking": lambda **_: SimpleNamespace(log=logger_of(record)),
            "ValidationGenerationsLogger": lambda **_: None,
            "DapoFilteredRewardTableLogger": lambda **_: None,
        }
        with contextlib.ExitStack() as stack:
            for module in (self._base, self._buffers):
                stack.enter_context(mock.patch.object(module, "tq", store))
                stack.enter_context(mock.patch.object(module, "KVBatchMeta", Meta))
            for name, given in silent.items():
                if hasattr(self._base, name):
                    stack.enter_context(mock.patch.object(self._base, name, given))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            trainer = self._made(plan, record, store)
            trainer._load_checkpoint()
            trainer.on_init_end()
            trainer.fit(_Generator(plan, record, store))
        read_dumped(plan, record)
        return record

    def _made(self, plan: FlowPlan, record: FlowRecord, store: _Store) -> Any:
        trainer = object.__new__(self.trainer)
        config = configuration(plan, **{"data.train_batch_size": plan.prompts})
        workers = _Workers(plan, record, store)
        parts: dict[str, Any] = {
            "config": config,
            "tokenizer": Tokenizer(),
            "train_dataloader": Loader(plan),
            "train_dataloader_it": None,
            "val_dataloader": [rows_of(validated(plan))],
            "actor_rollout_wg": workers,
            "ref_policy_wg": workers,
            "checkpoint_manager": SimpleNamespace(
                update_weights=lambda step=None: record.events.append(("sync", step)),
                sleep_replicas=lambda: None,
            ),
            "checkpoint_callback": SimpleNamespace(on_save=lambda **_: None),
            "resource_pool_manager": SimpleNamespace(get_n_gpus=lambda: 1),
            "reward_loop_manager": SimpleNamespace(reward_loop_worker_handles=[None]),
            "use_critic": False,
            "use_reference_policy": True,
            "use_teacher_policy": False,
            "ref_in_actor": False,
            "trainer_mode": "sync",
            "parameter_sync_step": 1,
            "local_trigger_step": 0,
            "steps_per_epoch": plan.steps_of_epoch,
            "total_training_steps": plan.steps,
            "_restored_tq_prompt_count": 0,
            "_rollout_moe_lb_metrics_accumulator": None,
            "kl_ctrl_in_reward": find_name("verl", ["verl.trainer.ppo.core_algos:FixedKLController"])(
                plan.kl_in_reward
            ),
        }
        for name, part in parts.items():
            setattr(trainer, name, part)
        trainer.replay_buffer = trainer._build_replay_buffer()
        trainer.replay_buffer.poll_interval = 0.0
        trainer._init_dump_executor()
        update = trainer._update_actor

        def recorded(batch: Any, **options: Any) -> Any:
            record.events.append(("update", trainer.global_steps))
            record.trained[trainer.global_steps] = [
                _row(store.rows[batch.partition_id][key]) for key in batch.keys
            ]
            return update(batch, **options)

        trainer._update_actor = recorded
        return trainer


@dataclass
class Meta:
    """What names rows of the store."""

    partition_id: str
    keys: list[str]
    tags: list[dict[str, Any]]
    extra_info: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def reorder(self, order: Sequence[int]) -> None:
        """Put the rows into another order."""
        self.keys, self.tags = [self.keys[place] for place in order], [self.tags[place] for place in order]


class _Store:
    """A fake of TransferQueue: columns and tags of rows by partition and key."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Row]] = {}
        self.tags: dict[str, dict[str, dict[str, Any]]] = {}

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """Return tags by partition and key."""
        names = [partition_id] if partition_id else list(self.tags)
        return {name: {key: dict(tag) for key, tag in self.tags.get(name, {}).items()} for name in names}

    def kv_clear(self, keys: Sequence[str], partition_id: str) -> None:
        """Remove rows."""
        for key in keys:
            self.rows.get(partition_id, {}).pop(key, None)
            self.tags.get(partition_id, {}).pop(key, None)

    def kv_batch_put(
        self, keys: Sequence[str], partition_id: str, fields: Any = None, tags: Any = None
    ) -> Meta:
        """Keep columns of rows, and their tags."""
        rows = self.rows.setdefault(partition_id, {})
        own = self.tags.setdefault(partition_id, {})
        for place, key in enumerate(keys):
            own.setdefault(key, {}).update(tags[place] if tags else {})
            rows.setdefault(key, {})
        for name in fields.keys() if fields is not None else ():
            values = fields[name].unbind() if isinstance(fields[name], Tensor) else list(fields[name])
            for key, value in zip(keys, values, strict=True):
                rows[key][name] = value
        return Meta(partition_id, list(keys), [dict(own[key]) for key in keys])

    def kv_batch_get(
        self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str] | None = None
    ) -> Any:
        """Return the columns that all rows have; those of rows of several lengths are nested."""
        rows = [self.rows[partition_id][key] for key in keys]
        names = select_fields if select_fields is not None else list(rows[0])
        columns: dict[str, Any] = {}
        for name in names:
            values = [row[name] for row in rows if name in row]
            if len(values) == len(rows):
                nested = isinstance(values[0], Tensor) and values[0].dim() == 1
                columns[name] = (
                    torch.nested.as_nested_tensor(values, layout=torch.jagged) if nested else values
                )
        return find_name("verl", ["verl.utils.tensordict_utils:get_tensordict"])(columns)


class _Generator:
    """Answers each prompt as often as configured, and keeps the rows in the store."""

    def __init__(self, plan: FlowPlan, record: FlowRecord, store: _Store) -> None:
        self.plan, self.record, self.store = plan, record, store

    def generate_sequences(self, batch: Any) -> None:
        get = find_name("verl", ["verl.utils.tensordict_utils:get"])
        step, validates = int(get(batch, "global_steps")), bool(get(batch, "validate", False))
        partition, copies = ("val", self.plan.validation_copies) if validates else ("train", self.plan.copies)
        self.record.events.append(("validate" if validates else "generate", step))
        if validates:
            self.record.validated = [(number, source_of(number)) for number in validated(self.plan)]
        uids, asked = list(batch["uid"]), list(batch["raw_prompt"])
        seen: Counter[int] = Counter()
        for uid, messages in zip(uids, asked, strict=True):
            number = int(messages[0]["content"])
            for session in range(copies):
                self._put(partition, f"{uid}_{session}_0", (number, seen[number], step))
                seen[number] += 1
            self.store.kv_batch_put([uid], partition, tags=[{"status": "finished"}])

    def _put(self, partition: str, key: str, what: tuple[int, int, int]) -> None:
        number, copy, step = what
        prompt, answer = prompt_ids(number), answer_ids(number, copy, step)
        mask = torch.ones(len(answer), dtype=torch.long)
        score = [0.0] * (len(answer) - 1) + [score_of(number, copy, step)]
        row: Row = {
            "uid": key.split("_")[0],
            "prompts": torch.tensor(prompt),
            "responses": torch.tensor(answer),
            "input_ids": torch.tensor([*prompt, *answer]),
            "response_mask": mask,
            "loss_mask": mask.clone(),
            "rollout_log_probs": torch.tensor([logprob_of(token) for token in answer]),
            "rm_scores": torch.tensor(score),
            "num_turns": 2,
            "reward_model": {"ground_truth": str(number)},
            "data_source": source_of(number),
            "extra_fields": {},
        }
        self.store.rows.setdefault(partition, {})[key] = row
        self.store.tags.setdefault(partition, {})[key] = {
            "global_steps": step,
            "min_global_steps": step - 1,
            "max_global_steps": step - 1,
            "prompt_len": len(prompt),
            "response_len": len(answer),
            "seq_len": len(prompt) + len(answer),
        }


class _Workers:
    """The models: a log-probability says of which token it is."""

    def __init__(self, plan: FlowPlan, record: FlowRecord, store: _Store) -> None:
        self.plan, self.record, self.store = plan, record, store
        self._dispatch_info: dict[str, list[int]] = {}

    def _query_dispatch_info(self, role: str) -> list[int]:
        return list(range(self.plan.ranks))

    def _of(self, batch: Meta, reference: bool) -> Meta:
        for key in batch.keys:
            row = self.store.rows[batch.partition_id][key]
            ids = [*row["input_ids"].tolist()[1:], 0]
            row["log_probs"] = torch.tensor([logprob_of(token, reference) for token in ids])
            row["entropy"] = row["log_probs"].abs()
        return batch

    def compute_log_prob(self, batch: Meta) -> Meta:
        return self._of(batch, reference=False)

    def compute_ref_log_prob(self, batch: Meta) -> Meta:
        return self._of(batch, reference=True)

    def update_actor(self, batch: Meta) -> dict[str, Any]:
        self.record.mini_batch = int(batch.extra_info["mini_batch_size"])
        return {"metrics": {"mfu": [0.0], "loss": [0.0]}}

    def save_checkpoint(self, path: str, remote: str | None, step: int, **_: Any) -> None:
        os.makedirs(path)  # noqa: PTH103  verl gives a text
        self.record.events.append(("save", step))

    def load_checkpoint(self, local_path: str, **_: Any) -> None:
        step = int(os.path.basename(os.path.dirname(local_path)).removeprefix("global_step_"))  # noqa: PTH119, PTH120
        self.record.events.append(("load", step))


def _row(row: Row) -> FlowRow:
    prompt, copy, step = read_answer(int(row["responses"][0]))
    columns = {
        "answer_ids": "responses",
        "mask": "response_mask",
        "old_logprobs": "old_log_probs",
        "ref_logprobs": "ref_log_prob",
        "scores": "rm_scores",
        "rewards": "token_level_rewards" if "token_level_rewards" in row else "rm_scores",
        "advantages": "advantages",
    }
    values = {name: row[column].tolist() for name, column in columns.items()}
    return FlowRow(
        prompt=prompt, copy=copy, step=step, group=str(row["uid"]), source=str(row["data_source"]), **values
    )


ADAPTERS: dict[str, type[Any]] = {"trainer-v1": VerlTrainerV1}
