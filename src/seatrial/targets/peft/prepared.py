"""LoRA whose start is computed from given data: EVA, CorDA and LoRA-GA."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from seatrial.relations.contracts.adapter_histories import HistoryModel, Options
from seatrial.relations.contracts.adapter_routes import LeftOut
from seatrial.relations.contracts.adapters import AdaptedModel, Precision
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.peft import known as known_failures
from seatrial.targets.peft.adapted import PeftAdapted
from seatrial.targets.peft.bases import VOCAB
from seatrial.targets.peft.kinds import PeftAdapters, adapter_of
from seatrial.targets.peft.lora import LINEAR

ROWS, LENGTH = 8, 12
LEFT_OUT = 4
"""Ids at the end of a row that a start may not be computed from."""
DECOMPOSED = {"changes_base": True, "start_bound": 1e-3}
OF_GRADIENTS = {**DECOMPOSED, "saves_all": False}
"""Its file does not have the base that the start changed."""


def _ids(seed: int = 3) -> torch.Tensor:
    """Return the rows that a start is computed from."""
    return torch.randint(3, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))


class _Prepared(PeftAdapters):
    """One kind; `own` is the name of its configuration class, with its fields."""

    own: ClassVar[tuple[str, str, Mapping[str, Any]]]
    """The option of `LoraConfig`, the class in `peft`, and the class's fields."""

    def _config(self, dropout: float) -> Any:
        config = super()._config(dropout)
        option, name, fields = self.own
        setattr(
            config, option, find_name("peft", [f"peft:{name}", f"peft.tuners.lora.config:{name}"])(**fields)
        )
        config.init_lora_weights = self.kind.options["init_lora_weights"]
        return config

    def elsewhere(self, *, seed: int, dtype: Precision) -> AdaptedModel:
        raise NotServed("the start of a second adapter is computed from other data")

    def alone(self, options: Options, name: str, *, seed: int, dropout: float = 0.0) -> HistoryModel:
        raise NotServed("the start of a second adapter is computed from other data")

    def _prepare(self, model: Any, config: Any) -> None:
        """Compute what the start needs, before the adapter is added."""

    def _complete(self, model: Any) -> None:
        """Compute the start of an adapter that was added."""

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        import peft

        config, base = self._config(dropout), self.given(dtype)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._prepare(base, config)
            model = peft.get_peft_model(
                base, copy.deepcopy(config) if not self.kind.spec.changes_base else config, "first"
            )
            self._complete(model)
        return self.of_model(model)


class Eva(_Prepared):
    """Directions of the inputs' largest variance."""

    own = ("eva_config", "EvaConfig", {"rho": 1.0})

    def _complete(self, model: Any) -> None:
        ids_BS = _ids()
        self._initialize(model, {"input_ids": ids_BS, "attention_mask": torch.ones_like(ids_BS)})

    def _initialize(self, model: Any, batch: Mapping[str, torch.Tensor]) -> None:
        initialize = find_name("peft", ["peft:initialize_lora_eva_weights"])
        initialize(model, [dict(batch)], adapter_name="first", show_progress_bar=False)

    def started(self, *, seed: int, rows: int, left_out: LeftOut, ids: int) -> Mapping[str, torch.Tensor]:
        import peft

        ids_BS, kept_BS = _ids(rows), torch.ones(ROWS, LENGTH, dtype=torch.long)
        ids_BS[:, -LEFT_OUT:], kept_BS[:, -LEFT_OUT:] = _ids(100 + ids)[:, -LEFT_OUT:], 0
        batch = {"input_ids": ids_BS, "attention_mask": kept_BS}
        if left_out == "tokens without a label":
            batch = {**batch, "labels": ids_BS.masked_fill(kept_BS == 0, -100), "attention_mask": kept_BS**0}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = peft.get_peft_model(self.given("float32"), self._config(0.0), "first")
            self._initialize(model, batch)
        return {name: value.detach() for name, value in model.named_parameters() if "lora_A" in name}

    def of_model(self, model: Any) -> AdaptedModel:
        # Other adapters get the ranks that the first one has now.
        config = copy.deepcopy(next(iter(model.peft_config.values())))
        return PeftAdapted(model, config, self._plain_names, closed_form=self.adapter_spec.closed_form)


class Corda(_Prepared):
    """Directions of the weight that the covariance of inputs weighs."""

    own = ("corda_config", "CordaConfig", {"corda_method": "kpm"})

    def _prepare(self, model: Any, config: Any) -> None:
        preprocess = find_name("peft", ["peft.tuners.lora.corda:preprocess_corda"])

        def run() -> None:
            with torch.no_grad():
                model(input_ids=_ids(), use_cache=False)

        preprocess(model, config, run_model=run)


class Gradients(_Prepared):
    """Directions of the first gradient."""

    own = ("lora_ga_config", "LoraGAConfig", {})

    def _prepare(self, model: Any, config: Any) -> None:
        preprocess = find_name("peft", ["peft.tuners.lora.loraga:preprocess_loraga"])

        def step() -> None:
            ids_BS = _ids()
            torch.autograd.backward(model(input_ids=ids_BS, labels=ids_BS, use_cache=False).loss)

        preprocess(model, config, step)
        model.zero_grad(set_to_none=True)


def _of(parent: type[_Prepared], start: str, *, spec: Mapping[str, Any], **options: Any) -> type[Any]:
    fields = options.pop("fields", {})
    given = {"r": 4, "lora_alpha": 6, "target_modules": LINEAR, "init_lora_weights": start, **options}
    made = adapter_of("LoraConfig", parent=parent, spec=spec, **given)
    own = (*parent.own[:2], {**parent.own[2], **fields})
    return type(made.__name__, (made,), {"own": own, "thorough": True, "__module__": __name__})


PREPARED: dict[str, type[Any]] = {
    "lora-eva": _of(Eva, "eva", spec={}),
    "lora-eva-rslora": _of(Eva, "eva", spec={}, use_rslora=True),
    "lora-eva-redistributed": _of(
        Eva, "eva", spec={"closed_form": False}, fields={"rho": 2.0}, known=[known_failures.EVA_HALF]
    ),
    "lora-eva-whitened": _of(Eva, "eva", spec={}, fields={"whiten": True}),
    "lora-corda": _of(Corda, "corda", spec=DECOMPOSED, needs="attr"),
    "lora-corda-ipm": _of(Corda, "corda", spec=DECOMPOSED, needs="attr", fields={"corda_method": "ipm"}),
    "lora-corda-rslora": _of(Corda, "corda", spec=DECOMPOSED, needs="attr", use_rslora=True),
    **{
        f"lora-ga-{direction.lower()}-{scale.replace('_', '-')}": _of(
            Gradients, "lora_ga", spec=OF_GRADIENTS, fields={"direction": direction, "scale": scale}
        )
        for direction, scale in (
            ("ArBr", "stable"),
            ("A2rBr", "weight_svd"),
            ("ArB2r", "gd_scale"),
            ("random", "unit"),
        )
    },
    "lora-ga-rslora": _of(Gradients, "lora_ga", spec=OF_GRADIENTS, use_rslora=True),
}
