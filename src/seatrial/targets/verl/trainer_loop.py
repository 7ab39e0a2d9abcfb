"""verl's `RayPPOTrainer.fit` in this process: generator, models, loader and log are stand-ins, the loop is its own."""

from __future__ import annotations

import contextlib
import io
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from inspect import getsource
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch

from seatrial.relations.contracts.trainer_flow import (
    FlowPlan,
    FlowRecord,
    FlowRow,
    answer_ids,
    logprob_of,
    prompt_ids,
    prompt_of,
    read_answer,
    score_of,
    source_of,
    value_of,
)
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between, since
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.places import rows_without_flash_attn
from seatrial.targets.verl.rewards import objects
from seatrial.targets.verl.trainer_parts import (
    TRAINER,
    Loader,
    P,
    Tokenizer,
    configuration,
    logger_of,
    read_dumped,
    rows_of,
    validated,
)

OLD = "val/test_score/"
T = 6
"""Width of answers."""


LOOPS = ("trainer loop", "trainer loop that is killed")


class KilledError(Exception):
    """A run that ends in the middle of a step."""


class VerlTrainerLoop(KnowsFailures):
    """`RayPPOTrainer.fit`, whose parts the adapter puts in the place of what `__init__` and `init_workers` make."""

    thorough: ClassVar[bool] = True

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the loader is not restored at the end of an epoch: the next one has the order of the first",
            finding="verl: a resume at the end of an epoch",
            releases=since("verl", "0.8"),
        ).of("R31.flow/prompts after a resume at the end of an epoch"),
        KnownFailure(
            "a validation takes prompts of one text for one prompt (verl#3280)",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.5.1"),
        ).of("R31.flow/validations of prompts of one text"),
        KnownFailure(
            "the logged lengths of sequences are the work that is estimated from them",
            finding="verl: small functions of older releases",
            releases=between("verl", "0.6.1", "0.7"),
        ).of("R31.flow/metrics of the loop"),
    )

    def __init__(self) -> None:
        """Find the class.

        Raises:
            Gone: the loop of this release has other parts.
        """
        import_without(TRAINER, UNUSED)
        self.trainer = find_name("verl", [f"{TRAINER}:RayPPOTrainer"])
        source = getsource(self.trainer)
        parts = (".generate_sequences(", "is_last_step")
        if not all(part in source for part in parts):
            raise Gone(f"the loop of verl {release('verl')} has not all of {', '.join(parts)}")
        # Before 0.5 the engine draws all answers of a prompt, except SGLang with turns shortly before.
        self._once = "gen_batch.repeat" not in source or "repeat_sampling_sglang_grpo" in source
        self._numbers_steps = "training/global_step" in source
        self._rewards_itself = "val_reward_fn" in source
        os.environ.setdefault("VERL_FORCE_DEVICE", "cpu")
        self._proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.utilities: Mapping[str, Callable[..., Any]] = dict.fromkeys(LOOPS, self._run)
        if self._rewards_itself:  # from 0.8 on a critic has rows without padding
            self.utilities = {**self.utilities, "trainer loop with a critic": self._run}
        if "rollout_data_dir" in source:
            self.utilities = {**self.utilities, "trainer loop that writes rows": self._run}

    def _run(self, plan: FlowPlan) -> FlowRecord:
        """Return what a run does."""
        record = FlowRecord()
        trainer = self._made(plan, record)
        with (
            rows_without_flash_attn(),
            mock.patch("verl.utils.tracking.Tracking", lambda **_: SimpleNamespace(log=logger_of(record))),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.suppress(KilledError),
        ):
            try:
                trainer.fit()
            finally:
                if hasattr(trainer, "_shutdown_dump_executor"):  # files are written meanwhile
                    trainer._shutdown_dump_executor()
        for step, values in record.logged.items():
            record.logged[step] = self._renamed(plan, step, values)
        read_dumped(plan, record)
        return record

    def _renamed(self, plan: FlowPlan, step: int, values: Mapping[str, float]) -> dict[str, float]:
        """Return metrics by their names since 0.4; before, no step has its number."""
        own = {
            f"val-core/{name.removeprefix(OLD)}/reward/mean@{plan.validation_copies}"
            if name.startswith(OLD)
            else name: value
            for name, value in values.items()
        }
        return own if self._numbers_steps else {"training/global_step": float(step), **own}

    def _made(self, plan: FlowPlan, record: FlowRecord) -> Any:
        trainer = object.__new__(self.trainer)
        config = configuration(plan)
        workers = _Workers(plan, record)
        generator = _Generator(self._proto, trainer, record, plan, plan.copies if self._once else 1)
        workers.generate_sequences = generator
        workers.step = lambda: int(trainer.global_steps)
        controller = find_name("verl", ["verl.trainer.ppo.core_algos:FixedKLController"])(plan.kl_in_reward)
        parts: dict[str, Any] = {
            "config": config,
            "tokenizer": Tokenizer(),
            "train_dataloader": Loader(plan),
            "val_dataloader": [rows_of(validated(plan))],
            "train_dataset": None,
            "actor_rollout_wg": workers,
            "ref_policy_wg": workers,
            "critic_wg": workers,
            "async_rollout_manager": SimpleNamespace(
                generate_sequences=generator, wake_up=lambda: None, sleep=lambda: None
            ),
            "checkpoint_manager": SimpleNamespace(
                update_weights=lambda step: record.events.append(("sync", step)), sleep_replicas=lambda: None
            ),
            "resource_pool_manager": SimpleNamespace(get_n_gpus=lambda: 1),
            "validation_generations_logger": None,
            "reward_loop_manager": None,
            "llm_server_manager": None,
            "use_rm": False,
            "use_critic": plan.critic,
            "use_reference_policy": True,
            "use_prefix_grouper": False,
            "use_teacher_policy": False,
            "ref_in_actor": False,
            "hybrid_engine": True,
            "use_legacy_worker_impl": "enable" if self._rewards_itself else "disable",
            "async_rollout_mode": True,
            "use_reward_loop": False,
            "device_name": "cpu",
            "total_training_steps": plan.steps,
            "kl_ctrl_in_reward": controller,
            "kl_ctrl": controller,
        }
        if self._rewards_itself:
            parts |= {"reward_fn": _given_rewards, "val_reward_fn": _given_rewards}
        for name, part in parts.items():
            setattr(trainer, name, part)
        if hasattr(trainer, "_init_dump_executor"):
            trainer._init_dump_executor()
        owner, name = (
            (trainer, "_update_actor") if hasattr(trainer, "_update_actor") else (workers, "update_actor")
        )
        update = getattr(owner, name)

        def recorded(batch: Any) -> Any:
            if trainer.global_steps == plan.killed_at:
                raise KilledError(f"in step {plan.killed_at}")
            record.events.append(("update", trainer.global_steps))
            record.trained[trainer.global_steps] = _rows(batch)
            return update(batch)

        setattr(owner, name, recorded)
        return trainer


