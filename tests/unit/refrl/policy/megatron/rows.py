"""Rows to train on, and how two sets of tensors are compared."""

from collections.abc import Mapping

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch, TrainSample, make_batch


def ragged_rows() -> Batch:
    """Return six rows of unequal length, one of them masked, with advantages of both signs."""
    stream = torch.Generator().manual_seed(5)
    samples = []
    for row, (prompt_length, length) in enumerate([(3, 14), (1, 8), (7, 6), (2, 3), (5, 9), (4, 1)]):
        ids = torch.randint(0, 259, (prompt_length + length,), generator=stream).tolist()
        samples.append(
            TrainSample(
                prompt_ids=tuple(ids[:prompt_length]),
                completion_ids=tuple(ids[prompt_length:]),
                sampling_logprobs=tuple((-5 - torch.rand(length, generator=stream)).tolist()),
                reward=float(row % 3),
                group_id=row // 2,
                advantage=float(torch.randn((), generator=stream)),
                completion_mask=(0,) * length if row == 3 else None,
            )
        )
    return make_batch(samples, pad_token_id=0)


def shared(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return what every backend logs: the load of experts is logged by the model's own code alone."""
    return {name: value for name, value in metrics.items() if not name.startswith("moe/")}


def worst(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Return the largest relative error of any tensor; both have the same names.

    It is relative to the tensor, or to a thousandth of all of them where that is larger: a sum that cancels, as the
    gradient of a key's bias does, is rounding in relation to itself.
    """
    assert mine.keys() == theirs.keys()
    norms = {name: float(tensor.float().norm()) for name, tensor in theirs.items()}
    least = 1e-3 * sum(norm**2 for norm in norms.values()) ** 0.5
    return max(
        float((mine[name].float().cpu() - theirs[name].float().cpu()).norm()) / max(norms[name], least, 1e-30)
        for name in theirs
    )
