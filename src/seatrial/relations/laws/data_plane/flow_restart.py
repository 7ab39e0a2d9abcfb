"""DP6: a control that begins again from its journal knows what it knew."""

from __future__ import annotations

from seatrial.relations.benches.flow import LEASE_S, PARTITION, FlowBench, flow_law
from seatrial.relations.law import Relation


def _restarted(bench: FlowBench) -> None:
    bench.store.restart()
    bench.client = bench.store.client()


RESTART = Relation(
    id="DP6.restart",
    name="a-control-that-begins-again-knows",
    component="rollout_flow",
    statement="A control restored from its journal has the rows, tags, leases and cursors that it had.",
    cost="CPU, milliseconds",
)


@flow_law(RESTART, "rows and words", "an operation that is not written, or not played back")
def rows_again(bench: FlowBench) -> None:
    samples, size = bench.samples, bench.case.group_size
    bench.register(num_samples=len(samples) + 1, grpo_group_size=size, required_tags=("weight_version",))
    bench.put(samples)
    bench.put(samples[1:3], scale=3)
    bench.client.put_samples(samples[:1], PARTITION, None, [{"late": 1}])
    bench.client.clear_samples(samples[3:], PARTITION)
    _restarted(bench)
    bench.expect_rows(samples[:1], "of a control that began again")
    bench.expect_rows(samples[1:3], "written twice, of a control that began again", scale=3)
    bench.refused(
        "a row that was cleared", lambda: bench.client.get_samples(samples[3:4], PARTITION, ["ids"])
    )
    bench.put(samples[3:])
    meta = bench.claim()
    bench.equal(sorted(meta.sample_ids), sorted(samples), "rows served in groups")
    tags = dict(zip(meta.sample_ids, meta.tags or (), strict=True))
    late = {"weight_version": bench.number(samples[0]), "late": 1}
    bench.equal(dict(tags[samples[0]]), late, "tags")
    bench.refused("more rows than there is room for", lambda: bench.put(["u90_g0", "u91_g0"]))
    bench.refused(
        "a row without its tag",
        lambda: bench.client.put_samples(["u90_g0"], PARTITION, {"ids": bench.rows(["u90_g0"])}, [{}]),
    )
    bench.client.clear_samples(None, PARTITION)
    _restarted(bench)
    bench.equal(list(bench.client.partitions()), [], "partitions after a clear of the whole")


@flow_law(RESTART, "cursors", "acknowledgements that are forgotten, an order that is lost")
def cursors_again(bench: FlowBench) -> None:
    """What was taken stays taken, what is leased comes back when its time is over, what came back is first."""
    samples = bench.samples
    bench.register()
    bench.put(samples)
    taken, given_back, held = bench.claim(2), bench.claim(2), bench.claim(1)
    bench.client.acknowledge(taken)
    bench.client.release(given_back)
    bench.claim(1, task="score")
    _restarted(bench)
    bench.equal(sorted(bench.client.acknowledged(PARTITION, "train")), sorted(taken.sample_ids), "rows taken")
    bench.expect(
        not bench.client.check_consumption_status(PARTITION, ["train"]), "all is consumed, and is not"
    )
    long = 100 * LEASE_S
    served = bench.claim(3, lease_s=long).sample_ids
    bench.equal(list(served), [*given_back.sample_ids, samples[5]], "rows served next")
    bench.equal(list(bench.claim(lease_s=long).sample_ids), samples[6:], "rows that nobody ever had")
    bench.store.pass_time(1.1 * LEASE_S)
    back = list(bench.claim(1).sample_ids)
    bench.equal(back, list(held.sample_ids), "the row of a claimer of before")
    bench.equal(
        list(bench.claim(1, task="score").sample_ids), samples[:1], "the row of another task's claimer"
    )


@flow_law(RESTART, "claims of before", "leases that nobody has any more")
def acknowledged_after(bench: FlowBench) -> None:
    """A claimer that outlives the control keeps its claim."""
    bench.register()
    bench.put(bench.samples)
    meta = bench.claim(3)
    bench.client.clear_samples(meta.sample_ids[2:], PARTITION)
    _restarted(bench)
    bench.client.acknowledge(meta.subset([0]))
    bench.client.release(meta.subset([1]))
    bench.equal(list(bench.claim(1).sample_ids), meta.sample_ids[1:2], "the row that was given back")
    bench.equal(
        list(bench.client.acknowledged(PARTITION, "train")), meta.sample_ids[:1], "the row that was taken"
    )
    bench.equal(bench.client.status(PARTITION).num_rows, len(bench.samples) - 1, "rows")


@flow_law(RESTART, "moved rows", "a copy that the journal does not tell of")
def moved_again(bench: FlowBench) -> None:
    """Rows that were copied out of a block are found where they lie."""
    bench.register()
    bench.put(bench.samples)
    living = bench.samples[1::3]
    bench.client.clear_samples([sample for sample in bench.samples if sample not in living], PARTITION)
    held = bench.client.status(PARTITION).bytes_held
    _restarted(bench)
    bench.expect_rows(living, "copied out, of a control that began again")
    bench.equal(bench.client.status(PARTITION).bytes_held, held, "bytes held")
    bench.client.clear_samples(living, PARTITION)
    bench.equal(bench.client.status(PARTITION).bytes_held, 0, "bytes held of no rows")
