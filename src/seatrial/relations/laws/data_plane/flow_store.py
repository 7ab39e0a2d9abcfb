"""DP5: a partition serves what it was registered for: whole groups, the oldest first, within room, tags and leases."""

from __future__ import annotations

from functools import partial
from typing import Any

from seatrial.relations.benches.flow import LEASE_S, PARTITION, FlowBench, flow_law
from seatrial.relations.law import Relation

PARTITIONS = Relation(
    id="DP5.partitions",
    name="partitions-keep-their-words",
    component="rollout_flow",
    statement="A partition serves whole groups, the oldest first, within its room, its tags and its leases.",
    cost="CPU, milliseconds",
)


@flow_law(PARTITIONS, "whole groups", "a group cut by the size of a claim, rows of two groups mixed")
def whole_groups(bench: FlowBench) -> None:
    size, samples = bench.case.group_size, bench.samples
    bench.register(grpo_group_size=size)
    held_back, rest = samples[size - 1], [*samples[: size - 1], *samples[size:]]
    bench.put(rest)
    bench.equal(
        len(bench.claim(size - 1).sample_ids) if size > 1 else 0, 0, "rows of a claim that no group fits"
    )
    first = bench.claim(2 * size - 1)
    bench.equal(list(first.sample_ids), samples[size : 2 * size], "the first whole group")
    bench.put([held_back])
    due = sorted([*samples[:size], *samples[2 * size :]])
    got = list(bench.claim().sample_ids)
    bench.equal(sorted(got), due, "all whole groups")
    groups = [sample.rpartition("_g")[0] for sample in got]
    bench.equal(groups, sorted(groups, key=groups.index), "rows of groups one after the other")


@flow_law(PARTITIONS, "the oldest first", "a set in place of an order, the newest first")
def oldest_first(bench: FlowBench) -> None:
    bench.register()
    samples = bench.stream.sample(bench.samples, len(bench.samples))
    for sample in samples:
        bench.put([sample])
    first = bench.claim(3)
    bench.equal(list(first.sample_ids), samples[:3], "the oldest rows")
    bench.equal(list(bench.claim(1).sample_ids), samples[3:4], "the next row")
    bench.client.release(first)
    bench.equal(
        list(bench.claim(4).sample_ids), [*samples[:3], samples[4]], "what was given back, then the others"
    )
    bench.equal(list(bench.claim(2, task="score").sample_ids), samples[:2], "the oldest rows of another task")


@flow_law(PARTITIONS, "a full partition refuses", "a bound that counts puts, or is one too many")
def full(bench: FlowBench) -> None:
    samples = bench.samples
    bench.register(num_samples=len(samples) - 1)
    bench.put(samples[:-1])
    bench.refused("one row more than the partition is for", lambda: bench.put(samples[-1:]))
    bench.put(samples[:2], scale=2)
    bench.expect_rows(samples[:2], "a row that is there is written again", scale=2)
    bench.equal(
        bench.client.status(PARTITION).num_rows, len(samples) - 1, "rows after a put that was refused"
    )
    bench.client.clear_samples(samples[:1], PARTITION)
    bench.put(samples[-1:])
    bench.equal(sorted(bench.claim().sample_ids), sorted(samples[1:]), "rows after there was room")
    bench.refused("rows half of which have no room", lambda: bench.put([samples[0], "u90_g0"]))


@flow_law(PARTITIONS, "tags that must be, and may be", "tags checked after the row is there")
def tags_that_must_be(bench: FlowBench) -> None:
    bench.register(required_tags=("weight_version",), enums={"status": ("done", "cut")})
    one, other = bench.samples[:2]
    rows = {"ids": bench.rows([one])}
    put = bench.client.put_samples
    bench.refused("a new row without a tag that is required", lambda: put([one], PARTITION, rows, [{}]))
    bench.refused("a new row without tags", lambda: put([one], PARTITION, rows))
    bench.refused("a value that a tag may not have", lambda: bench.put([one], status="half"))
    bench.equal(bench.client.status(PARTITION).num_rows, 0, "rows after puts that were refused")
    bench.put([one, other], status="done")
    put([one], PARTITION, {"values": rows["ids"]})
    put([one], PARTITION, None, [{"status": "cut"}])
    tags = [dict(own) for own in bench.claim(1).tags or ()]
    bench.equal(
        tags, [{"weight_version": bench.number(one), "status": "cut"}], "tags of a row written in parts"
    )


