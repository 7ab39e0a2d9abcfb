"""The modules of NeMo RL with formulas, without the engines, loggers and models that they also import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.stand_ins import import_part, without_init


def _identity(tensor: Any) -> Any:
    """Stand for `to_local_if_dtensor`: the adapters give plain tensors."""
    return tensor


STAND_INS: Mapping[str, Mapping[str, Any]] = {
    "nemo_rl.models.policy": {},
    "nemo_rl.utils.logger": {},
    "nemo_rl.utils.fastokens": {},
    "nemo_rl.models.dtensor.parallelize": {"to_local_if_dtensor": _identity},
}
"""Imported for annotations, for logging, or (the last) for distributed tensors: vLLM, W&B and others come with them."""


def part(name: str) -> Any:
    """Return `nemo_rl.<name>` of the checkout on the path.

    Raises:
        Gone: there is no such module.
    """
    without_init("nemo_rl")
    return import_part(f"nemo_rl.{name}", STAND_INS)
