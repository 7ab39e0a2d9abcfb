"""A plain model of one matrix with low-rank adapters, which satisfies their laws; a fault is one line that differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tests.unit.relations.plain_combinations import combine_parts
from tests.unit.relations.plain_dropout import dropped, in_training
from tests.unit.relations.plain_training import groups_of, make_anew, step_of
from torch import Tensor

from seatrial.relations.contracts.adapters import AdapterSpec, OptimizerGroup, Role, Spread, WeightUpdate

VOCAB, WIDTH, RANK, ALPHA = 12, 8, 3, 6.0


@dataclass
class PlainAdapted:
    """Ids are embedded, and a head `weight` [V, D] with a bias gives logits; adapters are on the head."""

    fault: str
    dtype: torch.dtype
    seed: int
    dropout: float = 0.0
    training: bool = False
    adapters: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    used: list[str] = field(default_factory=lambda: ["first"])
    trains: bool = True
    on: bool = True
    factor: float = 1.0
    taken: list[tuple[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the weights, which are the same for every seed, and the first adapter."""
        self.base = {name: value.to(self.dtype) for name, value in plain_weights().items()}
        if self.fault == "adding moves the base":
            self.base["weight"] = self.base["weight"] * 1.001
        self.make("first")

    def make(self, name: str, rank: int = RANK) -> None:
        """Add an adapter that starts as the base."""
        generator = torch.Generator().manual_seed(self.seed + len(self.adapters))
        kept = torch.bfloat16 if self.fault == "half" and self.dtype != torch.float32 else torch.float32
        wide = {"both start at zero": 0, "wide start": 2}.get(self.fault, 1)
        a = torch.randn(rank, WIDTH, generator=generator).to(kept) * wide
        b = torch.full((VOCAB, rank), 0.5 if self.fault == "start" else 0.0)
        if self.fault == "shared factors" and self.adapters:
            a = self.adapters["first"]["A"]
        self.adapters[name] = {"A": a, "B": b}

    def scale(self) -> float:
        """Return alpha / sqrt(r); the fault takes alpha / r."""
        return self.factor * ALPHA / (RANK if self.fault == "scaling" else math.sqrt(RANK))

    def delta(self, name: str) -> Tensor:
        """Return what an adapter adds."""
        return self.adapters[name]["B"] @ self.adapters[name]["A"] * self.scale()

    def names_in_use(self) -> list[str]:
        """Return the adapters of the forward pass."""
        return self.used if self.on or self.fault == "disabling does nothing" else []

    def outputs(
        self, ids_BS: Tensor, *, names: Sequence[str] | None = None, mask_BS: Tensor | None = None
    ) -> Tensor:
        if mask_BS is not None and self.fault == "padding":
            ids_BS = ids_BS.flip(1)
        if names is not None and self.fault != "names ignored":
            rows = []
            for name, ids_S in zip(names, ids_BS, strict=True):
                rows.append(self.logits(ids_S[None], [] if name == "base" else [name])[0])
            return torch.stack(rows).detach()
        if not self.on and self.taken and self.fault != "disabled stays merged":
            self.unmerge()
        return self.logits(ids_BS, self.names_in_use()).detach()

    def logits(self, ids_BS: Tensor, names: Sequence[str]) -> Tensor:
        """Return the logits with these adapters."""
        embedded_BSD = self.base["embedding"][ids_BS]
        logits_BSV = embedded_BSD @ self.base["weight"].T + self.base["bias"]
        if self.taken and self.fault != "added while merged":
            return logits_BSV
        kept = dropped(self, embedded_BSD.float())
        for name in names:
            factors = self.adapters[name]
            logits_BSV = logits_BSV + (
                kept @ factors["A"].float().T @ factors["B"].float().T * self.scale()
            ).to(self.dtype)
        return logits_BSV

    def loss(self, ids_BS: Tensor, labels_BS: Tensor, mask_BS: Tensor) -> float:
        """Return the mean over the labels that count; the fault takes it over all."""
        logprobs_BSV = self.outputs(ids_BS, mask_BS=mask_BS).log_softmax(-1)[:, :-1]
        picked_BS = logprobs_BSV.gather(2, labels_BS[:, 1:].clamp(min=0)[..., None])[..., 0]
        counted = labels_BS[:, 1:] != -100
        divisor = counted.numel() if self.fault == "mean of all" else int(counted.sum())
        return -float((picked_BS * counted).sum() / divisor)

    def set_trainable(self, name: str, trainable: bool) -> None:
        self.used = [one for one in (*self.used, *([name] if trainable else [])) if trainable or one != name]
        if self.fault == "set by another name":
            self.used = ["first"]

    def counts(self) -> tuple[int, int]:
        tensors = self.tensors()
        trained = sum(tensors[name].numel() for name in self.trainable())
        return trained * (2 if self.fault == "counted twice" else 1), sum(map(torch.numel, tensors.values()))

    @contextmanager
    def rescaled(self, factor: float) -> Iterator[None]:
        self.factor *= factor
        yield
        self.factor = self.factor if self.fault == "stays rescaled" else self.factor / (factor or 1)
        if not factor:
            self.factor = 1.0

    def gradients(self, ids_BS: Tensor, *, checkpointing: bool = False) -> Mapping[str, Tensor]:
        tensors = {key: value for key, value in self.tensors().items() if key in self.trainable()}
        for value in tensors.values():
            value.requires_grad_(True)
        self.logits(ids_BS, self.used).float().pow(2).mean().backward()
        found = {}
        for key, value in tensors.items():
            found[key] = torch.zeros_like(value) if value.grad is None else value.grad.clone()
            value.grad = None
            value.requires_grad_(False)
        if self.fault == "gradients of the other" and len(self.adapters) > 1:
            found = {key: value * 2 for key, value in found.items()}
        if self.fault == "dead" or (checkpointing and self.fault == "checkpointing"):
            found = {key: value * (0 if key.endswith("A") else 1) for key, value in found.items()}
        return found

    def tensors(self) -> Mapping[str, Tensor]:
        named = {f"{name}.{key}": value for name, one in self.adapters.items() for key, value in one.items()}
        return {**self.base, **named}

    def trainable(self) -> frozenset[str]:
        names = (list(self.adapters) if self.fault == "all train" else self.used) if self.trains else []
        found = {f"{name}.{key}" for name in names for key in ("A", "B")}
        thawed = self.fault == "a bias trains" or (not self.on and self.fault == "disabling thaws the base")
        return frozenset(found | ({"bias"} if thawed else set()))

    def tensors_of(self, name: str) -> frozenset[str]:
        return frozenset(key for key in self.tensors() if key.startswith(f"{name}."))

    def updates(self, name: str) -> Sequence[WeightUpdate]:
        return [
            WeightUpdate(
                weight="weight", form="low rank", factors=self.adapters[name], scaling=ALPHA / math.sqrt(RANK)
            )
        ]

    def add(self, name: str) -> None:
        self.make(name)

    def use(self, names: Sequence[str], *, trains: bool = True) -> None:
        self.used, self.trains = list(names), trains or self.fault == "trains for inference"

    def delete(self, name: str) -> None:
        if self.fault != "deleting leaves it":
            del self.adapters[name]
        if self.taken and self.fault != "deleting leaves it merged":
            self.unmerge()

    @contextmanager
    def disabled(self) -> Iterator[None]:
        self.on = False
        try:
            yield
        finally:
            self.on = self.fault != "stays disabled"

    def merge(self, *, safe: bool = False, names: Sequence[str] | None = None) -> None:
        if self.fault == "merges another weight":
            self.base["embedding"] = self.base["embedding"] + 1e-7
        for name in self.used if names is None or self.fault == "names no merge" else names:
            if name in [one for one, _ in self.taken] and self.fault != "merges again":
                continue
            delta = self.delta(name)
            if safe and not delta.isfinite().all() and self.fault != "checks nothing":
                raise ValueError("not finite")
            if safe and self.fault == "safe merge of the first":
                delta = self.delta(self.used[0])
            if safe and self.fault == "safe merge":
                delta = delta / self.scale()
            if self.fault == "cast before the sum" and self.dtype != torch.float32:
                delta = (
                    self.adapters[name]["B"].to(torch.bfloat16) * 1.1 @ self.adapters[name]["A"].bfloat16()
                ).float() * self.scale()
            if self.fault == "merged twice":
                delta = delta * 2
            self.base["weight"] = (self.base["weight"].float() + delta).to(self.dtype)
            self.taken.append((name, delta))

    def unmerge(self) -> None:
        while self.taken:
            _, delta = self.taken.pop()
            if self.fault == "unmerging leaves the last" and not self.taken:
                return
            self.base["weight"] = (self.base["weight"].float() - delta).to(self.dtype)
            make_anew(self)

    def cast(self, dtype: str) -> None:
        self.dtype = getattr(torch, dtype)
        self.base = {name: value.to(self.dtype) for name, value in self.base.items()}
        for name, factors in self.adapters.items():
            self.adapters[name] = {key: value.to(self.dtype) for key, value in factors.items()}

    def optimizer(self, lr: float) -> Callable[[Tensor], None]:
        return step_of(self, lr)

    def base_weights(self) -> Mapping[str, Tensor]:
        return self.base

    def merged(self) -> Mapping[str, Tensor]:
        self.merge()
        return self.base

    def unloaded(self) -> Mapping[str, Tensor]:
        return self.merged() if self.fault == "merges on the way out" else self.base

    def save(self, folder: Path, name: str) -> Sequence[str]:
        saved = "first" if self.fault == "saves the first" else name
        kept = {key: value.clone() for key, value in self.adapters[saved].items()}
        if self.fault == "half is saved":
            del kept["A"]
        if self.fault == "saves all":
            kept |= {f"{other}.A": one["A"] for other, one in self.adapters.items() if other != name}
        torch.save(kept, folder / "adapter.pt")
        if self.fault == "names of adapters":
            return [f"{key}.first" for key in kept]
        return list(kept)

    def load(self, folder: Path, name: str) -> None:
        kept = torch.load(folder / "adapter.pt", weights_only=True)
        self.make(name)
        self.adapters["first" if self.fault == "loads into the first" else name].update(kept)

    def swap(self, folder: Path, name: str) -> None:
        kept = torch.load(folder / "adapter.pt", weights_only=True)
        if self.fault == "swaps half":
            del kept["A"]
        self.adapters[name].update(kept)

    def prepare_swaps(self, more_rank: int) -> None:
        rest = 0.1 * (self.fault == "padding is not zero")
        self.used = [] if self.fault == "padding freezes" else self.used
        for factors in self.adapters.values():
            factors["A"] = torch.nn.functional.pad(factors["A"], (0, 0, 0, more_rank), value=rest)
            factors["B"] = torch.nn.functional.pad(factors["B"], (0, more_rank), value=rest)

    def state(self, name: str) -> Mapping[str, Tensor]:
        return {key: value.clone() for key, value in self.adapters[name].items()}

    def set_state(self, name: str, state: Mapping[str, Tensor]) -> None:
        set_in = "first" if self.fault == "sets the first" else name
        self.adapters[set_in].update(state)


