"""DP2: a claim returns complete rows with their tags to one consumer; an expired lease makes them available again."""

from __future__ import annotations

import threading
import time

from seatrial.relations.benches.data_plane import LEASE_S, WAIT_S, Bench, plane_law
from seatrial.relations.law import Relation

NUM_RACES = 40


CLAIMS = Relation(
    id="DP2.claims",
    name="claims-return-whole-rows",
    component="data_plane",
    statement="A claim gives ready rows with their tags to one consumer; when the lease expires they are free again.",
    cost="CPU, seconds (waits for leases to expire)",
)


@plane_law(CLAIMS, "15 only rows with all fields", "one ready bit per row instead of one per field")
def required_fields(bench: Bench) -> None:
    bench.put(bench.samples)
    late = bench.samples[::2]
    bench.client.put_samples(late, bench.partition, {"values": bench.rows(late)})
    got = bench.claim(fields=("ids", "values")).sample_ids
    bench.expect(
        sorted(got) == sorted(late), f"expected exactly the rows that have both fields; served: {list(got)}"
    )


@plane_law(CLAIMS, "17 each task has its own cursor", "one consumed bit shared by all tasks")
def each_task_has_its_own_cursor(bench: Bench) -> None:
    bench.put(bench.samples)
    for task in ("train", "score"):
        got = bench.claim(task=task).sample_ids
        bench.expect(
            sorted(got) == sorted(bench.samples), f"task {task} got {len(got)} of {len(bench.samples)} rows"
        )


@plane_law(
    CLAIMS,
    "18 a batch size is a maximum",
    "a claim that returns nothing unless the batch is full: the last rows are never served",
)
def batch_size_is_a_maximum(bench: Bench) -> None:
    bench.put(bench.samples[:3])
    got = bench.claim(8).sample_ids
    bench.expect(len(got) == 3, f"3 rows are ready; a claim of 8 returns {len(got)}")
    bench.put(bench.samples[3:6])
    got = bench.claim(2).sample_ids
    bench.expect(len(got) == 2, f"3 rows are ready; a claim of 2 returns {len(got)}")


@plane_law(CLAIMS, "19 waiting ends with rows or TimeoutError", "an empty poll returned as a batch")
def blocking_claim_waits(bench: Bench) -> None:
    bench.expect(not bench.claim().sample_ids, "a claim of an empty partition returned rows")
    start = time.monotonic()
    for timeout_s in (0.0, 0.2):
        try:
            got = bench.claim(1, blocking=True, timeout_s=timeout_s).sample_ids
            bench.wrong.append(
                f"a blocking claim of an empty partition returned {list(got)} instead of raising TimeoutError"
            )
        except TimeoutError:
            pass
    bench.expect(time.monotonic() - start >= 0.2, "a blocking claim timed out early")
    putter = threading.Timer(0.1, lambda: bench.put(bench.samples[:1], client=other))
    other = bench.plane.client()
    putter.start()
    got = bench.claim(1, blocking=True, timeout_s=10.0).sample_ids
    putter.join()
    bench.expect(list(got) == bench.samples[:1], "a blocking claim missed a row that was put while it waited")


@plane_law(CLAIMS, "20 unknown names are refused", "a misspelled task name creates a new cursor")
def unknown_names_are_refused(bench: Bench) -> None:
    bench.put(bench.samples)
    claim = bench.client.claim_meta
    no_wait = {"blocking": False}
    bench.refused("a task that is not registered", lambda: bench.claim(1, task="trian"))
    bench.refused(
        "an unknown partition", lambda: claim(f"{bench.partition}-no", "train", ["ids"], 1, **no_wait)
    )
    bench.refused("an unknown field", lambda: bench.claim(1, fields=("idz",)))


@plane_law(CLAIMS, "21 tags come with their rows", "rows marked ready before their tags are set")
def tags_come_with_rows(bench: Bench) -> None:
    """Rows claimed while a producer puts them already have their tags."""
    producer = bench.plane.client()
    groups = [[f"u{group}_g{row}" for row in range(4)] for group in range(NUM_RACES)]

    def produce() -> None:
        for group in groups:
            bench.put(group, client=producer)

    thread = threading.Thread(target=produce)
    thread.start()
    seen = 0
    end = time.monotonic() + WAIT_S
    while seen < 4 * NUM_RACES and time.monotonic() < end:
        meta = bench.claim(8)
        seen += len(meta.sample_ids)
        tags = meta.tags or [{} for _ in meta.sample_ids]
        bad = [
            sample
            for sample, own in zip(meta.sample_ids, tags, strict=True)
            if dict(own).get("weight_version") != bench.number(sample)
        ]
        bench.wrong.extend(f"{sample} was claimed without the tags of its put" for sample in bad)
    thread.join()
    bench.expect(seen == 4 * NUM_RACES, f"{seen} of {4 * NUM_RACES} rows were served")


