"""DP8: columns go in and out whole. DP9: filters part a claim in two."""

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
    """Return a padded batch, with other numbers in the padding, and the rows' lengths."""
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
    name="columns-go-in-and-out-whole",
    component="rollout_flow",
    statement="A padded batch is cut to its rows' lengths, comes back padded as asked, and is shared by batches.",
    cost="CPU, milliseconds",
)
FILTERS = Relation(
    id="DP9.filters",
    name="filters-part-a-claim",
    component="rollout_flow",
    statement="A filter parts a claim exactly, in its order, by whole groups, and refuses what it cannot judge.",
    cost="CPU, milliseconds",
)


@flow_law(COLUMNS, "there and back", "padding taken for tokens, lengths of other rows")
def round_trip(bench: FlowBench) -> None:
    """Rows come back cut to their length, whatever lay in the padding, and padded as asked."""
    samples = bench.samples
    bench.register()
    batch, lens = _batch(bench, samples)
    logprobs = batch.pop("prev_logprobs")
    tags = [{"weight_version": bench.number(sample)} for sample in samples]
    receipt = bench.stack.first_write(bench.client, batch, samples, PARTITION, tags)
    bench.equal(list(receipt.sample_ids), samples, "the receipt's rows")
    bench.equal(list(receipt.sequence_lengths), lens, "the receipt's lengths")
    meta = bench.client.claim_meta(PARTITION, "train", ["input_ids"], 4096, blocking=False)
    due = dict(zip(samples, lens, strict=True))
    bench.equal(
        list(meta.sequence_lengths or ()), [due[sample] for sample in meta.sample_ids], "claimed lengths"
    )
    for own, sample in zip(meta.tags, meta.sample_ids, strict=True):
        bench.equal(dict(own).get("weight_version"), bench.number(sample), "a claimed version")
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


@flow_law(COLUMNS, "rows in any order", "an order judged by its ends, rows as they lie")
def any_order(bench: FlowBench) -> None:
    """Whatever order rows of one put, or of two, are asked for in: row i is sample i, dense, jagged or an object."""
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


@flow_law(COLUMNS, "batches that do not fit are refused", "rows cut short in silence")
def bad_batches(bench: FlowBench) -> None:
    samples = bench.samples
    bench.register()
    batch, lens = _batch(bench, samples)
    write = partial(bench.stack.first_write, bench.client)
    short = {**batch, "input_ids": batch["input_ids"][:, : max(lens) - 1]}
    bad = {
        "no rows": lambda: write({name: value[:0] for name, value in batch.items()}, [], PARTITION),
        "no lengths": lambda: write({"input_ids": batch["input_ids"]}, samples, PARTITION),
        "an id too few": lambda: write(batch, samples[1:], PARTITION),
        "a tag too few": lambda: write(batch, samples, PARTITION, [{}] * (len(samples) - 1)),
        "rows longer than their field": lambda: write(short, samples, PARTITION),
    }
    for what, call in bad.items():
        bench.refused(what, call)
    bench.equal(bench.client.status(PARTITION).num_rows, 0, "rows of batches that were refused")


@flow_law(COLUMNS, "each rank its share of each batch", "ranks that get whole batches, an order lost")
def shares(bench: FlowBench) -> None:
    """Every rank has its share of every global batch, in order, with tags and lengths."""
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
        bench.wrong.append("no places, and the shards are in another order")
    else:
        bench.equal([joined[place] for place in places], samples, "rows put back in order")
    whole, places = bench.stack.shard_batches(meta, ranks, None)
    bench.equal(
        [sample for shard in whole for sample in shard.sample_ids], samples, "one batch, laid end to end"
    )
    bench.expect(
        places is None or list(places) == list(range(len(samples))), "places of rows that are in order"
    )
    for what, words in {
        "rows that do not divide": (len(samples) - 1 or 1, None),
        "batches that do not divide": (ranks, ranks + 1),
        "no ranks": (0, None),
    }.items():
        bench.refused(what, partial(bench.stack.shard_batches, meta, *words))
    bench.refused("no rows", partial(bench.stack.shard_batches, meta.slice(0, 0), ranks, None))


