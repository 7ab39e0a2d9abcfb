"""DP10: a step of a consumer trains on each row once, or reports why it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from seatrial.relations.benches.flow import LEASE_S, PARTITION, FlowBench, flow_law
from seatrial.relations.law import Relation


class _BrokeError(Exception):
    """Raised by the training function or filter of a law."""


def _step(bench: FlowBench, train: Callable[[Any], None], **words: Any) -> Any:
    chosen = {"batch_size": 4096, "current_weight_version": 10**6, **words}
    return bench.stack.flow_step(bench.client, PARTITION, ["ids"], train=train, **chosen)


def _of_group(numbers: Sequence[int], calls: list[int] | None = None) -> Any:
    """Return a filter that keeps the rows of these groups."""

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
    statement="A step trains once on the rows its filters keep, clears used and dropped rows, and releases the rest.",
    cost="CPU, milliseconds",
)


@flow_law(STEPS, "each row once", "every filter sees the whole claim, rows acknowledged only after the step")
def each_row_once(bench: FlowBench) -> None:
    """Kept rows are trained on in one step, shared equally by the ranks; then kept and dropped rows are cleared."""
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
            sorted(bench.client.acknowledged(PARTITION, "train")),
            taken,
            "rows acknowledged when the step begins",
        )
        bench.store.pass_time(10**9)
        bench.equal(list(bench.claim().sample_ids), [], "rows served to others during the step")

    trained, dropped, returned = _step(bench, train, filters=[first, second], ranks=2)
    kept = [sample for sample in bench.samples if sample[1] in "12"]
    bench.equal([sample for rank in seen for sample in rank], kept, "rows trained on, rank by rank")
    bench.equal([len(rank) for rank in seen], [size, size], "number of rows per rank")
    bench.equal((list(trained), list(returned)), (kept, []), "rows trained on, and released")
    others = [sample for sample in bench.samples if sample[1] not in "012"]
    due = {first.name: others, second.name: bench.samples[:size]}
    bench.equal({name: list(samples) for name, samples in dropped.items()}, due, "rows dropped, by reason")
    bench.equal(calls, [len(bench.samples), 3 * size], "number of rows that each filter received")
    bench.equal(bench.client.status(PARTITION).num_rows, 0, "rows left in the partition")


@flow_law(STEPS, "uneven rows come back", "remaining rows cleared, or trained on by one rank")
def uneven_rows_come_back(bench: FlowBench) -> None:
    """Rows that the ranks cannot share evenly are released and served next."""
    bench.register()
    samples = bench.samples[: 2 * (len(bench.samples) // 2) - 1]
    bench.put(samples)
    trained, _, returned = _step(bench, lambda ranks: None, ranks=2)
    bench.equal(
        (list(trained), list(returned)), (samples[:-1], samples[-1:]), "rows trained on, and released"
    )
    bench.equal(list(bench.claim().sample_ids), samples[-1:], "rows served next")
    bench.equal(bench.client.status(PARTITION).num_rows, 1, "rows left in the partition")


@flow_law(STEPS, "too few rows wait", "too few rows dropped, a claim not released")
def too_few_rows_wait(bench: FlowBench) -> None:
    """If too few rows remain after the filters, they wait and are trained on together with later ones."""
    bench.register()
    size = bench.case.group_size
    seen: list[Sequence[str]] = []
    bench.put(bench.samples[: 2 * size])
    words = {"filters": [_of_group([1, 2])], "batch_size": 2 * size, "min_kept": 2 * size}
    try:
        _step(bench, seen.extend, **words)
        bench.wrong.append("a step trained on too few rows")
    except TimeoutError:
        pass
    bench.equal(seen, [], "rows trained on by a step that has too few rows")
    status = bench.client.status(PARTITION)
    bench.equal(
        (status.num_rows, status.num_leased),
        (size, 0),
        "rows in the partition and rows leased, after a step with too few rows",
    )
    bench.put(bench.samples[2 * size : 3 * size])
    trained, dropped, _ = _step(bench, seen.extend, **words)
    bench.equal(list(trained), bench.samples[size : 3 * size], "rows trained on by the next step")
    bench.equal(sum(map(len, dropped.values())), 0, "rows dropped by the second step")
    bench.refused("batch_size below min_kept", lambda: _step(bench, seen.extend, batch_size=2, min_kept=3))


@flow_law(STEPS, "several claims make a step", "only the last claim's dropped rows reported")
def several_claims_make_a_step(bench: FlowBench) -> None:
    """A step that claims several times reports all dropped rows and leaves the rows it does not need."""
    bench.register()
    bench.put(bench.samples)
    size = bench.case.group_size
    seen: list[Sequence[str]] = []
    trained, dropped, returned = _step(
        bench, seen.extend, filters=[_of_group([2, 3])], batch_size=2 * size, min_kept=2 * size
    )
    bench.equal(sorted(trained), bench.samples[2 * size : 4 * size], "rows trained on")
    bench.equal(seen, [list(trained)], "rows acknowledged by the failed step")
    gone = sorted(sample for samples in dropped.values() for sample in samples)
    bench.equal(gone, bench.samples[: 2 * size], "rows dropped in all claims of the step")
    bench.equal(list(returned), [], "rows released")
    bench.equal(list(bench.claim().sample_ids), bench.samples[4 * size :], "rows left to claim")


@flow_law(STEPS, "errors before training release the rows", "rows of a failed training step served again")
def errors_before_training_release_the_rows(bench: FlowBench) -> None:
    """An error before training releases all rows; one during training releases none: they may have been trained on."""
    bench.register()
    bench.put(bench.samples)

    def broken(*words: Any, **state: Any) -> Any:
        raise _BrokeError

    broken.name = "broken"  # type: ignore[attr-defined]
    calls: list[Any] = []
    for what, call in {
        "a filter that raises": lambda: _step(bench, calls.append, filters=[broken]),
        "no current version": lambda: _step(
            bench, calls.append, filters=[bench.stack.flow_filter("stale", 3)], current_weight_version=None
        ),
        "an unknown field": lambda: bench.stack.flow_step(
            *(bench.client, PARTITION, ["ids", "nothing"]),
            batch_size=8,
            train=calls.append,
            current_weight_version=0,
        ),
    }.items():
        bench.refused(f"a step with {what}", call)
        bench.equal(calls, [], f"training steps run with {what}")
        bench.equal(bench.client.status(PARTITION).num_leased, 0, f"rows leased after a step with {what}")
    bench.refused("a step whose training raises", lambda: _step(bench, broken, batch_size=3))
    bench.equal(
        sorted(bench.client.acknowledged(PARTITION, "train")), sorted(bench.samples[:3]), "rows of the step"
    )
    bench.store.pass_time(10**9)
    bench.equal(list(bench.claim().sample_ids), bench.samples[3:], "rows served after a failed step")


@flow_law(STEPS, "no rows, no step", "training on an empty batch")
def no_rows_no_step(bench: FlowBench) -> None:
    """If the filters keep no row, nothing is trained and the dropped rows are cleared."""
    bench.register()
    bench.put(bench.samples)
    calls: list[Any] = []
    trained, dropped, _ = _step(bench, calls.append, filters=[_of_group([])])
    bench.equal((calls, list(trained)), ([], []), "training steps without rows, and rows trained on")
    bench.equal(sum(map(len, dropped.values())), len(bench.samples), "rows dropped")
    bench.equal(bench.client.status(PARTITION).num_rows, 0, "rows left in the partition")
    try:
        _step(bench, calls.append)
        bench.wrong.append("a step ran on an empty partition")
    except TimeoutError:
        pass


@flow_law(STEPS, "an expired lease trains nothing", "a failed acknowledgement ignored")
def expired_lease_trains_nothing(bench: FlowBench) -> None:
    """If the lease expires while a filter runs, the step does not train."""
    bench.register()
    bench.put(bench.samples)

    class Slow:
        name = "slow"

        def __call__(self, meta: Any, **state: Any) -> tuple[Any, Any]:
            bench.store.pass_time(10**9)
            bench.equal(
                len(bench.claim(lease_s=LEASE_S).sample_ids),
                len(bench.samples),
                "rows claimed by another consumer",
            )
            return meta, meta.subset([])

    calls: list[Any] = []
    bench.refused(
        "a step on rows that another consumer has claimed since",
        lambda: _step(bench, calls.append, filters=[Slow()]),
    )
    bench.equal(calls, [], "training steps on rows of another consumer")
