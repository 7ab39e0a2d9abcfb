"""DP1: a put is whole, visible at once, and comes back as it was. Numbers are those of docs/extend/data_plane.md."""

from __future__ import annotations

import threading
from typing import Any

from seatrial.relations.benches.data_plane import Bench, plane_law
from seatrial.relations.law import Relation

DTYPES = ("bfloat16", "float16", "float32", "float64", "int32", "int64", "uint8", "bool")
NUM_UPDATES = 30


WRITES = Relation(
    id="DP1.writes",
    name="puts-are-whole",
    component="data_plane",
    statement="A put is visible to all when it returns, whole or not at all, and comes back as it was given.",
    cost="CPU, milliseconds; with a store in processes of its own, seconds",
)


@plane_law(WRITES, "01 visible when put returns", "a put that returns before its bytes are stored")
def visible(bench: Bench) -> None:
    other = bench.plane.client()
    for start in range(0, len(bench.samples), 2):
        put = bench.samples[start : start + 2]
        bench.put(put)
        bench.expect_rows(put, "another client, right after the put", client=other)


def _failed_puts(bench: Bench) -> dict[str, Any]:
    """Return puts that must fail: each of new samples, one wrong in one thing."""
    import torch

    new, ids = ["u7_g0", "u7_g1"], bench.rows(["u7_g0", "u7_g1"])
    put = bench.client.put_samples
    return {
        "fewer rows than samples": lambda: put(new, bench.partition, {"ids": ids[:1]}, [{}, {}]),
        "more rows than samples": lambda: put(new, bench.partition, {"ids": torch.cat([ids, ids])}, [{}, {}]),
        "fewer tags than samples": lambda: put(new, bench.partition, {"ids": ids}, [{}]),
        "more tags than samples": lambda: put(new, bench.partition, {"ids": ids}, [{}, {}, {}]),
    }


@plane_law(WRITES, "02 a failed put leaves nothing", "keys registered before the store took the bytes")
def nothing_left(bench: Bench) -> None:
    for what, put in _failed_puts(bench).items():
        bench.refused(what, put)
        bench.refused(f"reading after {what}", lambda: bench.get(["u7_g0"]))
        bench.expect(
            bench.client.check_consumption_status(bench.partition, ["train"]),
            f"{what}: a row waits for its consumer",
        )
        bench.expect(not bench.claim().sample_ids, f"{what}: a row can be claimed")


@plane_law(WRITES, "03 lengths are checked before any effect", "rows written one by one")
def lengths_before_effect(bench: Bench) -> None:
    bench.put(bench.samples)
    first = bench.samples[:2]
    changed = bench.rows(first, scale=5)
    put = bench.client.put_samples
    bench.refused("one row too few", lambda: put(first, bench.partition, {"ids": changed[:1]}))
    bench.refused(
        "one tag too few", lambda: put(first, bench.partition, {"ids": changed}, [{"weight_version": -1}])
    )
    bench.expect_rows(first, "after puts that were refused")
    versions = [dict(tags)["weight_version"] for tags in bench.claim().tags or ()]
    bench.expect(-1 not in versions, "a refused put changed a tag")


@plane_law(WRITES, "04 a sample twice is refused", "the last one wins, or an orphan stays")
def duplicates(bench: Bench) -> None:
    bench.put(bench.samples)
    twice = [bench.samples[0], bench.samples[0]]
    bench.refused(
        "one sample twice",
        lambda: bench.client.put_samples(twice, bench.partition, {"ids": bench.rows(twice, 5)}),
    )
    bench.expect_rows(bench.samples[:1], "after the put that was refused")
    bench.client.clear_samples(bench.samples, bench.partition)
    bench.expect(
        bench.client.check_consumption_status(bench.partition, ["train"]),
        "an orphan is left after the clear of all",
    )


