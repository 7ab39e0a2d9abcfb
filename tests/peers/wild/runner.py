"""Holds both releases of each pair in pairs.toml to the relations, and draws the table of docs/wild.md.

    python -m tests.peers.wild.runner --python ENVIRONMENT/bin/python --layers FOLDER [--pair NAME] [--table FILE]

The environment is `wild` of tests/peers/environments.toml. A release is a folder of its package alone, made by pip in
seconds and put before the environment on the path, so that twenty releases share one torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
TABLE = tomllib.loads((Path(__file__).parent / "pairs.toml").read_text(encoding="utf-8"))
PAIRS: tuple[Mapping[str, Any], ...] = tuple(TABLE["pair"])


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the relations said of one release."""

    verdicts: Sequence[Mapping[str, Any]]

    @property
    def broken(self) -> list[str]:
        """`RELATION/law` of every law that is broken, in their order."""
        return [
            f"{verdict['name'].split(': ')[-1].split()[0]}/{law}"
            for verdict in self.verdicts
            for law in verdict["details"].get("laws_broken", [])
        ]

    def clean(self, other: str | None) -> bool:
        """Whether something passed and nothing failed or was blocked, but for laws whose key begins with `other`."""
        outcomes = {verdict["outcome"] for verdict in self.verdicts}
        left = [key for key in self.broken if other is None or not key.startswith(other)]
        return "Pass" in outcomes and "Blocked" not in outcomes and not left

    @property
    def expected(self) -> list[str]:
        """Reasons of the failures that the adapter declares."""
        found = [
            reason for verdict in self.verdicts for reason in verdict["details"]["expected_failures"].values()
        ]
        return sorted(set(found))


def layer(python: Path, folder: Path, requirements: Sequence[str]) -> Path:
    """Return a folder that holds these packages without their dependencies, made where it is missing."""
    key = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    home = folder / f"{requirements[0].partition('==')[0]}-{key}"
    if not (home / ".ready").exists():
        words = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            str(home),
        ]
        subprocess.run([str(python), *words, *requirements], check=True)
        (home / ".ready").touch()
    return home


def judge(python: Path, layers: Path, pair: Mapping[str, Any], side: str) -> Judged:
    """Run `seatrial relations` where one release of a pair is installed."""
    packages = [TABLE["layers"].get(name, [name]) for name in pair[side]]
    places = [str(layer(python, layers, wanted)) for wanted in packages if wanted]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*places, str(ROOT / "src")]),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "verdicts.json"
        words = ["--target", pair["target"], "--adapter", pair["adapter"], "--json", str(report)]
        ran = subprocess.run(
            [str(python), "-m", "seatrial", "relations", *words],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            raise RuntimeError(
                f"{pair['name']}, {side}: no verdicts\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"
            )
        return Judged(verdicts=json.loads(report.read_text(encoding="utf-8")))


def row(pair: Mapping[str, Any], buggy: Judged, fixed: Judged) -> str:
    """Return a pair's row of the table."""
    flagged = "yes" if pair["law"] in buggy.broken else "no"
    notes = [*([f"beside {pair['because']}"] if fixed.broken and "other" in pair else []), *fixed.expected]
    clean = "yes" if fixed.clean(pair.get("other")) else f"no: {', '.join(fixed.broken)}"
    clean = f"{clean} ({'; '.join(notes)})" if notes else clean
    releases = f"{_release(pair['buggy'])} to {_release(pair['fixed'])}"
    return f"| {pair['name']} | {releases} | {pair['what']} | {flagged} | `{pair['law']}` | {clean} |"


def _release(words: Iterable[str]) -> str:
    return next(iter(words)).replace("==", " ").replace("transformers-", "transformers ")


def main() -> None:
    """Judge pairs and print their rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True, help="interpreter of the environment `wild`")
    parser.add_argument("--layers", type=Path, required=True, help="folder that releases are kept in")
    parser.add_argument("--pair", action="append", default=[], help="only this one")
    parser.add_argument("--table", type=Path, help="also append the rows to this file, one by one")
    asked = parser.parse_args()
    for pair in PAIRS:
        if asked.pair and pair["name"] not in asked.pair:
            continue
        line = row(pair, *(judge(asked.python, asked.layers, pair, side) for side in ("buggy", "fixed")))
        print(line, flush=True)
        if asked.table:
            with asked.table.open("a", encoding="utf-8") as table:
                table.write(line + "\n")


if __name__ == "__main__":
    main()
