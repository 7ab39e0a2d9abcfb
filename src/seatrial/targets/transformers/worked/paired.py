"""The worked examples of pairs of options: adapters of generation, of runs, and of files, texts and masks."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.worked_rows import Worked
from seatrial.targets.transformers.worked.answered_pairs import ANSWERED_ROWS
from seatrial.targets.transformers.worked.batched_order import ORDER_ROWS
from seatrial.targets.transformers.worked.batched_pairs import BATCHED_ROWS
from seatrial.targets.transformers.worked.defaulted_pairs import DEFAULTED_ROWS
from seatrial.targets.transformers.worked.generated_pairs import GENERATED_ROWS
from seatrial.targets.transformers.worked.kept_caches import KEPT_CACHE_ROWS
from seatrial.targets.transformers.worked.media_pairs import MEDIA_PAIR_ROWS
from seatrial.targets.transformers.worked.paired_adapters import PAIRED_ADAPTER_ROWS
from seatrial.targets.transformers.worked.paired_collators import PAIRED_BATCH_ROWS
from seatrial.targets.transformers.worked.paired_deepspeed import PAIRED_DEEPSPEED_ROWS
from seatrial.targets.transformers.worked.paired_evaluations import PAIRED_EVALUATION_ROWS
from seatrial.targets.transformers.worked.paired_generations import PAIRED_GENERATION_ROWS
from seatrial.targets.transformers.worked.paired_runs import PAIRED_RUN_ROWS
from seatrial.targets.transformers.worked.paired_seeds import PAIRED_SEED_ROWS
from seatrial.targets.transformers.worked.pairs_added import PAIRED_ADDED_ROWS
from seatrial.targets.transformers.worked.pairs_chats import PAIRED_CHAT_ROWS
from seatrial.targets.transformers.worked.pairs_custom import PAIRED_CUSTOM_ROWS
from seatrial.targets.transformers.worked.pairs_damaged import PAIRED_DAMAGED_ROWS
from seatrial.targets.transformers.worked.pairs_files import PAIRED_FILE_ROWS
from seatrial.targets.transformers.worked.pairs_masks import PAIRED_MASK_ROWS
from seatrial.targets.transformers.worked.pairs_texts import PAIRED_TEXT_ROWS
from seatrial.targets.transformers.worked.pairs_tied import PAIRED_TIED_ROWS
from seatrial.targets.transformers.worked.piped_pairs import PIPED_ROWS
from seatrial.targets.transformers.worked.spanned_pairs import SPANNED_ROWS


class OfGeneration(Worked):
    """What `generate` gives for any two of its options; see `contracts.worked`."""

    package = "transformers"
    worked_rows = (*GENERATED_ROWS, *BATCHED_ROWS, *ORDER_ROWS, *KEPT_CACHE_ROWS)


class OfPipelines(Worked):
    """What pipelines give for any two of their options; see `contracts.worked`."""

    package = "transformers"
    worked_rows = (*PIPED_ROWS, *ANSWERED_ROWS, *SPANNED_ROWS, *DEFAULTED_ROWS, *MEDIA_PAIR_ROWS)


class OfRuns(Worked):
    """What the trainer and its data collators give for any two of their options; see `contracts.worked`."""

    package = "transformers"
    worked_rows = (
        *PAIRED_RUN_ROWS, *PAIRED_EVALUATION_ROWS, *PAIRED_GENERATION_ROWS, *PAIRED_BATCH_ROWS, *PAIRED_SEED_ROWS,
        *PAIRED_DEEPSPEED_ROWS,
    )  # fmt: skip


class OfTexts(Worked):
    """What tokenizers, chat templates and masks give for any two of their options; see `contracts.worked`."""

    package = "transformers"
    worked_rows = (*PAIRED_TEXT_ROWS, *PAIRED_CHAT_ROWS, *PAIRED_ADDED_ROWS, *PAIRED_MASK_ROWS)


class OfFiles(Worked):
    """What is saved and read with any two options; see `contracts.worked`."""

    package = "transformers"
    worked_rows = (
        *PAIRED_FILE_ROWS, *PAIRED_DAMAGED_ROWS, *PAIRED_CUSTOM_ROWS, *PAIRED_TIED_ROWS, *PAIRED_ADAPTER_ROWS,
    )  # fmt: skip


ADAPTERS: dict[str, type[Any]] = {
    "pairs-generation": OfGeneration,
    "pairs-pipelines": OfPipelines,
    "pairs-runs": OfRuns,
    "pairs-texts": OfTexts,
    "pairs-files": OfFiles,
}
