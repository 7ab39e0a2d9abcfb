"""R14, R19, R27 of the data plane: each row is served once, weight versions are exact, callers share no state."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from typing import Any

from seatrial.relations.benches.data_plane import WAIT_S, Bench, plane_law
from seatrial.relations.benches.schedules import play
from seatrial.relations.law import Relation

NUM_CLAIMERS, NUM_PRODUCERS = 3, 2


NO_ROW_LOST_OR_TWICE = Relation(
    id="R14.data_plane",
    name="no-row-lost-or-twice",
    component="data_plane",
    statement="After any crash, delay or retry, each row is trained once, dropped, or still queued.",
    cost="CPU, seconds (waits for leases to expire)",
)
VERSIONS_ARE_EXACT = Relation(
    id="R19.data_plane",
    name="versions-are-exact",
    component="data_plane",
    statement="Every claim has each row's own weight version, and the filter drops exactly the stale rows.",
    cost="CPU, milliseconds",
)
NOTHING_IS_SHARED = Relation(
    id="R27.data_plane",
    name="nothing-is-shared",
    component="data_plane",
    statement="What a caller modifies after a put, a read or a claim does not change the store or other callers.",
    cost="CPU, milliseconds",
)


@plane_law(NO_ROW_LOST_OR_TWICE, "16 no row goes to two consumers", "rows selected and marked in two steps")
def no_row_goes_to_two_consumers(bench: Bench) -> None:
    """Consumers and producers run as threads, each with its own client."""
    expected = [f"u{group}_g{row}" for group in range(8 * NUM_PRODUCERS) for row in range(4)]
    claimed: list[str] = []
    end = time.monotonic() + WAIT_S

    def produce(part: int) -> None:
        client = bench.plane.client()
        for group in range(part, 8 * NUM_PRODUCERS, NUM_PRODUCERS):
            bench.put([f"u{group}_g{row}" for row in range(4)], client=client)

    def claim() -> None:
        client = bench.plane.client()
        while len(claimed) < len(expected) and time.monotonic() < end:
            claimed.extend(client.claim_meta(bench.partition, "train", ["ids"], 5, blocking=False).sample_ids)

    threads = [threading.Thread(target=produce, args=(part,)) for part in range(NUM_PRODUCERS)]
    threads += [threading.Thread(target=claim) for _ in range(NUM_CLAIMERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    twice = [sample for sample, times in Counter(claimed).items() if times > 1]
    bench.expect(not twice, f"{len(twice)} rows went to two consumers, such as {twice[:1]}")
    bench.expect(set(claimed) == set(expected), f"{len(set(claimed))} of {len(expected)} rows were served")


@plane_law(
    NO_ROW_LOST_OR_TWICE,
    "48 rows add up after kills, delays and retries",
    "a retry stored as a second row, rows of a crashed consumer never served again",
    seeded=True,
)
def rows_add_up_after_kills(bench: Bench) -> None:
    bench.wrong.extend(play(bench))


@plane_law(VERSIONS_ARE_EXACT, "49 a row keeps its version", "the version read when the row is claimed")
def row_keeps_its_version(bench: Bench) -> None:
    """A producer increases its version between puts; every claim has each row's own."""
    for version, sample in enumerate(bench.samples):
        bench.put([sample], produced_by=version)
    bench.put(bench.samples[:1], scale=2)  # writing a field later does not change the version
    found: dict[str, Any] = {}
    while len(found) < len(bench.samples):
        meta = bench.claim(3)
        if not meta.sample_ids:
            break
        found.update(
            zip(meta.sample_ids, [dict(tags).get("produced_by") for tags in meta.tags or ()], strict=False)
        )
    expected = {sample: version for version, sample in enumerate(bench.samples)}
    bench.expect(found == expected, f"versions are {found}, expected {expected}")


