"""What a setup's options mean for the laws, from the documentation of TRL and of Transformers' `TrainingArguments`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import Best, EvaluationSpec, RolloutSpec, TrainerSpec
from seatrial.targets.common.zoo import ZOO
from seatrial.targets.trl.named import code_has
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.setup import Setup

SAMPLING_OPTIONS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Of the configuration, under the names of the settings of generation."""


MODELS_WEIGHT = 0.001
"""Of the routers' loss, by default in the configuration of the trait's model."""


def spec_for(setup: Setup, defaults: Mapping[str, Any]) -> TrainerSpec:
    """Return what a trainer declares, with the defaults of the installed release's options by their names."""
    options, objective = setup.options, setup.objective
    if isinstance(objective, RolloutSpec) and objective.kl_in == "loss":
        ratio = {**defaults, **options}.get("use_bias_correction_kl", False)
        objective = replace(objective, kl_ratio=bool(ratio))
    if (
        setup.trainer == "SFT"
        and isinstance(objective, ObjectiveSpec)
        and "completion_only_loss" not in defaults
    ):
        objective = replace(objective, trains="all")  # prompts and completions are joined there
    if setup.trainer == "DPO" and isinstance(objective, ObjectiveSpec):
        keep = {**defaults, **options}.get("truncation_mode", "keep_start").removeprefix("keep_")
        objective = replace(objective, keep=keep)
    window = objective.num_uses * setup.num_slices if isinstance(objective, RolloutSpec) else 1
    multiple = options.get("pad_to_multiple_of", 1)
    return TrainerSpec(
        objective=objective,
        scalars=setup.scalars,
        reference_sync=setup.reference_sync,
        window=window,
        packs=bool(options.get("packing")),
        flattens=bool(options.get("packing") or options.get("padding_free")),
        logs_first_step=bool(options.get("logging_first_step")),
        order=_order(setup),
        order_has_own_seed=options.get("data_seed") is not None,
        drops_last=bool(options.get("dataloader_drop_last")),
        evaluation=EvaluationSpec(
            every=options.get("eval_steps"),
            at_start=bool(options.get("eval_on_start")),
            delay=int(options.get("eval_delay", 0)),
            num_rows=options.get("per_device_eval_batch_size"),
            flattens=bool(options.get("packing") or options.get("padding_free")),
            copies=options.get("num_generations_eval", options.get("num_generations", 1)),
        ),
        best=_best(setup),
        sampling=_sampling(setup, defaults),
        dropout=_dropout(setup, defaults),
        initialises="score" if setup.adds_head else ".lora_" if setup.lora == "made" else None,
        width_multiple=multiple if isinstance(multiple, int) else 1,
        balance_weight=_balance_weight(setup, defaults),
        runs="updates" if setup.updates_only else "all",
        spreads=setup.spreads,
        # RLOO logs what reward functions give, and writes no tables.
        logs_rows=setup.logs_rows and setup.trainer != "RLOO",
    )


def _order(setup: Setup) -> Literal["shuffled", "as given", "any"]:
    """Return the order of rows: sampled by the trainer, or by Transformers from a split that may be shuffled before."""
    options = setup.options
    if setup.samples:
        return "shuffled" if options.get("shuffle_dataset", True) else "as given"
    if options.get("packing"):
        return "any"
    sequential = "sequential" if setup.trainer == "KTO" else "random"
    is_random = options.get("train_sampling_strategy", sequential) == "random"
    return "shuffled" if is_random or options.get("shuffle_dataset", False) else "as given"


def _sampling(setup: Setup, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of generation; a release may lack options of them."""
    if not setup.samples:
        return {}
    given = {**defaults, **setup.options}
    return {
        "do_sample": True,
        "max_new_tokens": setup.max_completion_length,
        **{name: given[name] for name in SAMPLING_OPTIONS if name in given},
        **setup.options.get("generation_kwargs", {}),
    }


def _dropout(setup: Setup, defaults: Mapping[str, Any]) -> float | None:
    """Return the probability of dropout, which a trainer with the option may switch off by default."""
    dropout = setup.model_options.get("resid_pdrop", ZOO[setup.trait].dropout)
    if not dropout:
        return None
    disables = {**defaults, **setup.options}.get("disable_dropout", False)
    return 0.0 if disables else float(dropout)


def _balance_weight(setup: Setup, defaults: Mapping[str, Any]) -> float:
    """Return the weight of the routers' loss.

    It is the option, or its default; None is the weight of the model's configuration. A release without the option
    adds the loss where the model's configuration requests the routers' logits: SFT by the model's own loss, other
    trainers if their code names it.
    """
    if setup.trait != "experts":
        return 0.0
    own = setup.model_options.get("router_aux_loss_coef", MODELS_WEIGHT)
    if "router_aux_loss_coef" in defaults:
        weight = {**defaults, **setup.options}["router_aux_loss_coef"]
        return float(own if weight is None else weight)
    requested = setup.model_options.get("output_router_logits")
    adds = setup.trainer == "SFT" or code_has("aux_loss", find_trainer(setup.trainer)[0])
    return float(own) if requested and adds else 0.0


def _best(setup: Setup) -> Best | None:
    options = setup.options
    if not options.get("load_best_model_at_end"):
        return None
    metric = options.get("metric_for_best_model", "loss")
    return Best(metric=metric, larger=options.get("greater_is_better", not metric.endswith("loss")))
