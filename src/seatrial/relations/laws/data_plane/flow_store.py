"""DP5: a partition serves whole groups, oldest first, and enforces its capacity, tags and leases."""

from __future__ import annotations

from functools import partial
from typing import Any

from seatrial.relations.benches.flow import LEASE_S, PARTITION, FlowBench, flow_law
from seatrial.relations.law import Relation

PARTITIONS = Relation(
    id="DP5.partitions",
    name="partitions-follow-their-registration",
    component="rollout_flow",
    statement="A partition serves whole groups, oldest first, and enforces its capacity, tags and leases.",
    cost="CPU, milliseconds",
)


@flow_law(PARTITIONS, "whole groups", "a group split by the size of a claim, rows of two groups interleaved")
def whole_groups(bench: FlowBench) -> None:
    size, samples = bench.case.group_size, bench.samples
    bench.register(grpo_group_size=size)
    held_back, rest = samples[size - 1], [*samples[: size - 1], *samples[size:]]
    bench.put(rest)
    bench.equal(
        len(bench.claim(size - 1).sample_ids) if size > 1 else 0, 0, "rows of a claim smaller than a group"
    )
    first = bench.claim(2 * size - 1)
    bench.equal(list(first.sample_ids), samples[size : 2 * size], "the first whole group")
    bench.put([held_back])
    due = sorted([*samples[:size], *samples[2 * size :]])
    got = list(bench.claim().sample_ids)
    bench.equal(sorted(got), due, "all whole groups")
    groups = [sample.rpartition("_g")[0] for sample in got]
    bench.equal(groups, sorted(groups, key=groups.index), "order of groups, not interleaved")


@flow_law(PARTITIONS, "oldest rows first", "an unordered set, newest first")
def oldest_rows_first(bench: FlowBench) -> None:
    bench.register()
    samples = bench.stream.sample(bench.samples, len(bench.samples))
    for sample in samples:
        bench.put([sample])
    first = bench.claim(3)
    bench.equal(list(first.sample_ids), samples[:3], "the oldest rows")
    bench.equal(list(bench.claim(1).sample_ids), samples[3:4], "the next row")
    bench.client.release(first)
    bench.equal(list(bench.claim(4).sample_ids), [*samples[:3], samples[4]], "released rows, then the others")
    bench.equal(list(bench.claim(2, task="score").sample_ids), samples[:2], "the oldest rows of another task")


@flow_law(PARTITIONS, "a full partition refuses", "puts counted instead of live rows, a bound off by one")
def full_partition_refuses(bench: FlowBench) -> None:
    samples = bench.samples
    bench.register(num_samples=len(samples) - 1)
    bench.put(samples[:-1])
    bench.refused("a row beyond num_samples", lambda: bench.put(samples[-1:]))
    bench.put(samples[:2], scale=2)
    bench.expect_rows(samples[:2], "an existing row is written again", scale=2)
    bench.equal(bench.client.status(PARTITION).num_rows, len(samples) - 1, "rows after a refused put")
    bench.client.clear_samples(samples[:1], PARTITION)
    bench.put(samples[-1:])
    bench.equal(sorted(bench.claim().sample_ids), sorted(samples[1:]), "rows served after space was freed")
    bench.refused("a put of which only half fits", lambda: bench.put([samples[0], "u90_g0"]))


@flow_law(PARTITIONS, "required and allowed tags", "tags checked after the row is stored")
def required_and_allowed_tags(bench: FlowBench) -> None:
    bench.register(required_tags=("weight_version",), enums={"status": ("done", "cut")})
    one, other = bench.samples[:2]
    rows = {"ids": bench.rows([one])}
    put = bench.client.put_samples
    bench.refused("a new row without a required tag", lambda: put([one], PARTITION, rows, [{}]))
    bench.refused("a new row without tags", lambda: put([one], PARTITION, rows))
    bench.refused("a tag value that is not allowed", lambda: bench.put([one], status="half"))
    bench.equal(bench.client.status(PARTITION).num_rows, 0, "rows after refused puts")
    bench.put([one, other], status="done")
    put([one], PARTITION, {"values": rows["ids"]})
    put([one], PARTITION, None, [{"status": "cut"}])
    tags = [dict(own) for own in bench.claim(1).tags or ()]
    bench.equal(
        tags,
        [{"weight_version": bench.number(one), "status": "cut"}],
        "tags of a row written in several puts",
    )


