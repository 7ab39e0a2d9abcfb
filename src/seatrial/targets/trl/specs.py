"""What a setup's options mean for the laws, from the documentation of TRL and of Transformers' `TrainingArguments`."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Literal

from seatrial.relations.contracts.trainers import Best, EvaluationSpec, RolloutSpec, TrainerSpec
from seatrial.targets.common.zoo import ZOO
from seatrial.targets.trl.setup import Setup


def spec_for(setup: Setup, known_options: AbstractSet[str]) -> TrainerSpec:
    """Return what a trainer declares, with the defaults of a release that has these options."""
    options, objective = setup.options, setup.objective
    if isinstance(objective, RolloutSpec) and objective.kl_in == "loss":
        has = "use_bias_correction_kl" in known_options and options.get("use_bias_correction_kl", True)
        objective = replace(objective, kl_ratio=bool(has))
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
        sampling=_sampling(setup),
        dropout=_dropout(setup),
        width_multiple=multiple if isinstance(multiple, int) else 1,
        balance_weight=_balance_weight(setup),
        runs="updates" if setup.updates_only else "all",
        spreads=setup.spreads,
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


def _sampling(setup: Setup) -> dict[str, Any]:
    if not setup.samples:
        return {}
    options = setup.options
    return {
        "do_sample": True,
        "max_new_tokens": setup.max_completion_length,
        "temperature": options.get("temperature", 1.0),
        "top_p": options.get("top_p", 1.0),
        "top_k": options.get("top_k", 0),
        "min_p": options.get("min_p"),
        "repetition_penalty": options.get("repetition_penalty", 1.0),
        **options.get("generation_kwargs", {}),
    }


def _dropout(setup: Setup) -> float | None:
    """Return the probability of dropout; DPO, KTO and reward models switch it off by default."""
    trait = ZOO[setup.trait]
    if not trait.dropout:
        return None
    disables = setup.options.get("disable_dropout", setup.trainer in ("DPO", "KTO", "Reward"))
    return 0.0 if disables else trait.dropout


def _balance_weight(setup: Setup) -> float:
    """Return the weight of the routers' loss; without the option that of the model's configuration."""
    if setup.trait != "experts":
        return 0.0
    return float(
        setup.options.get("router_aux_loss_coef", setup.model_options.get("router_aux_loss_coef", 0.001))
    )


def _best(setup: Setup) -> Best | None:
    options = setup.options
    if not options.get("load_best_model_at_end"):
        return None
    metric = options.get("metric_for_best_model", "loss")
    return Best(metric=metric, larger=options.get("greater_is_better", not metric.endswith("loss")))