@plane_law(CLAIMS, "22 lengths are the producer's", "a producer that does not set input_lengths")
def lengths_are_the_producers(bench: Bench) -> None:
    bench.put(bench.samples)
    meta = bench.claim()
    expected = [3 + bench.number(sample) for sample in meta.sample_ids]
    bench.expect(
        list(meta.sequence_lengths or ()) == expected,
        f"sequence lengths are {meta.sequence_lengths}, expected {expected}",
    )


@plane_law(CLAIMS, "23 empty claims are refused", "a default that serves incomplete rows")
def empty_claims_are_refused(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.refused("a claim that requires no field", lambda: bench.claim(1, fields=()))
    bench.refused("a claim of 0 rows", lambda: bench.claim(0))
    bench.expect(len(bench.claim().sample_ids) == len(bench.samples), "a refused claim moved the cursor")


@plane_law(CLAIMS, "24 rows align by id", "rows aligned by storage position")
def rows_align_by_id(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.client.clear_samples(bench.samples[::2], bench.partition)
    bench.put([f"u9_g{row}" for row in range(3)])
    meta = bench.claim()
    versions = [dict(tags).get("weight_version") for tags in meta.tags or ()]
    bench.expect(
        versions == [bench.number(sample) for sample in meta.sample_ids], "tags belong to other rows"
    )
    bench.expect(
        len(meta.sample_ids) == len(bench.samples[1::2]) + 3, f"{len(meta.sample_ids)} rows were served"
    )
    bench.expect_rows(meta.sample_ids, "after storage positions were reused")


def _served_after_expiry(bench: Bench, expected: int) -> list[str]:
    """Poll until `expected` rows with an expired lease are served again, for at most ten leases; return their ids."""
    got: list[str] = []
    end = time.monotonic() + 10 * LEASE_S
    while len(got) < expected and time.monotonic() < end:
        got += bench.claim().sample_ids
        time.sleep(LEASE_S / 10)
    return got


@plane_law(CLAIMS, "25 rows of a crashed consumer come back", "claims without a lease: they never expire")
def rows_of_a_crashed_consumer_come_back(bench: Bench) -> None:
    bench.put(bench.samples)
    lost = list(bench.claim(3, lease_s=LEASE_S).sample_ids)
    rest = list(bench.claim().sample_ids)
    bench.expect(len(lost) == 3 and not set(lost) & set(rest), "two claims returned the same rows")
    back = _served_after_expiry(bench, 3)
    bench.expect(
        sorted(back) == sorted(lost), f"of {lost}, claimed by a consumer that stopped, {back} came back"
    )


@plane_law(
    CLAIMS,
    "44 a late acknowledgement is refused",
    "acknowledgements not checked against the lease: rows are trained on twice",
)
def late_acknowledgement_is_refused(bench: Bench) -> None:
    bench.put(bench.samples)
    slow = bench.claim(3, lease_s=LEASE_S)
    bench.claim()
    back = _served_after_expiry(bench, 3)
    bench.expect(len(back) == 3, f"{len(back)} of 3 rows came back")
    bench.refused(
        "an acknowledgement of rows that another consumer has claimed since",
        lambda: bench.client.acknowledge(slow),
    )


@plane_law(CLAIMS, "45 acknowledged rows stay taken", "leases that still expire after the acknowledgement")
def acknowledged_rows_stay_taken(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.client.acknowledge(bench.claim(3, lease_s=LEASE_S))
    bench.claim()
    time.sleep(1.5 * LEASE_S)
    bench.expect(not bench.claim().sample_ids, "acknowledged rows were served again")


@plane_law(CLAIMS, "46 released rows come back at once", "released rows that wait for the lease to expire")
def released_rows_come_back(bench: Bench) -> None:
    bench.put(bench.samples)
    meta = bench.claim()
    bench.client.release(meta)
    again = bench.claim().sample_ids
    bench.expect(
        sorted(again) == sorted(bench.samples),
        f"{len(again)} of {len(bench.samples)} released rows came back",
    )
