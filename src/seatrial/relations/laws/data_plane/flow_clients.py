"""DP12: a client uses its configured lease, and an observed client counts its calls."""

from __future__ import annotations

import time

from seatrial.relations.benches.flow import PARTITION, FlowBench, flow_law
from seatrial.relations.law import Relation

SHORT_S, LONG_S = 0.05, 3600.0


CLIENTS = Relation(
    id="DP12.clients",
    name="clients-are-configured-and-counted",
    component="rollout_flow",
    statement="A claim lasts for the configured lease, and every call, including failed ones, is counted.",
    cost="CPU, a second",
)


@flow_law(CLIENTS, "leases as configured", "an option that does not reach the client")
def leases_as_configured(bench: FlowBench) -> None:
    """A claim without `lease_s` lasts for the configured lease."""
    for seconds, due in ((SHORT_S, bench.samples[:2]), (LONG_S, [])):
        bench.client = bench.stack.configured_client(lease_s=seconds)
        bench.register()
        bench.put(bench.samples)
        bench.client.claim_meta(PARTITION, "train", ["ids"], 2, blocking=False)
        time.sleep(2 * SHORT_S)
        back = bench.client.claim_meta(PARTITION, "train", ["ids"], 4096, blocking=False)
        rest = bench.samples[2:]
        bench.equal(
            sorted(back.sample_ids), sorted([*due, *rest]), f"rows served under leases of {seconds:g} s"
        )


@flow_law(CLIENTS, "calls are counted", "failed calls left out, or timeouts left out")
def calls_are_counted(bench: FlowBench) -> None:
    """Every call is counted with its rows and bytes; failures and timeouts count as errors."""
    bench.client, counters = bench.stack.observed_client()
    bench.register()
    num, width = len(bench.samples), 24
    bench.put(bench.samples)
    bench.refused("a put that must fail", lambda: bench.put([bench.samples[0]] * 2))
    meta = bench.claim(2)
    bench.claim()
    bench.refused("a claim that times out", lambda: bench.claim(1, blocking=True, timeout_s=0.0))
    bench.client.get_samples(bench.samples[:3], PARTITION, ["ids"])
    bench.client.get_data(meta)
    bench.client.acknowledge(meta)
    bench.client.clear_samples(meta.sample_ids, PARTITION)
    due = {
        "put_samples": (2, 1, num, num * width),
        "claim_meta": (3, 1, num, 0),
        "get_samples": (1, 0, 3, 3 * width),
        "get_data": (1, 0, 2, 2 * width),
        "clear_samples": (1, 0, 2, 0),
    }
    found = counters()
    for name, expected in due.items():
        bench.equal(tuple(found.get(name, ())), expected, f"calls, errors, rows and bytes of {name}")
