"""Reads one TensorBoard file with seatrial and with tensorboard's EventAccumulator, and prints the ratios.

    python benchmarks/read_tensorboard.py [--tags 200] [--steps 5000] [--repeats 3] [--growth] [--dump]

The accumulator is used as NeMo RL's dump script uses it (tests/json_dump_tb_logs.py): size guidance 0, so that no
point is sampled away, then every scalar of every tag. Each reading takes place in a process of its own, in turn, and
its time is that of reading alone, imports left out; memory is the peak of the whole process. Both must return the
same points. `--growth` reads files of one to ten million scalars and prints the time per million. `--dump` compares
`seatrial dump` with a script that reads with the accumulator and writes the same file, as whole processes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonl_memory import measure

READERS = {
    "accumulator": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
def read(folder):
    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    data = {}
    for tag in accumulator.Tags()["scalars"]:
        data[tag] = {event.step: event.value for event in accumulator.Scalars(tag)}
    return len(data), sum(map(len, data.values())), sum(sum(one.values()) for one in data.values())
""",
    "seatrial": """
from seatrial.evidence.read import read_logs
def read(folder):
    log = read_logs(folder, TAGS)
    assert not log.damage
    series = log.series.values()
    return len(series), sum(map(len, series)), sum(float(one.values.sum()) for one in series)
""",
}
WRITE = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
accumulator.Reload()
data = {}
for tag in accumulator.Tags()["scalars"]:
    data[tag] = {event.step: event.value for event in accumulator.Scalars(tag)}
with open(sys.argv[2], "w") as file:
    json.dump(data, file)
