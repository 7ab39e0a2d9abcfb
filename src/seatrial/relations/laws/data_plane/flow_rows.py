"""DP8: columns survive a round trip through the store. DP9: filters split a claim into kept and dropped rows."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from seatrial.relations.benches.flow import PARTITION, FlowBench, expect_aligned, flow_law, made_meta
from seatrial.relations.law import Relation


def _batch(bench: FlowBench, samples: Sequence[str]) -> tuple[dict[str, Any], list[int]]:
    """Return a batch whose padding holds values that must not be stored, and the rows' lengths."""
    import torch

    lens = [1 + bench.stream.randrange(6) for _ in samples]
    width = max(lens) + 2
    ids = torch.full((len(samples), width), 999)
    logprobs = torch.full((len(samples), width), math.nan)
    for row, (sample, length) in enumerate(zip(samples, lens, strict=True)):
        ids[row, :length] = 1 + bench.number(sample)
        logprobs[row, :length] = bench.number(sample) + 0.5
    return {"input_ids": ids, "input_lengths": torch.tensor(lens), "prev_logprobs": logprobs}, lens


COLUMNS = Relation(
    id="DP8.columns",
    name="columns-survive-a-round-trip",
    component="rollout_flow",
    statement="A padded batch is stored without padding, read back padded as requested, and sharded batch by batch.",
    cost="CPU, milliseconds",
)
FILTERS = Relation(
    id="DP9.filters",
    name="filters-split-a-claim",
    component="rollout_flow",
    statement="A filter splits a claim exactly, in order and by whole groups, and refuses input it cannot judge.",
    cost="CPU, milliseconds",
)


@flow_law(COLUMNS, "write and read back", "padding taken for tokens, lengths of other rows")
def round_trip(bench: FlowBench) -> None:
    """Stored padding is ignored; rows come back at their own length with the requested padding."""
    samples = bench.samples
    bench.register()
    batch, lens = _batch(bench, samples)
    logprobs = batch.pop("prev_logprobs")
    tags = [{"weight_version": bench.number(sample)} for sample in samples]
    receipt = bench.stack.first_write(bench.client, batch, samples, PARTITION, tags)
    bench.equal(list(receipt.sample_ids), samples, "sample ids of the receipt")
    bench.equal(list(receipt.sequence_lengths), lens, "lengths of the receipt")
    meta = bench.client.claim_meta(PARTITION, "train", ["input_ids"], 4096, blocking=False)
    due = dict(zip(samples, lens, strict=True))
    bench.equal(
        list(meta.sequence_lengths or ()), [due[sample] for sample in meta.sample_ids], "lengths of the claim"
    )
    for own, sample in zip(meta.tags, meta.sample_ids, strict=True):
        bench.equal(dict(own).get("weight_version"), bench.number(sample), "weight_version of a claimed row")
    back = meta.subset(range(len(samples))[::-1])
    bench.stack.write_back(bench.client, receipt, {"prev_logprobs": logprobs})
    fields = ["input_ids", "input_lengths", "prev_logprobs"]
    read = bench.stack.read_back(bench.client, back, fields, {"input_ids": -5})
    bench.equal(read["input_lengths"].tolist(), [due[sample] for sample in back.sample_ids], "lengths")
    for row, sample in enumerate(back.sample_ids):
        length, rest = due[sample], max(lens) - due[sample]
        bench.equal(
            read["input_ids"][row].tolist(), [1 + bench.number(sample)] * length + [-5] * rest, sample
        )
        padded = [bench.number(sample) + 0.5] * length + [0.0] * rest
        bench.equal(read["prev_logprobs"][row].tolist(), padded, f"log-probabilities of {sample}")
    bench.equal(list(bench.claim().sample_ids), [], "rows served again after a column was written")


