"""DP7: metas stay aligned through every transform, and share nothing."""

from __future__ import annotations

import copy
from functools import partial

from seatrial.relations.benches.flow import PARTITION, FlowBench, expect_aligned, flow_law, made_meta
from seatrial.relations.law import Relation

METAS = Relation(
    id="DP7.metas",
    name="metas-stay-aligned",
    component="rollout_flow",
    statement="Ids, tags and lengths of a meta stay aligned through every transform, and nothing is shared.",
    cost="CPU, milliseconds",
)


@flow_law(METAS, "aligned through transforms", "a list that a transform forgot")
def transforms(bench: FlowBench) -> None:
    meta, samples = made_meta(bench), bench.samples
    order = bench.stream.sample(range(len(samples)), len(samples) - 1)
    expect_aligned(bench, meta.subset(order), [samples[row] for row in order], "a subset in another order")
    expect_aligned(bench, meta.slice(1, 3), samples[1:3], "a slice")
    expect_aligned(bench, meta.slice(0, 0), [], "a slice of nothing")
    expect_aligned(bench, meta.drop([0, 2]), [samples[1], *samples[3:]], "the rows but two")
    bench.expect(meta.drop(range(len(samples))) is None, "nothing is left, and it is not None")
    expect_aligned(bench, meta.slice(2, 4).concat(meta.slice(0, 1)), [*samples[2:4], samples[0]], "two parts")
    expect_aligned(bench, meta.with_fields(["values", "ids"]), samples, "rows with more fields")
    bench.equal(list(meta.with_fields(["values", "ids"]).fields), ["ids", "values"], "fields, each once")
    expect_aligned(bench, copy.deepcopy(meta), samples, "a copy, made as one for another process is")
    std = [0.5 * row for row in range(len(samples))]
    stamped = meta.stamp_tags({"std": std})
    expect_aligned(bench, stamped, samples, "stamped rows")
    bench.equal([dict(tags).get("std") for tags in stamped.tags], std, "stamped tags")
    again = stamped.stamp_tags({"std": std[::-1]})
    bench.equal([dict(tags).get("std") for tags in again.tags], std[::-1], "tags stamped again")
    untagged = bench.stack.flow_meta(PARTITION, samples[:1], None, None)
    bench.expect(meta.concat(untagged).tags is None, "tags of a part alone stand for the whole")
    bench.equal(
        [dict(tags) for tags in untagged.stamp_tags({"std": [1.0]}).tags], [{"std": 1.0}], "first tags"
    )


@flow_law(METAS, "what does not fit is refused", "lists of unequal length, rows counted from the end")
def refusals(bench: FlowBench) -> None:
    meta, samples = made_meta(bench), bench.samples
    build = partial(bench.stack.flow_meta, PARTITION, samples)
    bad = {
        "a tag too few": lambda: build([{}] * (len(samples) - 1), None),
        "a length too few": lambda: build(None, [1] * (len(samples) - 1)),
        "a row that is not there": lambda: meta.subset([len(samples)]),
        "a row counted from the end": lambda: meta.subset([-1]),
        "a part of another partition": lambda: meta.concat(made_meta(bench, samples[:1], "other")),
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
        expect_aligned(bench, meta, samples, f"a meta after a change to its {what}")
        bench.equal((dict(meta.extra_info), list(meta.fields)), ({}, ["ids"]), f"the rest of it after {what}")
    tags = [{"weight_version": 1}]
    own = bench.stack.flow_meta(PARTITION, samples[:1], tags, None)
    tags[0]["weight_version"] = 2
    bench.equal(dict(own.tags[0]), {"weight_version": 1}, "tags after their giver changed them")
