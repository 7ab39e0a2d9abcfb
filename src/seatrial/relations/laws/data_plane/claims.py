"""DP2: a claim brings whole rows with their tags, to one claimer, and back if that one dies."""

from __future__ import annotations

import threading
import time

from seatrial.relations.benches.data_plane import LEASE_S, WAIT_S, Bench, plane_law
from seatrial.relations.law import Relation

NUM_RACES = 40


CLAIMS = Relation(
    id="DP2.claims",
    name="claims-bring-whole-rows",
    component="data_plane",
    statement="A claim brings ready rows with their own tags to one claimer, and they come back if it dies.",
    cost="CPU, seconds (leases are waited for)",
)


@plane_law(CLAIMS, "15 only rows with all fields", "one bit a row instead of one a field")
def required_fields(bench: Bench) -> None:
    bench.put(bench.samples)
    late = bench.samples[::2]
    bench.client.put_samples(late, bench.partition, {"values": bench.rows(late)})
    got = bench.claim(fields=("ids", "values")).sample_ids
    bench.expect(
        sorted(got) == sorted(late), f"rows that lack a field were served, or others not: {list(got)}"
    )


@plane_law(CLAIMS, "17 tasks have cursors of their own", "one consumed bit for all tasks")
def own_cursors(bench: Bench) -> None:
    bench.put(bench.samples)
    for task in ("train", "score"):
        got = bench.claim(task=task).sample_ids
        bench.expect(sorted(got) == sorted(bench.samples), f"{task} got {len(got)} of {len(bench.samples)}")


@plane_law(CLAIMS, "18 a batch size is a maximum", "all or nothing: the tail is never served")
def a_maximum(bench: Bench) -> None:
    bench.put(bench.samples[:3])
    got = bench.claim(8).sample_ids
    bench.expect(len(got) == 3, f"3 rows are ready, and a claim of 8 brings {len(got)}")
    bench.put(bench.samples[3:6])
    got = bench.claim(2).sample_ids
    bench.expect(len(got) == 2, f"3 rows are ready, and a claim of 2 brings {len(got)}")


@plane_law(CLAIMS, "19 waiting ends with rows or TimeoutError", "a poll that returns nothing as a batch")
def waiting(bench: Bench) -> None:
    bench.expect(not bench.claim().sample_ids, "rows of an empty partition")
    start = time.monotonic()
    for timeout_s in (0.0, 0.2):
        try:
            got = bench.claim(1, blocking=True, timeout_s=timeout_s).sample_ids
            bench.wrong.append(f"a blocking claim of nothing returned {list(got)}")
        except TimeoutError:
            pass
    bench.expect(time.monotonic() - start >= 0.2, "a blocking claim gave up before its time")
    putter = threading.Timer(0.1, lambda: bench.put(bench.samples[:1], client=other))
    other = bench.plane.client()
    putter.start()
    got = bench.claim(1, blocking=True, timeout_s=10.0).sample_ids
    putter.join()
    bench.expect(list(got) == bench.samples[:1], "a blocking claim missed a row that came while it waited")


@plane_law(CLAIMS, "20 unknown names are refused", "a typing error gets a cursor of its own")
def unregistered(bench: Bench) -> None:
    bench.put(bench.samples)
    claim = bench.client.claim_meta
    no_wait = {"blocking": False}
    bench.refused("a task that nobody registered", lambda: bench.claim(1, task="trian"))
    bench.refused(
        "an unknown partition", lambda: claim(f"{bench.partition}-no", "train", ["ids"], 1, **no_wait)
    )
    bench.refused("an unknown field", lambda: bench.claim(1, fields=("idz",)))


@plane_law(CLAIMS, "21 tags come with their rows", "rows are ready before their tags are set")
def tags_come_with_rows(bench: Bench) -> None:
    """A producer puts rows while the claimer asks without a pause."""
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
        bench.wrong.extend(f"{sample} was claimed without the tags that it was put with" for sample in bad)
    thread.join()
    bench.expect(seen == 4 * NUM_RACES, f"{seen} of {4 * NUM_RACES} rows were served")


