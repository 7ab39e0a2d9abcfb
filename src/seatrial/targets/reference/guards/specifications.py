"""Checks what refrl says that its loss and its advantages compute against the options of the run."""

from __future__ import annotations

from dataclasses import asdict

from refrl.algorithms.advantages import specification as advantage_specification
from refrl.algorithms.losses.base import specification as loss_specification
from refrl.config import GRPORunConfig
from seatrial.guards import Guards
from seatrial.relations.oracles.options import advantage_spec, loss_spec
from seatrial.targets.reference.guards.base import RunConfig, check, options_of


def check_specifications(config: RunConfig, guards: Guards) -> None:
    """Check each value that the loss and the advantages name; a custom part that names none is not checked."""
    if not isinstance(config, GRPORunConfig):
        return
    options = options_of(config)
    for what, claimed, right in (
        ("loss", loss_specification(config.loss_fn), asdict(loss_spec(options))),
        ("advantages", advantage_specification(config.grpo.advantage), asdict(advantage_spec(options))),
    ):
        wrong = [
            f"{name} is said to be {value!r}, the options make it {right[name]!r}"
            for name, value in (claimed or {}).items()
            if value != right[name]
        ]
        check(guards, f"{what} as specified", wrong, number=len(claimed or {}))
