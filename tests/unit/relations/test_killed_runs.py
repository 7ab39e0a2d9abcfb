"""The laws of killed asynchronous runs: a toy that resumes whole obeys, and each planted fault is seen."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from seatrial.relations.contracts.resume import Kill, ResumedRun
from seatrial.relations.engine import run_relation
from seatrial.relations.records.run import GroupRecord
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

PROMPTS, GROUPS, SIZE, AHEAD = 7, 2, 4, 2


@dataclass
class State:
    """What a checkpoint of the toy holds; it is the state of a step whose batches ahead have arrived."""

    step: int = 0
    weight: float = 1.0
    drawn: int = 0
    number: int = 0
    buffer: list[GroupRecord] = field(default_factory=list)


@dataclass
class ToyKilled:
    """A run that samples up to two batches ahead, in memory; a fault is one line of its resume."""

    fault: str = ""

    def killed_run(self, options: Mapping[str, Any], *, seed: int, kills: Sequence[Kill]) -> ResumedRun:
        """See `contracts.resume.KilledRun`."""
        saved, starts = State(), []
        self.rows: dict[int, tuple[int, ...]] = {}
        self.groups: dict[int, tuple[GroupRecord, ...]] = {}
        self.log: dict[int, float] = {}
        for kill in (*kills, None):
            state = self._resumed(saved)
            starts.append(state.step)
            saved = self._start(state, options["grpo.max_num_steps"], kill, saved)
        return ResumedRun(
            log={"loss": tuple(sorted(self.log.items()))},
            steps_twice=(),
            served=self.rows,
            state={"weight": torch.tensor(saved.weight), "drawn": saved.drawn},
            went_on_from=tuple(starts),
            kept_steps=(),
            exported={"weight": torch.tensor(saved.weight)},
            exported_files={},
            initial_files={},
            adapters={},
            adapter_scale=0.0,
            groups=self.groups,
        )

    def _resumed(self, saved: State) -> State:
        state = deepcopy(saved)
        if state.step and self.fault == "prompts of the start":
            state.drawn = 0
        if state.step and self.fault == "buffer left out":
            state.buffer = []
        if state.step and self.fault == "numbers from zero":
            state.number = 0
        if state.step and self.fault == "weights of the start":
            state.weight = 1.0
        if state.step and self.fault == "buffer twice":
            state.buffer = [state.buffer[0], *state.buffer]
        if self.fault == "always from the start":
            state = State()
        return state

    def _group(self, state: State) -> GroupRecord:
        return GroupRecord(
            number=state.number,
            prompt_id=state.drawn % PROMPTS,
            fate="trained",
            weight_version=state.step,
        )

    def _start(self, state: State, last: int, kill: Kill | None, saved: State) -> State:
        """Run from a state to the kill or the end; return the last checkpoint."""
        while state.step < last:
            step = state.step + 1
            while state.number < min(step + AHEAD, last) * GROUPS:
                if kill == Kill("sampling", state.number // GROUPS + 1):
                    return saved
                state.buffer.append(self._group(state))
                state.drawn, state.number = state.drawn + 1, state.number + 1
            taken, state.buffer = state.buffer[:GROUPS], state.buffer[GROUPS:]
            if kill == Kill("training", step):
                return saved
            state.weight = 0.9 * state.weight + sum(group.prompt_id + 1 for group in taken) / 10
            state.step = step
            self.log[step] = state.weight
            self.rows[step] = tuple(group.prompt_id for group in taken for _ in range(SIZE))
            self.groups[step] = tuple(taken)
            if kill == Kill("syncing", step):
                return saved
            saved = deepcopy(state)
            if kill == Kill("saving", step):
                return saved
        return saved


def verdict_on(fault: str) -> Any:
    """Return the verdict of the relation on the toy."""
    (relation,) = select(["R13.async"])
    return run_relation(relation, ToyKilled(fault))


def test_a_run_that_resumes_whole_obeys() -> None:
    """Every law is exercised and holds."""
    verdict = verdict_on("")
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert verdict.details["laws_not_exercised"] == {}


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("prompts of the start", "served"),
        ("buffer left out", "groups"),
        ("numbers from zero", "fates"),
        ("weights of the start", "state: weight"),
        ("buffer twice", "fates"),
        ("always from the start", "continued from"),
    ],
)
def test_a_planted_fault_is_seen(fault: str, named: str) -> None:
    """By what differs from the run that was not killed."""
    verdict = verdict_on(fault)
    assert verdict.outcome is Outcome.FAIL
    assert named in verdict.reason, verdict.reason
    assert "raises" not in verdict.reason