def _given_rewards(batch: Any, return_dict: bool = False) -> Any:
    """Return the rewards that the generator gave with the answers."""
    rewards = batch.batch["rm_scores"]
    return {"reward_tensor": rewards, "reward_extra_info": {}} if return_dict else rewards


class _Generator:
    """Answers each prompt as often as it is there; a row's first id says which prompt, copy and step it is of."""

    def __init__(self, proto: Any, trainer: Any, record: FlowRecord, plan: FlowPlan, answers: int) -> None:
        self.proto, self.trainer, self.record = proto, trainer, record
        self.plan, self.answers = plan, answers

    def __call__(self, prompts: Any) -> Any:
        facts = prompts.meta_info
        step, validates = facts.get("global_steps", self.trainer.global_steps), facts.get("validate", False)
        if self.answers > 1 and not validates:
            prompts = prompts.repeat(self.answers, interleave=True)
        given = prompts.non_tensor_batch
        numbers = (
            [prompt_of(one) for one in given["raw_prompt_ids"]]
            if "raw_prompt_ids" in given
            else [int(one[0]["content"]) for one in given["raw_prompt"]]
        )
        self.record.events.append(("validate" if validates else "generate", step))
        if validates:
            self.record.validated = [(number, source_of(number)) for number in validated(self.plan)]
        seen: Counter[int] = Counter()
        columns: dict[str, list[Any]] = {"prompts": [], "responses": [], "shown": [], "rm_scores": []}
        for number in numbers:
            copy = seen[number]
            seen[number] += 1
            prompt, answer = prompt_ids(number), answer_ids(number, copy, step)
            left, right = P - len(prompt), T - len(answer)
            columns["prompts"].append([0] * left + prompt)
            columns["responses"].append(answer + [0] * right)
            columns["shown"].append([0] * left + [1] * (len(prompt) + len(answer)) + [0] * right)
            score = score_of(number, copy, step)
            columns["rm_scores"].append([0.0] * (len(answer) - 1) + [score] + [0.0] * right)
        shown = torch.tensor(columns["shown"])
        ids = [torch.tensor(columns[name]) for name in ("prompts", "responses")]
        return self.proto.from_dict(
            tensors={
                "prompts": ids[0],
                "responses": ids[1],
                "input_ids": torch.cat(ids, dim=1),
                "attention_mask": shown,
                "position_ids": (shown.cumsum(1) - 1).clamp(min=0),
                "response_mask": shown[:, P:].clone(),
                "rm_scores": torch.tensor(columns["rm_scores"]),
            },
            non_tensors={
                **given,
                "multi_modal_inputs": objects([{} for _ in numbers]),
                "__num_turns__": torch.full((len(numbers),), 2).numpy(),
            },
            meta_info={"timing": {}, "metrics": [{} for _ in numbers]},
        )


