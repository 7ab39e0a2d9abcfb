"""Weights that adapters make of the weights of a base model, in float64, from the definitions in their papers.

LoRA (Hu et al. 2021), rank-stabilised scaling (Kalajdzievski 2023), DoRA (Liu et al. 2024), AdaLoRA (Zhang et al.
2023), LoHa (Hyeon-Woo et al. 2021), LoKr (Yeh et al. 2023), (IA)3 (Liu et al. 2022), VeRA (Kopiczko et al. 2023),
FourierFT (Gao et al. 2024), RoAd (Liao and Monz 2024), HRA (Yuan et al. 2024), HiRA (Huang et al. 2025), SHiRA
(Bhardwaj et al. 2024), DeLoRA (Bini et al. 2025), C3A (Chen et al. 2024), PVeRA, WaveFT (Bilican et al. 2025).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from seatrial.relations.contracts.adapters import WeightUpdate


def scaling(*, rank: int, alpha: float, rank_stabilised: bool) -> float:
    """Return alpha / rank, or alpha / sqrt(rank)."""
    return alpha / (math.sqrt(rank) if rank_stabilised else rank)


def adapted_weights(weights: Mapping[str, Tensor], updates: Iterable[WeightUpdate]) -> dict[str, Tensor]:
    """Return all weights in float64 after these updates, in their order.

    Raises:
        KeyError: an update is of a weight that the base model does not have.
    """
    made = {name: value.double() if value.is_floating_point() else value for name, value in weights.items()}
    for update in updates:
        made[update.weight] = _updated(made[update.weight], update)
        for name, added in update.bias.items():
            made[name] = made[name] + added.double()
    return made


def _updated(weight: Tensor, update: WeightUpdate) -> Tensor:
    # A kernel of a convolution is [out, in, ...]: a matrix [out, in x its size].
    plain = weight.T if update.transposed else weight.flatten(1)
    factors = {name: value.double() for name, value in update.factors.items()}
    if update.form == "rows":
        new = plain * factors["scale"].reshape(-1, 1)
    elif update.form == "columns":
        new = plain * factors["scale"].reshape(1, -1)
    elif update.form == "rotated outputs":
        new = rotation(factors["first"], factors["second"], int(factors["group"])) @ plain
    elif update.form == "reflected inputs":
        new = plain @ reflections(factors["vectors"])
    elif update.form == "normalised":
        weighted = factors["weights"] / (factors["A"].norm(dim=1) * factors["B"].norm(dim=0)).clamp(min=1e-8)
        made = factors["B"] @ (weighted.reshape(-1, 1) * factors["A"])
        new = plain + update.scaling * made * plain.norm(dim=0)
    elif update.form == "modulated":
        new = plain * (1 + factors["B"].flatten(1) @ factors["A"].flatten(1))
    else:
        new = plain + update.scaling * change(update.form, factors, tuple(plain.shape))
    if update.magnitude is not None:
        new = new / new.norm(dim=1, keepdim=True) * update.magnitude.double().reshape(-1, 1)
    return new.T if update.transposed else new.reshape(weight.shape)


def change(form: str, factors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return what is added to a weight [out, in], without its scaling."""
    if form == "low rank":
        return factors["B"].flatten(1) @ factors["A"].flatten(1)
    if form == "diagonal core":
        return factors["B"] @ (factors["A"] * factors["core"].reshape(-1, 1))
    if form == "hadamard":
        return (factors["left_a"] @ factors["left_b"]) * (factors["right_a"] @ factors["right_b"])
    if form == "kronecker":
        return torch.kron(factors["left"].contiguous(), factors["right"].contiguous())
    if form == "vectors":
        return factors["b"].reshape(-1, 1) * (factors["B"] @ (factors["d"].reshape(-1, 1) * factors["A"]))
    if form == "circulant":
        kernel = factors["kernel"]
        turned = torch.arange(kernel.shape[2])
        blocks = kernel[:, :, (turned[None, :] - turned[:, None]) % kernel.shape[2]]
        return blocks.permute(0, 2, 1, 3).reshape(shape) / shape[1]
    if form == "places":
        sparse = torch.zeros(shape, dtype=torch.float64)
        for row, column, value in zip(*factors["places"].long().tolist(), factors["values"], strict=True):
            sparse[row, column] += value
        return sparse
    if form == "spectrum":
        rows, columns = factors["places"].long()
        dense = torch.zeros(shape, dtype=torch.complex128)
        dense[rows, columns] = factors["values"].to(torch.complex128)
        waves: Tensor = torch.fft.ifft2(dense).real
        return waves
    if form == "wavelets":
        return waves_of(factors["values"], factors["places"].long(), factors["low"], shape)
    raise ValueError(f"no closed form of {form!r}")


