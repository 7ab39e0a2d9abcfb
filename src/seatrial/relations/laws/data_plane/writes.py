"""DP1: a put is atomic, visible at once and read back unchanged. docs/extend/data_plane.md explains the numbers."""

from __future__ import annotations

import threading
from typing import Any

from seatrial.relations.benches.data_plane import Bench, plane_law
from seatrial.relations.law import Relation

DTYPES = ("bfloat16", "float16", "float32", "float64", "int32", "int64", "uint8", "bool")
NUM_UPDATES = 30


WRITES = Relation(
    id="DP1.writes",
    name="puts-are-atomic",
    component="data_plane",
    statement="A put is visible to all clients when it returns, all of it or nothing, and is read back unchanged.",
    cost="CPU, milliseconds; seconds for a store in separate processes",
)


@plane_law(WRITES, "01 visible when put returns", "a put that returns before its data is stored")
def visible_when_put_returns(bench: Bench) -> None:
    other = bench.plane.client()
    for start in range(0, len(bench.samples), 2):
        put = bench.samples[start : start + 2]
        bench.put(put)
        bench.expect_rows(put, "read by another client right after the put", client=other)


def _failed_puts(bench: Bench) -> dict[str, Any]:
    """Return puts of new samples that must fail, each with one error."""
    import torch

    new, ids = ["u7_g0", "u7_g1"], bench.rows(["u7_g0", "u7_g1"])
    put = bench.client.put_samples
    return {
        "fewer rows than samples": lambda: put(new, bench.partition, {"ids": ids[:1]}, [{}, {}]),
        "more rows than samples": lambda: put(new, bench.partition, {"ids": torch.cat([ids, ids])}, [{}, {}]),
        "fewer tags than samples": lambda: put(new, bench.partition, {"ids": ids}, [{}]),
        "more tags than samples": lambda: put(new, bench.partition, {"ids": ids}, [{}, {}, {}]),
    }


@plane_law(WRITES, "02 a failed put leaves nothing", "keys registered before the data is stored")
def failed_put_leaves_nothing(bench: Bench) -> None:
    for what, put in _failed_puts(bench).items():
        bench.refused(what, put)
        bench.refused(f"a read after a put with {what}", lambda: bench.get(["u7_g0"]))
        bench.expect(
            bench.client.check_consumption_status(bench.partition, ["train"]),
            f"{what}: a row is reported as still to be consumed",
        )
        bench.expect(not bench.claim().sample_ids, f"{what}: a row can be claimed")


@plane_law(WRITES, "03 lengths are checked before any effect", "rows written one by one")
def lengths_are_checked_first(bench: Bench) -> None:
    bench.put(bench.samples)
    first = bench.samples[:2]
    changed = bench.rows(first, scale=5)
    put = bench.client.put_samples
    bench.refused("one row too few", lambda: put(first, bench.partition, {"ids": changed[:1]}))
    bench.refused(
        "one tag too few", lambda: put(first, bench.partition, {"ids": changed}, [{"weight_version": -1}])
    )
    bench.expect_rows(first, "after refused puts")
    versions = [dict(tags)["weight_version"] for tags in bench.claim().tags or ()]
    bench.expect(-1 not in versions, "a refused put changed a tag")


@plane_law(WRITES, "04 a sample twice is refused", "the last duplicate wins, or an orphaned row remains")
def duplicate_sample_is_refused(bench: Bench) -> None:
    bench.put(bench.samples)
    twice = [bench.samples[0], bench.samples[0]]
    bench.refused(
        "one sample twice",
        lambda: bench.client.put_samples(twice, bench.partition, {"ids": bench.rows(twice, 5)}),
    )
    bench.expect_rows(bench.samples[:1], "after the refused put")
    bench.client.clear_samples(bench.samples, bench.partition)
    bench.expect(
        bench.client.check_consumption_status(bench.partition, ["train"]),
        "an orphaned row remains after all rows were cleared",
    )


