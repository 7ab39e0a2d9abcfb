"""verl's updates of actor and critic, from the trainer's call through the worker and its engine to the optimizer."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.model_updates import (
    CLIP,
    ENTROPY,
    KL,
    NO_CAP,
    VALUE_CLIP,
    Answer,
    Updates,
)
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.critics import OWN_MEAN
from seatrial.targets.verl.engines import engine_on_cpu, implementation_of_engine
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.places import in_float32, rows_without_flash_attn
from seatrial.targets.verl.trainer_parts import TRAINER, own_configuration
from seatrial.targets.verl.workers import padded

WORKERS = "verl.workers.engine_workers"
LOGGED: Mapping[str, Mapping[str, str]] = {
    "actor": {
        "loss": "actor/loss",
        "surrogate": "actor/pg_loss",
        "divergence": "actor/kl_loss",
        "entropy": "actor/entropy_loss",
        "norm": "actor/grad_norm",
        "rate": "actor/lr",
        "clipped": "actor/pg_clipfrac",
        "distance": "actor/ppo_kl",
    },
    "critic": {
        "loss": "critic/loss",
        "error": "critic/vf_loss",
        "norm": "critic/grad_norm",
        "rate": "critic/lr",
        "clipped": "critic/vf_clipfrac",
        "value": "critic/vpred_mean",
    },
}
"""By the law's name of a measure, verl's."""
NEXT_RATE = KnownFailure(
    "the rate is read after the schedule has moved on: an update logs that of the next one",
    finding="verl: the rate of the next update in the log",
).of("R31.model_updates/rates that updates log")


class TableModel(torch.nn.Module):
    """A model whose logits, or value, of a place depend on its token alone."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(table.clone())

    def forward(self, input_ids: Tensor, **_: Any) -> Any:
        """Return logits [B, S, V] or [B, S, 1]."""
        return SimpleNamespace(logits=self.table[input_ids])


