"""Weights that adapters make of the weights of a base model, in float64, from the definitions in their papers.

LoRA (Hu et al. 2021), rank-stabilised scaling (Kalajdzievski 2023), DoRA (Liu et al. 2024), AdaLoRA (Zhang et al.
2023), LoHa (Hyeon-Woo et al. 2021), LoKr (Yeh et al. 2023), (IA)3 (Liu et al. 2022), VeRA (Kopiczko et al. 2023),
FourierFT (Gao et al. 2024).
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
    if form == "spectrum":
        rows, columns = factors["places"].long()
        dense = torch.zeros(shape, dtype=torch.complex128)
        dense[rows, columns] = factors["values"].to(torch.complex128)
        waves: Tensor = torch.fft.ifft2(dense).real
        return waves
    raise ValueError(f"no closed form of {form!r}")


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
