"""What is due of any sequence of calls of a training loop: float64 descent with a momentum, and plain counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.loop_histories import (
    MOMENTUM,
    RATE,
    RATE_DECAY,
    LoopCall,
    LoopHistory,
    MicroBatch,
    SeenCall,
)
from seatrial.relations.oracles.loops import features, slope, start


@dataclass
class _Trained:
    """What a saved state has."""

    weights: Tensor = field(default_factory=lambda: torch.tensor(start(), dtype=torch.float64))
    moment: Tensor = field(default_factory=lambda: torch.zeros(len(start()), dtype=torch.float64))
    rate: float = RATE
    draws: Sequence[float] = ()

    def copy(self, draws: Sequence[float]) -> _Trained:
        """Return a copy that remembers numbers drawn."""
        return _Trained(self.weights, self.moment, self.rate, draws)


def due_of(history: LoopHistory, seen: Sequence[Sequence[SeenCall]]) -> list[list[SeenCall]]:
    """Return what each process should see of each call.

    Args:
        history: the calls.
        seen: what the processes saw, of which the rows of training batches, and numbers drawn after a save, are taken.
    """
    trained, saved = _Trained(), dict[int, _Trained]()
    due: list[list[SeenCall]] = [[] for _ in range(history.num_ranks)]
    for place, call in enumerate(history.calls):
        found = [calls[place] for calls in seen]
        made = [SeenCall() for _ in found]
        if call.name == "train":
            batches = _trained_on(
                trained, history, call, [[one.rows for one in own.batches] for own in found]
            )
            made = [SeenCall(batches=own) for own in batches]
            # A nested evaluation is of the weights at that place.
            if call.evaluates_after and batches[0]:
                weights = batches[0][min(call.evaluates_after - call.skip, len(batches[0])) - 1].weights
                made = [one._replace(**_evaluated(history, call, weights)) for one in made]
        elif call.name == "evaluate":
            made = [one._replace(**_evaluated(history, call, trained.weights.tolist())) for one in made]
        elif call.name == "save":
            saved[call.number] = trained.copy([one.draw for one in found])
            made = [SeenCall(draw=one.draw) for one in found]
        elif call.name == "load":
            trained = saved[call.number].copy(())
            made = [SeenCall(draw=draw) for draw in saved[call.number].draws]
        elif call.name == "renew":
            trained = _Trained()
        elif call.name == "split":
            made = [SeenCall(rows=_part(call, rank, history.num_ranks)) for rank in range(history.num_ranks)]
        else:
            made = [SeenCall(triggers=(False, True, False)) for _ in found]
        for own, one in zip(due, made, strict=True):
            own.append(one._replace(weights=trained.weights.tolist(), rate=trained.rate))
    return due


def _trained_on(
    trained: _Trained, history: LoopHistory, call: LoopCall, rows: Sequence[Sequence[Sequence[int]]]
) -> list[list[MicroBatch]]:
    """Train on rows by process and micro-batch; return what each process should see."""
    last = call.stop or history.num_batches
    made: list[list[MicroBatch]] = [[] for _ in rows]
    gradient = torch.zeros_like(trained.weights)
    # As many batches as the fewest that a process has; another number of them is another law's.
    for number, step in enumerate(zip(*rows, strict=False), start=call.skip + 1):
        for own in step:
            gradient = gradient + slope(trained.weights, own) / history.accumulation / history.num_ranks
        steps = (number - call.skip) % history.accumulation == 0 or number == history.num_batches
        norm = float(gradient.norm()) if steps and call.max_norm else None
        if norm is not None and norm > call.max_norm:
            gradient = gradient * (call.max_norm / norm)
        if steps:
            trained.moment = MOMENTUM * trained.moment + gradient
            trained.weights = trained.weights - trained.rate * trained.moment
            # The schedule is written for one process, unless batches are split; see `oracles.loops.advance`.
            trained.rate *= RATE_DECAY ** (1 if history.split else history.num_ranks)
            gradient = torch.zeros_like(gradient)
        for own, batches in zip(step, made, strict=True):
            batches.append(MicroBatch(tuple(own), steps, tuple(trained.weights.tolist()), trained.rate, norm))
        if number == last:
            break
    return made


def _evaluated(history: LoopHistory, call: LoopCall, weights: Sequence[float]) -> dict[str, Any]:
    """Return the rows and outputs of an evaluation of which so many batches are read."""
    num_rows = history.num_evaluated
    if call.reads:
        num_rows = min(num_rows, call.reads * history.batch_size * history.num_ranks)
    inputs = [features(row)[0] for row in range(num_rows)]
    outputs = [sum(a * b for a, b in zip(weights, one, strict=True)) for one in inputs]
    return {"rows": list(range(num_rows)), "outputs": outputs}


def _part(call: LoopCall, rank: int, num_ranks: int) -> list[int]:
    """Return a process's part: the first ones have one item more, or others are padded with the last item."""
    each, more = divmod(call.number, num_ranks)
    first = rank * each + min(rank, more)
    part = list(range(first, first + each + (rank < more)))
    return (
        part + [call.number - 1] * (each + (more > 0) - len(part)) if call.padded and num_ranks > 1 else part
    )