class _Workers:
    """The models: a log-probability says of which token it is."""

    generate_sequences: Any
    step: Callable[[], int]

    def __init__(self, plan: FlowPlan, record: FlowRecord) -> None:
        self.plan, self.record = plan, record
        self.world_size = plan.ranks
        self._dispatch_info: dict[str, list[int]] = {}
        self.proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])

    def make(self, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
        return find_name("verl", ["verl.utils.tensordict_utils:get_tensordict"])(tensors, facts)

    def _query_dispatch_info(self, role: str) -> list[int]:
        return list(range(self.plan.ranks))

    def _of(self, batch: Any, reference: bool) -> Any:
        if isinstance(batch, self.proto):
            ids = batch.batch["input_ids"][:, -T:].tolist()
            values = torch.tensor([[logprob_of(token, reference) for token in row] for row in ids])
            own = (
                {"ref_log_prob": values} if reference else {"old_log_probs": values, "entropys": values.abs()}
            )
            return self.proto.from_dict(tensors=own)
        rows = batch["input_ids"].unbind()
        found = [
            torch.tensor([logprob_of(token, reference) for token in [*row.tolist()[1:], 0]]) for row in rows
        ]
        nested = torch.nested.as_nested_tensor(found, layout=torch.jagged)
        return self.make({"log_probs": nested, "entropy": nested.abs()}, {"metrics": {"mfu": 0.0}})

    def compute_log_prob(self, batch: Any) -> Any:
        return self._of(batch, reference=False)

    def compute_ref_log_prob(self, batch: Any) -> Any:
        return self._of(batch, reference=True)

    def update_actor(self, batch: Any) -> Any:
        if isinstance(batch, self.proto):
            return self.proto.from_dict(
                tensors={"none": torch.zeros(1, 1)}, meta_info={"metrics": {"actor/loss": [0.0]}}
            )
        get = find_name("verl", ["verl.utils.tensordict_utils:get"])
        self.record.mini_batch = int(get(batch, "mini_batch_size"))
        return self.make({}, {"metrics": {"mfu": [0.0], "loss": [0.0]}})

    def compute_values(self, batch: Any) -> Any:
        rows = batch.batch["input_ids"][:, -T:].tolist()
        return self.proto.from_dict(
            tensors={"values": torch.tensor([[value_of(token) for token in row] for row in rows])}
        )

    def update_critic(self, batch: Any) -> Any:
        self.record.events.append(("update critic", self.step()))
        return self.proto.from_dict(
            tensors={"none": torch.zeros(1, 1)}, meta_info={"metrics": {"critic/loss": [0.0]}}
        )

    def save_checkpoint(self, path: str, remote: str | None, step: int, **_: Any) -> None:
        Path(path).mkdir(parents=True)
        self.record.events.append(("save", step))

    def load_checkpoint(self, path: str | None, **_: Any) -> None:
        if path is None:  # an older loop that begins
            return
        self.record.events.append(("load", int(Path(path).parent.name.removeprefix("global_step_"))))


def _rows(batch: Any) -> list[FlowRow]:
    tensors, columns = batch.batch, batch.non_tensor_batch
    found = []
    for row in range(len(batch)):
        shown = tensors["attention_mask"][row, -T:].bool()
        values = {
            name: tensors[column][row][shown].tolist()
            for name, column in {
                "answer_ids": "responses",
                "mask": "response_mask",
                "old_logprobs": "old_log_probs",
                "ref_logprobs": "ref_log_prob",
                "scores": "token_level_scores",
                "rewards": "token_level_rewards",
                "advantages": "advantages",
                "values": "values",
                "returns": "returns",
            }.items()
            if column in tensors
        }
        prompt, copy, step = read_answer(int(tensors["responses"][row, 0]))
        found.append(
            FlowRow(
                prompt=prompt,
                copy=copy,
                step=step,
                group=str(columns["uid"][row]),
                source=str(columns["data_source"][row]),
                **values,
            )
        )
    return found


ADAPTERS: dict[str, type[Any]] = {"trainer-loop": VerlTrainerLoop}
