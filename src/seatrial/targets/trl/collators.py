"""TRL's collators in the contract's form, for releases whose documentation gives them the contract's columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import getdoc, signature
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name, release

COLLATORS: Mapping[str, tuple[Sequence[str], str]] = {
    "texts": (("trl.trainer.sft_trainer:DataCollatorForLanguageModeling",), '`"labels"`'),
    "ids": (("trl.trainer.sft_trainer:DataCollatorForLanguageModeling",), ""),
    "pairs": (("trl.trainer.dpo_trainer:DataCollatorForPreference",), '`"prompt_ids"`'),
    "triples": (("trl.experimental.tpo.tpo_trainer:DataCollatorForTriplePreference",), '`"prompt_ids"`'),
    "labelled": (("trl.trainer.kto_trainer:DataCollatorForUnpairedPreference",), '"KL_completion_ids"'),
    "scored": (("trl.trainer.reward_trainer:DataCollatorForPreference",), '`"chosen_ids"`'),
    "named": (
        ("trl.experimental.utils:DPODataCollatorWithPadding", "trl.trainer.utils:DPODataCollatorWithPadding"),
        "",
    ),
}
"""Where releases keep each kind, and what its documentation names if rows and batches have the contract's columns."""


def _collated(
    kind: str, rows: list[dict[str, Any]], options: Mapping[str, Any], pad: int
) -> Mapping[str, Any]:
    places, words = COLLATORS[kind]
    try:
        found = find_name("trl", places)
    except Gone as gone:
        raise NotServed(str(gone)) from gone
    if words not in str(getdoc(found)):
        raise NotServed(f"{found.__name__} of trl {release('trl')} takes other columns")
    if missing := {"pad_token_id", *options} - set(signature(found).parameters):
        raise NotServed(f"{found.__name__} of trl {release('trl')} takes no {', '.join(sorted(missing))}")
    batch: Mapping[str, Any] = found(pad_token_id=pad, **options)(rows)
    return batch


def functions() -> dict[str, Callable[..., Any]]:
    """Return the function of the contract."""
    return {"batch of rows": _collated}
