"""A callback for the Hugging Face Trainer, and so for TRL: `trainer.add_callback(guard_callback())`.

It checks around every optimizer step which tensors changed. Guards that need the rows of a step (ids, groups, ratios)
are called from a custom trainer.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from seatrial.guards.guards import Guards


def guard_callback(guards: Guards | None = None, *, every: int = 1) -> Any:
    """Return the callback; its `guards` hold the verdicts.

    Args:
        guards: where verdicts go; None raises at the first failure.
        every: look at each optimizer step of this many.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import TrainerCallback

    class GuardCallback(TrainerCallback):
        """Looks at the model before and after an optimizer step."""

        def __init__(self) -> None:
            self.guards = guards or Guards()
            self._around: AbstractContextManager[None] | None = None

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            rate = kwargs["optimizer"].param_groups[0]["lr"]
            gradients = {
                name
                for name, weight in kwargs["model"].named_parameters()
                if weight.grad is None or not bool(weight.grad.any())
            }
            # With a rate of zero, as in the first step of a warm-up, nothing changes.
            if state.global_step % every == 0 and rate > 0:
                self._around = self.guards.census(kwargs["model"], may_rest=gradients)
                self._around.__enter__()

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            around, self._around = self._around, None
            if around is not None:
                around.__exit__(None, None, None)

    return GuardCallback()