def _halves(bench: FlowBench, meta: Any, dropped: set[str], halves: tuple[Any, Any], what: str) -> None:
    kept = [sample for sample in meta.sample_ids if sample not in dropped]
    gone = [sample for sample in meta.sample_ids if sample in dropped]
    before = copy.deepcopy([dict(tags) for tags in meta.tags])
    for half, due, name in zip(halves, (kept, gone), ("kept", "dropped"), strict=True):
        expect_aligned(bench, half, due, f"{what}, {name}")
        for tags in half.tags or ():
            tags["weight_version"] = -7
    bench.equal(
        [dict(tags) for tags in meta.tags], before, f"{what}: tags of the claim after its halves changed"
    )


def _rewarded(bench: FlowBench, values: Sequence[Any]) -> Any:
    """Return the case's rows with these rewards; two groups of each prompt."""
    groups = [sample.rpartition("_g")[0] for sample in bench.samples]
    prompts = [int(group[1:]) // 2 for group in groups]
    return made_meta(bench).stamp_tags({"group_id": groups, "prompt_id": prompts, "reward": list(values)})


@flow_law(FILTERS, "groups without spread", "neighbours compared in place of groups, a tolerance")
def no_spread(bench: FlowBench) -> None:
    """A group is dropped where its rewards are all one number, whatever that is; rows of groups may be mixed."""
    size, rewards, dropped = bench.case.group_size, [], set()
    for group in range(bench.case.num_groups):
        flat = group % 3 != 2  # the first two are of one prompt, and each of another reward
        own = [float(group)] * size if flat else [float(group)] * (size - 1) + [group + 1e-9]
        dropped |= {f"u{group}_g{row}" for row in range(size) if flat}
        rewards += own
    meta = _rewarded(bench, rewards)
    mixed = meta.subset(bench.stream.sample(range(meta.size), meta.size))
    _halves(bench, mixed, dropped, bench.stack.flow_filter("zero variance")(mixed), "groups without spread")
    for bad in (math.nan, math.inf, None, True, "1"):
        spoilt = _rewarded(bench, [*rewards[:-1], bad])
        bench.refused(f"a reward of {bad!r}", partial(bench.stack.flow_filter("zero variance"), spoilt))
    bench.refused("no rewards", partial(bench.stack.flow_filter("zero variance"), made_meta(bench)))


@flow_law(FILTERS, "groups that are too long", "an exclusive bound, a group cut apart")
def too_long(bench: FlowBench) -> None:
    """A group goes with its longest row; a row as long as the bound stays."""
    meta = _rewarded(bench, [0.0] * len(bench.samples))
    bound = 3 + bench.number(f"u1_g{bench.case.group_size - 1}")
    dropped = {sample for sample in bench.samples if int(sample[1 : sample.index("_")]) > 1}
    _halves(
        bench, meta, dropped, bench.stack.flow_filter("too long", bound)(meta), "groups that are too long"
    )
    inner = bound - 1
    dropped |= {sample for sample in bench.samples if sample.startswith("u1_")}
    _halves(
        bench, meta, dropped, bench.stack.flow_filter("too long", inner)(meta), "groups with one long row"
    )
    bare = bench.stack.flow_meta(PARTITION, bench.samples, [{"group_id": 0}] * len(bench.samples), None)
    bench.refused("rows without lengths", partial(bench.stack.flow_filter("too long", 9), bare))


@flow_law(FILTERS, "rows that are too old", "an exclusive window, versions of the future kept")
def too_old(bench: FlowBench) -> None:
    meta = made_meta(bench)
    current = max(bench.number(sample) for sample in bench.samples)
    for bound in (0, 100, current):
        dropped = {sample for sample in bench.samples if current - bench.number(sample) > bound}
        judged = bench.stack.flow_filter("stale", bound)(meta, current_weight_version=current)
        _halves(bench, meta, dropped, judged, f"a window of {bound}")
    stale = bench.stack.flow_filter("stale", 100)
    bench.refused("versions yet to come", partial(stale, meta, current_weight_version=current - 1))
    for bad in (None, 3.0, True):
        bench.refused(f"a current version of {bad}", partial(stale, meta, current_weight_version=bad))
    bench.refused("a negative window", partial(bench.stack.flow_filter, "stale", -1))
