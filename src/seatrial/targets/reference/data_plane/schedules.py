"""Random schedules of refrl's rollout flow on one of its data planes: crashes, delays, repeated calls, a ledger.

Producers and trainers are those of a run (`refrl.rollout.replay.ReplayBuffer`); one of them at a time sends one message
to the store, and the seed alone determines who is next, so that it replays the schedule. A participant crashes before a
message is sent, or after it was received and before its answer came: a store cannot see more of a killed process. The
control of a store with separate processes is really killed.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from refrl.data_plane import (
    KVBatchMeta,
    LeaseExpiredError,
    PartitionFullError,
    StalenessFilter,
    UnknownSampleError,
)
from refrl.data_plane.client import StoreClient
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.replay import PARTITION, TASK, Group, ReplayBuffer
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example

REPEAT = 0.1
"""How likely a call is made twice, as after a lost answer."""
AnswerT = TypeVar("AnswerT")
NUM_PRODUCERS, BATCHES = 2, 4
STEP_GROUPS, GROUP_SIZE, CAPACITY, MAX_AGE = 2, 2, 16, 1
CRASH, STALL, LATE, KILL = 0.4, 0.15, 0.3, 0.06
"""Probabilities that a participant crashes, that a trainer stalls until its lease expires, that a batch comes with old
weights, and that the store's control, if it is a process, is killed in a schedule."""
NUM_TURNS = 5_000
"""A schedule that takes more turns is counted as endless."""
PRODUCING = ("save", "publish")
TRAINING = ("check", "claim", "locate", "read", "acknowledge", "clear", "drop")
HOLDING = ("locate", "read", "acknowledge")
"""Operations of a trainer that has a lease."""


class Killed(BaseException):
    """The participant has crashed: it sends nothing more, and its error handlers do not catch this."""


class Participant:
    """A producer or trainer, which sends a message only when it is its turn."""

    def __init__(self, work: Callable[[Participant], None], stream: random.Random, last: str | None) -> None:
        """Begin; `last` is the operation before or after which it crashes, or None."""
        self.last = last
        self.stalls_at: str | None = None
        self.has_crashed = self.is_stalled = self.has_stalled = self.is_over = False
        self.error: Exception | None = None
        self._crashes_after_call = stream.random() < 0.5
        self._num_before = stream.randrange(3)
        self._stream = stream
        self._go, self._parked = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def step(self) -> None:
        """Run it until it is about to send the next message, or is over."""
        self._go.release()
        self._parked.acquire()

    def pause(self) -> None:
        """Wait for its turn."""
        self._parked.release()
        self._go.acquire()

    def send(self, operation: str, call: Callable[[], AnswerT], *, can_repeat: bool) -> AnswerT:
        """Send a message, unless it has crashed or crashes now."""
        if self.has_crashed:
            raise Killed
        self.pause()
        if operation == self.stalls_at:
            self.stalls_at, self.is_stalled, self.has_stalled = None, True, True
            self.pause()
        is_last = self._is_last(operation)
        if is_last and not self._crashes_after_call:
            self._crash()
        answer = call()
        if can_repeat and self._stream.random() < REPEAT:
            answer = call()
        if is_last:
            self._crash()
        return answer

    def _is_last(self, operation: str) -> bool:
        if operation != self.last:
            return False
        self._num_before -= 1
        return self._num_before < 0

    def _crash(self) -> None:
        self.has_crashed = True
        raise Killed

    def _run(self, work: Callable[[Participant], None]) -> None:
        self._go.acquire()
        try:
            work(self)
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001  judged by the schedule
            self.error = error
        self.is_over = True
        self._parked.release()


