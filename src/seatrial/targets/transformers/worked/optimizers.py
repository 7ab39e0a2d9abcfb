"""Worked examples of the optimizers that Transformers' trainer names: the class of each, and what it is given."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from seatrial.relations.contracts.worked import Refused
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.parts import Mixed
from seatrial.targets.transformers.worked.runs import arguments

PACKAGES: Mapping[str, Sequence[str]] = {
    "bitsandbytes.optim": ("AdamW", "Lion", "RMSprop", "AdEMAMix"), "torchdistx.optimizers": ("AnyPrecisionAdamW",),
    "galore_torch": ("GaLoreAdafactor", "GaLoreAdamW", "GaLoreAdamW8bit"), "apollo_torch": ("APOLLOAdamW",),
    "lomo_optim": ("AdaLomo", "Lomo"), "grokadamw": ("GrokAdamW",), "torchao.optim": ("AdamW4bit", "AdamW8bit"),
    "schedulefree": ("AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"), "optimi": ("StableAdamW",),
}  # fmt: skip
"""Modules of other packages, and the classes of optimizers that they have."""
VERSIONS = {"torchao": "0.12.0", "bitsandbytes": "0.49.0"}
CHECKS = (
    "bitsandbytes",
    "galore_torch",
    "apollo_torch",
    "lomo",
    "grokadamw",
    "torchao",
    "schedulefree",
    "torch_optimi",
)


class _Installed(ExitStack):
    """Stand-ins for the packages, which are said to be installed."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        for place, classes in PACKAGES.items():
            made = ModuleType(place)
            for name in classes:
                setattr(made, name, type(name, (torch.optim.SGD,), {}))
            package, _, inner = place.partition(".")
            whole = ModuleType(package)
            if inner:
                setattr(whole, inner, made)
            self.enter_context(patch.dict(sys.modules, {package: whole if inner else made, place: made}))
        version = importlib.metadata.version
        self.enter_context(
            patch.object(importlib.metadata, "version", lambda name: VERSIONS.get(name) or version(name))
        )
        for module in ("transformers.trainer", "transformers.trainer_optimizer"):
            try:
                found = importlib.import_module(module)
            except ImportError:
                continue
            for check in CHECKS:
                if hasattr(found, f"is_{check}_available"):
                    self.enter_context(patch.object(found, f"is_{check}_available", lambda *given: True))


BASE: Mapping[str, Any] = {
    "learning_rate": 0.25, "adam_beta1": 0.7, "adam_beta2": 0.8, "adam_epsilon": 1e-4, "weight_decay": 0.3,
        "warmup_steps": 4,
}  # fmt: skip
ADAM = {"lr": 0.25, "betas": (0.7, 0.8), "eps": 1e-4}
MIX: Mapping[str, Any] = {**ADAM, "betas": (0.7, 0.8, 0.9999), "alpha": 5.0}
FREE = {"weight_decay": 0.3, "weight_lr_power": 2.0, "r": 0.0}
ANY = {"use_kahan_summation": 0, "momentum_dtype": torch.float32, "variance_dtype": torch.float32}
GROK = {
    "lr": 0.25,
    "alpha_init": 0.98,
    "lamb": 2.0,
    "gamma": 0.1,
    "grokking_signal_decay_rate": 0.1,
    "gradient_clipping": 1.0,
}
STABLE = {**ADAM, "weight_decay": 0.3, "decouple_lr": False, "max_lr": None, "kahan_sum": None}


def _bits(bits: int, paged: bool) -> dict[str, Any]:
    return {"optim_bits": bits, "is_paged": paged}


