"""Rates of refrl's data planes as ratios to TransferQueue's own client, in one run, and what a claim and memory cost.

    python benchmarks/data_plane.py [--rounds 15] [--cycles 1000] [--json FILE]

in an environment with Ray and TransferQueue (tests/peers/environments.toml, data_plane); without them only `local` is
measured, with no ratios. Beside it the way of a step's rows from producer to trainer on `local`. One partition, 1,000
rows of 4,096 int64 (32.8 MB) an operation; medians and the fastest, stores in turns.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import build_data_plane_client
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.replay import ReplayBuffer
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example

ROWS, WIDTH = 1000, 4096
SAMPLES = [f"u{row // 8}_g{row % 8}" for row in range(ROWS)]
READY = 100_000


Rates = dict[str, dict[str, float]]
"""Milliseconds by store and operation."""


class Ours:
    """A client of ours."""

    def __init__(self, config: DataPlaneConfig) -> None:
        self.client: Any = build_data_plane_client(config)
        self.client.register_partition("bench", ["x"], 2 * READY, ["train"])

    def put(self, values: torch.Tensor) -> None:
        self.client.put_samples(SAMPLES, "bench", {"x": values})

    def get(self) -> torch.Tensor:
        return self.client.get_samples(SAMPLES, "bench", ["x"])["x"]

    def clear(self) -> None:
        self.client.clear_samples(SAMPLES, "bench")


class Theirs:
    """TransferQueue's key-value calls."""

    def __init__(self) -> None:
        import transfer_queue
        from omegaconf import OmegaConf

        unit = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
        transfer_queue.init(OmegaConf.create({"controller": {"polling_mode": True}, "backend": unit}))
        self.queue = transfer_queue

    def put(self, values: torch.Tensor) -> None:
        from tensordict import TensorDict

        self.queue.kv_batch_put(SAMPLES, "raw", TensorDict({"x": values}, batch_size=[ROWS]))

    def get(self) -> torch.Tensor:
        return self.queue.kv_batch_get(SAMPLES, "raw", ["x"])["x"]

    def clear(self) -> None:
        self.queue.kv_clear(SAMPLES, "raw")


