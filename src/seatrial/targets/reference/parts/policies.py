"""What a whole policy of refrl does on made rows in this process: scores, updates, state and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.config import PolicyConfig
from refrl.policy.base import Policy, Update
from refrl.policy.tensors import copied
from refrl.training import build
from seatrial.relations import NotServed
from seatrial.targets.reference.configuration import (
    model_directory,
    new_directory,
    policy_configuration,
    wide_model_directory,
)
from seatrial.targets.reference.runs.architectures import architecture_directory

Row = tuple[Sequence[int], Sequence[int], Sequence[int], float]
"""Ids of the prompt and of the completion, mask of the completion, advantage."""
Share = Callable[..., Tensor]
"""(log-probabilities, entropies, mask, advantages, valid tokens, valid rows of the update) -> share of the loss."""


class Learned(NamedTuple):
    """What a policy did, in this order."""

    folder: Path
    """The model's files."""
    facts: Mapping[str, Any]
    """Sizes and mode of the new policy, and what its backend names."""
    trained: Mapping[str, Tensor]
    """Copies of what training changes, before it."""
    scores: Sequence[Tensor]
    """Log-probabilities before training and after it."""
    references: Sequence[Tensor]
    """The same under the frozen reference."""
    parts: tuple[Mapping[str, float], Mapping[str, Tensor], Mapping[str, Tensor]]
    """Of an update that is given up: metrics and gradients of all rows in given micro-batches, and gradients after."""
    updates: Sequence[Update]
    """Of two passes over the rows."""
    metrics: Sequence[Mapping[str, float]]
    """Of each pass."""
    versions: Sequence[int]
    """Before training, after each pass."""
    held: tuple[bool, Mapping[str, Tensor], Mapping[str, Tensor]]
    """Whether weights are shared, those that were taken before training, and those that are taken after it."""
    reference: Mapping[str, Tensor]
    """Weights of the frozen reference, after training."""
    state: Mapping[str, Tensor]
    """What a checkpoint holds."""
    continued: Mapping[str, Tensor]
    """What a checkpoint holds after one more update."""
    resumed: Mapping[str, Tensor]
    """The same of another policy that took over the state before that update."""
    scored: Sequence[Tensor]
    """Of rows without old log-probabilities: scores before their update, and what the update put in their place."""
    exported: Path
    """Files of the trained policy, after two passes."""
    read: Mapping[str, Tensor]
    """Weights of a policy that is made from these files: all of them, or the adapters."""


def learned(model: str, options: Mapping[str, Any], rows: Sequence[Row], loss: Share) -> Learned:
    """Train a policy on rows, twice, and save it.

    Args:
        model: `plain`, `tied`, or a name of `seatrial.targets.reference.runs.architectures`.
        options: of the policy, dotted within it.
        rows: more than one global batch, fewer than two.
        loss: the share of a micro-batch.

    Raises:
        NotServed: Megatron-core is not installed, or would take a CUDA device.
    """
    if options.get("megatron_cfg.enabled") and (find_spec("megatron") is None or torch.cuda.is_available()):
        raise NotServed("Megatron-core is not installed, or does not compute on a CPU here")
    folder = _folder(model)
    config = policy_configuration({**options, "model_name": str(folder)})
    batch = _batch(rows)
    policy, function = _policy(config), _loss(loss)
    held = dict(policy.named_weights())
    first = copied(policy.trained_weights())
    facts = {
        "vocab_size": policy.vocab_size,
        "max_positions": policy.max_positions,
        "training": policy.in_training_mode,
        "backend": policy.backend.name,
        "processes": max(policy.backend.mesh.values()),
        "num_trained": sum(policy.backend.weights.values()),
    }
    scores, references = [policy.logprobs(batch)], [_reference(policy, batch)]
    metrics = policy.gradients(batch, function, [[0, 2], [1], [3, 4]])
    gradients = policy.named_gradients()
    policy.free_gradients()
    parts = (metrics, gradients, policy.named_gradients())
    updates: list[Update] = []
    versions, passes = [policy.version], []
    for _ in range(2):
        passes.append(policy.train(batch, function, updates.append))
        versions.append(policy.version)
    scores.append(policy.logprobs(batch))
    references.append(_reference(policy, batch))
    state = copied(policy.state_tensors())
    other = _policy(config)
    for name, tensor in other.state_tensors().items():
        tensor.copy_(state[name])
    other.load_state_facts(policy.state_facts())
    exported = new_directory("exported") / "model"
    policy.save(exported)
    taken = copied(held), copied(dict(policy.named_weights()))
    few = batch.rows(slice(0, config.train_global_batch_size))
    few.old_logprobs_BT = None
    before = policy.logprobs(few)
    policy.train(few, function)
    other.train(batch.rows(slice(0, config.train_global_batch_size)), function)
    kept: Any = few.old_logprobs_BT
    return Learned(
        folder=folder,
        facts=facts,
        trained=first,
        scores=scores,
        references=references,
        parts=parts,
        updates=updates,
        metrics=passes,
        versions=versions,
        held=(policy.shares_weights, *taken),
        reference=copied(dict(policy.reference_weights() or ())),
        state=state,
        continued=copied(policy.state_tensors()),
        resumed=copied(other.state_tensors()),
        scored=[before, kept],
        exported=exported,
        read=_read(config, exported),
    )


def _folder(model: str) -> Path:
    if model == "plain":
        return model_directory()
    return wide_model_directory(tied=True) if model == "tied" else architecture_directory(model)


def _policy(config: PolicyConfig) -> Policy:
    return build.build_policy(
        config,
        build.build_tokenizer(config),
        device=torch.device("cpu"),
        num_updates=5,
        with_reference=True,
    )


def _reference(policy: Policy, batch: Batch) -> Tensor:
    scores = policy.reference_logprobs(batch)
    assert scores is not None
    return scores


def _read(config: PolicyConfig, exported: Path) -> Mapping[str, Tensor]:
    if config.lora_cfg.enabled:
        lora = config.lora_cfg.model_copy(update={"adapter_path": str(exported / "adapter")})
        return copied(_policy(config.model_copy(update={"lora_cfg": lora})).trained_weights())
    return copied(dict(_policy(config.model_copy(update={"model_name": str(exported)})).named_weights()))


def _batch(rows: Sequence[Row]) -> Batch:
    samples = [
        TrainSample(
            prompt_ids=tuple(prompt),
            completion_ids=tuple(completion),
            completion_mask=tuple(mask),
            sampling_logprobs=(-1.0,) * len(completion),
            reward=0.0,
            group_id=number,
        )
        for number, (prompt, completion, mask, _) in enumerate(rows)
    ]
    batch = make_batch(samples, pad_token_id=0)
    batch.advantages_B = torch.tensor([advantage for *_, advantage in rows])
    batch.old_logprobs_BT = -torch.ones_like(batch.mask_BT)
    return batch


def _loss(share: Share) -> Any:
    def loss(
        logprobs_BT: Tensor,
        entropy_BT: Tensor,
        batch: Batch,
        *,
        global_valid_tokens: Tensor,
        global_valid_seqs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        value = share(
            logprobs_BT,
            entropy_BT,
            batch.mask_BT,
            batch.advantages_B,
            global_valid_tokens,
            global_valid_seqs,
        )
        return value, {"loss": value.detach()}

    return loss
