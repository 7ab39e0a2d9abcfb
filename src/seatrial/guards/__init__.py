"""Always-on assertions that a training loop calls from inside, each one line; torch is imported where it is used.

    guards = Guards()
    guards.first_ratio(logprobs_BT, old_logprobs_BT, mask_BT)
    with guards.census(model):
        optimizer.step()

A guard that finds a failure raises `GuardError`; `Guards(raises=False)` only records it, for a report.
"""

from seatrial.guards.guards import GuardError, Guards

__all__ = ["GuardError", "Guards"]