@flow_law(PARTITIONS, "at least min_batch_size or none", "rows of a claim that is too small leased anyway")
def at_least_min_batch_size_or_none(bench: FlowBench) -> None:
    bench.register()
    bench.put(bench.samples[:2])
    few = bench.claim(8, min_batch_size=3)
    bench.equal(list(few.sample_ids), [], "a claim with min_batch_size 3 and two rows ready")
    bench.equal(bench.client.status(PARTITION).num_leased, 0, "rows leased by an empty claim")
    bench.put(bench.samples[2:4])
    got = list(bench.claim(8, min_batch_size=3).sample_ids)
    bench.equal(got, bench.samples[:4], "a claim with min_batch_size 3 and four rows ready")
    for least in (0, 9):
        bench.refused(
            f"a claim of 8 with min_batch_size {least}", partial(bench.claim, 8, min_batch_size=least)
        )


@flow_law(PARTITIONS, "leases hold and expire", "a renewal counted from the claim, one expiry for all claims")
def leases_hold_and_expire(bench: FlowBench) -> None:
    """A lease lasts exactly its time, a renewal starts at the time of the call, and each claim has its own lease."""
    bench.register()
    bench.put(bench.samples)
    early, other = bench.claim(2), bench.claim(1, lease_s=3 * LEASE_S)
    rest = bench.claim(lease_s=100 * LEASE_S)
    bench.store.pass_time(0.6 * LEASE_S)
    bench.client.renew(early)
    bench.store.pass_time(0.6 * LEASE_S)
    bench.equal(list(bench.claim().sample_ids), [], "rows served although their lease was renewed")
    bench.store.pass_time(0.6 * LEASE_S)
    back = bench.claim()
    bench.equal(list(back.sample_ids), bench.samples[:2], "rows served after their lease expired")
    for what, call in (("renewed", bench.client.renew), ("acknowledged", bench.client.acknowledge)):
        bench.refused(f"an expired lease, {what}", partial(call, early))
    bench.client.acknowledge(other)
    bench.client.acknowledge(rest.subset([0]))
    bench.client.release(rest.subset([1]))
    bench.client.release(early)
    bench.equal(list(bench.claim().sample_ids), rest.sample_ids[1:2], "rows released by part of a claim")
    taken = bench.client.acknowledged(PARTITION, "train")
    bench.equal(sorted(taken), sorted([*other.sample_ids, *rest.sample_ids[:1]]), "acknowledged rows")
    bench.equal(list(bench.client.acknowledged(PARTITION, "score")), [], "rows acknowledged by another task")


@flow_law(PARTITIONS, "claims in parts", "a claim closed by its first partial acknowledgement")
def claims_in_parts(bench: FlowBench) -> None:
    """A claim can be acknowledged and released in parts; released rows are still to be consumed."""
    bench.register()
    bench.put(bench.samples)
    meta = bench.claim()
    for row in (0, 1):
        bench.client.acknowledge(meta.subset([row]))
    bench.client.release(meta.subset([2]))
    drained = bench.client.check_consumption_status(PARTITION, ["train"])
    bench.expect(not drained, "the partition is reported as consumed after a row was released")
    bench.store.pass_time(2 * LEASE_S)
    left = sorted(set(bench.samples) - set(meta.sample_ids[:2]))
    bench.equal(sorted(bench.claim().sample_ids), left, "rows served after a claim was acknowledged in parts")
    taken = bench.client.acknowledged(PARTITION, "train")
    bench.equal(sorted(taken), sorted(meta.sample_ids[:2]), "rows acknowledged in parts")


@flow_law(PARTITIONS, "cleared under a lease", "leases by id that remain after their row is cleared")
def cleared_under_a_lease(bench: FlowBench) -> None:
    bench.register()
    bench.put(bench.samples)
    meta = bench.claim(3)
    bench.client.clear_samples(meta.sample_ids[:1], PARTITION)
    bench.refused("an acknowledgement of a cleared row", lambda: bench.client.acknowledge(meta))
    bench.put(meta.sample_ids[:1], scale=4)
    bench.refused(
        "an acknowledgement of a row cleared and put again under the same id",
        lambda: bench.client.acknowledge(meta),
    )
    bench.client.acknowledge(meta.subset([1, 2]))
    bench.client.acknowledge(meta.subset([1, 2]))
    left = list(bench.claim().sample_ids)
    bench.equal(sorted(left), sorted([*bench.samples[3:], meta.sample_ids[0]]), "rows left to claim")
    bench.equal(bench.client.status(PARTITION).num_leased, len(left), "number of leased rows")


