"""A kind of adapter of PEFT, a type with options, by contract; all of them: `table`."""

from __future__ import annotations

import copy
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.contracts.adapters import AdaptedModel, AdapterSpec, Combination, Precision
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.peft.adapted import PeftAdapted
from seatrial.targets.peft.bases import VOCAB, Trait, base
from seatrial.targets.peft.updates import has_updates


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A type of adapter with options."""

    config: str
    """Name of its configuration class in `peft`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    trait: Trait = "linear"
    spec: AdapterSpec
    dropout: str | None = None
    """Name of its option."""
    thorough: bool = False
    needs: str | None = None
    """A package that PEFT imports for this type alone."""
    since: str | None = None
    """The first release that has a value of these options; None where the names of the options say it."""


class PeftAdapters(KnowsFailures):
    """One kind; see `contracts.adapters.Adapters`."""

    kind: ClassVar[Kind]
    vocab_size = VOCAB

    def __init__(self) -> None:
        """Find the configuration class and check its options."""
        if self.kind.needs is not None:
            importlib.import_module(self.kind.needs)
        self._config_class = find_name("peft", [f"peft:{self.kind.config}"])
        known = {item.name for item in dataclasses.fields(self._config_class)}
        missing = sorted(set(self.kind.options) - known)
        if missing:
            raise Gone(f"peft {release('peft')} has no {self.kind.config}.{missing[0]}")
        if self.kind.since is not None and Version(release("peft")) < Version(self.kind.since):
            raise Gone(f"peft {release('peft')} does not have it: it is since {self.kind.since}")
        self.adapter_spec = dataclasses.replace(
            self.kind.spec,
            takes_dropout=self.kind.dropout is not None,
            closed_form=has_updates(self._config(0.0)),
        )

    @property
    def thorough(self) -> bool:
        return self.kind.thorough

    def _config(self, dropout: float) -> Any:
        options = copy.deepcopy(dict(self.kind.options))
        if dropout:
            if self.kind.dropout is None:
                raise NotServed(f"{self.kind.config} of this kind takes no dropout")
            options[self.kind.dropout] = dropout
        return self._config_class(task_type="CAUSAL_LM", **options)

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        import peft

        config = self._config(dropout)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = peft.get_peft_model(self.plain(dtype), copy.deepcopy(config), adapter_name="first")
        return PeftAdapted(model, config, self._plain_names)

    def loaded(self, folder: Path, *, dtype: Precision) -> AdaptedModel:
        import peft

        (inner,) = [path for path in folder.iterdir() if path.is_dir()]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(77)
            model = peft.PeftModel.from_pretrained(
                self.plain(dtype),
                str(inner),
                adapter_name="first",
                is_trainable=not self._config(0.0).is_prompt_learning,
            )
        return PeftAdapted(model, self._config(0.0), self._plain_names)

    def plain(self, dtype: Precision) -> Any:
        """Return a new base model."""
        return base(self.kind.trait, getattr(torch, dtype))

    @cached_property
    def _plain_names(self) -> frozenset[str]:
        return frozenset(self.plain("float32").state_dict())

    def plain_weights(self, *, dtype: Precision) -> Mapping[str, Tensor]:
        return {name: value.detach() for name, value in self.plain(dtype).state_dict().items()}

    def plain_outputs(self, ids_BS: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        dtype = next(value.dtype for value in weights.values() if value.is_floating_point())
        model = self.plain("float32").to(dtype)
        head = model.get_output_embeddings()
        # What a merge does to one of two tied weights is seen in that one alone.
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.load_state_dict(dict(weights))
        with torch.no_grad():
            logits_BSV: Tensor = model(input_ids=ids_BS, use_cache=False).logits
        return logits_BSV


class CombiningAdapters(PeftAdapters):
    """LoRA, of which several can be combined to one; see `contracts.adapters.CombinedAdapters`."""

    def combine(
        self, model: AdaptedModel, names: Sequence[str], weights: Sequence[float], how: Combination, new: str
    ) -> None:
        assert isinstance(model, PeftAdapted)
        configs = [model.model.peft_config[name] for name in names]
        rank = sum(max(config.r, *config.rank_pattern.values(), 0) for config in configs)
        more = {"svd_rank": rank} if how == "svd" else {}
        model.model.add_weighted_adapter(list(names), list(weights), new, combination_type=how, **more)


def adapter_of(
    config: str,
    *,
    known: Sequence[KnownFailure] = (),
    parent: type[PeftAdapters] = PeftAdapters,
    trait: Trait = "linear",
    dropout: str | None = None,
    thorough: bool = False,
    needs: str | None = None,
    since: str | None = None,
    spec: Mapping[str, Any] | None = None,
    **options: Any,
) -> type[PeftAdapters]:
    """Return the class of an adapter of this kind; what `spec` has not are the defaults of `AdapterSpec`."""
    kind = Kind(
        config=config,
        options=options,
        trait=trait,
        dropout=dropout,
        thorough=thorough,
        needs=needs,
        since=since,
        spec=AdapterSpec(**(spec or {})),
    )
    return type(
        f"{config}Adapters", (parent,), {"kind": kind, "known_failures": tuple(known), "__module__": __name__}
    )