class ParticipantLink:
    """A control or a store, reached through one participant's messages."""

    def __init__(self, link: Any, participant: Participant) -> None:
        self._link, self._participant = link, participant

    def call(self, operation: str, *words: Any, **options: Any) -> Any:
        """See `refrl.data_plane.client.ControlLink`."""
        return self._participant.send(
            operation, lambda: self._link.call(operation, *words, **options), can_repeat=True
        )

    def wait(self, seconds: float) -> None:
        """Let other participants run."""
        self._participant.pause()

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Return a method of `refrl.data_plane.store.ColumnStore`."""

        def send(*words: Any) -> Any:
            return self._participant.send(
                operation, lambda: getattr(self._link, operation)(*words), can_repeat=False
            )

        return send


class OpenStore(Protocol):
    """A store that schedules run on."""

    lease_s: float
    """Seconds of a lease: longer than a step of the flow takes."""

    def client(self) -> StoreClient:
        """Return a client of it."""
        ...

    def outlast_leases(self) -> None:
        """Return when every current lease has expired."""
        ...

    def kill_control(self) -> None:
        """Kill the process of its control, which is restored; nothing where it has none."""
        ...


@dataclass
class Ledger:
    """What became of every group."""

    put: set[int] = field(default_factory=set)
    """Whose put returned."""
    trained: Counter[int] = field(default_factory=Counter)
    stale: set[int] = field(default_factory=set)
    """That a filter judged too old."""
    wrong: list[str] = field(default_factory=list)
    num_crashes: int = 0

    def errors(self, left: set[int], taken: set[int]) -> list[str]:
        """Return what does not add up.

        Args:
            left: groups that a last trainer is served.
            taken: groups that a trainer acknowledged and did not clear, because it crashed.
        """
        wrong = [*self.wrong]
        wrong += [
            f"group {group} was trained on {num} times" for group, num in self.trained.items() if num > 1
        ]
        wrong += [f"group {group} was too old, and trained on" for group in self.stale if self.trained[group]]
        wrong += [f"group {group} is served again" for group in left if self.trained[group]]
        accounted = {*self.trained, *self.stale, *left, *taken}
        wrong += [f"group {group} was put, and is lost" for group in sorted(self.put - accounted)]
        return wrong


class _Recording(StalenessFilter):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__(MAX_AGE)
        self._ledger = ledger

    def __call__(self, meta: KVBatchMeta, **state: Any) -> tuple[KVBatchMeta, KVBatchMeta]:
        keep, drop = super().__call__(meta, **state)
        self._ledger.stale.update(tags["group_id"] for tags in drop.tags or ())
        return keep, drop


class Schedule:
    """One schedule."""

    def __init__(self, store: OpenStore, seed: int) -> None:
        """Draw it from the seed."""
        self._store, self._stream, self.ledger = store, random.Random(seed), Ledger()
        self._version = 0
        self._numbers = iter(range(10**9))
        self._is_closing = False

    def play(self) -> list[str]:
        """Run to the end, and return what is wrong with the ledger."""
        client = self._store.client()
        producers = [self._begin(self._produce, PRODUCING) for _ in range(NUM_PRODUCERS)]
        everybody = [*producers, self._begin(self._train, TRAINING)]
        kill_at = self._stream.randrange(100) if self._stream.random() < KILL else None
        for turn in range(NUM_TURNS):
            if turn == kill_at:
                self._store.kill_control()
            self._is_closing = all(one.is_over for one in producers)
            running = [one for one in everybody if not one.is_over]
            if not running:
                break
            chosen = self._stream.choice(running)
            chosen.step()
            if chosen not in producers and (chosen.has_crashed or chosen.is_stalled):
                chosen.is_stalled = False
                self._store.outlast_leases()
                everybody.append(self._begin(self._train, TRAINING))  # takes its place
        else:
            self.ledger.wrong.append(f"not over after {NUM_TURNS} turns")
        self.ledger.num_crashes = sum(one.has_crashed for one in everybody)
        self.ledger.wrong += [f"{type(one.error).__name__}: {one.error}" for one in everybody if one.error]
        self._store.outlast_leases()
        return self.ledger.errors(*self._end(client))

    def _begin(self, work: Callable[[Participant], None], operations: Sequence[str]) -> Participant:
        last = self._stream.choice(operations) if self._stream.random() < CRASH else None
        participant = Participant(work, self._stream, last)
        if operations is TRAINING and last is None and self._stream.random() < STALL:
            participant.stalls_at = self._stream.choice(HOLDING)
        return participant

    def _buffer(self, participant: Participant) -> ReplayBuffer:
        """Return the replay buffer of a participant, whose messages wait for its turn."""
        client = self._store.client()
        control, store = (
            ParticipantLink(client._control, participant),
            ParticipantLink(client._store, participant),
        )
        return ReplayBuffer(
            StoreClient(control, store, lease_s=self._store.lease_s),
            groups_per_step=STEP_GROUPS,
            group_size=GROUP_SIZE,
            capacity=CAPACITY,
            filters=[_Recording(self.ledger)],
            timeout_s=0.0,
        )

    def _produce(self, participant: Participant) -> None:
        """Put batches of current or of old weights, under numbers that are unique."""
        buffer = self._buffer(participant)
        for _ in range(BATCHES):
            version = self._version
            if self._stream.random() < LATE:
                version = max(0, version - MAX_AGE - 1)
            buffer.next_number = next(self._numbers) * STEP_GROUPS
            numbers = range(buffer.next_number, buffer.next_number + STEP_GROUPS)
            while True:
                try:
                    buffer.add(made_rollouts(numbers, version))
                    break
                except PartitionFullError:
                    participant.pause()
            self.ledger.put.update(numbers)

    def _train(self, participant: Participant) -> None:
        """Take steps until the producers are done and there is no step left."""
        buffer = self._buffer(participant)
        while True:
            is_closing = self._is_closing
            try:
                buffer.consume(self._step, current_weight_version=self._version)
            except TimeoutError:
                if is_closing:
                    return
                participant.pause()
            except (LeaseExpiredError, UnknownSampleError):
                if participant.has_stalled:
                    return  # another one took its place

    def _step(self, groups: list[Group], rollouts: Rollouts) -> None:
        numbers = [group.number for group in groups]
        self.ledger.trained.update(numbers)
        oldest = min(group.weight_version for group in groups)
        if self._version - oldest > MAX_AGE:
            self.ledger.wrong.append(f"groups {numbers} were too old: version {oldest} at {self._version}")
        expected = [made_rollouts([group.number], group.weight_version) for group in groups]
        if [row for one in expected for row in one.completions] != list(rollouts.completions):
            self.ledger.wrong.append(f"groups {numbers} have rows of others")
        self._version += 1

    def _end(self, client: StoreClient) -> tuple[set[int], set[int]]:
        """Return what a last trainer is served, and what crashed trainers took; clear everything."""
        taken = {int(sample.partition("_")[0]) for sample in client.acknowledged(PARTITION, TASK)}
        left: set[int] = set()
        while True:
            meta = client.claim_meta(PARTITION, TASK, ["input_ids"], 2 * CAPACITY, blocking=False)
            if not meta.size:
                break
            left.update(tags["group_id"] for tags in meta.tags or ())
            client.clear_samples(meta.sample_ids, PARTITION)
        client.clear_samples(
            [f"{group}_g{place}" for group in taken for place in range(GROUP_SIZE)], PARTITION
        )
        status = client.status(PARTITION)
        if status.num_rows or status.bytes_held:
            self.ledger.wrong.append(f"left in the partition: {status}")
        client.clear_samples(None, PARTITION)
        return left, taken


def made_rollouts(numbers: Sequence[int], version: int) -> Rollouts:
    """Return groups whose tokens say which they are."""
    rows = [number for number in numbers for _ in range(GROUP_SIZE)]
    return Rollouts(
        examples=[Example(number, f"p{number}", "a", "made") for number in rows],
        completions=[
            Completion(
                (number,), (number,) * (1 + number % 3), (-0.5,) * (1 + number % 3), "stop", None, version
            )
            for number in rows
        ],
        texts=["t"] * len(rows),
        scores=Scores([0.5] * len(rows), 0, None, failed=[False] * len(rows)),
    )
