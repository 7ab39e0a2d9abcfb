"""DP10: a step of a consumer trains on each row once, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from seatrial.relations.benches.flow import LEASE_S, PARTITION, FlowBench, flow_law
from seatrial.relations.law import Relation


class _BrokeError(Exception):
    """Raised by a step, or a filter, of ours."""


def _step(bench: FlowBench, train: Callable[[Any], None], **words: Any) -> Any:
    chosen = {"batch_size": 4096, "current_weight_version": 10**6, **words}
    return bench.stack.flow_step(bench.client, PARTITION, ["ids"], train=train, **chosen)


def _of_group(numbers: Sequence[int], calls: list[int] | None = None) -> Any:
    """Return a filter of ours that keeps rows of these groups."""

    class Chosen:
        name = f"not of {list(numbers)}"

        def __call__(self, meta: Any, **state: Any) -> tuple[Any, Any]:
            if calls is not None:
                calls.append(len(meta.sample_ids))
            kept = [int(sample[1 : sample.index("_")]) in numbers for sample in meta.sample_ids]
            rows = range(len(kept))
            return meta.subset([row for row in rows if kept[row]]), meta.subset(
                [row for row in rows if not kept[row]]
            )

    return Chosen()


STEPS = Relation(
    id="DP10.steps",
    name="a-step-accounts-for-its-rows",
    component="rollout_flow",
    statement="A step trains once on what the filters keep, clears what it had, and gives back what it has not.",
    cost="CPU, milliseconds",
)


@flow_law(STEPS, "each row once", "filters that all see the claim, an acknowledgement after the step")
def once(bench: FlowBench) -> None:
    """Kept rows are trained on in one step, by equal shares, and all that was kept or dropped is gone after it."""
    bench.register()
    bench.put(bench.samples)
    size = bench.case.group_size
    seen: list[Sequence[str]] = []
    calls: list[int] = []
    first, second = _of_group([0, 1, 2], calls), _of_group([1, 2, 9], calls)

    def train(ranks: Sequence[Sequence[str]]) -> None:
        seen.extend(ranks)
        taken = sorted(sample for rank in ranks for sample in rank)
        bench.equal(
            sorted(bench.client.acknowledged(PARTITION, "train")), taken, "rows taken when the step begins"
        )
        bench.store.pass_time(10**9)
        bench.equal(list(bench.claim().sample_ids), [], "rows served to others while the step goes on")

    trained, dropped, returned = _step(bench, train, filters=[first, second], ranks=2)
    kept = [sample for sample in bench.samples if sample[1] in "12"]
    bench.equal([sample for rank in seen for sample in rank], kept, "rows of the step, rank by rank")
    bench.equal([len(rank) for rank in seen], [size, size], "rows of the ranks")
    bench.equal((list(trained), list(returned)), (kept, []), "rows trained on, and given back")
    others = [sample for sample in bench.samples if sample[1] not in "012"]
    due = {first.name: others, second.name: bench.samples[:size]}
    bench.equal({name: list(samples) for name, samples in dropped.items()}, due, "rows dropped, by reason")
    bench.equal(calls, [len(bench.samples), 3 * size], "rows that each filter saw")
    bench.equal(bench.client.status(PARTITION).num_rows, 0, "rows left")


@flow_law(STEPS, "uneven rows come back", "a tail that is cleared, or trained on by one rank")
def uneven(bench: FlowBench) -> None:
    """What the ranks cannot share evenly is given back, and served next."""
    bench.register()
    samples = bench.samples[: 2 * (len(bench.samples) // 2) - 1]
    bench.put(samples)
    trained, _, returned = _step(bench, lambda ranks: None, ranks=2)
    bench.equal(
        (list(trained), list(returned)), (samples[:-1], samples[-1:]), "rows trained on, and given back"
    )
    bench.equal(list(bench.claim().sample_ids), samples[-1:], "rows served next")
    bench.equal(bench.client.status(PARTITION).num_rows, 1, "rows left")


@flow_law(STEPS, "too few rows wait", "rows dropped because they are few, a claim that is kept")
def too_few(bench: FlowBench) -> None:
    """Rows that are too few after the filters wait for others, and are trained on with them."""
    bench.register()
    size = bench.case.group_size
    seen: list[Sequence[str]] = []
    bench.put(bench.samples[: 2 * size])
    words = {"filters": [_of_group([1, 2])], "batch_size": 2 * size, "min_kept": 2 * size}
    try:
        _step(bench, seen.extend, **words)
        bench.wrong.append("a step of too few rows was taken")
    except TimeoutError:
        pass
    bench.equal(seen, [], "rows trained on by a step that waits")
    status = bench.client.status(PARTITION)
    bench.equal((status.num_rows, status.num_leased), (size, 0), "rows kept, and leased, while it waits")
    bench.put(bench.samples[2 * size : 3 * size])
    trained, dropped, _ = _step(bench, seen.extend, **words)
    bench.equal(list(trained), bench.samples[size : 3 * size], "rows trained on with others")
    bench.equal(sum(map(len, dropped.values())), 0, "rows dropped by the second step")
    bench.refused(
        "a claim that could never be enough", lambda: _step(bench, seen.extend, batch_size=2, min_kept=3)
    )


@flow_law(STEPS, "several claims make a step", "the last claim's drops told alone")
def several_claims(bench: FlowBench) -> None:
    """A step that claims again tells of all that it dropped, and leaves what it does not need."""
    bench.register()
    bench.put(bench.samples)
    size = bench.case.group_size
    seen: list[Sequence[str]] = []
    trained, dropped, returned = _step(
        bench, seen.extend, filters=[_of_group([2, 3])], batch_size=2 * size, min_kept=2 * size
    )
    bench.equal(sorted(trained), bench.samples[2 * size : 4 * size], "rows trained on")
    bench.equal(seen, [list(trained)], "rows of the step")
    gone = sorted(sample for samples in dropped.values() for sample in samples)
    bench.equal(gone, bench.samples[: 2 * size], "rows dropped by all claims of a step")
    bench.equal(list(returned), [], "rows given back")
    bench.equal(list(bench.claim().sample_ids), bench.samples[4 * size :], "rows left to claim")


@flow_law(STEPS, "errors give back, or do not", "rows that a broken step trained on served again")
def errors(bench: FlowBench) -> None:
    """An error before the step gives all back; one in it gives nothing back, for it may have been trained on."""
    bench.register()
    bench.put(bench.samples)

    def broken(*words: Any, **state: Any) -> Any:
        raise _BrokeError

    broken.name = "broken"  # type: ignore[attr-defined]
    calls: list[Any] = []
    for what, call in {
        "a filter": lambda: _step(bench, calls.append, filters=[broken]),
        "no version": lambda: _step(
            bench, calls.append, filters=[bench.stack.flow_filter("stale", 3)], current_weight_version=None
        ),
        "a field": lambda: bench.stack.flow_step(
            *(bench.client, PARTITION, ["ids", "nothing"]),
            batch_size=8,
            train=calls.append,
            current_weight_version=0,
        ),
    }.items():
        bench.refused(f"a step with an error of {what}", call)
        bench.equal(calls, [], f"steps after an error of {what}")
        bench.equal(bench.client.status(PARTITION).num_leased, 0, f"rows leased after an error of {what}")
    bench.refused("a step that breaks", lambda: _step(bench, broken, batch_size=3))
    bench.equal(
        sorted(bench.client.acknowledged(PARTITION, "train")), sorted(bench.samples[:3]), "rows of the step"
    )
    bench.store.pass_time(10**9)
    bench.equal(list(bench.claim().sample_ids), bench.samples[3:], "rows served after a step that broke")


@flow_law(STEPS, "nothing left, no step", "an empty batch that is trained on")
def nothing_left(bench: FlowBench) -> None:
    """Without a row that is kept there is no step, and what was dropped is gone."""
    bench.register()
    bench.put(bench.samples)
    calls: list[Any] = []
    trained, dropped, _ = _step(bench, calls.append, filters=[_of_group([])])
    bench.equal((calls, list(trained)), ([], []), "steps without rows")
    bench.equal(sum(map(len, dropped.values())), len(bench.samples), "rows dropped")
    bench.equal(bench.client.status(PARTITION).num_rows, 0, "rows left")
    try:
        _step(bench, calls.append)
        bench.wrong.append("a step of nothing at all was taken")
    except TimeoutError:
        pass


@flow_law(STEPS, "late claimers train on nothing", "an acknowledgement that nobody looks at")
def late(bench: FlowBench) -> None:
    """A claimer whose time is over while it reads trains on nothing."""
    bench.register()
    bench.put(bench.samples)

    class Slow:
        name = "slow"

        def __call__(self, meta: Any, **state: Any) -> tuple[Any, Any]:
            bench.store.pass_time(10**9)
            bench.equal(
                len(bench.claim(lease_s=LEASE_S).sample_ids), len(bench.samples), "rows that others get"
            )
            return meta, meta.subset([])

    calls: list[Any] = []
    bench.refused("a step on rows that others have", lambda: _step(bench, calls.append, filters=[Slow()]))
    bench.equal(calls, [], "steps on rows that others have")
