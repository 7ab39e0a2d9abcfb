"""verl's metrics of a step beyond means: turns, proxies of the variance, failed answers, and the load of experts."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.adapted import Adapted

METRICS = "verl.trainer.ppo.metric_utils"
ROWS = ("response_length_non_aborted/", "response/aborted_ratio", "num_turns/", "tool_call_counts/")


class VerlStepMetrics(Adapted):
    """`compute_data_metrics`, `compute_variance_proxy_metrics` and the load of experts; see `contracts.utilities`."""

    def __init__(self) -> None:
        """Find those that the installed release has."""
        super().__init__(ADAPTED, lambda name: find_name("verl", [f"{METRICS}:{name}"]))


def _batch(tensors: Mapping[str, Tensor], objects: Mapping[str, Any]) -> Any:
    proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
    return proto.from_dict(tensors=dict(tensors), non_tensors=dict(objects))


def rewards_with_kl(apply: Any, controller_class: Any) -> Callable[..., Any]:
    """Return what penalizes rewards by a kind of KL, and logs its mean."""
    if "actor/reward_kl_penalty" not in inspect.getsource(apply):
        raise Gone(f"verl {release('verl')} logs no actor/reward_kl_penalty")
    source = inspect.getsource(apply)
    own_mask = "multi_turn" in source or 'batch["response_mask"]' in source

    def applied(batch: Mapping[str, Tensor], coefficient: float, kind: str) -> tuple[Tensor, float]:
        with contextlib.redirect_stdout(io.StringIO()):
            tensors = {**batch, "loss_mask": batch["response_mask"]}
            if not own_mask:  # between 0.2 and 0.4 all tokens of an answer that are shown train
                prompt = batch["attention_mask"][:, : -batch["response_mask"].shape[1]]
                tensors["attention_mask"] = torch.cat([prompt, batch["response_mask"].to(prompt)], dim=1)
            turns = {"multi_turn": True} if "multi_turn" in inspect.signature(apply).parameters else {}
            found, metrics = apply(
                _batch(tensors, {}), controller_class(coefficient), kl_penalty=kind, **turns
            )
        return found.batch["token_level_rewards"], float(metrics["actor/reward_kl_penalty"])

    return applied


def _row_metrics(compute: Any) -> Callable[..., Any]:
    if not all(name in inspect.getsource(compute) for name in ROWS):
        raise Gone(f"compute_data_metrics of verl {release('verl')} has no {', '.join(ROWS)}")

    def measured(batch: Mapping[str, Tensor], turns: Sequence[int], calls: Sequence[int]) -> dict[str, float]:
        columns = {"__num_turns__": numpy.array(turns), "tool_call_counts": numpy.array(calls)}
        found = compute(_batch(batch, columns), use_critic=False)
        return {name: float(value) for name, value in found.items() if name.startswith(ROWS)}

    return measured


def _variance_proxies(compute: Any) -> Callable[..., Any]:
    def measured(batch: Mapping[str, Tensor], weighted: bool, norm: float | None) -> dict[str, float]:
        given = {name: column for name, column in batch.items() if weighted or name != "rollout_is_weights"}
        return {name: float(value) for name, value in compute(_batch(given, {}), norm).items()}

    return measured


def _validation_of_failures(process: Any) -> Callable[..., Any]:
    if "expected_acc_counts" not in inspect.signature(process).parameters:
        raise Gone(f"validations of verl {release('verl')} are of the answers that are there")

    def processed(sources: Any, prompts: Any, accuracies: Any, expected: Any) -> dict[str, Any]:
        found = process(sources, prompts, {"acc": accuracies}, expected_acc_counts=expected)
        return {
            source: {
                name: {how: float(value) for how, value in means.items() if how.startswith(("mean", "std"))}
                for name, means in columns.items()
            }
            for source, columns in found.items()
        }

    return processed


def _expert_load_of_steps(compute: Any, accumulator_class: Any) -> Callable[..., Any]:
    def logged(batches: Sequence[Any], interval: int, num_experts: int) -> list[dict[str, float]]:
        accumulator = accumulator_class({"num_experts": num_experts})
        steps = [
            compute(
                _batch({"routed_experts": one.experts_BSLK, "response_mask": one.mask_BT}, {}),
                interval,
                step,
                accumulator,
            )
            for step, one in enumerate(batches, 1)
        ]
        return [{name: float(value) for name, value in step.items()} for step in steps]

    return logged


ADAPTED: Mapping[str, tuple[Sequence[str], Callable[..., Callable[..., Any]]]] = {
    "row metrics": (["compute_data_metrics"], _row_metrics),
    "variance proxies": (["compute_variance_proxy_metrics"], _variance_proxies),
    "expert load": (
        ["compute_rollout_moe_load_balance_metrics"],
        lambda compute: lambda batch, num_experts: compute(batch.experts_BSLK, batch.mask_BT, num_experts),
    ),
    "expert load of steps": (
        ["compute_moe_lb_metrics", "RolloutMoELoadBalanceMetricsAccumulator"],
        _expert_load_of_steps,
    ),
    "validation of failures": (["process_validation_metrics"], _validation_of_failures),
    "number of experts": (["infer_moe_num_experts"], lambda infer: infer),
}
"""By the name of the contract: functions of the module, and what fits them to it."""

ADAPTERS: dict[str, type[Any]] = {"step-metrics": VerlStepMetrics}