@flow_law(
    COLUMNS, "rows in any order", "order decided from the first and last row, rows returned in storage order"
)
def any_order(bench: FlowBench) -> None:
    """Row i is sample i for every order of the request, in dense, jagged and object fields, of one put or two."""
    import numpy as np
    import torch

    bench.register()
    samples = bench.samples[:6]
    for part in (samples[:5], samples[5:]):
        objects = np.empty(len(part), dtype=object)
        objects[:] = [{"of": sample} for sample in part]
        jagged = [torch.full((1 + bench.number(sample) % 4,), bench.number(sample)) for sample in part]
        fields = {"ids": bench.rows(part), "values": jagged, "content": objects}
        bench.client.put_samples(part, PARTITION, fields)
    for chosen in (samples[:4], [*samples[:3], samples[5]]):
        for asked in itertools.permutations(chosen):
            found = bench.client.get_samples(list(asked), PARTITION, ["ids", "values", "content"])
            numbers = [bench.number(sample) for sample in asked]
            bench.equal(found["ids"].tolist(), bench.rows(asked).tolist(), f"dense rows of {asked}")
            rows = [row.tolist() for row in found["values"]]
            bench.equal(rows, [[number] * (1 + number % 4) for number in numbers], f"jagged rows of {asked}")
            bench.equal([one["of"] for one in found["content"]], list(asked), f"objects of {asked}")


@flow_law(COLUMNS, "invalid batches are refused", "rows silently truncated")
def invalid_batches_are_refused(bench: FlowBench) -> None:
    samples = bench.samples
    bench.register()
    batch, lens = _batch(bench, samples)
    write = partial(bench.stack.first_write, bench.client)
    short = {**batch, "input_ids": batch["input_ids"][:, : max(lens) - 1]}
    bad = {
        "no rows": lambda: write({name: value[:0] for name, value in batch.items()}, [], PARTITION),
        "no lengths": lambda: write({"input_ids": batch["input_ids"]}, samples, PARTITION),
        "one id too few": lambda: write(batch, samples[1:], PARTITION),
        "one tag too few": lambda: write(batch, samples, PARTITION, [{}] * (len(samples) - 1)),
        "rows longer than their field": lambda: write(short, samples, PARTITION),
    }
    for what, call in bad.items():
        bench.refused(what, call)
    bench.equal(bench.client.status(PARTITION).num_rows, 0, "rows stored by refused batches")


@flow_law(
    COLUMNS, "each rank gets its share of each batch", "whole batches given to one rank, row order lost"
)
def ranks_share_each_batch(bench: FlowBench) -> None:
    """Every rank gets its share of every global batch, in order, with tags and lengths."""
    ranks, batches, share = 2 + bench.case.seed % 2, 3, 2
    samples = [f"u{row}_g0" for row in range(ranks * batches * share)]
    meta = made_meta(bench, samples)
    metas, places = bench.stack.shard_batches(copy.deepcopy(meta), ranks, ranks * share)
    for rank, shard in enumerate(metas):
        due = [
            samples[batch * ranks * share + rank * share + row]
            for batch in range(batches)
            for row in range(share)
        ]
        expect_aligned(bench, shard, due, f"rows of rank {rank}")
    joined = [sample for shard in metas for sample in shard.sample_ids]
    if places is None:
        bench.wrong.append("no places returned, although the shards change the order")
    else:
        bench.equal(
            [joined[place] for place in places], samples, "rows restored to their order by the places"
        )
    whole, places = bench.stack.shard_batches(meta, ranks, None)
    bench.equal(
        [sample for shard in whole for sample in shard.sample_ids],
        samples,
        "shards of a single batch, concatenated",
    )
    bench.expect(
        places is None or list(places) == list(range(len(samples))),
        "places returned for rows that are in order are not the identity",
    )
    for what, words in {
        "a number of rows not divisible by the ranks": (len(samples) - 1 or 1, None),
        "a batch size not divisible by the ranks": (ranks, ranks + 1),
        "0 ranks": (0, None),
    }.items():
        bench.refused(what, partial(bench.stack.shard_batches, meta, *words))
    bench.refused("no rows", partial(bench.stack.shard_batches, meta.slice(0, 0), ranks, None))