Table = Sequence[tuple[str, str, str, Mapping[str, Any]]]
NAMED: Table = (
    ("adamw_torch", "", "AdamW", ADAM), ("adamw_torch_fused", "", "AdamW", {**ADAM, "fused": True}),
    ("adafactor", "", "Adafactor", {"lr": 0.25, "scale_parameter": False, "relative_step": False}),
    ("sgd", "", "SGD", {"lr": 0.25}), ("adagrad", "", "Adagrad", {"lr": 0.25}), ("rmsprop", "", "RMSprop",
        {"lr": 0.25}),
    ("adamw_bnb_8bit", "", "AdamW", {**ADAM, **_bits(8, False)}), ("paged_adamw_32bit", "", "AdamW", {**ADAM,
        **_bits(32, True)}),
    ("paged_adamw_8bit", "", "AdamW", {**ADAM, **_bits(8, True)}), ("lion_32bit", "", "Lion", {"lr": 0.25,
        "betas": (0.7, 0.8), **_bits(32, False)}),
    ("lion_8bit", "", "Lion", {"lr": 0.25, "betas": (0.7, 0.8), **_bits(8, False)}),
    ("paged_lion_8bit", "", "Lion", {"lr": 0.25, "betas": (0.7, 0.8), **_bits(8, True)}),
    ("rmsprop_bnb_8bit", "", "RMSprop", {"lr": 0.25, "optim_bits": 8}), ("rmsprop_bnb_32bit", "", "RMSprop",
        {"lr": 0.25, "optim_bits": 32}),
    ("ademamix", "", "AdEMAMix", {**MIX, **_bits(32, False)}), ("paged_ademamix_8bit", "", "AdEMAMix", {**MIX,
        **_bits(8, True)}),
    (
        "ademamix_8bit", "beta1=0.1, beta2=0.2,beta3=0.3,alpha=4,eps=0.5,t_alpha=6,t_beta3=7", "AdEMAMix",
        {"lr": 0.25, "betas": (0.1, 0.2, 0.3), "alpha": 4.0, "eps": 0.5, "t_alpha": 6, "t_beta3": 7, **_bits(8, False)},
    ),
    ("adamw_anyprecision", "", "AnyPrecisionAdamW", {**ADAM, **ANY, "compensation_buffer_dtype": torch.bfloat16}),
    (
        "adamw_anyprecision",
            "use_kahan_summation=True,momentum_dtype=bfloat16,variance_dtype=float16,compensation_buffer_dtype=float32",
        "AnyPrecisionAdamW",
        {
            **ADAM, "use_kahan_summation": 1, "momentum_dtype": torch.bfloat16, "variance_dtype": torch.float16,
            "compensation_buffer_dtype": torch.float32,
        },
    ),
    ("grokadamw", "", "GrokAdamW", GROK),
    (
        "grokadamw", "alpha_init=0.5,lamb=3,gamma=0.4,grokking_signal_decay_rate=0.6,gradient_clipping=2", "GrokAdamW",
        {"lr": 0.25, "alpha_init": 0.5, "lamb": 3.0, "gamma": 0.4, "grokking_signal_decay_rate": 0.6,
            "gradient_clipping": 2.0},
    ),
    ("schedule_free_radam", "", "RAdamScheduleFree", {**ADAM, **FREE}),
    ("schedule_free_adamw", "r=0.5,weight_lr_power=1", "AdamWScheduleFree", {**ADAM, **FREE, "warmup_steps": 4,
        "r": 0.5, "weight_lr_power": 1.0}),
    ("schedule_free_sgd", "", "SGDScheduleFree", {"lr": 0.25, **FREE, "warmup_steps": 4}),
    ("stable_adamw", "", "StableAdamW", STABLE),
    ("stable_adamw", "max_lr=0.75,decouple_lr=True,kahan_sum=True", "StableAdamW", {**STABLE, "max_lr": 0.75,
        "decouple_lr": True, "kahan_sum": True}),
    ("adamw_torch_4bit", "", "AdamW4bit", {**ADAM, "block_size": 256, "bf16_stochastic_round": 0}),
    ("adamw_torch_8bit", "bf16_stochastic_round=True", "AdamW8bit", {**ADAM, "block_size": 256,
        "bf16_stochastic_round": 1}),
)  # fmt: skip
"""Names, their arguments as a text, the class, and what it is given."""
WORDS: Table = (
    ("stable_adamw", "decouple_lr=False", "StableAdamW", STABLE),
    ("stable_adamw", "kahan_sum=False", "StableAdamW", {**STABLE, "kahan_sum": False}),
    (
        "adamw_torch_8bit",
        "block_size=128",
        "AdamW8bit",
        {**ADAM, "block_size": 128, "bf16_stochastic_round": 0},
    ),
)
"""Arguments whose texts are taken for what they are not."""
TEXTS: Table = (
    ("sgd", "momentum=0.9, dampening=0.1,weight_decay=0.2,nesterov=false", "SGD", {"lr": 0.25, "momentum": 0.9,
        "dampening": 0.1, "weight_decay": 0.2, "nesterov": False}),
    ("sgd", "nesterov=True,momentum=0.9", "SGD", {"lr": 0.25, "momentum": 0.9, "nesterov": True}),
    ("adagrad", "lr_decay=0.1,weight_decay=0.2,eps=0.5", "Adagrad", {"lr": 0.25, "lr_decay": 0.1, "weight_decay": 0.2,
        "eps": 0.5}),
    ("rmsprop", "momentum=0.9,alpha=0.8,eps=0.5,centered=yes", "RMSprop", {"lr": 0.25, "momentum": 0.9, "alpha": 0.8,
        "eps": 0.5, "centered": True}),
    ("rmsprop", "centered=no", "RMSprop", {"lr": 0.25, "centered": False}),
)  # fmt: skip


