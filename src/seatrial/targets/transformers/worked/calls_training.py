"""Calls of Transformers' optimizers, schedules and samplers whose results are on record; see `recorded_calls`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of


def _weights() -> list[nn.Parameter]:
    return [
        nn.Parameter(numbers(*shape, seed=at).to(dtype))
        for at, (shape, dtype) in enumerate(
            (((3, 4), torch.float32), ((5,), torch.float32), ((2, 3, 2), torch.float32), ((2, 2), torch.bfloat16))
        )
    ]  # fmt: skip


def _followed(options: Mapping[str, Any], made: Any) -> list[Any]:
    """Return weights after steps of an optimizer, one of which has a weight without a gradient, and its state."""
    weights = _weights()
    optimizer = made([{"params": weights[:2], "weight_decay": 0.1}, {"params": weights[2:]}], **options)
    found: list[Any] = []
    for step in range(4):
        for at, weight in enumerate(weights):
            own = numbers(*weight.shape, seed=10 * step + at, scale=3.0 if step == 2 else 0.4)
            weight.grad = None if (step, at) == (1, 1) else own.to(weight.dtype)
        optimizer.step()
        found.append([float(weight.detach().double().abs().sum()) for weight in weights])
    states = [dict(optimizer.state[weight]) for weight in weights]
    return [found, [weight.detach().float() for weight in weights], states]


ADAFACTOR: Sequence[Mapping[str, Any]] = (
    {}, {"scale_parameter": False, "relative_step": False, "lr": 0.05},
    {"scale_parameter": True, "relative_step": False, "lr": 0.05, "beta1": 0.9},
    {"warmup_init": True}, {"decay_rate": -0.5, "clip_threshold": 0.3}, {"eps": (1e-3, 0.5)},
    {"lr": 0.1}, {"relative_step": False, "warmup_init": True}, {"weight_decay": 0.3, "beta1": 0.5},
)  # fmt: skip


def _adafactor(made: Any) -> list[Any]:
    return [refusal(partial(_followed, options, made)) for options in ADAFACTOR]


def _own_rates(function: Any) -> list[Any]:
    """Return the rates of a schedule that follows Adafactor, before a step and after some."""
    made = importlib.import_module("transformers.optimization").Adafactor
    found: list[Any] = []
    for options in ({}, {"warmup_init": True}, {"scale_parameter": False}):
        weights = _weights()[:2]
        optimizer = made([{"params": [one]} for one in weights], **options)
        schedule = function(optimizer, 0.25)
        found.append([schedule.get_lr(), sorted(optimizer.param_groups[0])])
        for step in range(2):
            for weight in weights:
                weight.grad = numbers(*weight.shape, seed=step)
            optimizer.step()
            found.append(schedule.get_lr())
    return found


def _optimizer(*rates: float) -> Any:
    made: Any = torch.optim.SGD
    return made([{"params": [nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates], lr=rates[0])


def _scheduled(calls: Sequence[Mapping[str, Any]], function: Any) -> list[Any]:
    """Return rates of two groups over the steps of a run and beyond it."""
    found = []
    for options in calls:
        optimizer = _optimizer(1.0, 0.5)
        schedule = refusal(lambda options=options, optimizer=optimizer: function(optimizer, **options))
        rates: Any = schedule if isinstance(schedule, str) else []
        for _ in range(13 if isinstance(rates, list) else 0):
            rates.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            schedule.step()
        found.append(rates)
    return found


RUN: Mapping[str, Any] = {"num_warmup_steps": 3, "num_training_steps": 11}
WSD: Mapping[str, Any] = {"num_warmup_steps": 3, "num_decay_steps": 4, "num_training_steps": 11}
SCHEDULES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "get_wsd_schedule": [
        *({**WSD, "warmup_type": up, "decay_type": down, "min_lr_ratio": least, "num_cycles": cycles}
          for up, down, least, cycles in (("linear", "cosine", 0, 0.5), ("cosine", "1-sqrt", 0.2, 0.5),
                                          ("1-sqrt", "linear", 0.1, 0.5), ("cosine", "cosine", 0.1, 1.0))),
        {**WSD, "num_stable_steps": 1}, {"num_warmup_steps": 2, "num_decay_steps": 3, "num_stable_steps": 2},
        {"num_warmup_steps": 2, "num_decay_steps": 3}, {**WSD, "num_warmup_steps": 0}, {**WSD, "num_decay_steps": 8},
        {**WSD, "decay_type": "other"}, {**WSD, "warmup_type": "other"},
    ],
    "get_cosine_with_min_lr_schedule_with_warmup": [
        {**RUN, "min_lr": 0.2}, {**RUN, "min_lr_rate": 0.3, "num_cycles": 1.5}, RUN,
        {**RUN, "min_lr": 0.2, "min_lr_rate": 0.3}, {**RUN, "min_lr_rate": 0.3, "num_warmup_steps": 0},
    ],
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate": [
        {**RUN, "min_lr": 0.2, "warmup_lr_rate": 0.4}, {**RUN, "min_lr_rate": 0.3}, {**RUN, "min_lr_rate": 0.0},
        RUN, {**RUN, "min_lr": 0.2, "min_lr_rate": 0.3}, {**RUN, "min_lr_rate": 0.1, "num_cycles": 1.5},
        {**RUN, "min_lr_rate": 0.3, "num_warmup_steps": 0}, {**RUN, "min_lr_rate": 0.3, "warmup_lr_rate": 0.0},
    ],
    "get_cosine_schedule_with_warmup": [RUN, {**RUN, "num_cycles": 1.25}, {**RUN, "num_warmup_steps": 0}],
    "get_cosine_with_hard_restarts_schedule_with_warmup": [{**RUN, "num_cycles": 3}, RUN],
    "get_polynomial_decay_schedule_with_warmup": [
        {**RUN, "power": 2.0, "lr_end": 0.1}, RUN, {**RUN, "lr_end": 1.5}, {**RUN, "power": 0.5},
    ],
    "get_inverse_sqrt_schedule": [
        {"num_warmup_steps": 3}, {"num_warmup_steps": 0}, {"num_warmup_steps": 3, "timescale": 7},
    ],
    "get_linear_schedule_with_warmup": [RUN, {**RUN, "num_training_steps": 3}],
    "get_constant_schedule_with_warmup": [{"num_warmup_steps": 3}, {"num_warmup_steps": 0}],
}  # fmt: skip


def _resumed(function: Any) -> list[Any]:
    """Return rates of schedules by name that begin after a number of steps, and refusals of what they lack."""
    import transformers

    found: list[Any] = []
    for name in transformers.SchedulerType:
        if name.value in ("greedy", "layerwise"):
            continue
        for given in ({}, {"num_warmup_steps": 2}, {"num_warmup_steps": 2, "num_training_steps": 8}):
            needed: dict[str, dict[str, Any]] = {
                "warmup_stable_decay": {"num_decay_steps": 3}, "cosine_with_min_lr": {"min_lr": 0.2},
                "cosine_warmup_with_min_lr": {"min_lr": 0.2},
            }  # fmt: skip
            specific = needed.get(name.value, {})
            optimizer = _optimizer(1.0)
            made = refusal(
                lambda name=name, given=given, specific=specific, optimizer=optimizer: function(
                    name, optimizer, scheduler_specific_kwargs=specific, **given
                )
            )
            rates = []
            for _ in range(0 if isinstance(made, str) else 6):
                rates.append(optimizer.param_groups[0]["lr"])
                optimizer.step()
                made.step(0.5) if name.value == "reduce_lr_on_plateau" else made.step()
            found.append([name.value, sorted(given), made if isinstance(made, str) else rates])
    return found


LOSSES = (3.0, 2.5, 2.6, 2.4, 2.4, 2.4, 2.5, 2.5, 2.1, 2.0, 1.9, 2.3, 2.4, 2.4, 2.4, 2.5, 2.6, 2.7, 2.8, 1.0)
GREEDY: Sequence[Mapping[str, Any]] = (
    {"patience": 1, "factor": 0.5, "min_lr": 0.01, "max_lr": 4.0},
    {"patience": 1, "factor": 0.5, "min_lr": 0.01, "max_lr": 4.0, "smooth": True, "window_size": 3},
    {"patience": 1, "factor": 0.5, "min_lr": 0.01, "max_lr": 4.0, "mode": "max"},
    {"patience": 0, "factor": 0.5, "min_lr": [0.1, 0.2], "max_lr": [1.5, 2.0], "cooldown": 2},
    {"patience": 0, "factor": 0.5, "min_lr": 0.1, "warmup": 2, "threshold_mode": "rel", "threshold": 0.1},
    {"patience": 0, "factor": 0.5, "min_lr": 0.4, "reset_start": 2}, {"factor": 1.0}, {"mode": "other"},
    {"patience": 0, "factor": 0.5, "min_lr": 0.1, "threshold_mode": "rel", "threshold": 0.1, "mode": "max"},
    {"patience": 0, "factor": 0.5, "min_lr": 0.1, "threshold": 0.3, "mode": "max", "eps": 0.2},
    {"min_lr": [0.1]}, {"max_lr": [0.1]}, {"threshold_mode": "other"},
)  # fmt: skip


def _greedy(made: Any) -> list[Any]:
    """Return rates by losses, and those of a schedule that reads the state of another half-way."""
    found: list[Any] = []
    for options in GREEDY:
        optimizer = _optimizer(1.0, 0.5)
        one = refusal(lambda options=options, optimizer=optimizer: made(optimizer, **options))
        if isinstance(one, str):
            found.append(one)
            continue
        rates = []
        for step, loss in enumerate(LOSSES):
            one.step(loss)
            rates.append([group["lr"] for group in optimizer.param_groups])
            if step == 9:
                other = made(_optimizer(*rates[-1]), **options)
                other.load_state_dict(one.state_dict())
                one, optimizer = other, other.optimizer
        found.append([rates, one.get_last_lr()])
    return found


def _permuted(size: int, generator: Any = None) -> Tensor:
    """Return an order that follows from a generator's seed alone, in place of torch's."""
    seed = 0 if generator is None else generator.initial_seed()
    return torch.arange(size).flip(0).roll(int(seed) % max(size, 1))


LENGTHS = (3, 9, 4, 1, 7, 7, 2, 12, 5, 6, 8, 3, 1, 10, 2, 4, 11, 6)


def _sampled(calls: Sequence[Mapping[str, Any]], made: Any) -> list[Any]:
    """Return places of rows in two epochs, and the length that a sampler says."""
    found: list[Any] = []
    for options in calls:
        with patch("torch.randperm", _permuted):
            one = refusal(lambda options=options: made(**options))
            if isinstance(one, str):
                found.append(one)
                continue
            epochs = []
            for epoch in range(2):
                if hasattr(one, "set_epoch"):
                    one.set_epoch(epoch)
                epochs.append(refusal(lambda one=one: list(one)))
        found.append([epochs, refusal(lambda one=one: len(one))])
    return found


ROWS = [{"input_ids": [0] * length, "other": [0] * (13 - length)} for length in LENGTHS]
GROUPED: Sequence[Mapping[str, Any]] = (
    {"batch_size": 3, "lengths": list(LENGTHS)}, {"batch_size": 2, "dataset": ROWS},
    {"batch_size": 2, "dataset": ROWS, "model_input_name": "other"},
    {"batch_size": 4, "lengths": torch.tensor(LENGTHS)}, {"batch_size": 2}, {"batch_size": 2, "dataset": [[1], [2]]},
    {"batch_size": 2, "dataset": ROWS, "lengths": list(reversed(LENGTHS))},
)  # fmt: skip
RANKS: Sequence[Mapping[str, Any]] = (
    *({**options, "num_replicas": size, "rank": rank, "drop_last": drop, "seed": 3}
      for options in GROUPED[:3] for size, rank in ((4, 0), (4, 3), (5, 1)) for drop in (False, True)),
    {"batch_size": 2, "num_replicas": 2, "rank": 0},
)  # fmt: skip
EACH: Sequence[Mapping[str, Any]] = tuple(
    {"dataset": range(size), "batch_size": 2, "drop_last": drop, "num_processes": 3, "process_index": rank}
    for size in (1, 10, 13) for drop in (False, True) for rank in (0, 2)
)  # fmt: skip
BALANCED: Sequence[Mapping[str, Any]] = tuple(
    {"lengths": list(lengths), "effective_batch_size": size, "dp_size": ranks, "grad_accum": steps, "rank": rank,
     "shuffle": shuffle, "drop_last": drop, "seed": 5}
    for lengths, size, ranks, steps in (
        (LENGTHS, 8, 2, 2), (LENGTHS, 6, 1, 3), (LENGTHS, 5, 2, 2), ([900, *LENGTHS[:9], 800, 5], 12, 2, 2),
        ([900, 3, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1], 12, 2, 3), ([7] * 9, 4, 2, 2), ([1, 2, 3], 8, 2, 2),
    )
    for rank in range(min(ranks, 2)) for shuffle, drop in ((False, True), (True, False))
)  # fmt: skip


class _Stream(torch.utils.data.IterableDataset[int]):
    """Rows that are numbered from a number that an epoch changes."""

    def __init__(self, size: int, sized: bool) -> None:
        self.size, self.first = size, 0
        if sized:
            self.num_examples = size

    def __iter__(self) -> Any:
        return iter(range(self.first, self.first + self.size))

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        self.first = 100 * epoch


def _sharded(made: Any) -> list[Any]:
    found: list[Any] = []
    for size, drop in ((10, False), (10, True), (2, False), (2, True), (12, False), (0, False)):
        for rank in (0, 2):
            one = made(_Stream(size, True), 2, drop, 3, rank)
            rows = [list(one)]
            one.set_epoch(1)
            found.append([rows[0], list(one), len(one), one.num_examples])
    return found


def _grouped_indices(function: Any) -> list[Any]:
    with patch("torch.randperm", _permuted):
        return [
            [
                [int(one) for one in function(list(LENGTHS[:size]), width, mega_batch_mult=times)]
                for times in (None, 1, 3)
            ]
            for size in (1, 5, 18)
            for width in (1, 2, 4)
        ]


def _smoothed(made: Any) -> list[Any]:
    """Return smoothed losses: labels that are shifted or not, of two forms, and counts of several kinds."""
    logits, labels = numbers(2, 5, 7, seed=1), torch.tensor([[1, -100, 3, 6, -100], [0, 2, 2, -100, 5]])
    found = []
    for smoothing in (0.0, 0.1, 0.3):
        for shift in (False, True):
            for count in (None, 4, torch.tensor(6)):
                for given in ({"logits": logits}, (logits, torch.zeros(1))):
                    one = made(epsilon=smoothing)
                    more = {} if count is None else {"num_items_in_batch": count}
                    found.append(refusal(partial(one, given, labels.clone(), shift_labels=shift, **more)))
    ignored = made(epsilon=0.2, ignore_index=2)
    whole = labels.clamp(min=0)
    return [*found, *(ignored({"logits": logits}, one) for one in (whole, whole[..., None]))]


def _arrays(function: Any) -> list[Any]:
    """Return arrays that are joined, of several shapes and containers."""
    one, two = np.arange(6.0).reshape(2, 3), np.arange(10.0).reshape(2, 5)
    three = np.arange(8.0).reshape(1, 2, 4)
    pairs: Sequence[Any] = (
        (one, two), (two, one), (np.float64(3.0), np.float64(4.0)), (one[0], two[0]), (three, three[:, :1]),
        ([one, {"a": two}], [two, {"a": one}]), ((one,), (two,)), ("a", "b"),
    )  # fmt: skip
    tensors = [
        refusal(lambda pair=pair, index=index: function(pair[0], pair[1], padding_index=index))
        for pair in pairs
        for index in (-100, 0)
    ]
    given = [(torch.tensor(a), torch.tensor(b)) for a, b in ((one, two), (two, one), (three, three[:, :1]))]
    return [*tensors, *(refusal(lambda pair=pair: function(*pair)) for pair in given)]


def _contained(made: Any) -> list[Any]:
    """Return what a container of an evaluation's batches has, joined and apart, on the way and at its end."""
    found: list[Any] = []
    batches = [numbers(2, 3, seed=1), numbers(1, 5, seed=2), numbers(2, 2, seed=3)]
    for join in (True, False):
        for way in (False, True):
            for nested in (False, True):
                one = made(do_nested_concat=join, padding_index=-7)
                kinds = []
                for at, batch in enumerate(batches):
                    one.add({"a": batch, "b": (batch + 1,)} if nested else batch)
                    if way and at == 1:
                        one.to_cpu_and_numpy()
                        kinds.append([type(one.tensors).__name__, type(one.arrays).__name__])
                found.append([kinds, one.get_arrays()])
    return [*found, made().get_arrays(), made(do_nested_concat=False).get_arrays()]