def plain_weights() -> dict[str, Tensor]:
    """Return the weights of the base."""
    generator = torch.Generator().manual_seed(5)
    return {
        "embedding": torch.randn(VOCAB, WIDTH, generator=generator),
        "weight": torch.randn(VOCAB, WIDTH, generator=generator),
        "bias": torch.randn(VOCAB, generator=generator),
    }


@dataclass
class PlainAdapters:
    """See `contracts.adapters`."""

    fault: str = ""
    adapter_spec: AdapterSpec = field(default_factory=lambda: AdapterSpec(weights=frozenset({"weight"})))
    vocab_size: int = VOCAB

    def adapted(self, *, seed: int, dtype: str, dropout: float = 0.0) -> PlainAdapted:
        return PlainAdapted(self.fault, getattr(torch, dtype), seed, dropout)

    def loaded(self, folder: Path, *, dtype: str, trainable: bool = True) -> PlainAdapted:
        model = PlainAdapted(self.fault, getattr(torch, dtype), seed=77)
        if self.fault == "frozen when loaded" or (not trainable and self.fault != "trains always"):
            model.trainable = frozenset  # type: ignore[method-assign]
        kept = torch.load(folder / "adapter.pt", weights_only=True)
        if self.fault == "cast when loaded" and dtype != "float32":
            kept = {key: (value * 4).round() / 4 for key, value in kept.items()}
        model.adapters["first"].update(kept)
        return model

    def started(self, *, seed: int, rows: int, left_out: str, ids: int) -> dict[str, Tensor]:
        first = torch.rand(4, generator=torch.Generator().manual_seed(rows))
        last = torch.rand(4, generator=torch.Generator().manual_seed(100 + ids))
        return {"A": first * (self.fault != "starts from nothing") + last * (self.fault == left_out)}

    def unvaried(self) -> PlainAdapters:
        return self if self.fault == "option" else Doubled()

    def answered(self, model: PlainAdapted, ids_BS: Tensor, call: str) -> tuple[Tensor, Tensor]:
        """Return the logits of the ids, or of greedy ones after them; a fault with the name of the call moves them."""
        if call.startswith("generated"):
            begun = ids_BS.shape[1] - 1
            for _ in range(2):
                ids_BS = torch.cat([ids_BS, model.outputs(ids_BS)[:, -1:].argmax(-1)], dim=1)
            logits_BSV = model.outputs(ids_BS)[:, begun:]
        else:
            logits_BSV = in_training(model, ids_BS) if call == "in training" else model.outputs(ids_BS)
        return logits_BSV + (self.fault == call), ids_BS

    def transferred(self, model: PlainAdapted, ids_BS: Tensor, transfer: str) -> Tensor:
        """Return the logits of another model with the adapter; a fault with the name of the way loses half of it."""
        other = PlainAdapted(self.fault, model.dtype, seed=77)
        kept = {key: value.clone() for key, value in model.adapters["first"].items()}
        if self.fault == transfer:
            del kept["A"]
        other.adapters["first"].update(kept)
        return other.outputs(ids_BS)

    def starts(self, model: PlainAdapted) -> Mapping[str, Spread]:
        """Return a normal draw for one factor, and zeros for the other."""
        return {"first.A": Spread(0.0, 1.0), "first.B": Spread(0.0, 0.0)}

    def elsewhere(self, *, seed: int, dtype: str) -> PlainAdapted:
        """Return a model with the second adapter alone."""
        model = PlainAdapted(self.fault, getattr(torch, dtype), seed)
        self.add_elsewhere(model, "second")
        del model.adapters["first"]
        model.used = ["second"]
        return model

    def add_elsewhere(self, model: PlainAdapted, name: str) -> None:
        """Add an adapter of another rank."""
        model.make(name, RANK - 1)

    def plain_weights(self, *, dtype: str) -> Mapping[str, Tensor]:
        return {name: value.to(getattr(torch, dtype)) for name, value in plain_weights().items()}

    def plain_outputs(self, ids_BS: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        return weights["embedding"][ids_BS] @ weights["weight"].T + weights["bias"]

    def combine(
        self, model: PlainAdapted, names: Sequence[str], weights: Sequence[float], how: str, new: str
    ) -> None:
        """Add factors one below the other; the faults scale once more, or drop a sign."""
        if (
            how.startswith("dare")
            or how in ("magnitude_prune", "ties")
            or (how == "linear" and len(names) > 1)
        ):
            combine_parts(self, model, names, weights, how, new)
            return
        if how in ("magnitude_prune_svd", "ties_svd"):
            deltas = [self._pruned(model.delta(name)) for name in names]
            if how == "ties_svd" and self.fault != "all agree":
                elected = torch.where(deltas[0] + deltas[1] >= 0, 1.0, -1.0)
                deltas = [delta * (delta.sign() == elected) for delta in deltas]
            made = sum(weight * delta for weight, delta in zip(weights, deltas, strict=True))
            if how == "ties_svd":
                made = made / sum((delta != 0).float() for delta in deltas).clamp(min=1)
            model.adapters[new] = {"A": torch.eye(WIDTH), "B": made / model.scale()}
            return
        scaled = [abs(weight) if self.fault == "sign" else weight for weight in weights]
        if self.fault == "combined twice":
            scaled = [weight * ALPHA for weight in scaled]
        a = torch.cat(
            [model.adapters[name]["A"] * weight for name, weight in zip(names, scaled, strict=True)]
        )
        b = torch.cat([model.adapters[name]["B"] for name in names], dim=1)
        if self.fault == "combining moves the base":
            model.base["weight"] = model.base["weight"] + 0.01
        model.adapters[new] = {"A": a, "B": b}

    def _pruned(self, delta: Tensor) -> Tensor:
        """Return the half of the elements that are largest."""
        order = sorted(range(delta.numel()), key=lambda place: -abs(float(delta.flatten()[place])))
        half = delta.numel() // 2
        kept = torch.zeros(delta.numel())
        kept[order[half:] if self.fault == "smallest" else order[:half]] = 1.0
        return delta * kept.reshape(delta.shape)

    def optimizer_groups(
        self, *, lr: float, ratio: float, embedding_lr: float, weight_decay: float
    ) -> tuple[Sequence[OptimizerGroup], Mapping[str, Role]]:
        """Return three groups, one a role."""
        return groups_of(self.fault, lr, ratio, embedding_lr, weight_decay)


class Doubled(PlainAdapters):
    """With an option that doubles a factor at the start."""

    def adapted(self, *, seed: int, dtype: str, dropout: float = 0.0) -> PlainAdapted:
        model = super().adapted(seed=seed, dtype=dtype, dropout=dropout)
        model.adapters["first"]["A"] = 2 * model.adapters["first"]["A"]
        return model