def measures(logged: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return what updates log under a name.

    Raises:
        NotServed: they log none.
    """
    if name not in logged[0]:
        raise NotServed(f"verl {release('verl')} logs no {name}")
    return [float(one[name]) for one in logged]


def batch_of(proto: Any, role: str, rows: Sequence[Answer]) -> Any:
    """Return rows as the trainer has them: prompts padded on the left, answers at the end."""
    P, T = max(len(row.prompt) for row in rows), max(len(row.ids) for row in rows)
    longs: dict[str, Any] = {"dtype": torch.long}
    prompts = padded([row.prompt for row in rows], P, left=True, **longs)
    answers = padded([row.ids for row in rows], T, left=False, **longs)
    shown = torch.cat(
        [
            padded([[1] * len(row.prompt) for row in rows], P, left=True, **longs),
            padded([[1] * len(row.ids) for row in rows], T, left=False, **longs),
        ],
        dim=1,
    )
    floats: dict[str, Any] = {"width": T, "left": False, "dtype": torch.float32}
    old, targets = (
        padded([row.old for row in rows], **floats),
        padded([row.targets for row in rows], **floats),
    )
    return proto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": answers,
            "input_ids": torch.cat([prompts, answers], dim=1),
            "attention_mask": shown,
            "position_ids": (shown.cumsum(1) - 1).clamp(min=0),
            "response_mask": padded([row.mask for row in rows], T, left=False, **longs),
            "values" if role == "critic" else "old_log_probs": old,
            "returns" if role == "critic" else "advantages": targets,
            "ref_log_prob": padded([row.reference for row in rows], **floats),
        },
        meta_info={"temperature": 1.0, "global_token_num": [len(row.ids) for row in rows]},
    )


class VerlModelUpdates(KnowsFailures):
    """`_update_actor`, `_update_critic` and the scores of `RayPPOTrainer`, with its `TrainingWorker` and engine."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        NEXT_RATE,
        OWN_MEAN.of(
            *(
                f"R31.model_updates/{law}"
                for law in (
                    "weights after updates",
                    "losses that updates log",
                    "norms that updates log",
                    "shares that updates log",
                )
            )
        ),
    )

    def __init__(self) -> None:
        """Find trainer, worker and engine.

        Raises:
            Gone: the release has other workers.
        """
        os.environ.setdefault("VERL_FORCE_DEVICE", "cpu")
        self.engines = implementation_of_engine()
        try:
            self.workers = import_without(WORKERS, (*UNUSED, "codetiming"))
        except ModuleNotFoundError as error:
            if not WORKERS.startswith(error.name or " "):
                raise
            raise Gone(f"verl {release('verl')} has no {WORKERS}") from error
        import_without(TRAINER, UNUSED)
        self.trainer = find_name("verl", [f"{TRAINER}:RayPPOTrainer"])
        self.worker = find_name("verl", [f"{WORKERS}:TrainingWorker"])
        self.reduce = find_name("verl", ["verl.utils.metric:reduce_metrics"])
        self.to_options = find_name("verl", ["verl.utils.config:omega_conf_to_dataclass"])
        self.proto = find_name("verl", ["verl.protocol:DataProto"])
        losses = find_name("verl", ["verl.workers.utils:losses"])
        if "to_padded_tensor" not in inspect.getsource(losses.ppo_loss):
            raise Gone(f"the policy loss of verl {release('verl')}'s engines takes padded rows alone")
        fields = dataclasses.fields(find_name("verl", ["verl.workers.config:CriticConfig"]))
        self._critic_has_model = any(one.name == "model_config" for one in fields)
        for name in ("_update_actor", "_update_critic", "_compute_values", "_compute_old_log_prob"):
            if not hasattr(self.trainer, name):
                raise Gone(f"the trainer of verl {release('verl')} has no {name}")
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "updates of a model": self._updated,
            "rates of updates": partial(self._updated, part="rate"),
            "scores of a model": self._scored,
        }

    def _updated(self, role: str, table: Tensor, rows: Sequence[Answer], plan: Updates, part: str) -> Any:
        """Return the weights after updates, or a measure of each."""
        trainer, worker = self._made(role, table, plan)
        logged = []
        for _ in range(plan.updates):
            with self._here():
                found = getattr(trainer, f"_update_{role}")(batch_of(self.proto, role, rows))
            logged.append(self.reduce(dict(found.meta_info["metrics"])))
        if part == "weights":
            return worker.engine.module.table.detach().double()
        return measures(logged, LOGGED[role][part])

    def _scored(self, role: str, table: Tensor, rows: Sequence[Answer], plan: Updates) -> Any:
        """Return what the trainer computes of rows before an update."""
        trainer, _ = self._made("critic" if role == "critic" else "actor", table, plan)
        with self._here():
            batch = batch_of(self.proto, role, rows)
            if role == "critic":
                columns = {"values": trainer._compute_values(batch).batch["values"]}
            elif role == "reference":
                columns = {"logprobs": trainer._compute_ref_log_prob(batch).batch["ref_log_prob"]}
            else:
                found = trainer._compute_old_log_prob(batch)[0].batch
                columns = {"logprobs": found["old_log_probs"], "entropies": found["entropys"]}
        return {
            name: [own[: len(row.ids)].tolist() for row, own in zip(rows, column, strict=True)]
            for name, column in columns.items()
        }

    def _made(self, role: str, table: Tensor, plan: Updates) -> tuple[Any, Any]:
        """Return a trainer and its worker of a role."""
        config = self._configuration(role, plan)
        own = config.critic if role == "critic" else config.actor_rollout_ref.actor
        with contextlib.redirect_stdout(io.StringIO()):
            options = self._options(own)
            worker = self._worker(role, table, plan, options)
        trainer = object.__new__(self.trainer)
        parts = {
            "config": config,
            "use_legacy_worker_impl": "disable",
            "ref_in_actor": False,
            "actor_rollout_wg": SimpleNamespace(
                update_actor=worker.train_mini_batch, compute_log_prob=worker.infer_batch
            ),
            "ref_policy_wg": SimpleNamespace(compute_ref_log_prob=worker.infer_batch),
            "critic_wg": SimpleNamespace(
                train_mini_batch=_later(worker.train_mini_batch), infer_batch=_later(worker.infer_batch)
            ),
        }
        for name, part in parts.items():
            setattr(trainer, name, part)
        return trainer, worker

    def _configuration(self, role: str, plan: Updates) -> Any:
        """Return the release's own configuration with the options of a plan."""
        from omegaconf import OmegaConf

        place = "critic" if role == "critic" else "actor_rollout_ref.actor"
        given: dict[str, Any] = {
            f"{place}.{name}": value
            for name, value in {
                "strategy": "fsdp",
                "ppo_mini_batch_size": plan.mini,
                "ppo_micro_batch_size_per_gpu": plan.micro,
                "ppo_max_token_len_per_gpu": plan.tokens or 1,
                "use_dynamic_bsz": plan.tokens is not None,
                "ppo_epochs": plan.epochs,
                "shuffle": False,
                "loss_agg_mode": "seq-mean-token-mean",
                "optim.optimizer": "SGD",
                "optim.optimizer_impl": "torch.optim",
                "optim.lr": plan.rate,
                "optim.weight_decay": 0.0,
                "optim.lr_warmup_steps": plan.warmup,
                "optim.total_training_steps": 100,
                "optim.clip_grad": plan.clip,
            }.items()
        }
        given |= {"actor_rollout_ref.rollout.n": 1, "actor_rollout_ref.rollout.temperature": 1.0}
        if role == "critic":
            given["critic.cliprange_value"] = VALUE_CLIP
        else:
            given |= {
                f"{place}.{name}": value
                for name, value in {
                    "clip_ratio": CLIP[0],
                    "clip_ratio_low": CLIP[0],
                    "clip_ratio_high": CLIP[1],
                    "clip_ratio_c": NO_CAP,
                    "use_kl_loss": True,
                    "kl_loss_coef": KL,
                    "kl_loss_type": "low_var_kl",
                    "entropy_coeff": ENTROPY,
                    "calculate_entropy": True,
                }.items()
            }
        config = OmegaConf.create(OmegaConf.to_container(own_configuration(), resolve=False))
        for name, value in given.items():
            OmegaConf.update(config, name, value)
        return config

    def _options(self, own: Any) -> Any:
        """Return a role's options as its class; a critic's read the files of a model, which none here has."""
        from omegaconf import OmegaConf, open_dict

        own = OmegaConf.create(OmegaConf.to_container(own, resolve=True))
        with open_dict(own):
            for name in ("model", "model_config"):
                own.pop(name, None)
            if own._target_.endswith("CriticConfig") and self._critic_has_model:
                own.model_config = {"_target_": "types.SimpleNamespace"}
        return self.to_options(own)

    def _worker(self, role: str, table: Tensor, plan: Updates, options: Any) -> Any:
        engine = engine_on_cpu(
            TableModel(table),
            entropy_chunks=False,
            kind="FSDPEngineWithValueHead" if role == "critic" else "FSDPEngineWithLMHead",
        )
        settings = engine.engine_config
        vars(settings).update(
            forward_only=False,
            fsdp_size=-1,
            use_fused_kernels=False,
            use_dynamic_bsz=plan.tokens is not None,
            max_token_len_per_gpu=plan.tokens,
            micro_batch_size_per_gpu=plan.micro,
            infer_max_token_len_per_gpu=plan.tokens,
            infer_micro_batch_size_per_gpu=plan.micro,
        )
        parts: dict[str, Any] = {
            "optimizer_config": options.optim,
            "rank": 1,
            "ulysses_parallel_group": None,
            "_is_offload_param": False,
            "_is_offload_optimizer": False,
            "_is_lora": False,
            "_qat_enabled": False,
        }
        for name, part in parts.items():
            setattr(engine, name, part)
        engine.optimizer = engine._build_optimizer(engine.module)
        engine.lr_scheduler = engine._build_lr_scheduler(engine.optimizer)
        worker = object.__new__(self.worker)
        losses = find_name("verl", ["verl.workers.utils:losses"])
        loss = losses.value_loss if role == "critic" else losses.ppo_loss
        parts = {
            "engine": engine,
            "engine_config": settings,
            "model_config": _ModelConfig(use_remove_padding=plan.packed),
            "device_name": "cpu",
            "flops_counter": SimpleNamespace(estimate_flops=lambda *_, **__: (1.0, 1.0)),
            "loss_fn": partial(loss, config=options),
            "profiler": SimpleNamespace(step=lambda: None, rank=0, check_enable=lambda: False),
            "enable_routing_replay": False,
        }
        for name, part in parts.items():
            setattr(worker, name, part)
        return worker

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        """Compute on the CPU, whose memory is not logged."""
        device = SimpleNamespace(max_memory_allocated=lambda: 0, max_memory_reserved=lambda: 0)
        with (
            in_float32(),
            rows_without_flash_attn(),
            mock.patch.object(self.workers, "get_torch_device", lambda: device, create=True),
        ):
            yield


class _ModelConfig(dict[str, Any]):
    """Options of a model, by name and as attributes."""

    __getattr__ = dict.__getitem__


def _later(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call whose result is asked for later, as that of a group of workers."""
    return lambda batch: SimpleNamespace(get=lambda: call(batch))


ADAPTERS: dict[str, type[Any]] = {"model-updates": VerlModelUpdates}