def _causal_masks(function: Any) -> list[Any]:
    """Return which masks are causal."""
    lower = torch.tril(torch.ones(4, 4))
    masks = (
        lower, lower[None, None], torch.ones(4, 4), torch.ones(2, 4), torch.tensor([[1, 1, 0, 0]]),
        torch.tensor([[0, 1, 1, 1]]), torch.tensor([[1, 0, 1, 1]]), None, torch.where(lower > 0, 0.0, -1e9)[None, None],
        lower.bool(), torch.zeros(4, 4), lower.triu(-1), lower[None].expand(3, 4, 4), torch.ones(1, 1, 1, 4),
        torch.ones(1, 4, 4),
    )  # fmt: skip
    return [refusal(lambda mask=mask: bool(function(mask))) for mask in masks]


def _names(function: Any) -> list[Any]:
    """Return names of weights without those of types of layers and of patterns, and sums of their sizes."""
    module = importlib.import_module("transformers.trainer_pt_utils")
    inner = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1, bias=False))
    model = nn.ModuleDict({"layer_norm": inner, "out": nn.LayerNorm(2), "bias_of": nn.Linear(1, 1)})
    model.register_parameter("own", nn.Parameter(torch.ones(4)))
    model["out"].weight.requires_grad_(False)
    found: list[Any] = [
        refusal(lambda types=types, names=names: sorted(function(model, types, names)))
        for types in ([], [nn.LayerNorm], [nn.LayerNorm, nn.Linear])
        for names in (None, ["bias"], [r"bias", r"layernorm"], [r"^own"])
    ]
    count = module.get_model_param_count
    return [*found, count(model), count(model, trainable_only=True),
            [str(module.get_module_class_from_name(model, name)) for name in ("LayerNorm", "Conv1d")]]  # fmt: skip


