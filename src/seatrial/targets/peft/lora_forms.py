"""LoRA in forms with options of their own: KaSA, BD-LoRA and VeLoRA; all for a thorough run."""

from __future__ import annotations

from typing import Any

from seatrial.relations.contracts.adapter_histories import HistoryModel, Options
from seatrial.relations.not_served import NotServed
from seatrial.targets.peft.kinds import PeftAdapters
from seatrial.targets.peft.lora import lora

REFUSED = ("mixed batch", "swapping")
KASA = {"changes_base": True, "starts_as_base": False, "saves_all": False, "refuses": REFUSED}
"""The smallest parts of the base's weights are cut off, so a new adapter is not the base."""
BLOCKS = {"target_modules_bd_a": ["down_proj", "o_proj"], "target_modules_bd_b": ["q_proj", "up_proj"]}


class _Form(PeftAdapters):
    def alone(self, options: Options, name: str, *, seed: int, dropout: float = 0.0) -> HistoryModel:
        raise NotServed("adapters of a form are not combined with those of another one")


def _form(*, spec: dict[str, Any] | None = None, **options: Any) -> type[PeftAdapters]:
    return lora(parent=_Form, spec=spec or {"refuses": REFUSED}, **options)


FORMS: dict[str, type[Any]] = {
    "lora-kasa": _form(kasa_config={}, spec=KASA),
    "lora-bdlora": _form(use_bdlora={**BLOCKS, "nblocks": 2}),
    "lora-bdlora-rslora": _form(use_bdlora={**BLOCKS, "nblocks": 4}, use_rslora=True),
    "lora-velora": _form(velora_config={"num_groups": 4}),
    "lora-velora-once": _form(
        velora_config={"num_groups": 8, "init_type": "batch_average_once", "scale": 0.5}
    ),
}
