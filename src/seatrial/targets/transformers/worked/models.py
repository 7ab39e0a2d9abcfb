"""Worked examples of Transformers' models: rotary frequencies, masks, weights, their files and configurations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.adapter_kinds import ADAPTER_KIND_ROWS
from seatrial.targets.transformers.worked.adapter_names import ADAPTER_NAME_ROWS
from seatrial.targets.transformers.worked.adapters import ADAPTER_ROWS
from seatrial.targets.transformers.worked.attention import ATTENTION_ROWS
from seatrial.targets.transformers.worked.calls_loading import LOADING_CALL_ROWS
from seatrial.targets.transformers.worked.calls_losses import LOSS_CALL_ROWS
from seatrial.targets.transformers.worked.calls_masks import MASK_CALL_ROWS
from seatrial.targets.transformers.worked.calls_models import MODEL_CALL_ROWS
from seatrial.targets.transformers.worked.calls_parts import PART_CALL_ROWS
from seatrial.targets.transformers.worked.capacities import CAPACITY_ROWS
from seatrial.targets.transformers.worked.configurations import CONFIGURATION_ROWS
from seatrial.targets.transformers.worked.conversions import CONVERSION_ROWS
from seatrial.targets.transformers.worked.earlier_options import EARLIER_OPTION_ROWS
from seatrial.targets.transformers.worked.held import HELD_ROWS
from seatrial.targets.transformers.worked.inner_states import INNER_ROWS
from seatrial.targets.transformers.worked.mask_forms import FORM_ROWS
from seatrial.targets.transformers.worked.masks import MASK_ROWS
from seatrial.targets.transformers.worked.other_files import OTHER_ROWS
from seatrial.targets.transformers.worked.outputs import OUTPUT_ROWS
from seatrial.targets.transformers.worked.packed_masks import PACKED_ROWS
from seatrial.targets.transformers.worked.resized import RESIZED_ROWS
from seatrial.targets.transformers.worked.rope_axes import AXIS_ROWS
from seatrial.targets.transformers.worked.rope_forms import ROPE_FORM_ROWS
from seatrial.targets.transformers.worked.ropes import ROPE_ROWS
from seatrial.targets.transformers.worked.saved import SAVED_ROWS
from seatrial.targets.transformers.worked.text_heads import TEXT_HEAD_ROWS
from seatrial.targets.transformers.worked.tied import TIED_ROWS
from seatrial.targets.transformers.worked.values import VALUE_ROWS
from seatrial.targets.transformers.worked.weights import WEIGHT_ROWS

ROWS: Sequence[Row] = (
    *ROPE_ROWS,
    *ROPE_FORM_ROWS,
    *AXIS_ROWS,
    *MASK_ROWS,
    *FORM_ROWS,
    *PACKED_ROWS,
    *ATTENTION_ROWS,
    *VALUE_ROWS,
    *WEIGHT_ROWS,
    *TIED_ROWS,
    *HELD_ROWS,
    *SAVED_ROWS,
    *RESIZED_ROWS,
    *CONFIGURATION_ROWS,
    *EARLIER_OPTION_ROWS,
    *CONVERSION_ROWS,
    *ADAPTER_ROWS,
    *ADAPTER_KIND_ROWS,
    *ADAPTER_NAME_ROWS,
    *OTHER_ROWS,
    *LOADING_CALL_ROWS,
    *MODEL_CALL_ROWS,
    *MASK_CALL_ROWS,
    *LOSS_CALL_ROWS,
    *PART_CALL_ROWS,
    *CAPACITY_ROWS,
    *TEXT_HEAD_ROWS,
    *INNER_ROWS,
    *OUTPUT_ROWS,
)


class OfModels(Worked):
    """What models of any family have in common; see `contracts.worked`."""

    package = "transformers"
    worked_rows = ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-models": OfModels}
