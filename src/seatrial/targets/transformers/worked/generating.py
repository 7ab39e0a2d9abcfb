"""The worked examples of generation that are not those of `worked.generation`: one adapter of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.calls_caches import CACHE_CALL_ROWS
from seatrial.targets.transformers.worked.calls_generate import GENERATE_CALL_ROWS
from seatrial.targets.transformers.worked.calls_kernels import KERNEL_CALL_ROWS
from seatrial.targets.transformers.worked.checkpointed import CHECKPOINTED_ROWS
from seatrial.targets.transformers.worked.media_caches import MEDIA_CACHE_ROWS
from seatrial.targets.transformers.worked.media_steps import MEDIA_STEP_ROWS
from seatrial.targets.transformers.worked.older_batches import OLDER_BATCH_ROWS
from seatrial.targets.transformers.worked.older_beams import OLDER_BEAM_ROWS
from seatrial.targets.transformers.worked.older_caches import OLDER_CACHE_ROWS
from seatrial.targets.transformers.worked.older_calls import OLDER_CALL_ROWS
from seatrial.targets.transformers.worked.other_tokens import OTHER_TOKEN_ROWS
from seatrial.targets.transformers.worked.prepared import PREPARED_ROWS
from seatrial.targets.transformers.worked.speech import SPEECH_ROWS
from seatrial.targets.transformers.worked.speech_options import SPEECH_OPTION_ROWS

ROWS: Sequence[Row] = (
    *CACHE_CALL_ROWS,
    *CHECKPOINTED_ROWS,
    *GENERATE_CALL_ROWS,
    *KERNEL_CALL_ROWS,
    *MEDIA_CACHE_ROWS,
    *MEDIA_STEP_ROWS,
    *OLDER_BATCH_ROWS,
    *OLDER_BEAM_ROWS,
    *OLDER_CACHE_ROWS,
    *OLDER_CALL_ROWS,
    *OTHER_TOKEN_ROWS,
    *PREPARED_ROWS,
    *SPEECH_ROWS,
    *SPEECH_OPTION_ROWS,
)


class OfGeneration(Worked):
    """Parts of `generate`, and what models make of the arguments of its steps; see `contracts.worked`."""

    package = "transformers"
    worked_rows = ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-generation": OfGeneration}
