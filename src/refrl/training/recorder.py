"""Records everything that a short run did, for debugging, or for a harness that checks it.

A recording is plain data (dictionaries, lists, numbers, text, tensors on the CPU), so that `torch.save` writes it and
`torch.load(weights_only=True)` reads it. It holds a copy of all weights after every update: use it with tiny models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.policy.base import Update
from refrl.rollout.sync import Rollouts
from refrl.streams import global_streams
from refrl.training.session import Observer, Session, TrainedStep, TunedStep

Recording = dict[str, Any]
DRAFT, MOMENTS = "draft.", "draft.optimizer."
"""Prefixes, in a policy's state, of a draft head's tensors and of its optimizer's."""


class RunRecorder(Observer):
    """Fills `recording` during a run; it is complete when the run has ended."""

    needs_gradients = True

    def __init__(self) -> None:
        """Start empty."""
        self.recording: Recording = {"steps": [], "validations": [], "losses": []}
        self._streams: dict[str, Any] = {}

    def started(self, session: Session) -> None:
        """Record the initial weights, and what the run was built from."""
        self._streams = global_streams()
        self.recording |= {
            "initial_weights": _weights(session),
            "initial_draft_weights": _draft_weights(session),
            "reference_start": _reference(session),
            "trainable": sorted(session.policy.named_gradients()),
            "train_prompts": [example.prompt_id for example in session.train_examples],
            "held_out_prompts": [example.prompt_id for example in session.validation],
            "vocab_size": session.policy.vocab_size,
            "stop_ids": list(session.sampling.stop_token_ids or ()),
        }

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Record prompts, rows, updates and scalars of a step."""
        self.recording["steps"].append(
            {
                "step": step.step,
                "version": session.policy.version,
                "prompts_served": [example.prompt_id for example in step.served],
                "rows": recorded_rows(step.rollouts, step.batch),
                "discarded_rows": recorded_rows(step.discarded, None),
                "groups": [
                    {
                        "number": group.number,
                        "prompt_id": group.prompt_id,
                        "fate": group.fate,
                        "weight_version": group.weight_step,
                    }
                    for group in step.fates
                ],
                "updates": [_recorded(update) for update in step.updates],
                "metrics": dict(step.metrics),
                "weights_after": _weights(session),
                "draft_weights_after": _draft_weights(session),
            }
        )

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Record rows, updates and scalars of a step of supervised fine-tuning."""
        self.recording["steps"].append(
            {
                "step": step.step,
                "rows": _answers(step.batch),
                "updates": [_recorded(update) for update in step.updates],
                "metrics": dict(step.metrics),
                "weights_after": _weights(session),
            }
        )

    def scored(self, session: Session, step: int, batch: Batch, loss: float) -> None:
        """Record held-out answers and their loss."""
        self.recording["losses"].append({"step": step, "rows": _answers(batch), "loss": loss})

    def validated(
        self, session: Session, step: int, rollouts: Rollouts, metrics: Mapping[str, float]
    ) -> None:
        """Record prompts, texts and rewards of a validation."""
        rows = zip(rollouts.examples, rollouts.texts, rollouts.scores.rewards, strict=True)
        sampled = [(completion.prompt_ids, completion.ids) for completion in rollouts.completions]
        self.recording["validations"].append(
            {
                "step": step,
                "rows": [(example.prompt_id, text, reward) for example, text, reward in rows],
                "metrics": dict(metrics),
                "sampled": sampled,
                "media": [example.media for example in rollouts.examples],
            }
        )

    def ended(self, session: Session) -> None:
        """Record the final weights, and whether the run left the global random streams unchanged."""
        self.recording |= {
            "final_weights": _weights(session),
            "reference_end": _reference(session),
            "in_training_mode": session.policy.in_training_mode,
            "global_streams_untouched": self._streams == global_streams(),
        }


