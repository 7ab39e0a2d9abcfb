"""DP3: a read returns every requested row or raises. DP4: a clear removes exactly the cleared rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from seatrial.relations.benches.data_plane import WAIT_S, Bench, breaking_law, plane_law
from seatrial.relations.law import Relation

HEAVY_ROWS, HEAVY_WIDTH = 128, 16_384
"""16 MiB of int64, enough to show in the memory of the store's process."""


READS = Relation(
    id="DP3.reads",
    name="reads-are-complete",
    component="data_plane",
    statement="A read returns every requested row and field, in order, or raises.",
    cost="CPU, milliseconds",
)
LIFECYCLE = Relation(
    id="DP4.lifecycle",
    name="clears-free-memory",
    component="data_plane",
    statement="Consumption status is exact, cleared rows free their memory, and a crashed part is reported in time.",
    cost="CPU, milliseconds; a minute for a store in separate processes",
)


@plane_law(READS, "26 an unknown sample is an error", "missing rows left out of the result")
def unknown_sample_is_an_error(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.refused("an unknown sample", lambda: bench.get(["u8_g0"]))
    bench.refused("an unknown sample among existing ones", lambda: bench.get([*bench.samples[:2], "u8_g0"]))
    bench.client.clear_samples(bench.samples[1:2], bench.partition)
    bench.refused("a cleared sample among existing ones", lambda: bench.get(bench.samples[:3]))


@plane_law(READS, "27 an unproduced field is an error", "missing columns left out of the result")
def unproduced_field_is_an_error(bench: Bench) -> None:
    bench.put(bench.samples)
    some, read = bench.samples[:2], bench.client.get_samples
    bench.refused("a field never written", lambda: read(some, bench.partition, ["values"]))
    bench.refused(
        "a field never written, with an existing field",
        lambda: read(some, bench.partition, ["ids", "values"]),
    )
    bench.client.put_samples(some[:1], bench.partition, {"values": bench.rows(some[:1])})
    bench.refused("a field that only some samples have", lambda: read(some, bench.partition, ["values"]))


@plane_law(READS, "28 reads move no cursor", "a read that counts as a claim")
def reads_move_no_cursor(bench: Bench) -> None:
    bench.put(bench.samples)
    meta = bench.claim(2)
    fields = bench.client.get_data(meta)
    bench.expect(len(fields["ids"]) == 2, "get_data does not return the rows of the claim")
    bench.refused("an empty list of fields", lambda: bench.client.get_data(meta, []))
    bench.get(bench.samples)
    left = bench.claim().sample_ids
    bench.expect(
        len(left) == len(bench.samples) - 2,
        f"after reads {len(left)} rows are left to claim, expected {len(bench.samples) - 2}",
    )


@plane_law(READS, "29 row i is sample i", "rows in the order of storage")
def row_i_is_sample_i(bench: Bench) -> None:
    for start in range(0, len(bench.samples), 3):
        bench.put(bench.samples[start : start + 3])
    bench.expect_rows(bench.samples[::-1], "in reverse order")
    mixed = bench.samples[1::2] + bench.samples[::2]
    bench.expect_rows(mixed, "in a mixed order")
    bench.expect_rows([*mixed[:2], mixed[0]], "with a sample requested twice")


@plane_law(
    LIFECYCLE, "31 drained means every task and every row", "a latched flag, unknown names treated as empty"
)
def drained_means_every_task_and_row(bench: Bench) -> None:
    drained = bench.client.check_consumption_status
    bench.expect(drained(bench.partition, ["train"]), "an empty partition is not reported as consumed")
    bench.expect(drained(bench.partition, []), "an empty list of tasks is not reported as consumed")
    bench.put(bench.samples)
    bench.expect(
        not drained(bench.partition, ["train"]), "the partition is reported as consumed before any claim"
    )
    bench.claim()
    bench.expect(
        drained(bench.partition, ["train"]),
        "the partition is not reported as consumed after all rows were claimed",
    )
    bench.expect(
        not drained(bench.partition, ["train", "score"]), "consumption by one task counts for another"
    )
    bench.put(["u9_g0"])
    bench.expect(
        not drained(bench.partition, ["train"]),
        "the partition is still reported as consumed after a later put",
    )
    bench.refused("an unknown partition", lambda: drained(f"{bench.partition}-no", ["train"]))
    bench.refused("an unknown task", lambda: drained(bench.partition, ["trian"]))


@plane_law(LIFECYCLE, "32 drained stays true after a clear", "cleared rows counted as unread")
def drained_after_clear(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.client.clear_samples(bench.claim().sample_ids, bench.partition)
    bench.expect(
        bench.client.check_consumption_status(bench.partition, ["train"]),
        "cleared rows are reported as still to be consumed",
    )


@plane_law(
    LIFECYCLE, "33 clear is idempotent and ids can be reused", "a cursor kept after its row is cleared"
)
def clear_is_idempotent(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.claim()
    for _ in range(2):
        bench.client.clear_samples(bench.samples, bench.partition)
    bench.client.clear_samples(["u8_g0"], bench.partition)
    bench.client.clear_samples(["u8_g0"], f"{bench.partition}-no")
    bench.put(bench.samples, scale=2)
    got = bench.claim().sample_ids
    bench.expect(sorted(got) == sorted(bench.samples), "a sample put again after a clear is not served")
    bench.expect_rows(bench.samples, "put again after a clear", scale=2)


@plane_law(LIFECYCLE, "35 cleared rows are not waited for", "puts counted instead of live rows")
def cleared_rows_are_not_waited_for(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.claim(2)
    rest = [sample for sample in bench.samples if sample not in set(bench.samples[:2])]
    bench.client.clear_samples(rest, bench.partition)
    bench.expect(
        bench.client.check_consumption_status(bench.partition, ["train"]),
        "cleared rows are reported as still to be consumed",
    )


@plane_law(LIFECYCLE, "36 registering again keeps rows", "the partition replaced by an empty one")
def registering_again_keeps_rows(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.client.register_partition(bench.partition, ("ids", "values", "content"), 4096, ("train", "score"))
    bench.expect_rows(bench.samples, "after registering again")
    bench.expect(
        len(bench.claim().sample_ids) == len(bench.samples), "rows are not served after registering again"
    )


@plane_law(LIFECYCLE, "37 empty calls do nothing", "an empty batch stored as a row")
def empty_calls_do_nothing(bench: Bench) -> None:
    import torch

    bench.client.put_samples([], bench.partition, {"ids": torch.zeros(0, 3, dtype=torch.long)}, [])
    bench.expect(
        len(bench.client.get_samples([], bench.partition, ["ids"]).get("ids", ())) == 0,
        "a read of no samples returned rows",
    )
    bench.client.clear_samples([], bench.partition)
    bench.expect(not bench.claim().sample_ids, "an empty put stored a row")


@plane_law(LIFECYCLE, "39 an empty partition disappears", "empty partitions never removed")
def empty_partition_disappears(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.expect(bench.partition in bench.client.partitions(), "a partition with rows is not listed")
    bench.client.clear_samples(None, bench.partition)
    bench.expect(
        bench.partition not in bench.client.partitions(),
        "a partition is still listed after all its rows were cleared",
    )


@plane_law(LIFECYCLE, "43 memory of a cleared row is freed", "rows that keep the buffer of their put alive")
def memory_of_cleared_rows_is_freed(bench: Bench) -> None:
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
    bench.expect(full >= HEAVY_ROWS * width * 8 * 0.9, f"bytes_held reports {full} bytes for a full store")
    bench.expect(left <= 0.5 * full, f"the store holds {left} of {full} bytes after 7 of 8 rows were cleared")


@plane_law(LIFECYCLE, "38 close affects one client only", "a close that shuts down the store")
def close_affects_one_client(bench: Bench) -> None:
    bench.put(bench.samples)
    other = bench.plane.client()
    other.close()
    other.close()
    bench.expect_rows(bench.samples, "after another client was closed")
    bench.put(["u9_g0"])


def _refused_in_time(bench: Bench, what: str, call: Callable[[], Any]) -> None:
    start = time.monotonic()
    bench.refused(what, call, waiting=True)
    took = time.monotonic() - start
    bench.expect(took <= WAIT_S + 2, f"{what}: refused only after {took:.0f} s")


@breaking_law(LIFECYCLE, "40 a dead store is reported in time", "retries without a deadline")
def dead_store_is_reported(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.plane.kill_store()
    _refused_in_time(bench, "a read from a dead store", lambda: bench.get(bench.samples))
    _refused_in_time(bench, "a put into a dead store", lambda: bench.put(["u9_g0"]))


@breaking_law(LIFECYCLE, "47 a claim of lost rows is an error", "a cursor that moves past lost rows")
def claim_of_lost_rows_is_an_error(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.plane.kill_store()
    _refused_in_time(bench, "a claim of rows whose data is lost", bench.claim)


@breaking_law(LIFECYCLE, "34 a clear that frees nothing is an error", "errors logged and swallowed")
def failed_clear_is_an_error(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.plane.kill_store()
    _refused_in_time(
        bench,
        "a clear that freed nothing",
        lambda: bench.client.clear_samples(bench.samples, bench.partition),
    )


@breaking_law(
    LIFECYCLE, "30 an unacknowledged put is an error", "a put that does not wait for its acknowledgement"
)
def unacknowledged_put_is_an_error(bench: Bench) -> None:
    """After the control crashes either the put raises in time, or a restarted control has all its state."""
    bench.put(bench.samples)
    claimed = bench.claim(2).sample_ids
    bench.plane.kill_control()
    start = time.monotonic()
    try:
        bench.put(["u9_g0"])
    except Exception:  # noqa: BLE001  any error is accepted if it comes in time
        bench.expect(
            time.monotonic() - start <= WAIT_S + 2, "a put took too long to report that the control is down"
        )
        if _serves(bench):  # restarted too late for the put; its state must be complete
            _expect_state_restored(bench)
        return
    bench.expect_rows([*bench.samples, "u9_g0"], "after the control restarted")
    left = sorted({*bench.samples, "u9_g0"} - set(claimed))
    bench.expect(
        sorted(bench.claim().sample_ids) == left, "other rows are left to claim after the control restarted"
    )


def _serves(bench: Bench) -> bool:
    """Return whether the control accepts a new partition."""
    try:
        bench.client.register_partition(f"{bench.partition}-new", ["ids"], 8, ["train"])
    except Exception:  # noqa: BLE001  any error means that the control is down
        return False
    return True


def _expect_state_restored(bench: Bench) -> None:
    try:
        bench.expect_rows(bench.samples, "after the control restarted")
    except Exception as error:  # noqa: BLE001  any error means that rows are lost
        bench.wrong.append(f"the control restarted without its state ({error})")
