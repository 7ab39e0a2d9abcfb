"""Worked examples of ranges: values at the edges of what options and tasks take, and those beyond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refrl.tasks.base import make_task
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.options import refuses


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_edges()
    yield from _of_ranges()


EDGES: Mapping[str, Mapping[str, tuple[Sequence[int], Sequence[int]]]] = {
    "reverse": {
        "alphabet_size": ((2, 26), (1, 27)),
        "min_length": ((0, 4), (-1, 5)),
        "max_length": ((1, 1000), (0, 1001)),
    },
    "add": {"digits": ((1, 1000), (0, 1001))},
    "count_letters": {"length": ((1,), (0, 1001)), "alphabet_size": ((2, 26), (1, 27))},
    "code_print": {"limit": ((2,), (1,)), "num_operators": ((1, 3), (0, 4))},
    "colour": {"size": ((2, 4), (0, 3)), "num_features": ((1,), (0,))},
    "pitch": {"num_bands": ((2, 9), (1, 10)), "num_features": ((1,), (0,))},
    "lookup": {"min_length": ((0, 2), (-1, 3)), "alphabet_size": ((2, 26), (1, 27))},
}
"""By task and argument: values at the edges of what is taken, and those beyond."""


def _of_edges() -> Iterator[WorkedExample]:
    for name, arguments in EDGES.items():
        for key, (taken, beyond) in arguments.items():
            for value in taken:
                yield example(
                    f"{name} with {key}={value}",
                    name,
                    lambda name=name, **given: make_task(name, given).name,
                    **{key: value},
                )
            for value in beyond:
                yield refused(f"{key}", f"{name} with {key}={value}", make_task, name, {key: value})


RANGES: Mapping[str, tuple[Sequence[Any], Sequence[Any]]] = {
    "grpo.seed": ((0, 2**32 - 1), (-1, 2**32)),
    "grpo.max_num_steps": ((1,), (0,)),
    "grpo.val_period": ((0,), (-1,)),
    "grpo.max_val_samples": ((1,), (0,)),
    "grpo.num_generations_per_prompt": ((4,), (1,)),
    "grpo.max_verifier_error_share": ((0.0, 1.0), (-0.1, 1.1)),
    "grpo.advantage.epsilon": ((1e-9,), (0.0,)),
    "data.num_train": ((1,), (0,)),
    "data.seed": ((0, 2**32 - 1), (-1, 2**32)),
    "policy.max_grad_norm": ((None, 1e-3), (0.0,)),
    "policy.optimizer.lr": ((0.0,), (-1e-3,)),
    "policy.optimizer.betas": (([0.0, 0.0],), ([1.0, 0.9], [0.9, 1.0])),
    "policy.optimizer.eps": ((1e-12,), (0.0,)),
    "policy.optimizer.weight_decay": ((0.0,), (-0.1,)),
    "policy.scheduler.warmup_steps": ((0,), (-1,)),
    "policy.scheduler.min_lr_ratio": ((0.0, 1.0), (-0.1, 1.1)),
    "policy.generation.temperature": ((1e-3,), (0.0,)),
    "policy.generation.top_p": ((1e-3, 1.0), (0.0, 1.1)),
    "policy.generation.top_k": ((1, None), (0,)),
    "policy.generation.max_new_tokens": ((1,), (0,)),
    "policy.generation.block_tokens": ((0, None), (-1,)),
    "policy.logprob_batch_size": ((1,), (0,)),
    "checkpointing.save_period": ((0,), (-1,)),
    "checkpointing.keep_top_k": ((None,), (0,)),
    "cluster.num_threads": ((1, 1024, None), (0, 1025)),
    "data_plane.lease_s": ((0.1,), (0.0,)),
}
"""By option: values at the edges of what is taken, and those beyond."""


def _of_ranges() -> Iterator[WorkedExample]:
    for name, (taken, beyond) in RANGES.items():
        for value in taken:
            yield example(f"{name}={value}", "", refuses, {name: value})
        for value in beyond:
            yield example(
                f"{name}={value} is refused",
                True,
                lambda name=name, value=value: name in refuses({name: value}),
            )