def _optimizer(name: str, text: str, due: Mapping[str, Any], trainer_class: Any) -> list[Any]:
    """Return the class of a named optimizer, and what is not given to it as it should be."""
    more = {"optim_args": text} if text else {}
    with _Installed():
        try:
            args = arguments(optim=name, **BASE, **more)
        except ValueError as error:
            raise NotServed(f"no optimizer {name} in this release") from error
        made, given = trainer_class.get_optimizer_cls_and_kwargs(args, Mixed())
    wrong = {
        key: given.get(key)
        for key in {*given, *due}
        if given.get(key) != due.get(key) or (key in due) != (key in given)
    }
    return [made.__name__, wrong]


class Nested(nn.Module):
    """Linear layers in layers, and others."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.attn, self.mlp = nn.ModuleDict({"q": nn.Linear(2, 2), "k": nn.Linear(2, 2)}), nn.Linear(2, 2)
        self.norm, self.embed = nn.LayerNorm(2), nn.Embedding(3, 2)


def _low_rank(optimizer: str, text: str, targets: Any, trainer_class: Any) -> list[Any]:
    """Return the weights of a group with projections, how many others there are, and the group's options."""
    model = Nested()
    names = {id(value): name for name, value in model.named_parameters()}
    with _Installed():
        args = arguments(
            optim=optimizer, optim_target_modules=targets, **BASE, **({"optim_args": text} if text else {})
        )
        made, given = trainer_class.get_optimizer_cls_and_kwargs(args, model)
    others, group = given.pop("params")
    own = {name: value for name, value in group.items() if name != "params"}
    return [
        made.__name__, [names[id(one)] for one in group["params"]], len(others["params"]), own, given,
    ]  # fmt: skip


GALORE = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
APOLLO = {
    "rank": 128,
    "proj": "random",
    "scale_type": "channel",
    "update_proj_gap": 200,
    "scale": 1.0,
    "proj_type": "std",
}
OWN_APOLLO = {
    "rank": 2,
    "proj": "svd",
    "scale_type": "tensor",
    "update_proj_gap": 5,
    "scale": 0.5,
    "proj_type": "right",
}
BOTH = ["attn.q.weight", "attn.k.weight"]
LOW_RANK: Sequence[tuple[str, str, Any, list[Any]]] = (
    ("galore_adamw", "", ["attn"], ["GaLoreAdamW", BOTH, 7, GALORE, {"lr": 0.25}]),
    (
        "galore_adamw_8bit", "rank=4,update_proj_gap=9,scale=0.5,proj_type=left", r"attn\.q",
        ["GaLoreAdamW8bit", BOTH[:1], 8, {"rank": 4, "update_proj_gap": 9, "scale": 0.5, "proj_type": "left"},
            {"lr": 0.25}],
    ),
    (
        "galore_adafactor", "", "all-linear",
        ["GaLoreAdafactor", [*BOTH, "mlp.weight"], 6, GALORE, {"lr": 0.25, "scale_parameter": False,
            "relative_step": False}],
    ),
    ("galore_adamw", "", "all_linear", ["GaLoreAdamW", [*BOTH, "mlp.weight"], 6, GALORE, {"lr": 0.25}]),
    ("galore_adamw", "", ["mlp", "norm"], ["GaLoreAdamW", ["mlp.weight"], 8, GALORE, {"lr": 0.25}]),
    ("apollo_adamw", "", ["attn"], ["APOLLOAdamW", BOTH, 7, {**APOLLO, "betas": (0.7, 0.8), "eps": 1e-4},
        {"lr": 0.25}]),
    (
        "apollo_adamw", "rank=2,proj=svd,scale_type=tensor,update_proj_gap=5,scale=0.5,proj_type=right", ["q"],
        ["APOLLOAdamW", BOTH[:1], 8, {**OWN_APOLLO, "betas": (0.7, 0.8), "eps": 1e-4}, {"lr": 0.25}],
    ),
)  # fmt: skip
UNFIT: Sequence[tuple[str, Mapping[str, Any], str]] = (
    ("no targets", {"optim": "galore_adamw"}, "optim_target_modules"),
    ("targets that are not found", {"optim": "galore_adamw", "optim_target_modules": ["other"]},
        "No target modules found"),
    ("targets of another type", {"optim": "galore_adamw", "optim_target_modules": 3}, "must be a list of strings"),
    (
        "micro-batches and a step for each weight",
        {"optim": "galore_adamw_layerwise", "optim_target_modules": ["attn"], "gradient_accumulation_steps": 2},
        "does not support gradient accumulation",
    ),
)  # fmt: skip


