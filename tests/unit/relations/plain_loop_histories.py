"""A plain loop in several simulated processes that makes any sequence of calls; a fault is one line that differs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from seatrial.relations.contracts.loop_histories import (
    MOMENTUM,
    RATE,
    RATE_DECAY,
    LoopCall,
    LoopHistory,
    MicroBatch,
    SeenCall,
)
from seatrial.relations.oracles.loops import features, start


@dataclass
class _State:
    weights: list[float] = field(default_factory=lambda: list(start()))
    moment: list[float] = field(default_factory=lambda: [0.0] * len(start()))
    rate: float = RATE


@dataclass
class PlainLoopHistories:
    """See `contracts.loop_histories`."""

    fault: str = ""

    def performed(self, history: LoopHistory) -> Sequence[Sequence[SeenCall]]:
        self.history, self.state = history, _State()
        self.saved: dict[int, tuple[_State, list[object]]] = {}
        self.streams = [random.Random(history.seed + rank) for rank in range(history.num_ranks)]
        self.num_epochs, self.left, self.is_set = 0, False, False
        seen: list[list[SeenCall]] = [[] for _ in self.streams]
        for call in history.calls:
            made = getattr(self, call.name)(call)
            for own, one in zip(seen, made, strict=True):
                own.append(one._replace(weights=list(self.state.weights), rate=self.state.rate))
        return seen

    def _outputs(self, rows: Sequence[int]) -> list[float]:
        return [sum(a * b for a, b in zip(self.state.weights, features(row)[0], strict=True)) for row in rows]

    def train(self, call: LoopCall) -> list[SeenCall]:
        plan = self.history
        size = plan.batch_size * plan.num_ranks
        order = list(range(plan.num_batches * size))
        epoch = self.num_epochs if self.fault == "the order continues" else call.epoch
        random.Random(100 * plan.seed + epoch).shuffle(order)
        self.num_epochs += 1
        seen: list[list[MicroBatch]] = [[] for _ in self.streams]
        evaluated = [SeenCall() for _ in self.streams]
        gradient, self.left, inner = [0.0] * len(start()), False, False
        for number in range(call.skip, call.stop or plan.num_batches):
            rows = order[number * size : (number + 1) * size]
            errors = [out - features(row)[1] for out, row in zip(self._outputs(rows), rows, strict=True)]
            for error, row in zip(errors, rows, strict=True):
                for place, value in enumerate(features(row)[0]):
                    gradient[place] += 2 * error * value / size / plan.accumulation
            steps = (number - call.skip + 1) % plan.accumulation == 0
            steps = steps or (
                number + 1 == plan.num_batches and not (self.fault == "left is taken" and inner)
            )
            norm = None
            if steps:
                norm = self._step(gradient, call)
                if self.fault != "gradients stay":
                    gradient = [0.0] * len(start())
            for rank, batches in enumerate(seen):
                own = rows[rank * plan.batch_size : (rank + 1) * plan.batch_size]
                batches.append(
                    MicroBatch(tuple(own), steps, tuple(self.state.weights), self.state.rate, norm)
                )
            if number + 1 == call.evaluates_after:
                evaluated, inner = self.evaluate(call), bool(call.reads)
        return [one._replace(batches=own) for one, own in zip(evaluated, seen, strict=True)]

    def _step(self, gradient: list[float], call: LoopCall) -> float | None:
        norm = sum(value**2 for value in gradient) ** 0.5
        factor = min(1.0, call.max_norm / norm) if call.max_norm and norm else 1.0
        state = self.state
        state.moment = [
            MOMENTUM * old + factor * new for old, new in zip(state.moment, gradient, strict=True)
        ]
        state.weights = [w - state.rate * v for w, v in zip(state.weights, state.moment, strict=True)]
        state.rate *= RATE_DECAY ** (1 if self.history.split else self.history.num_ranks)
        return norm if call.max_norm else None

    def evaluate(self, call: LoopCall) -> list[SeenCall]:
        size = self.history.batch_size * self.history.num_ranks
        rows = list(range(self.history.num_evaluated))[: call.reads * size if call.reads else None]
        if self.fault == "filling stays":
            rows += rows[: -len(rows) % size]
        return [SeenCall(rows=rows, outputs=self._outputs(rows)) for _ in self.streams]

    def save(self, call: LoopCall) -> list[SeenCall]:
        state = self.state
        kept = _State(list(state.weights), list(state.moment), state.rate)
        self.saved[call.number] = kept, [stream.getstate() for stream in self.streams]
        return [SeenCall(draw=stream.random()) for stream in self.streams]

    def load(self, call: LoopCall) -> list[SeenCall]:
        kept, states = self.saved[call.number]
        moment = self.state.moment if self.fault == "moments are not loaded" else list(kept.moment)
        rate = self.state.rate if self.fault == "rates are not loaded" else kept.rate
        self.state = _State(list(kept.weights), moment, rate)
        for stream, state in zip(self.streams, states, strict=True):
            if self.fault != "random numbers continue":
                stream.setstate(state)  # type: ignore[arg-type]
        return [SeenCall(draw=stream.random()) for stream in self.streams]

    def renew(self, call: LoopCall) -> list[SeenCall]:
        self.state = _State(rate=self.state.rate) if self.fault == "the rate stays" else _State()
        return [SeenCall() for _ in self.streams]

    def split(self, call: LoopCall) -> list[SeenCall]:
        num_ranks = len(self.streams)
        parts: list[list[int]] = [[] for _ in range(num_ranks)]
        sizes = [call.number // num_ranks + (rank < call.number % num_ranks) for rank in range(num_ranks)]
        items = iter(range(call.number))
        for part, size in zip(parts, sizes, strict=True):
            part += [next(items) for _ in range(size)]
            if call.padded and self.fault != "parts are not padded":
                part += [call.number - 1] * (max(sizes) - size)
        return [SeenCall(rows=part) for part in parts]

    def trigger(self, call: LoopCall) -> list[SeenCall]:
        first, self.is_set = self.is_set, self.fault == "the trigger stays"
        return [SeenCall(triggers=(first, True, self.is_set)) for _ in self.streams]
