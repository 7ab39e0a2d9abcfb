"""A policy loss that is registered with verl, as its engines and its workers of before call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import getsource, signature
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.steps import ACTOR_SPEC, actor_config, batch_of_rows, of_rows
from seatrial.targets.verl.worker_metrics import VerlWorkerMetrics
from seatrial.targets.verl.workers import source_of

CORE = "verl.trainer.ppo.core_algos"
NAME = "seatrial_own"
ARGUMENTS: Mapping[str, str] = {
    "logprobs": "log_prob",
    "old_logprobs": "old_log_prob",
    "advantages": "advantages",
    "mask": "response_mask",
    "weights": "rollout_is_weights",
}
"""Of a registered loss, by the columns of the law."""


def _registered() -> Any:
    """Return a loss that the release registers."""
    return find_name("verl", [f"{CORE}:compute_policy_loss_vanilla", f"{CORE}:compute_policy_loss_gpg"])


class _Own:
    """A registered loss that keeps what it is given; it returns what the losses of the release return."""

    def __init__(self) -> None:
        find_name("verl", [f"{CORE}:POLICY_LOSS_REGISTRY"])[NAME] = self
        self.calls: list[dict[str, Any]] = []
        vanilla = find_name(
            "verl", [f"{CORE}:compute_policy_loss_vanilla", f"{CORE}:compute_policy_loss_gpg"]
        )
        self.in_dictionary = "pg_metrics" in getsource(vanilla)

    def __call__(self, *given: Any, **named: Any) -> Any:
        # By place, as the first losses were declared.
        places = ("old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config")
        self.calls.append({**dict(zip(places, given, strict=False)), **named})
        loss, none = self.calls[-1]["log_prob"].sum() * 0, torch.zeros(())
        return (loss, {}) if self.in_dictionary else (loss, none, none, none)

    def given(self, *, weights: bool) -> list[dict[str, Tensor | None]]:
        """Return the columns of each call."""
        return [
            {
                name: None if call.get(argument) is None else call[argument].detach()
                for name, argument in ARGUMENTS.items()
                if weights or name != "weights"
            }
            for call in self.calls
        ]


class VerlOwnLossOfEngine:
    """A registered loss that `ppo_loss` of the engines calls."""

    def __init__(self) -> None:
        """Find the caller and its configuration."""
        self.compute = find_name("verl", ["verl.workers.utils.losses:ppo_loss"])
        self.config_class = find_name("verl", ["verl.workers.config:ActorConfig"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"own policy loss": self._called}

    def _called(self, columns: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor | None]]:
        """Return what the loss is given of each micro-batch."""
        own, num_rows = _Own(), len(columns["mask"])
        config = actor_config(
            self.config_class, ACTOR_SPEC, loss_agg_mode="token-mean", policy_loss={"loss_mode": NAME}
        )
        for start in range(0, num_rows, size):
            part = {name: column[start : start + size] for name, column in columns.items()}
            data = batch_of_rows(
                part["mask"],
                {
                    "old_log_probs": part["old_logprobs"],
                    "ref_log_prob": part["ref_logprobs"],
                    "advantages": part["advantages"],
                    "rollout_is_weights": part["weights"],
                },
                dp_size=1,
                batch_num_tokens=int(columns["mask"].sum()),
                global_batch_size=num_rows,
            )
            outputs = {"log_probs": of_rows(part["logprobs"]), "entropy": of_rows(part["entropy"])}
            self.compute(config, outputs, data)
        return own.given(weights="rollout_is_weights" in getsource(self.compute))


class VerlOwnLossOfWorkers:
    """A registered loss that `DataParallelPPOActor` calls."""

    def __init__(self) -> None:
        """Find the worker.

        Raises:
            Gone: it calls no registered loss.
        """
        self.worker = VerlWorkerMetrics()
        self.source = source_of(self.worker.worker_class)
        _registered()
        if "loss_mode" not in self.source:
            raise Gone(f"the worker of verl {release('verl')} calls no registered loss")
        self.utilities: Mapping[str, Callable[..., Any]] = {"own policy loss": self._called}

    def _called(self, columns: Mapping[str, Tensor], size: int) -> list[dict[str, Tensor | None]]:
        """Return what the loss is given of each micro-batch."""
        own = _Own()
        self.worker.updated(columns, size, policy_loss={"loss_mode": NAME})
        takes = "rollout_is_weights" in self.source
        # A release that takes no old log-probabilities for a single step trains twice.
        calls = len(columns["mask"]) // size
        own.calls = own.calls[:calls] if len(own.calls) > calls else own.calls
        return own.given(weights=takes and "rollout_is_weights" in signature(_registered()).parameters)


ADAPTERS: dict[str, type[Any]] = {
    "own-loss-of-engine": VerlOwnLossOfEngine,
    "own-loss-of-workers": VerlOwnLossOfWorkers,
}
