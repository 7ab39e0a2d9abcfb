"""Guards on the rows of TRL's GRPO trainer, in one line: `guards = guard_grpo(trainer)`, before `trainer.train()`.

TRL has no hook that shows rows, so three methods of this trainer object are wrapped; they are those of TRL 1.16, and a
trainer without one of them is refused by name. For changed and frozen tensors see `guard_callback`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seatrial.guards.guards import Guards

WRAPPED = ("_generate", "_compute_loss", "_get_per_token_logps_and_entropies")
TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.2}
"""Bound on |log ratio| by the type of the log-probabilities: the two passes split the rows differently."""


def guard_grpo(trainer: Any, guards: Guards | None = None) -> Guards:
    """Wrap a trainer, and return the guards that hold the verdicts.

    Checked for every micro-batch in training: each row that is trained on is one that was sampled in the last
    generation ("ids trained = ids sampled"); and, where TRL keeps old log-probabilities, their ratio to the current
    ones is 1 as long as no update was taken since they were computed ("first mini-batch ratio").

    Args:
        trainer: a `trl.GRPOTrainer`.
        guards: where verdicts go; None raises at the first failure.

    Raises:
        TypeError: the trainer does not have the methods that are wrapped.
    """
    missing = [name for name in WRAPPED if not callable(getattr(trainer, name, None))]
    if missing:
        raise TypeError(
            f"{type(trainer).__name__} has no {missing[0]}: rows of TRL 1.16's GRPOTrainer can be watched"
        )
    watched = _Watched(trainer, guards or Guards())
    for name, wrapper in zip(WRAPPED, (watched.generated, watched.loss, watched.scored), strict=True):
        setattr(trainer, name, wrapper(getattr(trainer, name)))
    return watched.guards


class _Watched:
    """The last generation, and the log-probabilities of a micro-batch."""

    def __init__(self, trainer: Any, guards: Guards) -> None:
        self.guards = guards
        self._trainer = trainer
        self._sampled: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        self._step = -1
        self._in_loss = False
        self._logprobs_BT: Any = None

    def generated(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Keep prompt and completion ids of a generation."""

        def wrapped(*words: Any, **named: Any) -> Any:
            made = method(*words, **named)
            if self._trainer.model.training:
                self._sampled = {(_ids(p), _ids(c)) for p, c in zip(made[0], made[1], strict=True)}
                self._step = self._trainer.state.global_step
            return made

        return wrapped

    def scored(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Keep the log-probabilities that the loss is computed from."""

        def wrapped(*words: Any, **named: Any) -> Any:
            found = method(*words, **named)
            if self._in_loss and self._logprobs_BT is None:
                self._logprobs_BT = found[0]
            return found

        return wrapped

    def loss(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Check a micro-batch when its loss is computed."""

        def wrapped(model: Any, inputs: Any) -> Any:
            self._in_loss, self._logprobs_BT = True, None
            try:
                loss = method(model, inputs)
            finally:
                self._in_loss = False
            if self._trainer.model.training:
                self._hold(inputs)
            return loss

        return wrapped

    def _hold(self, inputs: Any) -> None:
        rows = [
            (_kept(prompt, there), _kept(completion, mask))
            for prompt, there, completion, mask in zip(
                *(
                    inputs[f"{part}_{kind}"].tolist()
                    for part in ("prompt", "completion")
                    for kind in ("ids", "mask")
                ),
                strict=True,
            )
        ]
        # A row that a filter keeps out of the loss has a mask of zeros.
        strange = [place for place, row in enumerate(rows) if row[1] and row not in self._sampled]
        self.guards.hold(
            "ids trained = ids sampled",
            not strange,
            f"rows {strange[:3]} of a micro-batch of {len(rows)} were not sampled in this generation",
            number=len(rows),
        )
        old_BT = inputs.get("old_per_token_logps")
        if (
            old_BT is not None
            and self._logprobs_BT is not None
            and self._step == self._trainer.state.global_step
        ):
            tolerance = TOLERANCE.get(str(old_BT.dtype).removeprefix("torch."), 0.2)
            self.guards.first_ratio(self._logprobs_BT.detach(), old_BT, inputs["completion_mask"], tolerance)


def _ids(ids: Any) -> tuple[int, ...]:
    return tuple(int(one) for one in ids)


def _kept(ids: list[int], mask: list[int]) -> tuple[int, ...]:
    """Return the ids that are no padding."""
    return tuple(token for token, on in zip(ids, mask, strict=True) if on)