@flow_law(PARTITIONS, "as many as asked for, or none", "a claim of too few that is leased all the same")
def fewest(bench: FlowBench) -> None:
    bench.register()
    bench.put(bench.samples[:2])
    few = bench.claim(8, min_batch_size=3)
    bench.equal(list(few.sample_ids), [], "a claim of three at least, where two are ready")
    bench.equal(bench.client.status(PARTITION).num_leased, 0, "rows leased by a claim of nothing")
    bench.put(bench.samples[2:4])
    got = list(bench.claim(8, min_batch_size=3).sample_ids)
    bench.equal(got, bench.samples[:4], "a claim of three at least, where four are ready")
    for least in (0, 9):
        bench.refused(f"a claim of {least} to 8", partial(bench.claim, 8, min_batch_size=least))


@flow_law(PARTITIONS, "leases hold and end", "a renewal that counts from the claim, a claim's end for all")
def leases(bench: FlowBench) -> None:
    """Held until it is over and not longer; renewed from the time of asking; each claim has its own."""
    bench.register()
    bench.put(bench.samples)
    early, other = bench.claim(2), bench.claim(1, lease_s=3 * LEASE_S)
    rest = bench.claim(lease_s=100 * LEASE_S)
    bench.store.pass_time(0.6 * LEASE_S)
    bench.client.renew(early)
    bench.store.pass_time(0.6 * LEASE_S)
    bench.equal(list(bench.claim().sample_ids), [], "rows served though their lease was renewed")
    bench.store.pass_time(0.6 * LEASE_S)
    back = bench.claim()
    bench.equal(list(back.sample_ids), bench.samples[:2], "rows that come back when their lease is over")
    for what, call in (("renewed", bench.client.renew), ("acknowledged", bench.client.acknowledge)):
        bench.refused(f"a lease that is over, {what}", partial(call, early))
    bench.client.acknowledge(other)
    bench.client.acknowledge(rest.subset([0]))
    bench.client.release(rest.subset([1]))
    bench.client.release(early)
    bench.equal(list(bench.claim().sample_ids), rest.sample_ids[1:2], "what a part of a claim gave back")
    taken = bench.client.acknowledged(PARTITION, "train")
    bench.equal(
        sorted(taken), sorted([*other.sample_ids, *rest.sample_ids[:1]]), "rows that were taken for good"
    )
    bench.equal(list(bench.client.acknowledged(PARTITION, "score")), [], "rows that another task took")


@flow_law(PARTITIONS, "claims in parts", "a claim that ends with its first part")
def in_parts(bench: FlowBench) -> None:
    """A claim may be taken and given back in parts; what was given back is still to be consumed."""
    bench.register()
    bench.put(bench.samples)
    meta = bench.claim()
    for row in (0, 1):
        bench.client.acknowledge(meta.subset([row]))
    bench.client.release(meta.subset([2]))
    drained = bench.client.check_consumption_status(PARTITION, ["train"])
    bench.expect(not drained, "a row was given back, and all is consumed")
    bench.store.pass_time(2 * LEASE_S)
    left = sorted(set(bench.samples) - set(meta.sample_ids[:2]))
    bench.equal(sorted(bench.claim().sample_ids), left, "rows served after a claim was taken in parts")
    taken = bench.client.acknowledged(PARTITION, "train")
    bench.equal(sorted(taken), sorted(meta.sample_ids[:2]), "rows taken in parts")


@flow_law(PARTITIONS, "cleared under a lease", "leases by id that outlive their row")
def cleared_under_a_lease(bench: FlowBench) -> None:
    bench.register()
    bench.put(bench.samples)
    meta = bench.claim(3)
    bench.client.clear_samples(meta.sample_ids[:1], PARTITION)
    bench.refused("an acknowledgement of a row that was cleared", lambda: bench.client.acknowledge(meta))
    bench.put(meta.sample_ids[:1], scale=4)
    bench.refused("one of a row that came anew under its id", lambda: bench.client.acknowledge(meta))
    bench.client.acknowledge(meta.subset([1, 2]))
    bench.client.acknowledge(meta.subset([1, 2]))
    left = list(bench.claim().sample_ids)
    bench.equal(sorted(left), sorted([*bench.samples[3:], meta.sample_ids[0]]), "rows that are left to claim")
    bench.equal(bench.client.status(PARTITION).num_leased, len(left), "rows under a lease")