def stores() -> dict[str, Any]:
    """Return what can be measured here."""
    found: dict[str, Any] = {"local": Ours(DataPlaneConfig())}
    try:
        import ray
        import transfer_queue  # noqa: F401  the packages go together
    except ImportError:
        return found
    folder = tempfile.mkdtemp(prefix="sea-")
    ray.init(
        address="local", num_cpus=8, include_dashboard=False, object_store_memory=2 << 30, log_to_driver=False,
        _temp_dir=folder,
    )  # fmt: skip
    found["TransferQueue"] = Theirs()
    for name in ("ray", "transfer_queue"):
        found[name] = Ours(DataPlaneConfig(implementation=name, name=name, timeout_s=60))  # type: ignore[arg-type]
    return found


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a call took, and what it returned."""
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def rates(found: dict[str, Any], rounds: int) -> tuple[Rates, Rates]:
    """Return medians and the fastest in milliseconds; the stores take turns, so that the load meets all alike."""
    values = torch.randint(0, 1000, (ROWS, WIDTH))
    took: dict[str, dict[str, list[float]]] = {name: {"put": [], "get": [], "clear": []} for name in found}
    for number in range(rounds + 2):
        for name, store in found.items():
            put, _ = seconds(lambda store=store: store.put(values))
            get, back = seconds(store.get)
            clear, _ = seconds(store.clear)
            assert torch.equal(torch.stack(list(back)), values)
            if number >= 2:  # the first of a process are slower
                for operation, one in (("put", put), ("get", get), ("clear", clear)):
                    took[name][operation].append(1000 * one)
    median, fastest = (
        {name: {of: summary(ms) for of, ms in own.items()} for name, own in took.items()}
        for summary in (statistics.median, min)
    )
    return median, fastest


def claim_ms(store: Ours) -> float:
    """Return the median time to claim 1,000 of 100,000 ready rows."""
    rows, took = torch.zeros(ROWS, 2, dtype=torch.long), []
    for part in range(READY // ROWS):
        store.client.put_samples([f"{part}-{sample}" for sample in SAMPLES], "bench", {"x": rows})
    for _ in range(9):
        one, meta = seconds(lambda: store.client.claim_meta("bench", "train", ["x"], ROWS))
        assert meta.size == ROWS
        store.client.release(meta)
        took.append(1000 * one)
    store.client.clear_samples(
        [f"{part}-{sample}" for part in range(READY // ROWS) for sample in SAMPLES], "bench"
    )
    return statistics.median(took)


def growth(store: Ours, cycles: int) -> float:
    """Return how much resident memory grew over fill-and-clear cycles, after a tenth of them, as a part of it."""
    process, values, start = psutil.Process(), torch.zeros(ROWS, WIDTH, dtype=torch.long), 0
    for number in range(cycles):
        store.put(values)
        store.clear()
        if number == cycles // 10:
            start = process.memory_info().rss
    return process.memory_info().rss / start - 1


def flow_ms(num_rows: int, num_tokens: int, rounds: int) -> dict[str, float]:
    """Return median and fastest time in which the rows of a step go from producer to trainer, in groups of eight."""
    draw = random.Random(0)
    group_size = 8
    rows = Rollouts(
        examples=[Example(row // group_size, "prompt", "answer", "made") for row in range(num_rows)],
        completions=[
            Completion(
                tuple(draw.randrange(1000) for _ in range(32)),
                tuple(draw.randrange(1000) for _ in range(num_tokens)),
                tuple(-draw.random() for _ in range(num_tokens)),
                "stop",
            )
            for _ in range(num_rows)
        ],
        texts=["text"] * num_rows,
        scores=Scores([0.5] * num_rows, 0, None, failed=[False] * num_rows),
    )
    num_groups = num_rows // group_size
    buffer = ReplayBuffer(
        build_data_plane_client(DataPlaneConfig()),
        groups_per_step=num_groups,
        group_size=group_size,
        capacity=num_groups,
        timeout_s=0.0,
    )
    took = []
    for _ in range(rounds + 2):
        put, _ = seconds(lambda: buffer.add(rows))
        consumed, back = seconds(
            lambda: buffer.consume(lambda groups, rollouts: rollouts, current_weight_version=0)
        )
        assert back == rows
        took.append(1000 * (put + consumed))
    return {"median": statistics.median(took[2:]), "fastest": min(took)}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = stores()
    median, fastest = rates(found, arguments.rounds)
    report: dict[str, Any] = {"ms": median, "fastest_ms": fastest}
    report["claim_ms"] = {name: claim_ms(store) for name, store in found.items() if isinstance(store, Ours)}
    sizes = [(16, 8), (64, 64), (256, 256), (256, 1024)]
    report["flow_ms"] = {
        f"{rows} rows of {tokens} tokens": flow_ms(rows, tokens, arguments.rounds) for rows, tokens in sizes
    }
    report["growth_of_local"] = growth(found["local"], arguments.cycles)
    for what, found_ms in (("median", median), ("fastest", fastest)):
        theirs = found_ms.get("TransferQueue")
        for name, own in found_ms.items():
            ratios = {of: f" ({theirs[of] / ms:.2f}x)" if theirs else "" for of, ms in own.items()}
            print(
                f"{what:<8} {name:<15} "
                + "  ".join(f"{of} {ms:7.2f} ms{ratios[of]}" for of, ms in own.items())
            )
    for name, ms in report["claim_ms"].items():
        print(f"{name:<15} claim of {ROWS} of {READY} ready rows {ms:.2f} ms")
    for name, ms in report["flow_ms"].items():
        print(f"local: {name} from producer to trainer {ms['median']:.2f} ms, fastest {ms['fastest']:.2f} ms")
    print(
        f"local: resident memory grew by {100 * report['growth_of_local']:.2f} % over {arguments.cycles} cycles"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