def _unfit(options: Mapping[str, Any], trainer_class: Any) -> Any:
    with _Installed():
        return trainer_class.get_optimizer_cls_and_kwargs(arguments(**options), Nested())


def _whole_models(trainer_class: Any) -> list[Any]:
    """Return the classes and models of optimizers that are given a whole model."""
    found, model = [], Line()
    for name in ("lomo", "adalomo"):
        with _Installed():
            made, given = trainer_class.get_optimizer_cls_and_kwargs(arguments(optim=name, **BASE), model)
        found.append([made.__name__, given["model"] is model, given["lr"]])
    return found


def _given(trainer_class: Any) -> list[Any]:
    """Return which optimizer and schedule a run has that are given: objects, and a class with options."""
    rows = [{"number": row, "labels": 0.0} for row in range(4)]
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    args = {
        "max_steps": 3,
        "per_device_train_batch_size": 2,
        "logging_steps": 1,
        "lr_scheduler_type": "linear",
    }
    one = trainer_class(
        model=model, args=arguments(**args), train_dataset=rows, optimizers=(optimizer, schedule)
    )
    one.train()
    rates = [entry["learning_rate"] for entry in one.state.log_history if "loss" in entry]
    options = {"lr": 0.5, "momentum": 0.75}
    other = trainer_class(
        model=Line(),
        args=arguments(weight_decay=0.3, **args),
        train_dataset=rows,
        optimizer_cls_and_kwargs=(torch.optim.SGD, options),
    )
    made = other.create_optimizer()
    third = trainer_class(model=Line(), args=arguments(**args), train_dataset=rows, optimizers=(None, None))
    refused = False
    try:
        trainer_class(model_init=Line, args=arguments(), optimizers=(optimizer, schedule))
    except RuntimeError:
        refused = True
    return [
        rates, [[group["lr"], group["momentum"], group["weight_decay"]] for group in made.param_groups],
        type(third.create_optimizer()).__name__, refused,
    ]  # fmt: skip


PLACE = "transformers:Trainer"
IGNORED = KnownFailure(
    "the text of a switch counts as true, and that of a number stays a text",
    finding="Transformers: texts of arguments of optimizers",
)
# Sources: the documentation of TrainingArguments (optim, optim_args, optim_target_modules) and of Trainer.
OPTIMIZER_ROWS: Sequence[Row] = (
    *(
        Row("starts", PLACE, f"the optimizer {name}{' with ' * bool(text)}{text}", partial(_optimizer, name, text,
            due), [kind, {}], since="5" if name.endswith(("4bit", "torch_8bit")) else "4.57")
        for name, text, kind, due in NAMED
    ),
    *(
        Row("starts", PLACE, f"the optimizer {name} with {text}", partial(_optimizer, name, text, due), [kind, {}],
            since="5.8")
        for name, text, kind, due in TEXTS
    ),
    *(
        Row("starts", PLACE, f"the optimizer {name} with {text}", partial(_optimizer, name, text, due), [kind, {}],
            since="4.57", known=IGNORED)
        for name, text, kind, due in WORDS
    ),
    *(
        Row(
            "starts", PLACE, f"projections of {name} for {targets}{' with ' * bool(text)}{text}", partial(_low_rank,
                name, text, targets), due,
            since="4.57",
        )
        for name, text, targets, due in LOW_RANK
    ),
    *(Row("combinations", PLACE, f"optimizers, {what}", partial(_unfit, options), Refused(words),
        since="4.57") for what, options, words in UNFIT),
    Row("starts", PLACE, "optimizers of a whole model", _whole_models, [["Lomo", True, 0.25], ["AdaLomo", True,
        0.25]], since="4.57"),
    Row(
        "starts", PLACE, "an optimizer and a schedule that are given", _given,
        [[0.5, 0.25, 0.125], [[0.5, 0.75, 0.3], [0.5, 0.75, 0.0]], "AdamW", True], since="4.57",
    ),
)  # fmt: skip
