"""Plants: one-place faults in refrl's wiring that leave a run at exit status 0, in `plants/<module>.yaml`.

Their author knew the catalogue of real bugs and refrl's source, and no detector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from seatrial.errors import UsageError
from seatrial.packaged import read_table

NO_PLANTS = "modules_without_plants.yaml"
"""Modules of a run without behaviour that can fail silently, each with the reason."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A fault, the place where it is planted, and the options with which it has an effect."""

    id: str
    what: str
    """What is wrong with a stack that has the fault."""
    module: str
    """Module of refrl that is changed."""
    old: str
    """Text that occurs exactly once in the module."""
    new: str
    catalogue: tuple[str, ...]
    """Ids of similar known bugs (SBnnn)."""
    differs: tuple[str, ...] = ()
    """How a run with the fault differs from one without it (`seatrial.faults.verify`); for code that no run on one CPU
    reaches, which call returns another result (`outside a run: ...`)."""
    loop: Literal["grpo", "sft", "grpo-vlm"] = "grpo"
    """Which run shows the fault: the smoke recipe, supervised fine-tuning, or a run with an image in each prompt."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options, in addition to the smoke recipe's, with which the fault has an effect."""
    starts: int = 1
    """How often the command is started in one folder, so that it continues from its checkpoints."""


@cache
def all_plants() -> tuple[Plant, ...]:
    """Return the plants of every table, in the order of the tables' names.

    Raises:
        UsageError: two have one id.
    """
    plants = tuple(
        Plant(**_tuples(fields)) for name, table in _tables() if name != NO_PLANTS for fields in table
    )
    ids = [plant.id for plant in plants]
    twice = sorted({plant_id for plant_id in ids if ids.count(plant_id) > 1})
    if twice:
        raise UsageError(f"plants share an id: {', '.join(twice)}; rename them in seatrial/faults/plants/")
    return plants


def modules_without_plants() -> dict[str, str]:
    """Return the reason for each module without a planted fault."""
    reasons: dict[str, str] = next((table for name, table in _tables() if name == NO_PLANTS), {})
    return reasons


def source_path(module: str, package: Path) -> Path:
    """Return the file of a module of refrl below the folder of a copy of the package.

    Raises:
        UsageError: there is none.
    """
    below = package.joinpath(*module.split(".")[1:])
    for path in (below.with_suffix(".py"), below / "__init__.py"):
        if path.is_file():
            return path
    raise UsageError(f"refrl has no module {module}; correct the table that names it")


def _tables() -> Iterator[tuple[str, Any]]:
    folder = resources.files("seatrial.faults").joinpath("plants")
    for table in sorted(folder.iterdir(), key=lambda path: path.name):
        if table.name.endswith(".yaml"):
            yield table.name, read_table("seatrial.faults", "plants", table.name)


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **fields,
        "catalogue": tuple(fields["catalogue"]),
        "differs": tuple(fields.get("differs", ())),
    }