def recorded_rows(rollouts: Rollouts | None, batch: Batch | None) -> list[dict[str, Any]]:
    """Return the rows of rollouts; if a batch is given, with its values as trained on."""
    if rollouts is None:
        return []
    columns = zip(
        rollouts.examples,
        rollouts.completions,
        rollouts.texts,
        rollouts.scores.rewards,
        rollouts.scores.verified,
        strict=True,
    )
    rows = [
        {
            "prompt_id": example.prompt_id,
            "prompt_ids": completion.prompt_ids,
            "ids": completion.ids,
            "mask": (1,) * len(completion.ids),
            "sampling_logprobs": completion.logprobs,
            "old_logprobs": (),
            "ref_logprobs": None,
            "kept_support": completion.kept_ids,
            "reward": reward,
            "reward_before_shaping": verified,
            "advantage": 0.0,
            "finish_reason": completion.finish_reason,
            "completion": text,
            "prompt": example.prompt,
            "answer": example.answer,
            "weight_version": completion.weight_version,
            "version_segments": completion.version_segments,
            "sampled": completion.mask or (),
            "media": example.media,
        }
        for example, completion, text, reward, verified in columns
    ]
    if batch is not None:
        for number, row in enumerate(rows):
            row |= _trained(batch, number)
    return rows


def _recorded(update: Update) -> dict[str, Any]:
    return {
        "row_indices": list(range(update.first_row, update.first_row + update.num_rows)),
        "micro_batches": [list(rows) for rows in update.micro_batches],
        "gradients": _copies(update.gradients),
        "grad_norm": update.grad_norm,
        "learning_rate": update.learning_rate,
        "weights_after": _copies(update.weights),
    }


def _answers(batch: Batch) -> list[dict[str, Any]]:
    """Return the rows of a batch of answers."""
    return [
        {"prompt_id": prompt_id, **_ids(batch, row), "media": _media(batch, row)}
        for row, prompt_id in enumerate(batch.group_ids_B.tolist())
    ]


def _media(batch: Batch, row: int) -> Tensor | None:
    return None if batch.media_BX is None else batch.media_BX[row].to("cpu", copy=True)


def _ids(batch: Batch, row: int) -> dict[str, Any]:
    """Return ids and mask of a row of the batch, without padding."""
    start, length = int(batch.completion_starts_B[row]), int(batch.completion_lens_B[row])
    return {
        "prompt_ids": tuple(batch.input_ids_BS[row, start - int(batch.prompt_lens_B[row]) : start].tolist()),
        "ids": tuple(batch.completion_ids_BT[row, :length].tolist()),
        "mask": tuple(int(value) for value in batch.mask_BT[row, :length].tolist()),
    }


def _trained(batch: Batch, row: int) -> dict[str, Any]:
    """Return what a row of the batch was trained with; it replaces what the rollout recorded."""
    length = int(batch.completion_lens_B[row])

    def cut(values_BT: Tensor | None) -> tuple[Any, ...] | None:
        return None if values_BT is None else tuple(values_BT[row, :length].tolist())

    assert batch.advantages_B is not None
    return {
        **_ids(batch, row),
        "sampling_logprobs": cut(batch.sampling_logprobs_BT),
        "old_logprobs": cut(batch.old_logprobs_BT),
        "ref_logprobs": cut(batch.ref_logprobs_BT),
        "reward": float(batch.rewards_B[row]),
        "advantage": float(batch.advantages_B[row]),
    }


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _weights(session: Session) -> dict[str, Tensor]:
    return _copies(dict(session.policy.named_weights()))


def _draft_weights(session: Session) -> dict[str, Tensor]:
    """Return the weights of a draft head that is trained with the policy; empty if there is none."""
    state = session.policy.state_tensors()
    return _copies(
        {
            name: tensor
            for name, tensor in state.items()
            if name.startswith(DRAFT) and not name.startswith(MOMENTS)
        }
    )


def _reference(session: Session) -> dict[str, Tensor] | None:
    weights = session.policy.reference_weights()
    return None if weights is None else _copies(dict(weights))
