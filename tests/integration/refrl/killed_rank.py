"""refrl, as a rank that kills itself in a phase of a step: `python killed_rank.py RANK PHASE CALL grpo ...`.

CALL counts the calls of the phase's function. The ranks that are not RANK run as usual.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from refrl.cli import main
from refrl.generation.torch_engine import TorchGenerator
from refrl.policy.module_policy import ModulePolicy
from refrl.weight_sync.transferred import TransferredWeights

PHASES: dict[str, tuple[type, str]] = {
    "training": (ModulePolicy, "train"),
    "generation": (TorchGenerator, "generate"),
    "sync": (TransferredWeights, "_parts"),
}
"""Class and method, which are called by each rank of a run."""


def killing(work: Callable[..., Any], call: int) -> Callable[..., Any]:
    """Return a function that ends its process at this call."""
    calls = 0

    @functools.wraps(work)
    def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **keywords)

    return counted


if __name__ == "__main__":
    rank, phase, call, *words = sys.argv[1:]
    if os.environ["RANK"] == rank:
        kind, name = PHASES[phase]
        setattr(kind, name, killing(getattr(kind, name), int(call)))
    sys.exit(main(words))