@flow_law(PARTITIONS, "partitions are apart", "rows known by their id alone")
def apart(bench: FlowBench) -> None:
    """Two partitions hold rows of one name, and each its own."""
    for partition in (PARTITION, "other"):
        bench.register(partition)
    bench.put(bench.samples)
    bench.put(bench.samples[:3], "other", scale=5)
    bench.expect_rows(bench.samples[:3], "of two partitions", scale=1)
    bench.expect_rows(bench.samples[:3], "of two partitions", partition="other", scale=5)
    bench.claim(partition="other")
    bench.client.clear_samples(bench.samples[:2], "other")
    bench.expect_rows(bench.samples, "after a clear in another partition")
    bench.equal(
        len(bench.claim().sample_ids), len(bench.samples), "rows left after a claim in another partition"
    )
    bench.client.clear_samples(None, "other")
    bench.equal(list(bench.client.partitions()), [PARTITION], "partitions")


@flow_law(PARTITIONS, "living rows stay, and bytes go", "rows copied out of a block into each other's places")
def freed(bench: FlowBench) -> None:
    """Rows are cleared in any order: the living stay readable, and at last nothing is held."""
    bench.register()
    bench.put(bench.samples)
    bench.put(bench.samples[::2], scale=2)
    scales = {sample: 2 if number % 2 == 0 else 1 for number, sample in enumerate(bench.samples)}
    living = bench.stream.sample(bench.samples, len(bench.samples))
    while living:
        for scale in (1, 2):
            own = [sample for sample in living if scales[sample] == scale]
            if own:
                bench.expect_rows(own, f"with {len(living)} rows alive", scale=scale)
        status = bench.client.status(PARTITION)
        bench.equal(status.num_rows, len(living), "rows alive")
        bench.expect(status.bytes_live <= status.bytes_held + 1e-6, "more bytes alive than are held")
        needed = len(living) * 24
        bench.expect(
            needed <= status.bytes_held <= 2.01 * needed + 48, f"{status.bytes_held} bytes for {needed}"
        )
        bench.client.clear_samples([living.pop()], PARTITION)
    bench.equal(bench.client.status(PARTITION).bytes_held, 0, "bytes held of no rows")


@flow_law(PARTITIONS, "what is written meanwhile stands", "a copy that comes after a write, and over it")
def written_meanwhile(bench: FlowBench) -> None:
    """What is written, or cleared, while living rows are copied out of a block stands."""
    bench.register()
    bench.put(bench.samples)
    one, other, *_ = living = bench.samples[:3]

    def meanwhile() -> None:
        dying = bench.store.dying_client()
        rows = {"ids": bench.rows([one], 3)}
        bench.refused("a put of one that dies", lambda: dying.put_samples([one], PARTITION, rows))
        bench.refused("a clear of one that dies", lambda: dying.clear_samples([other], PARTITION))

    bench.store.before_next_read(meanwhile)
    bench.client.clear_samples(bench.samples[3:], PARTITION)
    bench.expect_rows([one], "written while it was copied out", scale=3)
    bench.expect_rows(living[2:], "copied out")
    bench.refused("a row cleared while it was copied out", lambda: bench.expect_rows([other], "cleared"))
    bench.client.clear_samples([one, living[2]], PARTITION)
    bench.equal(bench.client.status(PARTITION).bytes_held, 0, "bytes held of no rows")


@flow_law(PARTITIONS, "words are checked", "a partition that could hold or serve nothing")
def words_are_checked(bench: FlowBench) -> None:
    register = bench.client.register_partition
    bad = {
        "no field": lambda: register("a", (), 8, ("train",)),
        "a field twice": lambda: register("a", ("x", "x"), 8, ("train",)),
        "no room": lambda: register("a", ("x",), 0, ("train",)),
        "a group larger than the room": lambda: register("a", ("x",), 3, ("train",), grpo_group_size=4),
        "a group of none": lambda: register("a", ("x",), 3, ("train",), grpo_group_size=0),
    }
    for what, call in bad.items():
        bench.refused(what, call)
    bench.equal(list(bench.client.partitions()), [], "partitions after refusals")
    bench.register(grpo_group_size=2)
    others: list[dict[str, Any]] = [{"grpo_group_size": 3}, {}, {"grpo_group_size": 2, "num_samples": 7}]
    for words in others:
        bench.refused(f"registered again with {words}", partial(bench.register, **words))
    bench.register(grpo_group_size=2)
