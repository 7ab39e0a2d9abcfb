"""A kind of adapter of PEFT, a type with options, by contract; all of them: `table`."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.contracts.adapter_histories import HistoryModel, Options
from seatrial.relations.contracts.adapter_routes import Call, Transfer
from seatrial.relations.contracts.adapters import (
    DENSITY,
    AdaptedModel,
    AdapterSpec,
    Combination,
    Precision,
    Spread,
)
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.peft import known as known_failures
from seatrial.targets.peft.adapted import MixedAdapted, PeftAdapted, refusing, saved_in, without_a_cache
from seatrial.targets.peft.bases import TASKS, VOCAB, Trait, base
from seatrial.targets.peft.chosen import chosen_weights
from seatrial.targets.peft.elsewhere import elsewhere
from seatrial.targets.peft.histories import alone
from seatrial.targets.peft.known import moving
from seatrial.targets.peft.nets import NETS
from seatrial.targets.peft.routes import answered, transferred
from seatrial.targets.peft.starts import starts_of
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
    needs: str | None = None
    """A package that PEFT imports for this type alone."""
    since: str | None = None
    """The first release that has a value of these options; None where the names of the options say it."""


class PeftAdapters(KnowsFailures):
    """One kind; see `contracts.adapters.Adapters`."""

    kind: ClassVar[Kind]
    thorough: ClassVar[bool] = False
    vocab_size = VOCAB

    def __init__(self) -> None:
        """Find the configuration class and check its options."""
        import peft

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
            drops_all=self.kind.spec.drops_all and not _scales_after_dropout(self.kind),
            closed_form=self.kind.spec.closed_form and has_updates(self._config(0.0)),
            weights=chosen_weights(self.kind.trait, self.kind.options)
            if self.kind.spec.weights is None
            else self.kind.spec.weights,
            reads_ahead=self.kind.trait in NETS,
            casts_added="autocast_adapter_dtype" in inspect.signature(peft.PeftModel.add_adapter).parameters,
            refuses=(*self.kind.spec.refuses, *_not_offered(self.kind)),
        )

    def _config(self, dropout: float) -> Any:
        options = copy.deepcopy(dict(self.kind.options))
        if dropout:
            if self.kind.dropout is None:
                raise NotServed(f"{self.kind.config} of this kind takes no dropout")
            options[self.kind.dropout] = dropout
        if self.kind.trait not in NETS:
            options["task_type"] = TASKS.get(self.kind.trait, "CAUSAL_LM")
        return self._config_class(**options)

    def of_model(self, model: Any) -> AdaptedModel:
        """Return a model of PEFT by contract."""
        return PeftAdapted(
            model, self._config(0.0), self._plain_names, closed_form=self.adapter_spec.closed_form
        )

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        import peft

        config = self._config(dropout)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = peft.get_peft_model(self.given(dtype), copy.deepcopy(config), adapter_name="first")
        return self.of_model(model)

    def loaded(self, folder: Path, *, dtype: Precision, trainable: bool = True) -> AdaptedModel:
        import peft

        inner = saved_in(folder)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(77)
            model = peft.PeftModel.from_pretrained(
                self.given(dtype),
                str(inner),
                adapter_name="first",
                is_trainable=trainable and not self._config(0.0).is_prompt_learning,
            )
        return self.of_model(model)

    def answered(self, model: AdaptedModel, ids_BS: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        assert isinstance(model, PeftAdapted)
        return answered(model, ids_BS, call)

    def transferred(self, model: AdaptedModel, ids_BS: Tensor, transfer: Transfer) -> Tensor:
        assert isinstance(model, PeftAdapted)
        return transferred(self, model, ids_BS, transfer)

    @cached_property
    def _elsewhere(self) -> Any:
        kind = elsewhere(self.kind)
        task = TASKS.get(kind.trait, "CAUSAL_LM")
        options = dict(kind.options) | ({} if kind.trait in NETS else {"task_type": task})
        return self._config_class(**copy.deepcopy(options))

    def elsewhere(self, *, seed: int, dtype: Precision) -> AdaptedModel:
        import peft

        with torch.random.fork_rng(devices=[]), refusing():
            torch.manual_seed(seed)
            model = peft.get_peft_model(self.given(dtype), copy.deepcopy(self._elsewhere), "second")
        return PeftAdapted(model, self._elsewhere, self._plain_names, closed_form=False)

    def add_elsewhere(self, model: AdaptedModel, name: str) -> None:
        assert isinstance(model, PeftAdapted)
        with refusing():
            model.model.add_adapter(name, copy.deepcopy(self._elsewhere))

    def starts(self, model: AdaptedModel) -> Mapping[str, Spread]:
        """Return the spread of each tensor of a new adapter, where the type's description says it."""
        assert isinstance(model, PeftAdapted)
        return starts_of(self.kind, model.model, self._config(0.0))

    def alone(self, options: Options, name: str, *, seed: int, dropout: float = 0.0) -> HistoryModel:
        return alone(self, options, name, seed=seed, dropout=dropout)

    def given(self, dtype: Precision) -> Any:
        """Return the model that an adapter is added to, of which options may make another base."""
        if self.kind.trait == "replicated":
            return base("to be replicated", getattr(torch, dtype))
        return self.plain(dtype)

    def plain(self, dtype: Precision) -> Any:
        """Return a new base model, as the options make it."""
        return base(self.kind.trait, getattr(torch, dtype))

    @cached_property
    def _plain_names(self) -> frozenset[str]:
        return frozenset(self.plain("float32").state_dict())

    def plain_weights(self, *, dtype: Precision) -> Mapping[str, Tensor]:
        return {name: value.detach() for name, value in self.plain(dtype).state_dict().items()}

    def plain_outputs(self, ids_BS: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        dtype = next(value.dtype for value in weights.values() if value.is_floating_point())
        model = self.plain("float32").to(dtype)
        if self.kind.trait not in NETS and self.kind.trait not in TASKS:
            head = model.get_output_embeddings()
            # What a merge does to one of two tied weights is seen in that one alone.
            head.weight = torch.nn.Parameter(head.weight.detach().clone())
        model.load_state_dict(dict(weights))
        with torch.no_grad():
            logits_BSV: Tensor = model(input_ids=ids_BS, **without_a_cache(model)).logits
        return logits_BSV


def _scales_after_dropout(kind: Kind) -> bool:
    """Return whether the type multiplies outputs by a scale that dropout does not reach: OFT to 0.15."""
    if kind.config != "OFTConfig":
        return False
    return "oft_s" in find_name("peft", ["peft.tuners.oft.layer:OFTLayer"]).adapter_layer_names


def _not_offered(kind: Kind) -> list[Literal["rescaling", "swapping"]]:
    """Return what helpers of LoRA do not do for a kind: a scale is that of its products alone, without a norm."""
    if kind.config != "LoraConfig":
        return ["rescaling", "swapping"]
    others = ("use_dora", "bias", "modules_to_save", "trainable_token_indices")
    return ["rescaling"] if any(kind.options.get(option) for option in others) else []


class CombiningAdapters(PeftAdapters):
    """LoRA, of which several can be combined to one; see `contracts.adapters.CombinedAdapters`."""

    def combine(
        self, model: AdaptedModel, names: Sequence[str], weights: Sequence[float], how: Combination, new: str
    ) -> None:
        assert isinstance(model, PeftAdapted)
        configs = [model.model.peft_config[name] for name in names]
        rank = sum(max(config.r, *config.rank_pattern.values(), 0) for config in configs)
        # PEFT's own choice is the rank of the largest, which loses nothing where the others are multiplied by zero.
        more: dict[str, Any] = {"svd_rank": rank} if how == "svd" and all(weights) else {}
        if how.startswith(("magnitude_prune", "ties", "dare")):
            more = {"density": DENSITY}
            if how.endswith("_svd"):
                # What is left of a product after pruning has the rank of the weight.
                more["svd_rank"] = _whole_rank(model.model)
        model.model.add_weighted_adapter(list(names), list(weights), new, combination_type=how, **more)


def _whole_rank(model: Any) -> int:
    """Return the rank that a weight of every adapted layer can have; PEFT takes one for all layers.

    Raises:
        NotServed: layers have unequal ones.
    """
    ranks = {
        min(layer.in_features, layer.out_features) for layer in model.modules() if hasattr(layer, "lora_A")
    }
    if len(ranks) > 1:
        raise NotServed("layers of unequal sizes, for which there is one rank of singular values")
    return int(ranks.pop())


def adapter_of(
    config: str,
    *,
    known: Sequence[KnownFailure] = (),
    parent: type[PeftAdapters] = PeftAdapters,
    trait: Trait = "linear",
    dropout: str | None = None,
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
        needs=needs,
        since=since,
        spec=AdapterSpec(**(spec or {})),
    )
    return type(
        f"{config}Adapters",
        (parent,),
        {
            "kind": kind,
            "known_failures": (
                *known,
                known_failures.ENABLED_TRAINS,
                known_failures.OLDER_FILES,
                known_failures.OLDER_TRAINS,
                *moving(options),
            ),
            "__module__": __name__,
        },
    )


class MixedAdapters(PeftAdapters):
    """Adapters of two types in one `PeftMixedModel`: the second one is LoKr."""

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        import peft

        second = peft.LoKrConfig(r=64, alpha=64, target_modules=self.kind.options["target_modules"])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = peft.get_peft_model(
                self.plain(dtype), self._config(dropout), adapter_name="first", mixed=True
            )
        return MixedAdapted(model, self._config(0.0), self._plain_names, second=second)

    def elsewhere(self, *, seed: int, dtype: Precision) -> AdaptedModel:
        raise NotServed("a second adapter of another type is judged by other laws")

    def alone(self, options: Options, name: str, *, seed: int, dropout: float = 0.0) -> HistoryModel:
        raise NotServed("a mixed model is not one of several adapters of a type")
