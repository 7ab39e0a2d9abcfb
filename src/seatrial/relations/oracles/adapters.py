"""Weights that adapters make of the weights of a base model, in float64, from the definitions in their papers.

LoRA (Hu et al. 2021), rank-stabilised scaling (Kalajdzievski 2023), DoRA (Liu et al. 2024), AdaLoRA (Zhang et al.
2023), LoHa (Hyeon-Woo et al. 2021), LoKr (Yeh et al. 2023), (IA)3 (Liu et al. 2022), VeRA (Kopiczko et al. 2023),
FourierFT (Gao et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

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
    plain = weight.T if update.transposed else weight
    factors = {name: value.double() for name, value in update.factors.items()}
    if update.form == "rows":
        new = plain * factors["scale"].reshape(-1, 1)
    elif update.form == "columns":
        new = plain * factors["scale"].reshape(1, -1)
    else:
        new = plain + update.scaling * change(update.form, factors, tuple(plain.shape))
    if update.magnitude is not None:
        new = new / new.norm(dim=1, keepdim=True) * update.magnitude.double().reshape(-1, 1)
    return new.T if update.transposed else new


def change(form: str, factors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return what is added to a weight [out, in], without its scaling."""
    if form == "low rank":
        return factors["B"] @ factors["A"]
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
