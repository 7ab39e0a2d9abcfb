"""Worked examples of the requests of a manager of continuous batches: each holds what its prompt alone gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.answered_pairs import Table, cases_of_pairs
from seatrial.targets.transformers.worked.batched_pairs import NUM_NEW, ORDERS, names_of_requests
from seatrial.targets.transformers.worked.plain_decoding import PAD, Plan, model_of, rows_by

KIND, END = "Llama", 13
Prompts = Sequence[tuple[int, ...]]


def _config(**options: Any) -> Any:
    given = {"do_sample": False, "max_new_tokens": NUM_NEW, "pad_token_id": PAD, "eos_token_id": END}
    return of_name("GenerationConfig")(**given, **options)


def _due(prompts: Prompts) -> list[list[int]]:
    plan = Plan(kind=KIND, prompts=prompts, ends=(END,), num_new=NUM_NEW)
    return [answer.ids for answer in rows_by(plan)]


def _manager(**options: Any) -> Any:
    """Return the context of a manager of requests, which stops with it."""
    made: Any = find_name(
        "transformers", ["transformers.generation.configuration_utils:ContinuousBatchingConfig"]
    )
    config = made(max_memory_percent=0.01, page_size=4, num_blocks=64, max_batch_tokens=16, **options)
    return model_of(KIND, "sdpa").continuous_batching_context_manager(
        generation_config=_config(), continuous_batching_config=config, warmup=False, block=True, timeout=5
    )


def _finished(manager: Any, number: int) -> dict[str, list[Any]]:
    """Return what each request gave, in the order in which it came, until that many have ended."""
    found, num = dict[str, list[Any]](), 0
    while num < number:
        result = manager.get_result(timeout=1)
        if result is None:
            assert manager.is_running(), "the manager has stopped"
            continue
        found.setdefault(result.request_id, []).append(
            (list(result.prompt_ids), list(result.generated_tokens))
        )
        num += result.is_finished()
    return found


def _wrong(found: Mapping[str, Sequence[Any]], names: Sequence[str], prompts: Prompts) -> Iterator[str]:
    """Yield which requests do not hold the ids of their own prompt, or parts of them on the way."""
    for name, prompt, ids in zip(names, prompts, _due(prompts), strict=True):
        parts = found.get(name, ())
        starts = all(list(prompt) == held and ids[: len(new)] == new for held, new in parts)
        if not parts or not starts or parts[-1][1] != ids:
            yield f"{name} of {prompt}: {parts}, {ids} are due"


def _added(prompts: Prompts, sharing: bool, streaming: bool) -> list[str]:
    """Return which of the prompts that are added at once, and once more, do not get the answers of their names."""
    with torch.random.fork_rng(devices=[]), _manager(allow_block_sharing=sharing) as manager:
        given = [list(one) for one in prompts]
        names = [name for _ in range(2) for name in manager.add_requests(given, streaming=streaming)]
        found = _finished(manager, len(names))
    due = [*names_of_requests(len(prompts)), *names_of_requests(len(prompts), first=len(prompts))]
    wrong = [] if names == due else [f"names {names}"]
    return [*wrong, *_wrong(found, names, [*prompts, *prompts])][:3]


def _named(prompts: Prompts, sharing: bool, streaming: bool) -> list[str]:
    """Return which of the prompts that are added one by one, some under a given name, do not get their answers."""
    with torch.random.fork_rng(devices=[]), _manager(allow_block_sharing=sharing) as manager:
        names = [
            manager.add_request(
                list(one), request_id=f"own {place}" if place % 2 else None, streaming=streaming
            )
            for place, one in enumerate(prompts)
        ]
        found = _finished(manager, len(names))
    due = [f"own {place}" if place % 2 else f"req_{place // 2}" for place in range(len(prompts))]
    wrong = [] if names == due else [f"names {names}"]
    return [*wrong, *_wrong(found, names, prompts)][:3]


def _iterated(prompts: Prompts, sharing: bool, streaming: bool) -> list[str]:
    """Return which prompts do not get their answers from the iterators of their names, the last one first."""
    found: dict[str, list[Any]] = {}
    with torch.random.fork_rng(devices=[]), _manager(allow_block_sharing=sharing) as manager:
        names = manager.add_requests([list(one) for one in prompts], streaming=streaming)
        for name in reversed(names):
            given = manager.request_id_iter(name)
            found[name] = [(list(one.prompt_ids), list(one.generated_tokens)) for one in given]
    return list(_wrong(found, names, prompts))[:3]


TABLE: Table = {
    "order": ORDERS,
    "way": {"added twice": _added, "named": _named, "iterated": _iterated},
    "sharing": {"shared": True, "not shared": False},
    "streams": {"whole": False, "streamed": True},
}


def _asked(case: Mapping[str, Any], mixin: Any) -> list[str]:
    found: list[str] = case["way"](case["order"], case["sharing"], case["streams"])
    return found


# Source: the documentation of ContinuousBatchingManager.
ORDER_ROWS: Sequence[Row] = [
    Row("combinations", "transformers.generation.utils:GenerationMixin", f"requests of a manager: {name}",
        partial(_asked, case), [], since="5.24")
    for name, case in cases_of_pairs(TABLE)
]  # fmt: skip
