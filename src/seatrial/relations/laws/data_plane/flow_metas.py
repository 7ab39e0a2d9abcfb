"""DP7: ids, tags and lengths of a meta stay aligned through every transform; metas share no mutable state."""

from __future__ import annotations

import copy
from functools import partial

from seatrial.relations.benches.flow import PARTITION, FlowBench, expect_aligned, flow_law, made_meta
from seatrial.relations.law import Relation

METAS = Relation(
    id="DP7.metas",
    name="metas-stay-aligned",
    component="rollout_flow",
    statement="Ids, tags and lengths of a meta stay aligned through every transform; metas share no mutable state.",
    cost="CPU, milliseconds",
)


@flow_law(METAS, "aligned through transforms", "a list that a transform does not reorder")
def aligned_through_transforms(bench: FlowBench) -> None:
    meta, samples = made_meta(bench), bench.samples
    order = bench.stream.sample(range(len(samples)), len(samples) - 1)
    expect_aligned(bench, meta.subset(order), [samples[row] for row in order], "a subset in another order")
    expect_aligned(bench, meta.slice(1, 3), samples[1:3], "a slice")
    expect_aligned(bench, meta.slice(0, 0), [], "a slice of nothing")
    expect_aligned(bench, meta.drop([0, 2]), [samples[1], *samples[3:]], "all rows except two")
    bench.expect(meta.drop(range(len(samples))) is None, "dropping every row does not return None")
    expect_aligned(
        bench,
        meta.slice(2, 4).concat(meta.slice(0, 1)),
        [*samples[2:4], samples[0]],
        "two concatenated parts",
    )
    expect_aligned(bench, meta.with_fields(["values", "ids"]), samples, "rows with added fields")
    bench.equal(
        list(meta.with_fields(["values", "ids"]).fields), ["ids", "values"], "fields without duplicates"
    )
    expect_aligned(bench, copy.deepcopy(meta), samples, "a deep copy, as made for another process")
    std = [0.5 * row for row in range(len(samples))]
    stamped = meta.stamp_tags({"std": std})
    expect_aligned(bench, stamped, samples, "stamped rows")
    bench.equal([dict(tags).get("std") for tags in stamped.tags], std, "stamped tags")
    again = stamped.stamp_tags({"std": std[::-1]})
    bench.equal([dict(tags).get("std") for tags in again.tags], std[::-1], "tags stamped again")
    untagged = bench.stack.flow_meta(PARTITION, samples[:1], None, None)
    bench.expect(
        meta.concat(untagged).tags is None, "concat with an untagged part kept the tags of the other part"
    )
    bench.equal(
        [dict(tags) for tags in untagged.stamp_tags({"std": [1.0]}).tags],
        [{"std": 1.0}],
        "tags added to an untagged meta",
    )


@flow_law(
    METAS, "invalid arguments are refused", "lists of unequal length accepted, negative indices accepted"
)
def invalid_arguments_are_refused(bench: FlowBench) -> None:
    meta, samples = made_meta(bench), bench.samples
    build = partial(bench.stack.flow_meta, PARTITION, samples)
    bad = {
        "one tag too few": lambda: build([{}] * (len(samples) - 1), None),
        "one length too few": lambda: build(None, [1] * (len(samples) - 1)),
        "an index out of range": lambda: meta.subset([len(samples)]),
        "a negative index": lambda: meta.subset([-1]),
        "concat with another partition": lambda: meta.concat(made_meta(bench, samples[:1], "other")),
        "a column that is too short": lambda: meta.stamp_tags({"std": [1.0]}),
    }
    for what, call in bad.items():
        bench.refused(what, call)


@flow_law(METAS, "nothing is shared", "shallow copies of tags")
def nothing_shared(bench: FlowBench) -> None:
    meta, samples = made_meta(bench), bench.samples
    rows = range(len(samples))
    made = {
        "subset": meta.subset(rows),
        "slice": meta.slice(0, len(samples)),
        "concat": meta.concat(meta),
        "with_fields": meta.with_fields(["values"]),
        "stamp_tags": meta.stamp_tags({"std": [0.0] * len(samples)}),
    }
    for what, other in made.items():
        other.tags[0]["weight_version"] = -1
        other.sample_ids[0] = "another"
        other.sequence_lengths[0] = -1
        other.extra_info["pad"] = what
        if other.fields is not None:
            other.fields.append("more")
        expect_aligned(bench, meta, samples, f"a meta after its {what} was modified")
        bench.equal(
            (dict(meta.extra_info), list(meta.fields)),
            ({}, ["ids"]),
            f"extra_info and fields after its {what} was modified",
        )
    tags = [{"weight_version": 1}]
    own = bench.stack.flow_meta(PARTITION, samples[:1], tags, None)
    tags[0]["weight_version"] = 2
    bench.equal(dict(own.tags[0]), {"weight_version": 1}, "tags after the caller modified its list")
