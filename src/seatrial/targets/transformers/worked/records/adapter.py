"""The adapter of answers on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.records.composed import COMPOSED_ROWS
from seatrial.targets.transformers.worked.records.declared import DECLARED_ROWS
from seatrial.targets.transformers.worked.records.loaded import LOADED_ROWS
from seatrial.targets.transformers.worked.records.older_tokenizers import OLDER_ROWS
from seatrial.targets.transformers.worked.records.pictures import PICTURE_ROWS
from seatrial.targets.transformers.worked.records.processors import PROCESSOR_ROWS
from seatrial.targets.transformers.worked.records.quantized import QUANTIZED_ROWS
from seatrial.targets.transformers.worked.records.sounds import SOUND_ROWS

ROWS: Sequence[Row] = (*PICTURE_ROWS, *SOUND_ROWS, *PROCESSOR_ROWS, *OLDER_ROWS)


class OfRecords(Worked):
    """What processors and tokenizers give by class and options; see `records.answers`."""

    package = "transformers"
    worked_rows = ROWS


class OfLoading(Worked):
    """What models keep that are read; see `records.loaded`."""

    package = "transformers"
    worked_rows = LOADED_ROWS


class OfDeclared(Worked):
    """What modules declare, quantization, models of parts; see `records.declared`, `.quantized` and `.composed`."""

    package = "transformers"
    worked_rows = (*DECLARED_ROWS, *QUANTIZED_ROWS, *COMPOSED_ROWS)


ADAPTERS: dict[str, type[Any]] = {
    "worked-records": OfRecords,
    "worked-loading": OfLoading,
    "worked-declared": OfDeclared,
}