@plane_law(
    VERSIONS_ARE_EXACT,
    "50 stale and fresh are separated exactly",
    "an exclusive bound, tags matched by position",
)
def stale_and_fresh_are_separated(bench: Bench) -> None:
    versions = {sample: number % 5 for number, sample in enumerate(bench.samples)}
    for sample, version in versions.items():
        bench.client.put_samples(
            [sample], bench.partition, {"ids": bench.rows([sample])}, [{"weight_version": version}]
        )
    meta = bench.claim()
    keep, drop = bench.stack.filter_stale(meta, meta.tags, max_staleness=2, current_weight_version=4)
    bench.expect(
        [versions[sample] >= 2 for sample in keep.sample_ids] == [True] * len(keep.sample_ids),
        "a stale row was kept",
    )
    bench.expect(
        [versions[sample] < 2 for sample in drop.sample_ids] == [True] * len(drop.sample_ids),
        "a fresh row was dropped",
    )
    together = sorted([*keep.sample_ids, *drop.sample_ids])
    bench.expect(together == sorted(meta.sample_ids), "kept and dropped rows together are not the claim")
    for half in (keep, drop):
        own = [dict(tags).get("weight_version") for tags in half.tags or ()]
        bench.expect(
            own == [versions[sample] for sample in half.sample_ids],
            "kept or dropped rows have the tags of other rows",
        )


@plane_law(
    VERSIONS_ARE_EXACT,
    "42 a filter refuses invalid versions",
    "None or a bool compared as a number",
)
def filter_refuses_invalid_versions(bench: Bench) -> None:
    import numpy as np

    bench.put(bench.samples[:2])
    meta = bench.claim()
    good = [{"weight_version": 3}, {"weight_version": np.int64(4)}]
    bad: dict[str, Any] = {
        "no tags": None,
        "one set of tags for two rows": good[:1],
        "a row without the tag": [good[0], {}],
        "None": [good[0], {"weight_version": None}],
        "a float": [good[0], {"weight_version": 3.0}],
        "a bool": [good[0], {"weight_version": True}],
    }
    judge = partial(bench.stack.filter_stale, meta, max_staleness=2, current_weight_version=4)
    for what, tags in bad.items():
        bench.refused(f"weight_version: {what}", partial(judge, tags))
    bench.refused("no current version", partial(judge, good, current_weight_version=None))
    keep, _ = judge(good)
    bench.expect(len(keep.sample_ids) == 2, "NumPy integers are refused")


@plane_law(NO_ROW_LOST_OR_TWICE, "41 shards make up the claim", "new ids generated, tags lost")
def shards_make_up_the_claim(bench: Bench) -> None:
    import copy

    bench.put(bench.samples)
    size = len(bench.samples) - len(bench.samples) % 2
    meta = bench.claim(size)
    shards = bench.stack.shard(copy.deepcopy(meta), 2)
    together = Counter(sample for shard in shards for sample in shard.sample_ids)
    bench.expect(
        together == Counter(meta.sample_ids), "the shards together do not have the rows of the claim"
    )
    for shard in shards:
        bench.expect(
            len(shard.sample_ids) * 2 == size,
            f"a rank has {len(shard.sample_ids)} of {size} rows, expected half",
        )
        versions = [dict(tags).get("weight_version") for tags in shard.tags or ()]
        bench.expect(
            versions == [bench.number(sample) for sample in shard.sample_ids],
            "a shard does not have the tags of its rows",
        )


@plane_law(NOTHING_IS_SHARED, "07 puts and reads copy", "a store that keeps references")
def puts_and_reads_copy(bench: Bench) -> None:
    sample = bench.samples[0]
    rows, tags = bench.rows([sample]), [{"weight_version": 1}]
    bench.client.put_samples([sample], bench.partition, {"ids": rows}, tags)
    rows.fill_(-1)
    tags[0]["weight_version"] = -1
    bench.expect_rows([sample], "after the producer modified its tensor")
    got = bench.get([sample])
    got[0].fill_(-2)
    bench.expect_rows([sample], "after a consumer modified a read tensor")
    meta = bench.claim()
    bench.expect(
        dict((meta.tags or [{}])[0]).get("weight_version") == 1,
        "tags changed when the producer modified its own after the put",
    )


@plane_law(NOTHING_IS_SHARED, "51 claims share no tags", "the store's own dicts returned")
def claims_share_no_tags(bench: Bench) -> None:
    bench.put(bench.samples[:2])
    one, other = bench.claim(task="train"), bench.claim(task="score")
    for tags in one.tags or ():
        tags["weight_version"] = -1
    expected = [bench.number(sample) for sample in other.sample_ids]
    bench.expect(
        [dict(tags).get("weight_version") for tags in other.tags or ()] == expected,
        "two claims share their tags",
    )