@plane_law(WRITES, "05 overwriting replaces and serves nothing again", "a write that resets the cursor")
def overwriting_replaces(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.claim()
    bench.put(bench.samples, scale=3)
    bench.expect_rows(bench.samples, "after the second put", scale=3)
    bench.expect(not bench.claim().sample_ids, "a claimed row is served again after a field was written")


@plane_law(WRITES, "06 tags merge", "all tags replaced, or dropped by a put without tags")
def tags_merge(bench: Bench) -> None:
    sample = bench.samples[0]
    bench.put([sample], a=1, b=1)
    bench.client.put_samples([sample], bench.partition, tags=[{"b": 2, "c": 2}])
    bench.client.put_samples([sample], bench.partition, {"values": bench.rows([sample])})
    tags = dict((bench.claim().tags or [{}])[0])
    bench.expect({name: tags.get(name) for name in "abc"} == {"a": 1, "b": 2, "c": 2}, f"tags are {tags}")


@plane_law(WRITES, "08 every dtype comes back", "a conversion through NumPy or float32")
def every_dtype_comes_back(bench: Bench) -> None:
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
def field_keeps_one_dtype(bench: Bench) -> None:
    import torch

    bench.client.put_samples(["u0_g0"], bench.partition, {"values": torch.tensor([[1, 2, 3]])})
    fractions = torch.tensor([[0.25, 0.5, 0.75]])
    bench.refused(
        "a float row in a field of integers",
        lambda: bench.client.put_samples(["u0_g1"], bench.partition, {"values": fractions}),
    )


@plane_law(WRITES, "10 jagged rows keep their lengths", "padding, or rows in the order of storage")
def jagged_rows_keep_their_lengths(bench: Bench) -> None:
    import torch

    rows = [torch.arange(1 + (bench.number(sample) * 7) % 5) for sample in bench.samples]
    bench.client.put_samples(bench.samples, bench.partition, {"values": rows})
    asked = bench.samples[::-1]
    back = [torch.as_tensor(row).tolist() for row in bench.get(asked, "values")]
    bench.expect(back == [row.tolist() for row in rows[::-1]], "rows of unequal length came back different")


@plane_law(WRITES, "11 scalar rows stay scalar", "an added dimension")
def scalar_rows_stay_scalar(bench: Bench) -> None:
    import torch

    bench.client.put_samples(bench.samples, bench.partition, {"values": torch.arange(len(bench.samples))})
    back = bench.get(bench.samples, "values")
    bench.expect(
        tuple(back.shape) == (len(bench.samples),) and back.tolist() == list(range(len(bench.samples))),
        f"one number per row came back with shape {tuple(back.shape)} or other values",
    )


@plane_law(WRITES, "12 objects are kept or refused", "a conversion that loses types")
def objects_are_kept_or_refused(bench: Bench) -> None:
    import numpy as np

    given = np.empty(2, dtype=object)
    given[:] = [[{"role": "user", "content": "ü"}], {"n": 1, "x": 0.5, "none": None}]
    try:
        bench.client.put_samples(["u0_g0", "u0_g1"], bench.partition, {"content": given})
    except TypeError:
        return
    back = list(bench.get(["u0_g0", "u0_g1"], "content"))
    bench.expect(back == given.tolist(), f"objects came back as {back!r}")


@plane_law(WRITES, "13 a put without a partition has one outcome", "a misspelled name creates a partition")
def put_without_a_partition(bench: Bench) -> None:
    """A put fails in the same way for a partition that never existed and for one that was cleared."""

    def outcome(partition: str) -> str:
        try:
            bench.client.put_samples(["u0_g0"], partition, {"ids": bench.rows(["u0_g0"])})
        except Exception as error:  # noqa: BLE001  the stack chooses the type of its error
            return type(error).__name__
        return "accepted"

    never = outcome(f"{bench.partition}-never")
    bench.put(["u0_g1"])
    bench.client.clear_samples(None, bench.partition)
    bench.expect(never != "accepted", "a put into an unregistered partition is accepted")
    bench.expect(
        outcome(bench.partition) == never,
        "a put into a cleared partition and one into an unknown partition end differently",
    )
    bench.client.clear_samples(None, f"{bench.partition}-never")


@plane_law(WRITES, "14 field writes do not lose tags", "all tags written back with each put")
def field_writes_do_not_lose_tags(bench: Bench) -> None:
    """While one client writes a field repeatedly, another sets a tag; the tag's last value is kept."""
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
    bench.expect(version == NUM_UPDATES - 1, f"the tag is {version}; it was last set to {NUM_UPDATES - 1}")
