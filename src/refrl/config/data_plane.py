"""`data_plane`: the store of rollout rows between producers and the trainer."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from refrl.config.base import Section


class DataPlaneConfig(Section):
    """The store of rollout rows between producers and the trainer."""

    implementation: Literal["local", "ray", "transfer_queue"] = "local"
    """`local` serves one process; the others serve all processes of a Ray cluster."""
    lease_s: float = Field(default=600.0, gt=0)
    """Seconds after which claimed samples are released, unless the claim sets its own."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Seconds after which a store that does not answer is an error, also while it is being restored (not for `local`).
    Putting or reading the rows of one step must take less."""
    name: str = "refrl-data-plane"
    """Name of the store among the cluster's actors; clients with the same name share one store (not for `local`)."""
    journal: str | None = None
    """File from which a control actor that crashed is restored (`ray` and `transfer_queue`); None: a crash is final."""

    @model_validator(mode="after")
    def _options_have_effect(self) -> Self:
        for name in ("timeout_s", "name", "journal"):
            if (
                self.implementation == "local"
                and getattr(self, name) != type(self).model_fields[name].default
            ):
                raise ValueError(
                    f"data_plane.{name} is for a store in separate processes, and data_plane.implementation=local "
                    f"has none: leave {name} out, or use ray"
                )
        return self