@flow_law(PARTITIONS, "partitions are separate", "rows identified by sample id only")
def partitions_are_separate(bench: FlowBench) -> None:
    """Two partitions can hold different rows under the same id."""
    for partition in (PARTITION, "other"):
        bench.register(partition)
    bench.put(bench.samples)
    bench.put(bench.samples[:3], "other", scale=5)
    bench.expect_rows(bench.samples[:3], "first of two partitions", scale=1)
    bench.expect_rows(bench.samples[:3], "second of two partitions", partition="other", scale=5)
    bench.claim(partition="other")
    bench.client.clear_samples(bench.samples[:2], "other")
    bench.expect_rows(bench.samples, "after a clear in another partition")
    bench.equal(
        len(bench.claim().sample_ids), len(bench.samples), "rows left after a claim in another partition"
    )
    bench.client.clear_samples(None, "other")
    bench.equal(list(bench.client.partitions()), [PARTITION], "partitions")


@flow_law(PARTITIONS, "clears free memory and keep live rows", "compaction that overwrites live rows")
def clears_free_memory_and_keep_live_rows(bench: FlowBench) -> None:
    """While rows are cleared in random order, live rows stay readable; at the end no memory is held."""
    bench.register()
    bench.put(bench.samples)
    bench.put(bench.samples[::2], scale=2)
    scales = {sample: 2 if number % 2 == 0 else 1 for number, sample in enumerate(bench.samples)}
    live = bench.stream.sample(bench.samples, len(bench.samples))
    while live:
        for scale in (1, 2):
            own = [sample for sample in live if scales[sample] == scale]
            if own:
                bench.expect_rows(own, f"with {len(live)} rows left", scale=scale)
        status = bench.client.status(PARTITION)
        bench.equal(status.num_rows, len(live), "live rows")
        bench.expect(status.bytes_live <= status.bytes_held + 1e-6, "bytes_live is larger than bytes_held")
        needed = len(live) * 24
        bench.expect(
            needed <= status.bytes_held <= 2.01 * needed + 48,
            f"{status.bytes_held} bytes held for {needed} bytes of rows",
        )
        bench.client.clear_samples([live.pop()], PARTITION)
    bench.equal(bench.client.status(PARTITION).bytes_held, 0, "bytes held after all rows were cleared")


@flow_law(PARTITIONS, "writes during compaction are kept", "a compaction that overwrites a newer write")
def writes_during_compaction_are_kept(bench: FlowBench) -> None:
    """Writes and clears that happen while rows are moved to another block take effect."""
    bench.register()
    bench.put(bench.samples)
    one, other, *_ = live = bench.samples[:3]

    def meanwhile() -> None:
        crashing = bench.store.dying_client()
        rows = {"ids": bench.rows([one], 3)}
        bench.refused("a put by a client that crashes", lambda: crashing.put_samples([one], PARTITION, rows))
        bench.refused("a clear by a client that crashes", lambda: crashing.clear_samples([other], PARTITION))

    bench.store.before_next_read(meanwhile)
    bench.client.clear_samples(bench.samples[3:], PARTITION)
    bench.expect_rows([one], "written during compaction", scale=3)
    bench.expect_rows(live[2:], "moved by compaction")
    bench.refused("a read of a row cleared during compaction", lambda: bench.expect_rows([other], "cleared"))
    bench.client.clear_samples([one, live[2]], PARTITION)
    bench.equal(bench.client.status(PARTITION).bytes_held, 0, "bytes held after all rows were cleared")


@flow_law(PARTITIONS, "arguments are checked", "a partition that cannot hold or serve a row")
def arguments_are_checked(bench: FlowBench) -> None:
    register = bench.client.register_partition
    bad = {
        "no field": lambda: register("a", (), 8, ("train",)),
        "a field twice": lambda: register("a", ("x", "x"), 8, ("train",)),
        "no capacity": lambda: register("a", ("x",), 0, ("train",)),
        "a group larger than the capacity": lambda: register("a", ("x",), 3, ("train",), grpo_group_size=4),
        "a group size of 0": lambda: register("a", ("x",), 3, ("train",), grpo_group_size=0),
    }
    for what, call in bad.items():
        bench.refused(what, call)
    bench.equal(list(bench.client.partitions()), [], "partitions after refused registrations")
    bench.register(grpo_group_size=2)
    others: list[dict[str, Any]] = [{"grpo_group_size": 3}, {}, {"grpo_group_size": 2, "num_samples": 7}]
    for words in others:
        bench.refused(f"a second registration with {words}", partial(bench.register, **words))
    bench.register(grpo_group_size=2)