def waves_of(values: Tensor, places: Tensor, low: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the inverse of one level of a wavelet transform of sparse coefficients, cut to a shape.

    Args:
        values: coefficients [N].
        places: their rows and columns [2, N], in the middle of a matrix that is larger by what the ends lose.
        low: the low-pass filter of synthesis, the sum of which is the root of two for an orthogonal wavelet.
        shape: rows and columns of the result.
    """
    low = low / low.sum() * math.sqrt(2)
    high = low.flip(0) * torch.tensor([(-1.0) ** place for place in range(len(low))], dtype=low.dtype)
    lost = len(low) - 2
    padded = [size + lost + (size + lost) % 2 for size in shape]
    rows, columns = (
        place + (whole - size) // 2 for place, whole, size in zip(places, padded, shape, strict=True)
    )
    dense = torch.zeros(padded[0], padded[1], dtype=torch.float64)
    dense[rows, columns] = values
    # The first half of the rows has the details of columns on its right, and so on.
    down, across = (_synthesis(whole, low, high, lost) for whole in padded)
    half, middle = padded[0] // 2, padded[1] // 2
    made = (
        down[0] @ dense[:half, :middle] @ across[0].T
        + down[1] @ dense[:half, middle:] @ across[0].T
        + down[0] @ dense[half:, :middle] @ across[1].T
        + down[1] @ dense[half:, middle:] @ across[1].T
    )
    top, left = ((size - due) // 2 for size, due in zip(made.shape, shape, strict=True))
    return made[top : top + shape[0], left : left + shape[1]]


def _synthesis(size: int, low: Tensor, high: Tensor, lost: int) -> tuple[Tensor, Tensor]:
    """Return the matrices [size - lost, size / 2] that put averages and details back, without both ends."""
    whole = torch.zeros(2, size + lost, size // 2, dtype=torch.float64)
    for column in range(size // 2):
        for band, taps in enumerate((low, high)):
            whole[band, 2 * column : 2 * column + len(taps), column] = taps
    kept = whole[:, lost : size + lost - lost] if lost else whole
    return kept[0], kept[1]


def rotation(first: Tensor, second: Tensor, group: int) -> Tensor:
    """Return the matrix that turns the pairs of each group, a number and the one half a group later (RoAd, eq. 4).

    Args:
        first: what each output takes of its own number.
        second: what each output takes of the other number of its pair, negative for the first of them.
        group: numbers of a group.
    """
    size, half = len(first), group // 2
    made = torch.zeros(size, size, dtype=torch.float64)
    for place in range(size):
        is_first = place % group < half
        made[place, place] = first[place]
        made[place, place + half if is_first else place - half] = (
            -second[place] if is_first else second[place]
        )
    return made


def reflections(vectors: Tensor) -> Tensor:
    """Return the product of the Householder reflections of columns, in their order."""
    made = torch.eye(len(vectors), dtype=torch.float64)
    for column in vectors.T:
        unit = (column / column.norm()).reshape(-1, 1)
        made = made @ (torch.eye(len(vectors), dtype=torch.float64) - 2 * unit @ unit.T)
    return made


def orthogonal(vectors: Tensor) -> Tensor:
    """Return columns made orthogonal one after another (Gram and Schmidt), of length 1."""
    made: list[Tensor] = []
    for column in vectors.double().T:
        rest = column - sum((one * (one @ column) for one in made), torch.zeros_like(column))
        made.append(rest / rest.norm())
    return torch.stack(made, dim=1)


def pruned(change: Tensor, density: float) -> Tensor:
    """Return a change with its largest elements alone, so many of them as the density says."""
    kept = change.flatten().abs().topk(int(density * change.numel())).indices
    made = torch.zeros_like(change).flatten()
    made[kept] = change.flatten()[kept]
    return made.reshape(change.shape)


def combined(changes: Sequence[Tensor], weights: Sequence[float], how: str, density: float) -> Tensor:
    """Return the weighted sum of changes; pruned, and by elected signs, as TIES (Yadav et al. 2023) says.

    In TIES an element has the mean of those changes, times their weights, that have the sign of their sum.
    """
    given = torch.stack([pruned(one, density) if how != "svd" else one for one in changes])
    weighted = given * torch.tensor(weights, dtype=given.dtype).reshape(-1, *[1] * changes[0].dim())
    if how != "ties_svd":
        return weighted.sum(0)
    agrees = (given != 0) & ((given > 0) == (given.sum(0) >= 0))
    return (weighted * agrees).sum(0) / agrees.sum(0).clamp(min=1)
