"""Text models on record in which every part acts: noise in training, caches of several steps, padding in ids and masks.

A second record, in addition to that of `class_records`, of richer configurations and inputs; see `rich_configs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.any_models import LARGEST
from seatrial.targets.transformers.class_inputs import takes
from seatrial.targets.transformers.class_outputs import start_of
from seatrial.targets.transformers.class_records import ClassRecord, record
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.rich_configs import GROUPS, even_noise, rich_config
from seatrial.targets.transformers.rich_inputs import rich_inputs
from seatrial.targets.transformers.rich_outputs import MADE, NOISY, OF_MAIN, OF_PLAIN
from seatrial.targets.transformers.small_models import fresh_model

RICH = Path(__file__).with_name("recorded_rich.json")


class RichRecord(ClassRecord):
    """The classes of a module of text models, with configurations in which every part acts."""

    path = RICH

    def option_names(self) -> list[str]:
        """Return what can be recorded: class, group of options, and output."""
        found = []
        for name in self._classes:
            found += [f"{name}|plain|{what}" for what in MADE if what not in (*OF_MAIN, *OF_PLAIN)]
            if name in self._main:
                crossed = "encoder_hidden_states" in takes(self._classes[name].forward)
                groups = [group for group in GROUPS if group != "decoder" or crossed]
                found += [f"{name}|{group}|{what}" for group in groups for what in OF_MAIN]
                found += [f"{name}|plain|{what}" for what in OF_PLAIN]
        return found

    @cache  # noqa: B019  an adapter lives as long as its process
    def _rich(self, name: str, group: str, noisy: bool) -> tuple[Any, Sequence[float]]:
        try:
            config = rich_config(self._config(name), group, noisy=noisy)
        except LookupError as error:
            raise NotServed(str(error)) from error
        model = fresh_model(self._classes[name], config, LARGEST).eval()
        start = start_of(model, self.recorded.get(f"{name}|{group}|start", ()))
        draw_by_names_alone(model)
        return model, start

    def _given(self, name: str, what: str) -> Sequence[float]:
        group, _, made = what.partition("|")
        if made not in (*MADE, "start") or group not in GROUPS:
            raise NotServed(f"no {what}")
        model, start = self._rich(name, group, made in NOISY)
        if made == "start":
            return start
        before = torch.get_rng_state()
        try:
            with even_noise():
                found = MADE[made](model, rich_inputs(model))
        finally:
            model.eval().zero_grad()
        if not torch.equal(before, torch.get_rng_state()):
            raise NotServed("random numbers are drawn")
        return found


def _adapter(kind: str) -> type[RichRecord]:
    words = {"__doc__": f"Every class of models.{kind} with rich configurations on record.", "kind": kind}
    return type(f"RecordedRich_{kind}", (RichRecord,), words)


ADAPTERS: dict[str, type[Any]] = {f"recorded-rich-{kind}": _adapter(kind) for kind in record(RICH)}
