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
    timeout_s: float = Field(default=5.0, gt=0)
    """Seconds after which a store that does not answer is reported, or one that is being restored is given up (not for
    `local`): the longest that the rows of a step may take to be put or read."""
    name: str = "refrl-data-plane"
    """Of the store among the cluster's actors: participants of one store give the same (not for `local`)."""
    journal: str | None = None
    """File by which a control that died is restored (`ray` and `transfer_queue`); None: its death ends the store."""

    @model_validator(mode="after")
    def _options_have_effect(self) -> Self:
        for name in ("timeout_s", "name", "journal"):
            if (
                self.implementation == "local"
                and getattr(self, name) != type(self).model_fields[name].default
            ):
                raise ValueError(
                    f"data_plane.{name} is about a store in processes of its own, and data_plane.implementation=local "
                    f"has none: leave {name} out, or use ray"
                )
        return self
