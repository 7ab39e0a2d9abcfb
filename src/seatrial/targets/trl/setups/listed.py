"""Which trainers of TRL run with which options, and what the documentation says that they then compute.

A row of `SETUPS` is an adapter of `whole.Whole`. Objectives and scalars are written from TRL's documentation and the
papers that it names, never from its code.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.preferences import PREFERENCES
from seatrial.targets.trl.setups.rollouts import ROLLOUTS
from seatrial.targets.trl.setups.supervised import SUPERVISED
from seatrial.targets.trl.setups.traits import TRAITS

SETUPS: Mapping[str, Setup] = {**SUPERVISED, **PREFERENCES, **ROLLOUTS, **TRAITS}