@plane_law(CLAIMS, "22 lengths are the producer's", "a producer that does not stamp input_lengths")
def lengths(bench: Bench) -> None:
    bench.put(bench.samples)
    meta = bench.claim()
    expected = [3 + bench.number(sample) for sample in meta.sample_ids]
    bench.expect(list(meta.sequence_lengths or ()) == expected, f"lengths are {meta.sequence_lengths}")


@plane_law(CLAIMS, "23 claims of nothing are refused", "a default that serves rows half made")
def meaningless(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.refused("a claim that requires no field", lambda: bench.claim(1, fields=()))
    bench.refused("a claim of no rows", lambda: bench.claim(0))
    bench.expect(len(bench.claim().sample_ids) == len(bench.samples), "a refused claim moved the cursor")


@plane_law(CLAIMS, "24 rows align by id", "alignment by place of storage")
def aligned_after_reuse(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.client.clear_samples(bench.samples[::2], bench.partition)
    bench.put([f"u9_g{row}" for row in range(3)])
    meta = bench.claim()
    versions = [dict(tags).get("weight_version") for tags in meta.tags or ()]
    bench.expect(versions == [bench.number(sample) for sample in meta.sample_ids], "tags of other rows")
    bench.expect(
        len(meta.sample_ids) == len(bench.samples[1::2]) + 3, f"{len(meta.sample_ids)} rows were served"
    )
    bench.expect_rows(meta.sample_ids, "after places were used again")


def _comes_back(bench: Bench, expected: int) -> list[str]:
    """Return what is served when a lease's time is over; wait for it no longer than it takes."""
    got: list[str] = []
    end = time.monotonic() + 10 * LEASE_S
    while len(got) < expected and time.monotonic() < end:
        got += bench.claim().sample_ids
        time.sleep(LEASE_S / 10)
    return got


@plane_law(CLAIMS, "25 a dead claimer's rows come back", "no lease: a claim is for ever")
def dead_claimer(bench: Bench) -> None:
    bench.put(bench.samples)
    lost = list(bench.claim(3, lease_s=LEASE_S).sample_ids)
    rest = list(bench.claim().sample_ids)
    bench.expect(len(lost) == 3 and not set(lost) & set(rest), "rows of two claims overlap")
    back = _comes_back(bench, 3)
    bench.expect(sorted(back) == sorted(lost), f"of {lost}, claimed by one that died, {back} came back")


@plane_law(CLAIMS, "44 a late acknowledgement is refused", "no fence: rows are trained on twice")
def late_acknowledgement(bench: Bench) -> None:
    bench.put(bench.samples)
    slow = bench.claim(3, lease_s=LEASE_S)
    bench.claim()
    back = _comes_back(bench, 3)
    bench.expect(len(back) == 3, f"{len(back)} of 3 rows came back")
    bench.refused("an acknowledgement of rows that others have now", lambda: bench.client.acknowledge(slow))


@plane_law(CLAIMS, "45 acknowledged rows stay taken", "a lease that ends after the acknowledgement")
def acknowledged(bench: Bench) -> None:
    bench.put(bench.samples)
    bench.client.acknowledge(bench.claim(3, lease_s=LEASE_S))
    bench.claim()
    time.sleep(1.5 * LEASE_S)
    bench.expect(not bench.claim().sample_ids, "acknowledged rows are served again")


@plane_law(CLAIMS, "46 released rows come back at once", "a release that waits for the lease's end")
def released(bench: Bench) -> None:
    bench.put(bench.samples)
    meta = bench.claim()
    bench.client.release(meta)
    again = bench.claim().sample_ids
    bench.expect(
        sorted(again) == sorted(bench.samples),
        f"{len(again)} of {len(bench.samples)} released rows came back",
    )
