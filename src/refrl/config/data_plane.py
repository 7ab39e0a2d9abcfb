"""Where rows of rollouts lie between producers and the trainer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from refrl.config.base import Section


class DataPlaneConfig(Section):
    """The data plane."""

    implementation: Literal["local"] = "local"
    """`local` serves the threads of one process."""
    lease_s: float = Field(default=600.0, gt=0)
    """Seconds after which claimed samples are given back, unless the claim says otherwise."""
