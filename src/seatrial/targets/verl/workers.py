"""verl's worker of an actor before its engines: micro-batches, gradients and scores.

Their methods run as they are, on a model without FSDP, which they allow, on the CPU and in float32.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import Row, StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures, since
from seatrial.targets.common.stand_ins import StandIn, import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import CapturingOptimizer, equal_size
from seatrial.targets.verl.algorithms import LEFT_OUT
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.places import in_float32, no_memory_log, one_process
from seatrial.targets.verl.steps import CLIP

NO_CAP = 1e3


VLLM = "verl.third_party.vllm"


def _imported(module: str) -> Any:
    """Import a module of the workers; what they know of a vLLM that is not installed is replaced."""
    try:
        return import_without(module, (*UNUSED, "flash_attn"))
    except ValueError as error:
        if "vllm version None" not in str(error):
            raise
        sys.modules[VLLM] = StandIn(VLLM, {})
        return import_without(module, (*UNUSED, "flash_attn"))


def worker_class(module: str, name: str) -> Any:
    """Return a class of the workers, which computes on the CPU.

    Raises:
        Gone: the release has no such worker: its engines train.
    """
    try:
        found = _imported(module)
    except ModuleNotFoundError as error:
        if not module.startswith(error.name or " "):
            raise
        raise Gone(f"verl {release('verl')} has no {module}") from error
    for place in ("get_device_name", "get_device_id"):
        setattr(found, place, lambda: "cpu")
    no_memory_log()
    return getattr(found, name)


def num_epochs(update: Any) -> int:
    """Return how often a worker trains on its only mini-batch, so that it reads the old log-probabilities.

    Where that is not an option, a worker that trains once takes its own for them.
    """
    return 1 if "use_rollout_log_probs" in source_of(update) else 2


def source_of(method: Any) -> str:
    """Return the source of the module that a method is written in."""
    return inspect.getsource(sys.modules[method.__module__])


def padded(rows: Sequence[Sequence[float]], width: int, *, left: bool, dtype: torch.dtype) -> Tensor:
    """Return rows padded with 0 to a width."""
    found = torch.zeros(len(rows), width, dtype=dtype)
    for place, row in enumerate(rows):
        at = slice(width - len(row), None) if left else slice(len(row))
        found[place, at] = torch.tensor(row, dtype=dtype)
    return found


def settings(num_rows: int, **more: Any) -> Any:
    """Return settings of a worker for a mini-batch of so many rows."""
    from omegaconf import OmegaConf

    return OmegaConf.create(
        {
            "use_remove_padding": False,
            "ulysses_sequence_parallel_size": 1,
            "entropy_from_logits_with_chunking": False,
            "entropy_checkpointing": False,
            "use_torch_compile": False,
            "fsdp_config": {"dtype": "float32"},
            "grad_clip": 1e9,
            "ppo_mini_batch_size": num_rows,
            "ppo_epochs": 1,
            "shuffle": False,
            "use_rollout_log_probs": True,
            "use_dynamic_bsz": False,
            "loss_agg_mode": "seq-mean-token-mean",
            "loss_scale_factor": None,
            "global_batch_info": {},
            **more,
        }
    )


def actor_settings(num_rows: int, **more: Any) -> Any:
    """Return settings of an actor."""
    return settings(
        num_rows,
        **{
            "clip_ratio": 0.2,
            "clip_ratio_low": CLIP[0],
            "clip_ratio_high": CLIP[1],
            "clip_ratio_c": NO_CAP,
            "tis_imp_ratio_cap": -1,
            "entropy_coeff": 0.05,
            "calculate_entropy": True,
            "use_kl_loss": True,
            "kl_loss_coef": 0.1,
            "kl_loss_type": "low_var_kl",
            "policy_loss": {"loss_mode": "vanilla"},
            **more,
        },
    )


class VerlWorkerActor(KnowsFailures, TinyCausalModel):
    """`DataParallelPPOActor`: gradients and scores of padded rows, as means over rows of means over their tokens.

    See `contracts.TrainStep` and `contracts.Policy`.
    """

    facts = StackFacts(micro_batch_sizes="equal", masked_rows=False, epsilon=1e-8, dtype="float32")
    dynamic: ClassVar[bool] = False
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        replace(LEFT_OUT, releases=since("verl", "0.6.1")).of("R18.facts/masked rows are refused"),
    )

    def __init__(self) -> None:
        """Find the worker and its batches."""
        self.actor_class = worker_class("verl.workers.actor.dp_actor", "DataParallelPPOActor")
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        if "loss_agg_mode" not in source_of(self.actor_class):
            raise Gone(f"the actor of verl {release('verl')} has no mean over rows")

    @property
    def vocab_size(self) -> int:
        return len(self.tokenizer)

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        one_process()
        given = [rows[index] for part in micro_batches for index in part]
        model = copy.deepcopy(self.objective_model())
        optimizer = CapturingOptimizer(model.parameters())
        sizes = self._sizes(given, micro_batches)
        options = actor_settings(len(given), ppo_epochs=num_epochs(self.actor_class), **sizes)
        actor = self.actor_class(options, model, optimizer)
        with in_float32():
            found = actor.update_policy(self._batch(given, temperature=1.0, multi_turn=True))
        if not optimizer.captured:
            raise NotServed("the worker leaves out a step whose gradient is not finite")
        gradients = {name: optimizer.captured[id(value)] for name, value in model.named_parameters()}
        losses = found["actor/pg_loss"]
        return StepResult(
            loss=float(sum(losses) if isinstance(losses, list) else losses), gradients=gradients
        )

    def _sizes(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> dict[str, Any]:
        if not self.dynamic:
            return {"ppo_micro_batch_size_per_gpu": equal_size(micro_batches)}
        # One micro-batch holds all rows, or as many as a padded row has tokens.
        width = max(len(row.prompt_ids) for row in rows) + max(len(row.completion_ids) for row in rows)
        longest = width * (len(rows) if len(micro_batches) == 1 else 1)
        return {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": longest}

    def scored_model(self) -> Any:
        """Return the model of `score`."""
        return self.objective_model()

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        one_process()
        actor = self.actor_class(actor_settings(len(rows)), self.objective_model(), None)
        batch = self._batch(rows, temperature=temperature, micro_batch_size=2, use_dynamic_bsz=False)
        with in_float32():
            found = actor.compute_log_prob(batch)
        if isinstance(found, dict):
            found = found["log_probs"]
        logprobs_BT = found[0] if isinstance(found, tuple) else found
        return [
            tuple(own[: len(row.completion_ids)].tolist()) for row, own in zip(rows, logprobs_BT, strict=True)
        ]

    def _batch(self, rows: Sequence[Row], **meta: Any) -> Any:
        prompts, answers = [row.prompt_ids for row in rows], [row.completion_ids for row in rows]
        P, T = max(map(len, prompts)), max(map(len, answers))
        longs: dict[str, Any] = {"dtype": torch.long}
        prompts_BP = padded(prompts, P, left=True, **longs)
        answers_BT = padded(answers, T, left=False, **longs)
        shown_BS = torch.cat(
            [
                padded([[1] * len(one) for one in prompts], P, left=True, **longs),
                padded([[1] * len(one) for one in answers], T, left=False, **longs),
            ],
            dim=1,
        )
        mask_BT = padded([row.completion_mask for row in rows], T, left=False, **longs)
        floats: dict[str, Any] = {"width": T, "left": False, "dtype": torch.float32}
        return self.batch_class.from_dict(
            tensors={
                "prompts": prompts_BP,
                "responses": answers_BT,
                "input_ids": torch.cat([prompts_BP, answers_BT], dim=1),
                "attention_mask": shown_BS,
                "position_ids": (shown_BS.cumsum(1) - 1).clamp(min=0),
                # Before 0.5 the mask of several turns has the prompt too.
                "loss_mask": torch.cat([torch.zeros_like(prompts_BP), mask_BT], dim=1),
                "response_mask": mask_BT,
                "old_log_probs": padded([row.old_logprobs for row in rows], **floats),
                "ref_log_prob": padded([row.ref_logprobs for row in rows], **floats),
                "advantages": padded([[row.advantage] * len(row.completion_ids) for row in rows], **floats),
            },
            meta_info={"temperature": 1.0, "pad_token_id": self.pad_id, **meta},
        )


class VerlWorkerActorByTokens(VerlWorkerActor):
    """The same in micro-batches of at most so many tokens."""

    facts = StackFacts(masked_rows=False, epsilon=1e-8, dtype="float32")
    dynamic = True


ADAPTERS: dict[str, type[Any]] = {
    "actor-of-workers": VerlWorkerActor,
    "actor-of-workers-by-tokens": VerlWorkerActorByTokens,
}
