"""What TRL offers by name, and the adapters that judge it; `python -m seatrial.targets.trl.options.public` prints it.

Names come from the installed release alone: classes and functions that its modules define, without those that begin
with an underscore. A trainer or its configuration is judged where a setup or a comparison runs it; a function where an
adapter's own table names it. All else is uncovered, or out of scope with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from seatrial.targets.common import offered as names
from seatrial.targets.common.offered import Offered
from seatrial.targets.common.target import release

OUT_OF_SCOPE: Mapping[str, str] = {
    "trl.cli": "commands that start other programs",
    "trl.extras": "timing",
    "trl.import_utils": "whether packages are installed",
    "trl._lazy_module": "imports",
    "trl.generation": "vLLM",
    "trl.scripts.vllm_serve": "vLLM",
    "trl.experimental.harbor": "a service",
    "trl.experimental.openreward": "a service",
    "trl.experimental.async_grpo": "vLLM",
    "trl.experimental.async_distillation": "vLLM",
    "trl.experimental.server_distillation": "a service",
    "trl.experimental.merge_model_callback": "mergekit",
}
"""By module: what a run on a CPU without other services or packages does not have."""


def offered() -> Iterator[Offered]:
    """Yield every public class and function of the installed release, module by module."""
    judged = _judged()
    yield from names.offered("trl", OUT_OF_SCOPE, lambda name, _: judged.get(name, names.UNCOVERED))


def _judged() -> dict[str, str]:
    """Return the adapters that judge each name, from the tables that the adapters are made of."""
    from seatrial.targets.trl.collators import COLLATORS
    from seatrial.targets.trl.compared.table import KINDS
    from seatrial.targets.trl.setups.listed import SETUPS
    from seatrial.targets.trl.sources import SOURCES
    from seatrial.targets.trl.utilities import ADAPTED, PLAIN
    from seatrial.targets.trl.worked.adapter import ROWS, USED

    found = dict.fromkeys(
        (*PLAIN.values(), *(row[0] for row in (*ADAPTED.values(), *SOURCES.values()))), "utilities"
    )
    found |= {place.rpartition(":")[2]: "utilities" for places, _ in COLLATORS.values() for place in places}
    found |= dict.fromkeys(TEMPLATES_AND_TILES, "utilities")
    found = dict.fromkeys((*(row.function for row in ROWS), *USED), "worked") | found
    found |= {
        "pack_dataset": "packing, packing-split, packing-wrapped",
        "SyncRefModelCallback": "whole-*-synchronised",
        "BEMACallback": "callbacks",
    }
    for trainer in {*(one.trainer for one in SETUPS.values()), *(one.trainer for one in KINDS.values())}:
        whole = [name for name, one in SETUPS.items() if one.trainer == trainer]
        compared = [f"compared-{name}" for name, one in KINDS.items() if one.trainer == trainer]
        text = ", ".join([*([f"{whole[0]} and {len(whole) - 1} other setups"] if whole else []), *compared])
        found |= {f"{trainer}Trainer": text, f"{trainer}Config": f"{text}, configurations"}
    return found


TEMPLATES_AND_TILES = (
    "get_training_chat_template", "add_response_schema", "parse_response", "supports_tool_calling",
    "ChunkedLogProbFunction", "ChunkedDivergenceFunction", "compute_topk_self_distillation_loss",
    "compute_full_logit_self_distillation_loss", "split_pixel_values_by_grid", "unsplit_pixel_values_by_grid",
    "DataCollatorForChatML", "compute_divergence", "add_tail_bucket", "apply_importance_sampling_clipping",
    "compute_sampled_token_self_distillation_loss", "ULDLoss",
)  # fmt: skip
"""Names that `templates`, `tiles` and `texts` look up."""


def main() -> None:
    """Print the table."""
    names.print_rows(f"trl {release('trl')}", list(offered()))


if __name__ == "__main__":
    main()
