"""The head in tiles without Triton, which TRL 1.15 needs on every device: plain torch computes what its kernel does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "_ChunkedLogProbFunction"
"""Of the function in `trl.trainer.utils`; None where Triton is not installed, in releases without another way."""
EXTRA = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


class PlainLogProb:
    """Log-probabilities of ids from hidden states, in the form of an autograd function."""

    @staticmethod
    def apply(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None = None,
        scale: float = 1.0,
        outputs: tuple[str, ...] = EXTRA,
    ) -> tuple[Tensor | None, ...]:
        """Return log-probabilities [N], and those of `EXTRA` that are asked for, None in place of the others.

        Args:
            hidden: states before the head [N, D].
            weight: of the head [V, D].
            bias: of the head [V].
            targets: ids [N].
            temperature: that logits are divided by, last.
            chunk_size: of the kernel's tiles.
            softcap: bound of the scaled logits.
            scale: of the logits.
            outputs: names of `EXTRA`.
        """
        logits = torch.nn.functional.linear(hidden, weight, bias).float() * scale
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        logits = logits / temperature
        logs = logits.log_softmax(-1)
        found = {
            "entropy": lambda: -(logs.exp() * logs).sum(-1),
            "log_sum_sq_probs": lambda: (2 * logs).logsumexp(-1).detach(),
            "mean_logits": lambda: logits.mean(-1).detach(),
            "is_top1": lambda: logits.argmax(-1) == targets,
        }
        own = logs.gather(-1, targets[:, None])[:, 0]
        return own, *(found[name]() if name in outputs else None for name in EXTRA)


def provide_kernels() -> None:
    """Put `PlainLogProb` where the installed release found no Triton for its own function."""
    try:
        import trl.trainer.utils as utils
    except ImportError:
        return
    place: Any = utils
    if getattr(place, NAME, PlainLogProb) is None:
        setattr(place, NAME, PlainLogProb)
