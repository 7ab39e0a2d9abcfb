"""R31.gathered: what a trainer gathers, smooths, decays, keeps and adds noise to is that of plain loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

GATHERED = relation_of(
    "gathered",
    "parts-of-a-trainer-are-plain-loops",
    "Batches of an evaluation are joined in their order and padded; smoothed losses, decaying parameters, checkpoints "
    "that are kept and noise on embeddings are those of their definitions.",
)


def _batches(case: Numbers, kind: str) -> list[Any]:
    generator = case.generator()
    found: list[Any] = []
    for rows, width in ((3, 4), (2, 6), (3, 1), (1, 6)):
        wide = torch.randn(rows, width, 2, generator=generator)
        ids = torch.randint(0, 9, (rows, width), generator=generator)
        if kind == "one number a row":
            found.append(torch.randn(rows, generator=generator))
        elif kind == "whole numbers":
            found.append(ids)
        elif kind == "one number a batch":
            found.append(torch.randn((), generator=generator))
        elif kind == "parts":
            found.append((wide, {"ids": ids, "same": wide[:, 0]}))
        elif kind == "bfloat16":
            found.append(wide.bfloat16())
        else:
            found.append([wide, ids])
    return found


def _joined_cases(case: Numbers) -> Iterator[Arguments]:
    for kind in ("one number a row", "whole numbers", "one number a batch", "parts", "lists", "bfloat16"):
        for every in (0, 1, 2):
            yield _batches(case, kind), -7, True, every
    yield _batches(case, "parts"), -100, True, 0
    for every in (0, 1, 3):
        yield _batches(case, "parts"), -100, False, every


def joined(batches: Sequence[Any], padding: int, concatenates: bool, every: int) -> Any:
    """Return nested lists of all rows in order, whose second dimension is padded; or the batches one by one."""
    if not concatenates:
        return [_listed(batch) for batch in batches]
    first = batches[0]
    if isinstance(first, Mapping):
        return {name: joined([batch[name] for batch in batches], padding, True, every) for name in first}
    if isinstance(first, (list, tuple)):
        return [joined(list(own), padding, True, every) for own in zip(*batches, strict=True)]
    rows: list[Any] = [row for batch in batches for row in (batch if batch.dim() else batch[None]).tolist()]
    if not isinstance(rows[0], list):
        return rows
    width = max(map(len, rows))
    fill: Any = [float(padding)] * 2 if isinstance(rows[0][0], list) else padding
    return [[*row, *[fill] * (width - len(row))] for row in rows]


def _listed(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: _listed(value) for name, value in batch.items()}
    return batch.tolist() if isinstance(batch, Tensor) else [_listed(one) for one in batch]


def _cut_cases(case: Numbers) -> Iterator[Arguments]:
    for limit in (1, 2, 3):
        yield _batches(case, "parts")[0], limit


def cut(nested: Any, limit: int) -> Any:
    """Return the first rows of everything."""
    if isinstance(nested, Mapping):
        return {name: cut(value, limit) for name, value in nested.items()}
    return nested[:limit] if isinstance(nested, Tensor) else [cut(one, limit) for one in nested]


def _size_cases(case: Numbers) -> Iterator[Arguments]:
    wide = torch.zeros(5, 2)
    table: Sequence[Any] = (
        wide,
        [torch.tensor(1.0), wide],
        {"no": None, "yes": (wide,)},
        torch.tensor(2.0),
        {"a": []},
    )
    yield from ((nested,) for nested in table)


def size(nested: Any) -> int | None:
    """Return the rows of the first tensor that has a dimension."""
    if isinstance(nested, Tensor):
        return len(nested) if nested.dim() else None
    for one in nested.values() if isinstance(nested, Mapping) else nested or ():
        if (found := size(one)) is not None:
            return found
    return None


def _smoothed_cases(case: Numbers) -> Iterator[Arguments]:
    generator = case.generator()
    logits = 3 * torch.randn(3, 6, 9, generator=generator)
    labels = torch.randint(0, 9, (3, 6), generator=generator)
    for ignored in (-100, 4):
        own = labels.clone()
        own[0, :3] = own[2, 5] = ignored
        for epsilon in (0.1, 0.4):
            for shifted in (False, True):
                for items in (None, 7):
                    yield logits, own, epsilon, ignored, shifted, items
        yield logits, own.unsqueeze(-1), 0.1, ignored, False, None


def smoothed(
    logits: Tensor, labels: Tensor, epsilon: float, ignored: int, shifted: bool, num_items: int | None
) -> float:
    """Return the mean over labels of the smoothed loss, the rest of each target spread over all ids."""
    losses = []
    for row, own in zip(logits.double(), labels.reshape(labels.shape[:2]).tolist(), strict=True):
        targets = own[1:] if shifted else own
        for place, label in enumerate(targets):
            if label != ignored:
                logprobs = row[place].log_softmax(0)
                losses.append(-float((1 - epsilon) * logprobs[label] + epsilon * logprobs.mean()))
    return sum(losses) / (num_items or len(losses))


NAMES: Mapping[str, str] = {
    "embed": "embedding",
    "layers.0.attention.query": "linear",
    "layers.0.input_layernorm": "own norm",
    "layers.0.q_norm": "own norm",
    "layers.0.ln": "norm",
    "layers.1.norm": "own norm",
    "layers.1.RMSNorm": "own norm",
    "layers.1.normal": "own norm",
    "layers.1.mlp.bias_free": "linear",
    "head": "linear",
}


def _decay_cases(case: Numbers) -> Iterator[Arguments]:
    yield (NAMES,)
    yield ({"norm": "norm", "only": "linear"},)


def decaying(names: Mapping[str, str]) -> list[str]:
    """Return matrices of layers that are no norm, neither by their kind nor by their name."""
    found = []
    for path, kind in names.items():
        parts = path.lower().split(".")
        norm = kind == "norm" or any(
            "layernorm" in part or "rmsnorm" in part or part == "norm" or part.endswith("_norm")
            for part in parts
        )
        if not norm and "bias" not in path:
            found.append(f"{path}.weight")
    return sorted(found)


def _kept_cases(case: Numbers) -> Iterator[Arguments]:
    steps = [5, 10, 100, 15, 20]
    for limit in (None, 0, 1, 2, 4, 9):
        for best in (None, 5, 15, 100):
            yield steps, limit, best


def kept(steps: Sequence[int], limit: int | None, best: int | None) -> list[int]:
    """Return the latest steps up to the limit; the last and the best stay."""
    if not limit:
        return sorted(steps)
    held = {max(steps)} | ({best} if best is not None else set())
    for step in sorted(steps, reverse=True):
        if len(held) < limit:
            held.add(step)
    return sorted(held)


def _last_cases(case: Numbers) -> Iterator[Arguments]:
    for steps in ([5, 10, 100, 15], [9, 10], [3], []):
        yield (steps,)


def _noise_cases(case: Numbers) -> Iterator[Arguments]:
    for training in (True, False):
        yield 3, 40, 64, 5.0, training
        yield 2, 10, 256, 0.5, training


def noise(rows: int, length: int, width: int, alpha: float, training: bool) -> dict[str, float]:
    """Return what uniform noise has (Jain et al. 2023), over alpha / sqrt(L D)."""
    return {"largest": float(training), "deviation": training / 3**0.5, "mean": 0.0}


GATHERED_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="joined batches",
        law="batches of an evaluation",
        suspects="rows in another order, padding of another number, a part that is lost when it is moved",
        cases=_joined_cases,
        right=joined,
    ),
    Plain(
        name="first rows",
        law="rows that are cut",
        suspects="a part that is not cut",
        cases=_cut_cases,
        right=cut,
    ),
    Plain(
        name="number of rows",
        law="the number of rows",
        suspects="another dimension, a number in place of a tensor of rows",
        cases=_size_cases,
        right=size,
    ),
    Plain(
        name="smoothed loss",
        law="smoothed labels",
        suspects="ignored labels in the mean, a count that is ignored, labels shifted twice or not at all",
        cases=_smoothed_cases,
        right=smoothed,
        bound=FLOAT32,
    ),
    Plain(
        name="names that decay",
        law="parameters that decay",
        suspects="norms or biases that decay, a matrix that does not",
        cases=_decay_cases,
        right=decaying,
    ),
    Plain(
        name="rotated checkpoints",
        law="checkpoints that are kept",
        suspects="the best or the last one deleted, one more or fewer, steps in the order of letters",
        cases=_kept_cases,
        right=kept,
    ),
    Plain(
        name="last of checkpoints",
        law="the last checkpoint",
        suspects="steps in the order of letters",
        cases=_last_cases,
        right=lambda steps: max(steps, default=None),
    ),
    Plain(
        name="noise of embeddings",
        law="noise on embeddings",
        suspects="another scale, noise in evaluation, noise of one sign",
        cases=_noise_cases,
        right=noise,
        bound=0.03,  # 5,000 numbers: their deviation and mean vary by about 1/100
    ),
)
add_laws(GATHERED, GATHERED_FUNCTIONS)
