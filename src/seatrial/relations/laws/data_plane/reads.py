"""DP3: a read is of the rows asked for, all of them, or an error. DP4: what was cleared is gone, and only that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from seatrial.relations.benches.data_plane import WAIT_S, Bench, breaking_law, plane_law
from seatrial.relations.law import Relation

HEAVY_ROWS, HEAVY_WIDTH = 128, 16_384
"""16 MiB of int64: a store's memory is measured as its process has it."""


READS = Relation(
    id="DP3.reads",
    name="reads-are-whole",
    component="data_plane",
    statement="A read brings every row and field asked for, in order, or says what is missing.",
    cost="CPU, milliseconds",
)
LIFECYCLE = Relation(
    id="DP4.lifecycle",
    name="clears-free-and-nothing-leaks",
    component="data_plane",
    statement="What is consumed is told truly, what is cleared is freed, and a part that dies is reported in time.",
    cost="CPU, milliseconds; with a store in processes of its own, a minute",
)


@plane_law(READS, "26 an unknown sample is an error", "missing rows are left out of the answer")
def unknown(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.refused("a sample that never was", lambda: bench.get(["u8_g0"]))
    bench.refused("one beside samples that are there", lambda: bench.get([*bench.samples[:2], "u8_g0"]))
    bench.client.clear_samples(bench.samples[1:2], bench.partition)
    bench.refused("a cleared one beside others", lambda: bench.get(bench.samples[:3]))


@plane_law(READS, "27 an unproduced field is an error", "missing columns are left out of the answer")
def unproduced(bench: Bench) -> None:
    bench.put(bench.samples)
    some, read = bench.samples[:2], bench.client.get_samples
    bench.refused("a field that nobody wrote", lambda: read(some, bench.partition, ["values"]))
    bench.refused("one beside a field that is there", lambda: read(some, bench.partition, ["ids", "values"]))
    bench.client.put_samples(some[:1], bench.partition, {"values": bench.rows(some[:1])})
    bench.refused("a field that some samples have", lambda: read(some, bench.partition, ["values"]))


@plane_law(READS, "28 reads move no cursor", "a read that counts as a claim")
def reads_move_nothing(bench: Bench) -> None:
    bench.put(bench.samples)
    meta = bench.claim(2)
    fields = bench.client.get_data(meta)
    bench.expect(len(fields["ids"]) == 2, "the fields of the claim are not those read")
    bench.refused("no field at all", lambda: bench.client.get_data(meta, []))
    bench.get(bench.samples)
    left = bench.claim().sample_ids
    bench.expect(len(left) == len(bench.samples) - 2, f"after reads {len(left)} rows are left to claim")


@plane_law(READS, "29 row i is sample i", "rows in the order of storage")
def in_order(bench: Bench) -> None:
    for start in range(0, len(bench.samples), 3):
        bench.put(bench.samples[start : start + 3])
    bench.expect_rows(bench.samples[::-1], "in the opposite order")
    mixed = bench.samples[1::2] + bench.samples[::2]
    bench.expect_rows(mixed, "in a mixed order")
    bench.expect_rows([*mixed[:2], mixed[0]], "with a sample asked for twice")


@plane_law(LIFECYCLE, "31 drained means every task and every row", "a latched bit, or unknown names as empty")
def _drained(bench: Bench) -> None:
    drained = bench.client.check_consumption_status
    bench.expect(drained(bench.partition, ["train"]), "an empty partition has something left to consume")
    bench.expect(drained(bench.partition, []), "no task at all has something left to consume")
    bench.put(bench.samples)
    bench.expect(not drained(bench.partition, ["train"]), "nothing was claimed, and all is consumed")
    bench.claim()
    bench.expect(drained(bench.partition, ["train"]), "all was claimed, and something is left")
    bench.expect(not drained(bench.partition, ["train", "score"]), "one task counts for two")
    bench.put(["u9_g0"])
    bench.expect(not drained(bench.partition, ["train"]), "a later put changes nothing")
    bench.refused("an unknown partition", lambda: drained(f"{bench.partition}-no", ["train"]))
    bench.refused("an unknown task", lambda: drained(bench.partition, ["trian"]))


@plane_law(LIFECYCLE, "32 drained stays true after a clear", "cleared rows counted as unread")
def drained_after_clear(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.client.clear_samples(bench.claim().sample_ids, bench.partition)
    bench.expect(
        bench.client.check_consumption_status(bench.partition, ["train"]),
        "what was claimed and cleared is to be consumed",
    )


@plane_law(LIFECYCLE, "33 clear is idempotent and ids can be used again", "a cursor that outlives its row")
def clear_twice(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.claim()
    for _ in range(2):
        bench.client.clear_samples(bench.samples, bench.partition)
    bench.client.clear_samples(["u8_g0"], bench.partition)
    bench.client.clear_samples(["u8_g0"], f"{bench.partition}-no")
    bench.put(bench.samples, scale=2)
    got = bench.claim().sample_ids
    bench.expect(
        sorted(got) == sorted(bench.samples), "a cleared sample that is put again is not served again"
    )
    bench.expect_rows(bench.samples, "put again after a clear", scale=2)


@plane_law(LIFECYCLE, "35 cleared rows are not waited for", "a count of puts instead of live rows")
def unclaimed_cleared(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.claim(2)
    rest = [sample for sample in bench.samples if sample not in set(bench.samples[:2])]
    bench.client.clear_samples(rest, bench.partition)
    bench.expect(
        bench.client.check_consumption_status(bench.partition, ["train"]), "rows that are gone are waited for"
    )


@plane_law(LIFECYCLE, "36 registering again keeps rows", "a partition made anew")
def register_again(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.client.register_partition(bench.partition, ("ids", "values", "content"), 4096, ("train", "score"))
    bench.expect_rows(bench.samples, "after registering again")
    bench.expect(
        len(bench.claim().sample_ids) == len(bench.samples), "rows are not served after registering again"
    )


@plane_law(LIFECYCLE, "37 calls of nothing do nothing", "an empty batch as a row")
def empty_calls(bench: Bench) -> None:
    import torch

    bench.client.put_samples([], bench.partition, {"ids": torch.zeros(0, 3, dtype=torch.long)}, [])
    bench.expect(
        len(bench.client.get_samples([], bench.partition, ["ids"]).get("ids", ())) == 0, "rows of no samples"
    )
    bench.client.clear_samples([], bench.partition)
    bench.expect(not bench.claim().sample_ids, "an empty put left a row")


@plane_law(LIFECYCLE, "39 an empty partition disappears", "partitions that are never forgotten")
def gone_when_empty(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.expect(bench.partition in bench.client.partitions(), "a partition with rows is not listed")
    bench.client.clear_samples(None, bench.partition)
    bench.expect(
        bench.partition not in bench.client.partitions(), "a partition that was cleared whole is listed"
    )


@plane_law(LIFECYCLE, "43 memory of a cleared row is freed", "rows that share the buffer they came in")
def memory(bench: Bench) -> None:
    import torch

    before = bench.plane.bytes_held(bench.partition)
    group, width = 8, HEAVY_WIDTH
    samples = [f"u{number // group}_g{number % group}" for number in range(HEAVY_ROWS)]
    for start in range(0, HEAVY_ROWS, group):
        rows = torch.randint(9, (group, width))
        bench.client.put_samples(samples[start : start + group], bench.partition, {"values": rows})
    full = bench.plane.bytes_held(bench.partition) - before
    bench.client.clear_samples([one for one in samples if not one.endswith("_g0")], bench.partition)
    left = bench.plane.bytes_held(bench.partition) - before
    bench.expect(
        full >= HEAVY_ROWS * width * 8 * 0.9, f"the measure of memory sees {full} bytes of a full store"
    )
    bench.expect(left <= 0.5 * full, f"after 7 of 8 rows were cleared the store holds {left} of {full} bytes")


@plane_law(LIFECYCLE, "38 close ends one client alone", "a close that ends the store")
def close_one(bench: Bench) -> None:
    bench.put(bench.samples)
    other = bench.plane.client()
    other.close()
    other.close()
    bench.expect_rows(bench.samples, "after another client's close")
    bench.put(["u9_g0"])


def _within(bench: Bench, what: str, call: Callable[[], Any]) -> None:
    start = time.monotonic()
    bench.refused(what, call, waiting=True)
    took = time.monotonic() - start
    bench.expect(took <= WAIT_S + 2, f"{what}: it took {took:.0f} s to say so")


@breaking_law(LIFECYCLE, "40 a dead store is reported in time", "retries without a deadline")
def dead_store(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.plane.kill_store()
    _within(bench, "a read from a dead store", lambda: bench.get(bench.samples))
    _within(bench, "a put into a dead store", lambda: bench.put(["u9_g0"]))


@breaking_law(LIFECYCLE, "47 a claim of lost rows is an error", "the cursor moves past rows that are gone")
def dead_store_claim(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.plane.kill_store()
    _within(bench, "a claim of rows whose bytes are gone", bench.claim)


@breaking_law(LIFECYCLE, "34 a clear that frees nothing is an error", "errors logged and swallowed")
def dead_store_clear(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.plane.kill_store()
    _within(
        bench,
        "a clear that freed nothing",
        lambda: bench.client.clear_samples(bench.samples, bench.partition),
    )


@breaking_law(LIFECYCLE, "30 a put that nobody acknowledges is an error", "an answer that nobody waits for")
def dead_control(bench: Bench) -> None:
    """Either every call says so in time, or a control that serves again knows all that it knew."""
    bench.put(bench.samples)
    claimed = bench.claim(2).sample_ids
    bench.plane.kill_control()
    start = time.monotonic()
    try:
        bench.put(["u9_g0"])
    except Exception:  # noqa: BLE001  any error in time is an honest one
        bench.expect(
            time.monotonic() - start <= WAIT_S + 2, "a put took too long to say that the control is dead"
        )
        if _serves(bench):  # it came back too late for the put, and knows what it knew
            _known_again(bench)
        return
    bench.expect_rows([*bench.samples, "u9_g0"], "after the control came back")
    left = sorted({*bench.samples, "u9_g0"} - set(claimed))
    bench.expect(
        sorted(bench.claim().sample_ids) == left, "after the control came back other rows are left to claim"
    )


def _serves(bench: Bench) -> bool:
    """Return whether a new partition can be made."""
    try:
        bench.client.register_partition(f"{bench.partition}-new", ["ids"], 8, ["train"])
    except Exception:  # noqa: BLE001  any error is one of a control that is dead
        return False
    return True


def _known_again(bench: Bench) -> None:
    try:
        bench.expect_rows(bench.samples, "after the control came back")
    except Exception as error:  # noqa: BLE001  whatever it says of rows that were put
        bench.wrong.append(f"the control serves again, and forgot what it knew ({error})")
