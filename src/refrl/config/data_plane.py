"""Where rows of rollouts lie between producers and the trainer."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from refrl.config.base import Section


class DataPlaneConfig(Section):
    """The data plane."""

    implementation: Literal["local", "ray", "transfer_queue"] = "local"
    """`local` serves one process; the others serve all processes of a Ray cluster."""
    lease_s: float = Field(default=600.0, gt=0)
    """Seconds after which claimed samples are given back, unless the claim says otherwise."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds after which a store that does not answer is reported (not for `local`)."""
    name: str = "refrl-data-plane"
    """Of the store among the cluster's actors: participants of one store give the same (not for `local`)."""
    journal: str | None = None
    """File by which a control that died is restored (`ray` and `transfer_queue`); None: its death ends the store."""

    @model_validator(mode="after")
    def _journal_is_read(self) -> Self:
        if self.journal is not None and self.implementation == "local":
            raise ValueError(
                "data_plane.journal restores the state of other processes, and data_plane.implementation=local ends "
                "with this one: leave journal out, or use ray"
            )
        return self
