"""What was measured of the one-line faults: which relations see them, on how many seeds, and on tidy inputs.

The data stand in `measured.json`, written by `python -m seatrial.faults.measure`; nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

NUM_SEEDS = 20
DATA = "measured.json"
NO_THREE_HIDDEN: Mapping[str, str] = {
    "R18.knobs": "its inputs are the names and values of options: there is nothing about them to make tidy",
}
"""Relations for which no three faults are hidden from tidy inputs, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """How one relation sees one mutant."""

    default: int
    """Default seeds, each run alone, on which it fails."""
    of_default: int
    """Default seeds on which it can be exercised."""
    tidy: bool
    """Whether it fails on tidy inputs too."""
    twenty: int | None = None
    """Seeds 0 to 19, each run alone, on which it fails; None where that was not measured."""
    of_twenty: int | None = None

    @property
    def always(self) -> bool:
        """Whether each default seed alone is enough."""
        return self.of_default > 0 and self.default == self.of_default

    @property
    def hidden(self) -> bool:
        """Whether it is always seen, and never by tidy inputs."""
        return self.always and not self.tidy


def data_file() -> Path:
    """Return where the data stand."""
    return Path(str(resources.files("seatrial.faults").joinpath(DATA)))


def load(path: Path) -> dict[str, dict[str, Seen]]:
    """Return by mutant and relation what was measured."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return {
        mutant: {relation: Seen(**seen) for relation, seen in by_relation.items()}
        for mutant, by_relation in raw.items()
    }


@cache
def measured() -> Mapping[str, Mapping[str, Seen]]:
    """Return what is recorded in the package."""
    return load(data_file())


def save(path: Path, found: Mapping[str, Mapping[str, Seen]]) -> None:
    """Write the data, one mutant a line."""
    lines = [
        f"{json.dumps(mutant)}: {json.dumps({name: vars(seen) for name, seen in by_relation.items()})}"
        for mutant, by_relation in sorted(found.items())
    ]
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    temporary.replace(path)


def hidden_from_tidy(relation: str) -> list[str]:
    """Return the mutants that a relation sees on every default seed, and not on tidy inputs."""
    return [
        mutant
        for mutant, by_relation in measured().items()
        if relation in by_relation and by_relation[relation].hidden
    ]
