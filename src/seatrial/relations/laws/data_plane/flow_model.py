"""DP13: after any sequence of calls a store has the rows, claims and cursors of a plain model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.benches.flow import FlowBench, FlowCase
from seatrial.relations.benches.flow_model import FIELDS, TASKS, FlowModel, RefusedError
from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation

PARTITIONS = {"plain": (14, None), "groups": (18, 3)}
"""Name: most rows, and the size of a group."""
SECONDS = (5.0, 20.0, 80.0)
NUM_CALLS = 260
NUM_TRIES = 10
"""Pairs of claims that are looked at for two of one partition."""


@dataclass(frozen=True, kw_only=True)
class CallsCase(Case):
    """A number of random calls."""

    num_calls: int
    seed: int

    def smaller(self) -> Iterator[CallsCase]:
        """Yield fewer of the same calls."""
        for divisor in (8, 4, 2):
            yield replace(self, num_calls=self.num_calls // divisor)
        for fewer in (8, 1):
            if self.num_calls > fewer:
                yield replace(self, num_calls=self.num_calls - fewer)


def _calls(stack: Any, seed: int, tidy: bool) -> CallsCase:
    return CallsCase(num_calls=NUM_CALLS, seed=seed)


MODEL = Relation(
    id="DP13.model",
    name="a-store-is-its-model",
    component="rollout_flow",
    statement="After any sequence of puts, claims, time, clears and restarts a store is what a plain model says.",
    cost="CPU, a second",
    cases=_calls,
)


@dataclass
class _Claimed:
    """A claim of the store, and its number in the model."""

    number: int
    meta: Any


class _Play:
    """A store and its model that get the same calls."""

    def __init__(self, stack: Any, case: CallsCase) -> None:
        """Start both empty."""
        self.bench = FlowBench(stack, FlowCase(num_groups=8, group_size=3, seed=case.seed))
        self.model = FlowModel()
        self.random = random.Random(case.seed)
        self.claims: list[_Claimed] = []
        self.scale = 0
        self.calls: dict[Callable[[], str], int] = {
            self.put: 6,
            self.claim: 9,
            self.renew: 1,
            self.acknowledge: 3,
            self.release: 2,
            self.join: 4,
            self.wait: 3,
            self.clear: 3,
            self.restart: 1,
        }

    def run(self, num_calls: int) -> list[str]:
        """Make random calls until the first difference; return what differs."""
        done: list[str] = []
        for _ in range(num_calls):
            for name, (capacity, size) in PARTITIONS.items():
                self.model.register(name, capacity, size)
                words = {} if size is None else {"grpo_group_size": size}
                self.bench.register(name, num_samples=capacity, **words)
            (call,) = self.random.choices(list(self.calls), list(self.calls.values()))
            done.append(call())
            self.compare()
            if self.bench.wrong:
                return [f"after {', then '.join(done[-4:])}: {self.bench.wrong[0]}"]
        return []

    def both(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        """Call the model, then the store; both accept the call, or both refuse it. Return what the store returned."""
        try:
            ours()
            is_refused = False
        except RefusedError:
            is_refused = True
        try:
            found = theirs()
        except Exception as error:  # noqa: BLE001  the stack chooses the type of its error
            self.bench.expect(is_refused, f"refused: {' '.join(str(error).split())}")
            return None
        self.bench.expect(not is_refused, "accepted, and must be refused")
        return found

    def put(self) -> str:
        """Put new and existing rows, with one or two fields, or tags alone."""
        name = self.random.choice(list(PARTITIONS))
        group = self.random.randrange(8)
        samples = [f"u{group}_g{row}" for row in range(3)]
        if self.random.random() < 0.6:
            samples = self.random.sample(self.bench.samples, self.random.randint(1, 4))
        self.scale += 1
        fields = self.random.choice([("ids",), ("values",), ("ids", "values"), ()])
        values = {of: self.bench.rows(samples, self.scale + (of == "values")) for of in fields}
        tags = {self.random.choice("ab"): self.scale} if self.random.random() < 0.7 or not fields else {}
        self.both(
            lambda: self.model.put(name, samples, {of: self.scale + (of == "values") for of in fields}, tags),
            lambda: self.bench.client.put_samples(samples, name, values, [tags] * len(samples)),
        )
        return f"put {samples} {fields} {tags} in {name}"

    def claim(self) -> str:
        """Claim for a task."""
        name, task = self.random.choice(list(PARTITIONS)), self.random.choice(TASKS)
        most = self.random.randint(1, 8)
        least = self.random.randint(1, most) if self.random.random() < 0.2 else 1
        seconds = self.random.choice(SECONDS)
        number, samples = self.model.claim(name, task, most, least, seconds)
        words = {"blocking": False, "lease_s": seconds, "min_batch_size": least}
        meta = self.bench.client.claim_meta(name, task, list(FIELDS[task]), most, **words)
        self.bench.equal(list(meta.sample_ids), samples, "rows claimed")
        tags = [dict(self.model.partitions[name].rows[sample].tags) for sample in samples]
        self.bench.equal([dict(own) for own in meta.tags or ()], tags, "tags of rows claimed")
        if samples:
            self.claims.append(_Claimed(number, meta))
        return f"claimed {samples} of {name} for {task}, {seconds:g} s"

    def _part(self) -> tuple[int, Any]:
        """Return the number of a claim, and the rows of it or of a part of it."""
        claimed = self.random.choice(self.claims[-6:])
        rows = range(len(claimed.meta.sample_ids))
        chosen = self.random.sample(rows, self.random.randint(1, len(rows)))
        return claimed.number, claimed.meta.subset(chosen) if self.random.random() < 0.6 else claimed.meta

    def _with_part(self, name: str) -> str:
        if not self.claims:
            return f"{name} nothing"
        number, meta = self._part()
        self.both(
            lambda: getattr(self.model, name)(number, list(meta.sample_ids)),
            lambda: getattr(self.bench.client, name)(meta),
        )
        return f"{name} {list(meta.sample_ids)}"

    def renew(self) -> str:
        """Renew a claim, or a part of it."""
        return self._with_part("renew")

    def acknowledge(self) -> str:
        """Acknowledge a claim, or a part of it."""
        return self._with_part("acknowledge")

    def release(self) -> str:
        """Release a claim, or a part of it."""
        return self._with_part("release")

    def join(self) -> str:
        """Release parts of claims that are joined: of one claim they are it, of two they have no lease."""
        if not self.claims:
            return "join nothing"
        for _ in range(NUM_TRIES):
            (number, meta), (other, more) = self._part(), self._part()
            if meta.partition_id == more.partition_id and not set(meta.sample_ids) & set(more.sample_ids):
                break
        else:
            return "join nothing"
        joined = meta.concat(more)

        def released() -> None:
            if number != other:
                raise RefusedError
            self.model.release(number, list(joined.sample_ids))

        self.both(released, lambda: self.bench.client.release(joined))
        return f"release of {list(meta.sample_ids)} joined with {list(more.sample_ids)}"

    def wait(self) -> str:
        """Let time pass."""
        seconds = self.random.choice((1.0, 5.0, 19.0))
        self.model.now += seconds
        self.bench.store.pass_time(seconds)
        return f"{seconds:g} s"

    def clear(self) -> str:
        """Clear rows, unknown ones too, or a whole partition."""
        name = self.random.choice(list(PARTITIONS))
        samples = self.random.sample(self.bench.samples, self.random.randint(0, 7))
        chosen = None if self.random.random() < 0.1 else samples
        self.model.clear(name, chosen)
        self.bench.client.clear_samples(chosen, name)
        return f"clear {chosen} of {name}"

    def restart(self) -> str:
        """Restart the store from its journal."""
        self.model = self.model.restarted()
        self.bench.store.restart()
        self.bench.client = self.bench.store.client()
        return "a restart"

    def compare(self) -> None:
        """Compare what both say of every partition."""
        bench, client = self.bench, self.bench.client
        bench.equal(list(client.partitions()), list(self.model.partitions), "partitions")
        self.model.expire()
        for name, partition in self.model.partitions.items():
            status = client.status(name)
            num_leased = sum(len(held) for held in partition.held.values())
            bench.equal(
                (status.num_rows, status.num_leased),
                (len(partition.rows), num_leased),
                f"rows and leased rows of {name}",
            )
            for task in TASKS:
                bench.equal(
                    sorted(client.acknowledged(name, task)),
                    sorted(self.model.acknowledged(name, task)),
                    f"rows of {name} acknowledged by {task}",
                )
                drained = not (partition.pending[task] or partition.returned[task])
                bench.equal(
                    client.check_consumption_status(name, [task]), drained, f"{name} is drained by {task}"
                )
            for of in ("ids", "values"):
                samples = [sample for sample, row in partition.rows.items() if of in row.scales]
                self.random.shuffle(samples)
                if samples:
                    found = client.get_samples(samples, name, [of])[of].tolist()
                    right = [
                        [
                            bench.number(one) * partition.rows[one].scales[of],
                            partition.rows[one].scales[of],
                            7,
                        ]
                        for one in samples
                    ]
                    bench.equal(found, right, f"{of} of {samples} in {name}")


@MODEL.law(
    "any calls", "a case that no other law of the store makes: several tasks, partitions, claims and restarts"
)
def store_is_its_model(stack: Any, case: CallsCase) -> Measure:
    """Make the same random calls of a store and of its model, and compare them after each."""
    return Measure.count(_Play(stack, case).run(case.num_calls), "differences from the model")