@plane_law(WRITES, "05 overwriting replaces and serves nothing again", "a write that resets the cursor")
def overwriting(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.claim()
    bench.put(bench.samples, scale=3)
    bench.expect_rows(bench.samples, "after the second put", scale=3)
    bench.expect(not bench.claim().sample_ids, "a claimed row is served again because a field was written")


@plane_law(WRITES, "06 tags merge", "tags replaced whole, or dropped by a put without tags")
def tags_merge(bench: Bench) -> None:
    sample = bench.samples[0]
    bench.put([sample], a=1, b=1)
    bench.client.put_samples([sample], bench.partition, tags=[{"b": 2, "c": 2}])
    bench.client.put_samples([sample], bench.partition, {"values": bench.rows([sample])})
    tags = dict((bench.claim().tags or [{}])[0])
    bench.expect({name: tags.get(name) for name in "abc"} == {"a": 1, "b": 2, "c": 2}, f"tags are {tags}")


@plane_law(WRITES, "08 every dtype comes back", "a detour over numpy or float32")
def dtypes(bench: Bench) -> None:
    import torch

    for dtype in DTYPES:
        partition = f"{bench.partition}-{dtype}"
        bench.client.register_partition(partition, ["x"], 16, ["train"])
        values = torch.tensor([[0.0, 1.0], [1.0, 1.0]]).to(getattr(torch, dtype))
        bench.client.put_samples(["a", "b"], partition, {"x": values})
        back = torch.stack(list(bench.client.get_samples(["a", "b"], partition, ["x"])["x"]))
        same = back.dtype == values.dtype and torch.equal(back, values)
        bench.expect(same, f"{dtype} came back as {back.dtype} or with other values")
        bench.client.clear_samples(None, partition)


@plane_law(WRITES, "09 a field keeps one dtype", "rows stacked into the dtype of the first")
def one_dtype(bench: Bench) -> None:
    import torch

    bench.client.put_samples(["u0_g0"], bench.partition, {"values": torch.tensor([[1, 2, 3]])})
    fractions = torch.tensor([[0.25, 0.5, 0.75]])
    bench.refused(
        "fractions beside integers in one field",
        lambda: bench.client.put_samples(["u0_g1"], bench.partition, {"values": fractions}),
    )


@plane_law(WRITES, "10 jagged rows keep their lengths", "padding, or rows in the order of storage")
def jagged(bench: Bench) -> None:
    import torch

    rows = [torch.arange(1 + (bench.number(sample) * 7) % 5) for sample in bench.samples]
    bench.client.put_samples(bench.samples, bench.partition, {"values": rows})
    asked = bench.samples[::-1]
    back = [torch.as_tensor(row).tolist() for row in bench.get(asked, "values")]
    bench.expect(back == [row.tolist() for row in rows[::-1]], "rows of unequal length came back otherwise")


@plane_law(WRITES, "11 one number a row stays one", "a dimension added on the way")
def scalars(bench: Bench) -> None:
    import torch

    bench.client.put_samples(bench.samples, bench.partition, {"values": torch.arange(len(bench.samples))})
    back = bench.get(bench.samples, "values")
    bench.expect(
        tuple(back.shape) == (len(bench.samples),) and back.tolist() == list(range(len(bench.samples))),
        f"one number a row came back as {tuple(back.shape)}",
    )


@plane_law(WRITES, "12 objects are kept or refused", "a conversion that loses types")
def objects(bench: Bench) -> None:
    import numpy as np

    given = np.empty(2, dtype=object)
    given[:] = [[{"role": "user", "content": "ü"}], {"n": 1, "x": 0.5, "none": None}]
    try:
        bench.client.put_samples(["u0_g0", "u0_g1"], bench.partition, {"content": given})
    except TypeError:
        return
    back = list(bench.get(["u0_g0", "u0_g1"], "content"))
    bench.expect(back == given.tolist(), f"objects came back as {back!r}")


@plane_law(WRITES, "13 a put without a partition has one outcome", "partitions made by a typing error")
def unregistered(bench: Bench) -> None:
    """A partition that never was and one that was cleared whole are the same to a put."""

    def outcome(partition: str) -> str:
        try:
            bench.client.put_samples(["u0_g0"], partition, {"ids": bench.rows(["u0_g0"])})
        except Exception as error:  # noqa: BLE001  which error it is is the stack's affair
            return type(error).__name__
        return "taken"

    never = outcome(f"{bench.partition}-never")
    bench.put(["u0_g1"])
    bench.client.clear_samples(None, bench.partition)
    bench.expect(never != "taken", "a put to a partition that nobody registered is taken")
    bench.expect(
        outcome(bench.partition) == never, "a cleared partition takes puts that one never registered refuses"
    )
    bench.client.clear_samples(None, f"{bench.partition}-never")


@plane_law(WRITES, "14 no tag is lost to a writer of fields", "all tags sent back with each put")
def no_lost_tag(bench: Bench) -> None:
    """One client writes a field again and again, another one a tag: the tag's last value stands."""
    sample, other = bench.samples[0], bench.plane.client()
    bench.put([sample])

    def write_fields() -> None:
        for scale in range(NUM_UPDATES):
            bench.client.put_samples([sample], bench.partition, {"values": bench.rows([sample], scale)})

    writer = threading.Thread(target=write_fields)
    writer.start()
    for number in range(NUM_UPDATES):
        other.put_samples([sample], bench.partition, tags=[{"weight_version": number}])
    writer.join()
    version = dict((bench.claim().tags or [{}])[0]).get("weight_version")
    bench.expect(version == NUM_UPDATES - 1, f"the tag is {version}, last set to {NUM_UPDATES - 1}")
