"""Holds both releases of each pair in pairs.toml to the relations, and records what they said.

    python -m tests.peers.wild.runner --python ENVIRONMENT/bin/python --layers FOLDER [--pair NAME] [--record]

The environment is `wild` of tests/peers/environments.toml. A release is a folder of its package alone, made in
seconds and put before the environment on the path, so that twenty releases share one torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.peers.making import install

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TABLE = tomllib.loads((HERE / "pairs.toml").read_text(encoding="utf-8"))
PAIRS: tuple[Mapping[str, Any], ...] = tuple(TABLE["pair"])
SIDES = ("buggy", "fixed")
RECORD = HERE / "recorded.json"
OF_EVERY_RUN = "trl-6357-gkd-eos"
"""The pair that runs with every run of the tests: both its releases also run over the newest Transformers."""


class Task(NamedTuple):
    """A release to be judged."""

    release: tuple[str, ...]
    """A target, the package of the release where it is one, and the layer that it stands on."""
    expected: str = "{}"
    """What it is known to break, beside what its adapters declare: JSON, the reason by law by adapter."""


def is_ordinary(pair: Mapping[str, Any]) -> bool:
    """Tell whether both releases run over the environment itself: such pairs share one process."""
    return not any(TABLE["layers"][pair[side][-1]] for side in SIDES)


ORDINARY = tuple(pair for pair in PAIRS if is_ordinary(pair))
NIGHTLY = tuple(pair for pair in PAIRS if not is_ordinary(pair))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the relations said of one adapter on one release."""

    verdicts: Sequence[Mapping[str, Any]]

    @property
    def broken(self) -> list[str]:
        """`RELATION/law` of every law that is broken and that the adapter did not declare, in their order."""
        return [
            f"{verdict['name'].split(': ')[-1].split()[0]}/{law}"
            for verdict in self.verdicts
            for law in failed_laws(verdict["details"])
        ]

    @property
    def mended(self) -> list[str]:
        """What the adapter declares to be broken and is not."""
        return [law for verdict in self.verdicts for law in verdict["details"].get("laws_fixed", [])]

    @property
    def declared(self) -> list[str]:
        """Reasons of the failures that the adapter declares."""
        found = [
            reason
            for verdict in self.verdicts
            for reason in verdict["details"].get("expected_failures", {}).values()
        ]
        return sorted(set(found))

    @property
    def judges(self) -> bool:
        """Whether something passed and nothing was blocked."""
        outcomes = {verdict["outcome"] for verdict in self.verdicts}
        return "Pass" in outcomes and "Blocked" not in outcomes


def failed_laws(details: Mapping[str, Any]) -> list[str]:
    """Return the laws that are broken, and those during which the stack raised."""
    return [
        *details.get("laws_broken", []),
        *(law for one in details.get("raises", []) for law in one["laws"]),
    ]


def layer(python: Path, folder: Path, requirements: Sequence[str]) -> Path:
    """Return a folder that holds these packages without their dependencies, made where it is missing."""
    key = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    home = folder.resolve() / f"{requirements[0].partition('==')[0]}-{key}"
    if not home.exists():
        folder.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=folder))
        install(
            python, ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(making), *requirements]
        )
        try:
            making.rename(home)
        except OSError:
            # Another run made it meanwhile.
            shutil.rmtree(making)
    return home


def judge(python: Path, layers: Path, pairs: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Judged]:
    """Judge both releases of the pairs; one process a set of shared packages, one fork of it a release.

    Returns:
        What was said, by the pair's name and its side.

    Raises:
        RuntimeError: a release gave no verdicts; the end of its console says why.
    """
    asked = [(pair, side) for pair in pairs for side in SIDES]
    wanted: dict[Task, set[str]] = {}
    for pair, side in asked:
        wanted.setdefault(_task(pair, side), set()).add(pair["adapter"])
    found = verdicts_of(python, layers, {task: sorted(names) for task, names in wanted.items()})
    return {
        (pair["name"], side): Judged(
            verdicts=[
                one for one in found[_task(pair, side)] if one["name"].startswith(f"{pair['adapter']}: ")
            ]
        )
        for pair, side in asked
    }