"""
CHILD = """
import json, resource, sys, time
TAGS = json.loads(sys.argv[2])
begin, cpu = time.perf_counter(), time.process_time()
found = read(sys.argv[1])
print(json.dumps({
    "seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu, "found": found,
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tags", type=int, default=200)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--growth", action="store_true", help="read one to ten million scalars")
    parser.add_argument(
        "--dump", action="store_true", help="compare `seatrial dump`, imports and writing included"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.growth:
            _growth(Path(folder), arguments.repeats)
        elif arguments.dump:
            _dump(Path(folder), arguments.tags, arguments.steps, arguments.repeats)
        else:
            _compare(Path(folder), arguments.tags, arguments.steps, arguments.repeats)


def _compare(folder: Path, num_tags: int, num_steps: int, repeats: int) -> None:
    path = _write(folder, num_tags, num_steps)
    print(f"{num_tags} tags x {num_steps} steps, {path.stat().st_size / 1e6:.0f} MB; median of {repeats}")
    one = [_names(num_tags)[num_tags // 2]]
    runs: dict[str, list[dict[str, Any]]] = {"accumulator": [], "seatrial": [], "seatrial, one tag": []}
    for _ in range(repeats):
        runs["accumulator"].append(_read("accumulator", folder, None))
        runs["seatrial"].append(_read("seatrial", folder, None))
        runs["seatrial, one tag"].append(_read("seatrial", folder, one))
    for name, results in runs.items():
        print(
            f"{name:20} {_median(results, 'seconds'):8.2f} s {_median(results, 'cpu'):8.2f} s of CPU "
            f"{_median(results, 'megabytes'):7.0f} MB"
        )
    theirs, ours = runs["accumulator"][0]["found"], runs["seatrial"][0]["found"]
    if theirs[:2] != ours[:2] or abs(theirs[2] - ours[2]) > 1e-9 * abs(theirs[2]):
        raise SystemExit(f"the readers differ: {theirs} against {ours}")
    for name, over, under, key in (
        ("times as fast", "accumulator", "seatrial", "seconds"),
        ("times as fast in CPU time", "accumulator", "seatrial", "cpu"),
        ("of the memory", "seatrial", "accumulator", "megabytes"),
        ("of the time for one tag", "seatrial, one tag", "seatrial", "seconds"),
        ("of the CPU time for one tag", "seatrial, one tag", "seatrial", "cpu"),
    ):
        ratio = statistics.median(
            left[key] / right[key] for left, right in zip(runs[over], runs[under], strict=True)
        )
        print(f"{ratio:8.2f} {name}")


def _dump(folder: Path, num_tags: int, num_steps: int, repeats: int) -> None:
    logs = folder / "logs"
    logs.mkdir()
    _write(logs, num_tags, num_steps)
    theirs, ours = folder / "theirs.json", folder / "ours.json"
    measure(sys.executable, "-m", "seatrial", "dump", str(folder / "none"), "--output", str(ours))
    ratios = []
    for _ in range(repeats):
        slow = measure(sys.executable, "-c", WRITE, str(logs), str(theirs))
        quick = measure(sys.executable, "-m", "seatrial", "dump", str(logs), "--output", str(ours))
        ratios.append((slow.seconds / quick.seconds, quick.kibibytes / slow.kibibytes))
        for name, cost in (("accumulator", slow), ("seatrial dump", quick)):
            print(f"{name:14} {cost.seconds:6.2f} s of CPU {cost.kibibytes / 1024:5.0f} MB, exit {cost.code}")
    written = json.loads(ours.read_text())
    if any(written[tag] != points for tag, points in json.loads(theirs.read_text()).items()):
        raise SystemExit("the dumps differ")
    print(f"{statistics.median(ratio for ratio, _ in ratios):8.2f} times as fast in CPU time")
    print(f"{statistics.median(ratio for _, ratio in ratios):8.2f} of the memory")


def _growth(folder: Path, repeats: int) -> None:
    for millions in (1, 2, 5, 10):
        path = _write(folder, 200, 5000 * millions)
        results = [_read("seatrial", folder, None) for _ in range(repeats)]
        print(
            f"{millions:3} million scalars {_median(results, 'seconds'):7.2f} s, "
            f"{_median(results, 'seconds') / millions:.2f} s a million, "
            f"{_median(results, 'cpu') / millions:.2f} s of CPU a million, {_median(results, 'megabytes'):.0f} MB"
        )
        path.unlink()


def _median(results: list[dict[str, Any]], key: str) -> float:
    return statistics.median(result[key] for result in results)


def _read(reader: str, folder: Path, tags: list[str] | None) -> dict[str, Any]:
    words = [sys.executable, "-c", READERS[reader] + CHILD, str(folder), json.dumps(tags)]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(ran.stderr)
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def _names(num_tags: int) -> list[str]:
    groups = ("train", "validation", "timing/train", "performance", "critic")
    words = ("loss", "reward", "grad_norm", "kl", "mean_prompt_length", "entropy", "lr")
    return [f"{groups[tag % 5]}/{words[tag % 7]}_{tag}" for tag in range(num_tags)]


def _write(folder: Path, num_tags: int, num_steps: int) -> Path:
    path = folder / "events.out.tfevents.0"
    with path.open("wb") as stream:
        for data in _records(num_tags, num_steps):
            head = len(data).to_bytes(8, "little")
            stream.write(b"".join((head, _crc(head), data, _crc(data))))
    return path


def _crc(data: bytes) -> bytes:
    from seatrial.evidence.readers.tensorboard.tfrecord import masked_crc

    return masked_crc(data).to_bytes(4, "little")


def _records(num_tags: int, num_steps: int) -> Iterator[bytes]:
    """Yield events as torch's SummaryWriter writes them."""
    import random

    from tensorboard.compat.proto import event_pb2, summary_pb2

    yield event_pb2.Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString()
    generator = random.Random(0)
    names = _names(num_tags)
    wall_time = 1.7e9
    for step in range(1, num_steps + 1):
        wall_time += 5.0
        for name in names:
            wall_time += generator.random() * 1e-3
            value = summary_pb2.Summary.Value(tag=name, simple_value=generator.random())
            event = event_pb2.Event(
                wall_time=wall_time, step=step, summary=summary_pb2.Summary(value=[value])
            )
            yield event.SerializeToString()


if __name__ == "__main__":
    main()
