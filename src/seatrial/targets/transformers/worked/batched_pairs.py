"""Worked examples of continuous batches for pairs of options: each request gets the ids of plain loops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.answered_pairs import Table, cases_of_pairs
from seatrial.targets.transformers.worked.plain_decoding import PAD, Plan, model_of, refused, rows_by

# Some begin alike, by a whole page and by less; some are longer than a batch of eight ids.
PROMPTS: Sequence[tuple[int, ...]] = (
    (5, 9, 1, 11, 4, 7), (7, 1, 8, 7), (20, 1), (5, 9, 1, 11, 4, 7, 3, 3, 4, 8, 12), (5, 9, 1, 11, 6),
    (5, 9, 1, 11, 4, 7, 3, 3, 4, 9), (2,),
)  # fmt: skip
NUM_NEW = 6
ORDERS: Mapping[str, Sequence[tuple[int, ...]]] = {
    "mixed": PROMPTS,
    "rising": sorted(PROMPTS),
    "falling": sorted(PROMPTS, reverse=True),
    "shortest first": sorted(PROMPTS, key=len),
    "longest first, one twice": [*sorted(PROMPTS, key=len, reverse=True), PROMPTS[4]],
}
"""The prompts in several orders."""
TABLE: Table = {
    "order": ORDERS,
    "kind": {"Llama": "Llama", "a window": "Mistral with a window"},
    "attention": {"sdpa": "sdpa", "eager": "eager"},
    "pages": {"pages of 4": {"page_size": 4}, "pages of 8": {"page_size": 8}},
    "blocks": {"many blocks": {"num_blocks": 64}, "few blocks": {"num_blocks": 10}},
    "batch": {"16 ids": {"max_batch_tokens": 16}, "8 ids": {"max_batch_tokens": 8}, "64 ids": {"max_batch_tokens": 64}},
    "most": {"all requests": {}, "two requests": {"max_requests_per_batch": 2}},
    "scheduler": {"first in": {}, "prefill first": {"scheduler_type": "prefill_first"}},
    "sharing": {"shared": {}, "not shared": {"allow_block_sharing": False}},
    "logs": {"ids": {}, "probabilities": {"return_logprobs": True}},
    "ends": {"an end": (13,), "no end": (), "ends": (2, 25, 4)},
    "decode": {"greedy": {}, "the surest": {"do_sample": True, "top_k": 1, "temperature": 0.7}, "two answers": {
        "do_sample": True, "top_k": 1, "num_return_sequences": 2}},
}  # fmt: skip


def _allowed(case: Mapping[str, Any]) -> bool:
    # A batch of few requests ends with an error where another answer of one begins.
    return not (case["most"] and "num_return_sequences" in case["decode"])


def names_of_requests(number: int, copies: int = 1, first: int = 0) -> Iterator[str]:
    """Yield the names of the requests of some prompts, the further answers of each before its first one."""
    for place in range(first, first + number):
        yield from (f"req_{place}__child#{copy}" for copy in range(copies - 1))
        yield f"req_{place}"


def _faults(case: Mapping[str, Any], mixin: Any) -> list[str]:
    """Return which prompts do not get the ids of a plain loop, as often as is asked, and their probabilities.

    The requests are in the order of the prompts, as `generate_batch` says.
    """
    made: Any = find_name(
        "transformers", ["transformers.generation.configuration_utils:ContinuousBatchingConfig"]
    )
    options = {"max_memory_percent": 0.01, **case["pages"], **case["blocks"], **case["batch"], **case["most"],
               **case["scheduler"], **case["sharing"], **case["logs"]}  # fmt: skip
    ends = list(case["ends"]) if len(case["ends"]) > 1 else case["ends"][0] if case["ends"] else -1
    config = of_name("GenerationConfig")(
        **{
            "do_sample": False,
            "max_new_tokens": NUM_NEW,
            "pad_token_id": PAD,
            "eos_token_id": ends,
            **case["decode"],
        }
    )
    try:
        with torch.random.fork_rng(devices=[]):
            found = model_of(case["kind"], case["attention"]).generate_batch(
                [list(one) for one in case["order"]], generation_config=config,
                continuous_batching_config=made(**options), warmup=False, progress_bar=False,
            )  # fmt: skip
    except ValueError as error:
        raise refused(error) from error
    plan = Plan(kind=case["kind"], prompts=case["order"], ends=case["ends"], num_new=NUM_NEW)
    copies, requests = case["decode"].get("num_return_sequences", 1), list(found.values())
    wrong = (
        [] if [*found] == list(names_of_requests(len(case["order"]), copies)) else [f"requests {[*found]}"]
    )
    for place, (prompt, answer) in enumerate(zip(case["order"], rows_by(plan), strict=True)):
        got = requests[place * copies : (place + 1) * copies]
        if [(tuple(one.prompt_ids), one.generated_tokens) for one in got] != [(prompt, answer.ids)] * copies:
            held = [[one.prompt_ids, one.generated_tokens] for one in got]
            wrong.append(f"{prompt}: {held}, {answer.ids} is due")
        elif case["logs"]:
            due = [
                0.0 if case["decode"] else math.log(float(scores.softmax(-1)[token]))
                for token, scores in zip(answer.ids, answer.scores, strict=True)
            ]
            for one in got:
                wrong += unlike(one.logprobs, due, f"{prompt}, probabilities", 1e-3)[:1]
    return wrong[:3]


BATCHED_ROWS: Sequence[Row] = [
    Row("combinations", "transformers.generation.utils:GenerationMixin", f"continuous batches: {name}",
        partial(_faults, case), [], since="5.24")
    for name, case in cases_of_pairs(TABLE, _allowed)
]  # fmt: skip
