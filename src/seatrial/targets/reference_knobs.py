"""refrl's options, each with two values that must differ in effect, offered to the relations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from refrl.algorithms.batching import Batch
from refrl.algorithms.grpo import make_loss, rollout_advantages
from refrl.config import ConfigError, GRPORunConfig, PolicyConfig, validate_config
from refrl.generation.base import SamplingParams
from refrl.generation.torch_engine import TorchGenerator
from refrl.policy.optimizer import ClippedAdamW
from seatrial.relations.cases import make_rollout
from seatrial.targets.reference_batches import ReferenceBatches
from seatrial.targets.reference_model import PAD_ID, tiny_model

NUM_UPDATES = 4


@dataclass(frozen=True)
class Knob:
    """Two values of an option, and what else must be set for it to matter."""

    values: tuple[Any, Any]
    beside: Mapping[str, Any] = field(default_factory=dict)


KNOBS: Mapping[str, Knob] = {
    "loss_fn.kind": Knob(("ppo_clip", "cispo")),
    "loss_fn.ratio_clip_min": Knob((0.1, 0.3)),
    "loss_fn.ratio_clip_max": Knob((0.1, 0.3)),
    "loss_fn.ratio_clip_c": Knob((1.3, None)),
    "loss_fn.reduction": Knob(("token", "sequence")),
    "loss_fn.fixed_length": Knob((7, 11), {"loss_fn.reduction": "fixed_length"}),
    "loss_fn.reference_policy_kl_penalty": Knob((0.0, 0.5)),
    "loss_fn.reference_policy_kl_type": Knob(("k1", "k3")),
    "loss_fn.reference_policy_kl_gradient": Knob(("estimator", "k2")),
    "loss_fn.kl_in": Knob(("loss", "reward")),
    "loss_fn.entropy_coefficient": Knob((0.0, 0.1)),
    "loss_fn.importance_sampling": Knob(("none", "truncated")),
    "loss_fn.importance_sampling_max": Knob((1.1, 3.0), {"loss_fn.importance_sampling": "truncated"}),
    "loss_fn.importance_sampling_min": Knob((0.1, 0.95), {"loss_fn.importance_sampling": "masked"}),
    "grpo.advantage.estimator": Knob(("grpo", "rloo")),
    "grpo.advantage.scale": Knob(("group", "none")),
    "grpo.advantage.epsilon": Knob((1e-6, 0.1)),
    "policy.max_grad_norm": Knob((0.1, None)),
    "policy.optimizer.lr": Knob((1e-3, 1e-2)),
    "policy.optimizer.weight_decay": Knob((0.0, 0.1)),
    "policy.optimizer.betas": Knob(((0.9, 0.95), (0.5, 0.95))),
    "policy.optimizer.eps": Knob((1e-8, 1e-1)),
    "policy.scheduler.name": Knob(("constant", "cosine")),
    "policy.scheduler.warmup_steps": Knob((0, 2)),
    "policy.scheduler.min_lr_ratio": Knob((0.0, 0.5), {"policy.scheduler.name": "linear"}),
    "policy.generation.max_new_tokens": Knob((3, 8)),
    "policy.generation.temperature": Knob((0.5, 3.0)),
    "policy.generation.top_p": Knob((0.3, 1.0), {"policy.generation.temperature": 3.0}),
    "policy.generation.top_k": Knob((1, None), {"policy.generation.temperature": 3.0}),
    "policy.generation.stop_token_ids": Knob(
        ((), tuple(range(3, 20))), {"policy.generation.temperature": 3.0}
    ),
}
BASE: Mapping[str, Any] = {
    "policy.model_name": "tiny_model",
    "policy.train_global_batch_size": 4,
    "policy.train_micro_batch_size": 2,
    "policy.max_total_sequence_length": 64,
    "grpo.num_prompts_per_step": 2,
    "grpo.num_generations_per_prompt": 2,
    "grpo.max_num_steps": 1,
    "data.task": "reverse",
    "logger.log_dir": "log",
    "checkpointing.checkpoint_dir": "checkpoints",
}


class ReferenceKnobs:
    """Options go through the schema, as a run's do, and into the functions that the loops call."""

    def knobs(self) -> Mapping[str, tuple[Any, Any]]:
        """See `contracts.Knobs`."""
        return {name: knob.values for name, knob in KNOBS.items()}

    def observe(self, knob: str, value: Any) -> Any:
        """See `contracts.Knobs`: loss, gradient and advantages; sampled tokens; or weights after some updates."""
        config = validate_config(
            GRPORunConfig, _nested({**BASE, **KNOBS[knob].beside, knob: value}), source=knob
        )
        if knob.startswith("policy.generation."):
            return _sampled(config.policy)
        if knob.startswith("policy."):
            return _updated(config.policy)
        return _loss_and_advantages(config)

    def rejects(self, knob: str) -> bool:
        """See `contracts.Knobs`."""
        try:
            validate_config(GRPORunConfig, _nested({**BASE, knob: 1}), source=knob)
        except ConfigError:
            return True
        return False


def _nested(options: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for dotted, value in options.items():
        *sections, leaf = dotted.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return tree


def _loss_and_advantages(config: GRPORunConfig) -> tuple[Any, ...]:
    batch: Batch = ReferenceBatches()._batch(make_rollout(0).rows)
    advantages_B = rollout_advantages(batch, config)
    assert batch.old_logprobs_BT is not None
    stream = torch.Generator().manual_seed(5)
    moved_BT = 0.5 * torch.randn(batch.mask_BT.shape, generator=stream)
    logprobs_BT = (batch.old_logprobs_BT + moved_BT).requires_grad_()
    entropy_BT = logprobs_BT.square()
    loss, _ = make_loss(config.loss_fn)(
        logprobs_BT,
        entropy_BT,
        batch,
        global_valid_tokens=batch.num_valid_tokens,
        global_valid_seqs=batch.num_valid_seqs,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert logprobs_BT.grad is not None
    return loss.item(), logprobs_BT.grad.tolist(), advantages_B.tolist()


def _sampled(config: PolicyConfig) -> list[tuple[int, ...]]:
    generation = config.generation
    params = SamplingParams(
        max_new_tokens=generation.max_new_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        stop_token_ids=generation.stop_token_ids,
    )
    prompts = [(5, 9, 4), (7,), (3, 30, 12, 8)]
    sampled = TorchGenerator(tiny_model(), PAD_ID).generate(prompts, params, torch.Generator().manual_seed(2))
    return [row.ids for row in sampled]


def _updated(config: PolicyConfig) -> list[Any]:
    """Return the weights after some updates whose gradients are large and change."""
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
    optimizer = ClippedAdamW(layer, config, NUM_UPDATES)
    for update in range(NUM_UPDATES):
        (layer(torch.tensor([1.0, -2.0, 0.5]) * (update + 1)).square()).sum().backward()
        optimizer.step()
    return [weight.tolist() for weight in layer.parameters()]
