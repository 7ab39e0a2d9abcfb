"""DP6: a control restarted from its journal restores its state."""

from __future__ import annotations

from seatrial.relations.benches.flow import LEASE_S, PARTITION, FlowBench, flow_law
from seatrial.relations.law import Relation


def _restart(bench: FlowBench) -> None:
    bench.store.restart()
    bench.client = bench.store.client()


RESTART = Relation(
    id="DP6.restart",
    name="a-restart-restores-the-state",
    component="rollout_flow",
    statement="A control restored from its journal has the same rows, tags, leases and cursors as before.",
    cost="CPU, milliseconds",
)


@flow_law(RESTART, "rows and settings", "an operation not written to the journal, or not replayed")
def rows_and_settings_are_restored(bench: FlowBench) -> None:
    samples, size = bench.samples, bench.case.group_size
    bench.register(num_samples=len(samples) + 1, grpo_group_size=size, required_tags=("weight_version",))
    bench.put(samples)
    bench.put(samples[1:3], scale=3)
    bench.client.put_samples(samples[:1], PARTITION, None, [{"late": 1}])
    bench.client.clear_samples(samples[3:], PARTITION)
    _restart(bench)
    bench.expect_rows(samples[:1], "after a restart")
    bench.expect_rows(samples[1:3], "written twice, after a restart", scale=3)
    bench.refused(
        "a read of a cleared row", lambda: bench.client.get_samples(samples[3:4], PARTITION, ["ids"])
    )
    bench.put(samples[3:])
    meta = bench.claim()
    bench.equal(sorted(meta.sample_ids), sorted(samples), "rows served in groups after a restart")
    tags = dict(zip(meta.sample_ids, meta.tags or (), strict=True))
    late = {"weight_version": bench.number(samples[0]), "late": 1}
    bench.equal(dict(tags[samples[0]]), late, "tags after a restart")
    bench.refused("a put over capacity", lambda: bench.put(["u90_g0", "u91_g0"]))
    bench.refused(
        "a put without a required tag",
        lambda: bench.client.put_samples(["u90_g0"], PARTITION, {"ids": bench.rows(["u90_g0"])}, [{}]),
    )
    bench.client.clear_samples(None, PARTITION)
    _restart(bench)
    bench.equal(list(bench.client.partitions()), [], "partitions after all rows were cleared")


@flow_law(RESTART, "cursors", "acknowledgements or the serving order lost in a restart")
def cursors_are_restored(bench: FlowBench) -> None:
    """After a restart acknowledged rows stay taken, leases still expire, and released rows are served first."""
    samples = bench.samples
    bench.register()
    bench.put(samples)
    taken, given_back, held = bench.claim(2), bench.claim(2), bench.claim(1)
    bench.client.acknowledge(taken)
    bench.client.release(given_back)
    bench.claim(1, task="score")
    _restart(bench)
    bench.equal(
        sorted(bench.client.acknowledged(PARTITION, "train")),
        sorted(taken.sample_ids),
        "acknowledged rows after a restart",
    )
    bench.expect(
        not bench.client.check_consumption_status(PARTITION, ["train"]),
        "the partition is reported as consumed while rows are left",
    )
    long = 100 * LEASE_S
    served = bench.claim(3, lease_s=long).sample_ids
    bench.equal(list(served), [*given_back.sample_ids, samples[5]], "rows served next")
    bench.equal(list(bench.claim(lease_s=long).sample_ids), samples[6:], "rows never claimed")
    bench.store.pass_time(1.1 * LEASE_S)
    back = list(bench.claim(1).sample_ids)
    bench.equal(back, list(held.sample_ids), "the row leased before the restart, after its lease expired")
    bench.equal(
        list(bench.claim(1, task="score").sample_ids),
        samples[:1],
        "the row leased by another task, after its lease expired",
    )


@flow_law(RESTART, "claims survive a restart", "leases lost in a restart")
def claims_survive_a_restart(bench: FlowBench) -> None:
    """A consumer can acknowledge and release a claim made before the restart."""
    bench.register()
    bench.put(bench.samples)
    meta = bench.claim(3)
    bench.client.clear_samples(meta.sample_ids[2:], PARTITION)
    _restart(bench)
    bench.client.acknowledge(meta.subset([0]))
    bench.client.release(meta.subset([1]))
    bench.equal(list(bench.claim(1).sample_ids), meta.sample_ids[1:2], "the released row")
    bench.equal(
        list(bench.client.acknowledged(PARTITION, "train")), meta.sample_ids[:1], "the acknowledged row"
    )
    bench.equal(bench.client.status(PARTITION).num_rows, len(bench.samples) - 1, "number of rows")


@flow_law(RESTART, "moved rows", "a compaction missing from the journal")
def moved_rows_are_found(bench: FlowBench) -> None:
    """Rows that compaction moved to another block can still be read after a restart."""
    bench.register()
    bench.put(bench.samples)
    living = bench.samples[1::3]
    bench.client.clear_samples([sample for sample in bench.samples if sample not in living], PARTITION)
    held = bench.client.status(PARTITION).bytes_held
    _restart(bench)
    bench.expect_rows(living, "moved to another block, after a restart")
    bench.equal(bench.client.status(PARTITION).bytes_held, held, "bytes held")
    bench.client.clear_samples(living, PARTITION)
    bench.equal(bench.client.status(PARTITION).bytes_held, 0, "bytes held after all rows were cleared")