def _expect_split(bench: FlowBench, meta: Any, dropped: set[str], halves: tuple[Any, Any], what: str) -> None:
    kept = [sample for sample in meta.sample_ids if sample not in dropped]
    gone = [sample for sample in meta.sample_ids if sample in dropped]
    before = copy.deepcopy([dict(tags) for tags in meta.tags])
    for half, due, name in zip(halves, (kept, gone), ("kept", "dropped"), strict=True):
        expect_aligned(bench, half, due, f"{what}, {name}")
        for tags in half.tags or ():
            tags["weight_version"] = -7
    bench.equal(
        [dict(tags) for tags in meta.tags],
        before,
        f"{what}: tags of the claim after the tags of its halves were modified",
    )


def _rewarded(bench: FlowBench, values: Sequence[Any]) -> Any:
    """Return the case's rows with these rewards; two groups per prompt."""
    groups = [sample.rpartition("_g")[0] for sample in bench.samples]
    prompts = [int(group[1:]) // 2 for group in groups]
    return made_meta(bench).stamp_tags({"group_id": groups, "prompt_id": prompts, "reward": list(values)})


@flow_law(FILTERS, "groups with equal rewards", "neighbours compared instead of groups, a tolerance")
def groups_with_equal_rewards(bench: FlowBench) -> None:
    """A group is dropped if all its rewards are equal, at any value; rows of different groups may be interleaved."""
    size, rewards, dropped = bench.case.group_size, [], set()
    for group in range(bench.case.num_groups):
        flat = group % 3 != 2  # the first two groups share a prompt and have different rewards
        own = [float(group)] * size if flat else [float(group)] * (size - 1) + [group + 1e-9]
        dropped |= {f"u{group}_g{row}" for row in range(size) if flat}
        rewards += own
    meta = _rewarded(bench, rewards)
    mixed = meta.subset(bench.stream.sample(range(meta.size), meta.size))
    _expect_split(
        bench, mixed, dropped, bench.stack.flow_filter("zero variance")(mixed), "groups with equal rewards"
    )
    for bad in (math.nan, math.inf, None, True, "1"):
        invalid = _rewarded(bench, [*rewards[:-1], bad])
        bench.refused(f"a reward of {bad!r}", partial(bench.stack.flow_filter("zero variance"), invalid))
    bench.refused("rows without rewards", partial(bench.stack.flow_filter("zero variance"), made_meta(bench)))


@flow_law(FILTERS, "groups that are too long", "an exclusive bound, a group split")
def groups_that_are_too_long(bench: FlowBench) -> None:
    """A group is dropped if its longest row exceeds the bound; the bound is inclusive."""
    meta = _rewarded(bench, [0.0] * len(bench.samples))
    bound = 3 + bench.number(f"u1_g{bench.case.group_size - 1}")
    dropped = {sample for sample in bench.samples if int(sample[1 : sample.index("_")]) > 1}
    _expect_split(
        bench, meta, dropped, bench.stack.flow_filter("too long", bound)(meta), "groups that are too long"
    )
    inner = bound - 1
    dropped |= {sample for sample in bench.samples if sample.startswith("u1_")}
    _expect_split(
        bench, meta, dropped, bench.stack.flow_filter("too long", inner)(meta), "groups with one long row"
    )
    bare = bench.stack.flow_meta(PARTITION, bench.samples, [{"group_id": 0}] * len(bench.samples), None)
    bench.refused("rows without lengths", partial(bench.stack.flow_filter("too long", 9), bare))


@flow_law(FILTERS, "rows that are too old", "an exclusive window, rows of future versions kept")
def rows_that_are_too_old(bench: FlowBench) -> None:
    meta = made_meta(bench)
    current = max(bench.number(sample) for sample in bench.samples)
    for bound in (0, 100, current):
        dropped = {sample for sample in bench.samples if current - bench.number(sample) > bound}
        judged = bench.stack.flow_filter("stale", bound)(meta, current_weight_version=current)
        _expect_split(bench, meta, dropped, judged, f"a window of {bound}")
    stale = bench.stack.flow_filter("stale", 100)
    bench.refused("rows of a future version", partial(stale, meta, current_weight_version=current - 1))
    for bad in (None, 3.0, True):
        bench.refused(f"a current version of {bad}", partial(stale, meta, current_weight_version=bad))
    bench.refused("a negative window", partial(bench.stack.flow_filter, "stale", -1))