def verdicts_of(
    python: Path, layers: Path, wanted: Mapping[Task, Sequence[str]]
) -> dict[Task, list[dict[str, Any]]]:
    """Return the verdicts of these adapters on each release; of all adapters of its target where none is named.

    Raises:
        RuntimeError: as `judge`.
    """
    with tempfile.TemporaryDirectory() as folder:
        jobs = {
            task: _job(python, layers, task, names, Path(folder) / str(number))
            for number, (task, names) in enumerate(wanted.items())
        }
        for shared in {task.release[-1]: None for task in jobs}:
            places = [layer(python, layers, TABLE["layers"][shared])] if TABLE["layers"][shared] else []
            _work(python, places, [job for task, job in jobs.items() if task.release[-1] == shared])
        return {task: _verdicts(job) for task, job in jobs.items()}


def _task(pair: Mapping[str, Any], side: str) -> Task:
    """Return what a side is judged as: of the fixed one it is known which bugs only later releases mend."""
    residuals = pair.get("residuals", {}) if side == "fixed" else {}
    return Task(
        release=(pair["target"], *pair[side]),
        expected=json.dumps({pair["adapter"]: residuals} if residuals else {}),
    )


def _job(python: Path, layers: Path, task: Task, adapters: Sequence[str], place: Path) -> dict[str, Any]:
    target, *packages = task.release
    home = layer(python, layers, packages[:1]) if len(packages) == 2 else None
    lines = [
        line
        for adapter, laws in json.loads(task.expected).items()
        for line in (f"[{adapter}]", *(f"{json.dumps(law)} = {json.dumps(why)}" for law, why in laws.items()))
    ]
    if lines:
        place.with_suffix(".toml").write_text("\n".join(lines), encoding="utf-8")
    return {
        "release": None if home is None else str(home),
        "target": target,
        "adapters": list(adapters),
        "expect": f"{place}.toml" if lines else None,
        "report": f"{place}.json",
        "console": f"{place}.log",
    }


def _work(python: Path, places: Sequence[Path], jobs: Sequence[Mapping[str, Any]]) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*map(str, places), str(ROOT / "src")]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    subprocess.run(
        [str(python), str(HERE / "worker.py")], env=environment, input=json.dumps(jobs), text=True, check=True
    )


def _verdicts(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    report = Path(job["report"])
    if not report.exists():
        words = Path(job["console"]).read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"{job['target']}, {job['release']}: no verdicts\n{words[-3000:]}")
    found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["verdicts"]
    return found


def record(pair: Mapping[str, Any], buggy: Judged, fixed: Judged) -> dict[str, Any]:
    """Return what is recorded of a pair, as JSON values."""
    return {
        "name": pair["name"],
        **{side: pair[side] for side in SIDES},
        "buggy_breaks": buggy.broken,
        "fixed_breaks": fixed.broken,
        "fixed_declares": fixed.declared,
    }


def main() -> None:
    """Judge pairs and print what they broke."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the environment `wild`")
    parser.add_argument("--layers", type=Path, required=True, help="folder that releases are kept in")
    parser.add_argument("--pair", action="append", default=[], help="only this one")
    parser.add_argument("--record", action="store_true", help=f"put what is found into {RECORD.name}")
    asked = parser.parse_args()
    chosen = [pair for pair in PAIRS if not asked.pair or pair["name"] in asked.pair]
    judged = judge(asked.python, asked.layers, chosen)
    found = [record(pair, *(judged[pair["name"], side] for side in SIDES)) for pair in chosen]
    print(json.dumps(found, indent=1))
    if asked.record:
        held = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else []
        rows = {row["name"]: row for row in [*held, *found]}
        ordered = [rows[pair["name"]] for pair in PAIRS if pair["name"] in rows]
        RECORD.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
