"""A producer or trainer of a schedule: a thread that sends one message when it is its turn, and may die over it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

REPEAT = 0.1
"""How likely a call is made twice, as after a lost answer."""
AnswerT = TypeVar("AnswerT")


class Killed(BaseException):
    """The participant is dead: it sends nothing more, whatever its handlers of errors would do."""


class Participant:
    """A producer or trainer, which sends a message only when it is its turn."""

    def __init__(self, work: Callable[[Participant], None], stream: random.Random, last: str | None) -> None:
        """Begin; `last` is an operation that it dies before or after, or None."""
        self.last = last
        self.stalls_at: str | None = None
        self.is_dead = self.is_stalled = self.has_stalled = self.is_over = False
        self.error: Exception | None = None
        self._dies_after = stream.random() < 0.5
        self._num_before = stream.randrange(3)
        self._stream = stream
        self._go, self._parked = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def step(self) -> None:
        """Let it go on until it wants to send the next message, or is over."""
        self._go.release()
        self._parked.acquire()

    def pause(self) -> None:
        """Wait for its turn."""
        self._parked.release()
        self._go.acquire()

    def send(self, operation: str, call: Callable[[], AnswerT], *, can_repeat: bool) -> AnswerT:
        """Send a message, unless it is or falls dead."""
        if self.is_dead:
            raise Killed
        self.pause()
        if operation == self.stalls_at:
            self.stalls_at, self.is_stalled, self.has_stalled = None, True, True
            self.pause()
        is_last = self._is_last(operation)
        if is_last and not self._dies_after:
            self._die()
        answer = call()
        if can_repeat and self._stream.random() < REPEAT:
            answer = call()
        if is_last:
            self._die()
        return answer

    def _is_last(self, operation: str) -> bool:
        if operation != self.last:
            return False
        self._num_before -= 1
        return self._num_before < 0

    def _die(self) -> None:
        self.is_dead = True
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


class MortalLink:
    """A control or a store, as one participant reaches it."""

    def __init__(self, link: Any, participant: Participant) -> None:
        self._link, self._participant = link, participant

    def call(self, operation: str, *words: Any, **options: Any) -> Any:
        """See `refrl.data_plane.client.ControlLink`."""
        return self._participant.send(
            operation, lambda: self._link.call(operation, *words, **options), can_repeat=True
        )

    def wait(self, seconds: float) -> None:
        """Let others go on."""
        self._participant.pause()

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        """Return a method of `refrl.data_plane.store.ColumnStore`."""

        def send(*words: Any) -> Any:
            return self._participant.send(
                operation, lambda: getattr(self._link, operation)(*words), can_repeat=False
            )

        return send