def _arguments(function: Any) -> list[int]:
    """Return numbers of arguments of functions, some of which are given."""

    def three(one: Any, two: Any, other: Any = 1) -> None: ...

    return [
        function(call)
        for call in (three, partial(three, 1), partial(three, other=2), partial(three, 1, other=2))
    ]


PARTS, STEPS = "transformers.trainer_pt_utils", "transformers.optimization"
CALLS: Sequence[Call] = (
    Call("states", f"{STEPS}:Adafactor", "steps by options", _adafactor),
    Call("states", f"{STEPS}:get_adafactor_schedule", "rates that an optimizer has of its own", _own_rates),
    *(Call("steps", f"{STEPS}:{name}", "rates by options", partial(_scheduled, calls))
      for name, calls in SCHEDULES.items()),
    Call("steps", f"{STEPS}:get_scheduler", "every name, with what it needs and without", _resumed),
    Call("steps", f"{STEPS}:GreedyLR", "rates by losses", _greedy),
    Call("batches", f"{PARTS}:LengthGroupedSampler", "orders by options", partial(_sampled, GROUPED)),
    Call("batches", f"{PARTS}:DistributedLengthGroupedSampler", "orders of ranks", partial(_sampled, RANKS)),
    Call("batches", f"{PARTS}:ShardSampler", "rows of ranks", partial(_sampled, EACH)),
    Call("batches", f"{PARTS}:BatchRebalanceSampler", "batches of about the same cost", partial(_sampled, BALANCED)),
    Call("batches", f"{PARTS}:IterableDatasetShard", "rows of streams", _sharded),
    Call("batches", f"{PARTS}:get_length_grouped_indices", "groups of sizes", _grouped_indices),
    Call("formulas", f"{PARTS}:LabelSmoother", "labels, counts and forms", _smoothed),
    Call("validations", f"{PARTS}:nested_concat", "arrays of shapes", _arrays),
    Call("validations", f"{PARTS}:EvalLoopContainer", "batches that are joined", _contained),
    Call("batches", f"{PARTS}:is_attention_mask_causal", "masks", _causal_masks),
    Call("states", "transformers.trainer_utils:number_of_arguments", "given arguments", _arguments),
    Call("states", f"{PARTS}:get_parameter_names", "types and patterns", _names),
)  # fmt: skip
TRAINING_CALL_ROWS = rows_of(CALLS)
