"""Worked examples of the parts of asynchronous training: turns, rows, batches, figures, and weights that are sent."""

from __future__ import annotations

import inspect
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.trl.former import FUNCTIONS
from seatrial.targets.trl.worked.planned import BATCH_ROWS
from seatrial.targets.trl.worked.rows import Row

GRPO, DISTILLATION = (
    f"trl.experimental.async_{name}.async_{name}_trainer" for name in ("grpo", "distillation")
)
WORKER = "trl.experimental.async_grpo.async_rollout_worker"
SERVER = {"max_lora_rank": 16, "max_loras": 5}
"""What a server says of the adapters that it takes."""


def _reduced(reduce: Callable[..., float]) -> list[float]:
    found = [
        reduce("perf/rate", [(1.0, 2.0), (5.0, 2.0)]),
        reduce("perf/rate", [(1.0, 0.0)]),
        reduce("tools/call_total", [1.0, 4.0]),
        reduce("completions/max_length", [1.0, 4.0, 2.0]),
        reduce("completions/min_length", [3.0, 1.0, 2.0]),
        reduce("total/maximum_mean", [1.0, 4.0, 1.0]),
    ]
    return [round(one, 6) for one in found]


def _ranks(round_up: Callable[..., int]) -> list[Any]:
    found: list[Any] = [round_up(one) for one in (1, 4, 8, 9, 129, 300, 512)]
    try:
        return [*found, round_up(513)]
    except ValueError:
        return [*found, "refused"]


def _adapted(**options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    given = {"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False, **options}
    return get_peft_model(tiny_model(tiny_tokenizer(), 0), LoraConfig(**given))


def _sent(names: Callable[..., Any]) -> list[list[str]]:
    """Return what is wrong with the names and values that are sent of a model with a frozen part, and of adapters."""
    plain = tiny_model(tiny_tokenizer(), 0)
    own = dict(plain.named_parameters())
    frozen = next(iter(own))
    own[frozen].requires_grad_(False)
    found = dict(names(plain))
    wrong = [[*({*own} - {frozen} ^ {*found})]]
    adapted = _adapted(modules_to_save=["lm_head"])
    with torch.no_grad():
        adapted.base_model.model.lm_head.modules_to_save["default"].weight.add_(1.0)
    found = dict(names(adapted))
    wrong.append([*({*own} ^ {*found})])
    saved = adapted.base_model.model.lm_head.modules_to_save["default"].weight
    return [*wrong, [] if torch.equal(found["lm_head.weight"], saved) else ["the head that is saved"]]


def _valid(options: Mapping[str, Any], validate: Callable[..., Any]) -> Any:
    try:
        return validate(_adapted(**options)).r
    except ValueError:
        return "refused"


def _two(validate: Callable[..., Any]) -> Any:
    from peft import LoraConfig

    model = _adapted()
    model.add_adapter("other", LoraConfig(r=3, target_modules=["q_proj"]))
    first = validate(model).r
    model.set_adapter("other")
    return [first, validate(model).r]


def _selected(
    given: Mapping[str, Any], parts: int, options: Mapping[str, Any], select: Callable[..., Any]
) -> Any:
    server = {
        "lora_config": {**SERVER, **given} if given is not None else None,
        "parallel_config": {"data_parallel_size": parts},
    }
    try:
        return select(server, _adapted(**options), SimpleNamespace(max_staleness=3))
    except ValueError:
        return "refused"


SELECTED: Sequence[tuple[str, Any, int, Mapping[str, Any], Any]] = (
    ("a server with capacity for each version", {}, 1, {}, True),
    ("a server without adapters", None, 1, {}, False),
    ("a server of two replicas", {}, 2, {}, False),
    ("an adapter with a head", {}, 1, {"modules_to_save": ["lm_head"]}, False),
    ("a rank that the server does not take", {}, 1, {"r": 17}, "refused"),
    ("a rank of one layer that the server does not take", {}, 1, {"rank_pattern": {"q_proj": 20}}, "refused"),
    ("a server with capacity for one version less", {"max_loras": 4}, 1, {}, "refused"),
)
VALID: Sequence[tuple[str, Mapping[str, Any], Any]] = (
    ("plain adapters", {}, 2),
    ("a head that is saved", {"modules_to_save": ["lm_head"]}, "refused"),
    ("adapters of directions", {"use_dora": True}, "refused"),
    ("biases", {"bias": "lora_only"}, "refused"),
    ("the head", {"target_modules": ["q_proj", "lm_head"]}, "refused"),
    ("layers by a pattern", {"target_modules": r".*\.(q_proj|v_proj)"}, 2),
)


def _written(name: str, save: Callable[..., Any]) -> list[Any]:
    """Return what is wrong with an adapter that is written over an older one, and the names of its folder."""
    from peft import LoraConfig
    from safetensors.torch import load_file

    model = _adapted()
    model.add_adapter("other", LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights=False))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "adapter"
        place.mkdir()
        (place / "old").write_text("")
        save(model, SimpleNamespace(is_main_process=True, device="cpu"), name, str(place))
        rank = json.loads((place / "adapter_config.json").read_text())["r"]
        found = load_file(place / "adapter_model.safetensors")
        names = sorted(one.name for one in Path(folder).iterdir())
        is_old = (place / "old").exists()
    own = {
        key.replace(f".{name}.", "."): value
        for key, value in model.state_dict().items()
        if f".{name}." in key
    }
    wrong = [key for key in own.keys() | found.keys() if not torch.equal(own[key], found[key])]
    return [wrong, rank, names, is_old]


def _chained(
    turns: Sequence[Sequence[Any]], limit: int, due: Mapping[str, float], chain: Callable[..., Any]
) -> list[Any]:
    """Return the rows of turns, and how they follow one another."""
    module = import_module(WORKER)
    records = []
    for number, (asked, said, *mask) in enumerate(turns):
        logprobs = [-(number + 1) - place / 10 for place in range(len(said))]
        records.append(module.TurnRecord(list(asked), list(said), logprobs, *mask))
    found = chain(records, "r", limit)
    rows, tally = found if isinstance(found, tuple) else (found, due)  # which earlier releases do not count
    return [
        [
            [one.input_ids, one.completion_mask, [round(value, 3) for value in one.old_log_probs]]
            for one in rows
        ],
        {
            name: tally[name]
            for name in ("clean", "realign", "fork", "transitions", "drift_tokens", "drift_max")
        },
    ]


def _tally(clean: float, realign: float, fork: float, drift: float, most: float) -> dict[str, float]:
    total = clean + realign + fork
    names = ("clean", "realign", "fork", "transitions", "drift_tokens", "drift_max")
    return dict(zip(names, map(float, (clean, realign, fork, total, drift, most)), strict=True))


CHAINS: Sequence[tuple[str, Sequence[Sequence[Any]], int, list[Any], dict[str, float]]] = (
    (
        "turns that follow",
        [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6])],
        4,
        [[[1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1], [0.0, 0.0, -1.0, -1.1, 0.0, -2.0]]],
        _tally(1, 0, 0, 0, 0),
    ),
    (
        "an answer whose end is written otherwise",
        [([1, 2], [3, 4, 5]), ([1, 2, 3, 7, 8], [6])],
        4,
        [[[1, 2, 3, 7, 8, 6], [0, 0, 1, 0, 0, 1], [0.0, 0.0, -1.0, 0.0, 0.0, -2.0]]],
        _tally(0, 1, 0, 2, 2),
    ),
    (
        "an answer that is written otherwise by as much as the limit",
        [([1, 2], [3, 4, 5]), ([1, 2, 3, 7, 8], [6])],
        2,
        [
            [[1, 2, 3, 4, 5], [0, 0, 1, 1, 1], [0.0, 0.0, -1.0, -1.1, -1.2]],
            [[1, 2, 3, 7, 8, 6], [0, 0, 0, 0, 0, 1], [0.0] * 5 + [-2.0]],
        ],
        _tally(0, 0, 1, 2, 2),
    ),
    (
        "a prompt that is written otherwise, and a turn after it",
        [([1, 2], [3]), ([9, 2, 3], [4]), ([9, 2, 3, 4], [5])],
        8,
        [
            [[1, 2, 3], [0, 0, 1], [0.0, 0.0, -1.0]],
            [[9, 2, 3, 4, 5], [0, 0, 0, 1, 1], [0.0, 0.0, 0.0, -2.0, -3.0]],
        ],
        _tally(1, 0, 1, 3, 3),
    ),
)


def _ended(callback_class: Any) -> list[Any]:
    """Return after how many groups training stops, and whether a last checkpoint is written."""
    if "before_resume" not in inspect.getsource(callback_class):
        raise NotServed("groups of an earlier run do not count")
    found: list[Any] = []
    for strategy in ("steps", "no"):
        trained: set[int] = set()
        trainer = SimpleNamespace(
            accelerator=SimpleNamespace(device="cpu", reduce=lambda value, reduction: value),
            **dict.fromkeys(("_groups_before_resume", "_prompts_before_resume"), 2),
            **dict.fromkeys(("_trained_groups", "_trained_prompts"), trained),
        )
        callback = callback_class(trainer, 4)
        for group in range(5):
            trained.add(group // 2)
            control = SimpleNamespace(should_training_stop=False, should_save=False)
            callback.on_step_end(SimpleNamespace(save_strategy=strategy), None, control)
            if control.should_training_stop:
                found.append([len(trained), control.should_save])
                break
    return found


def _begun(callback_class: Any) -> list[str]:
    """Return what is done when training begins, and begins again."""
    done: list[str] = []
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(is_main_process=True),
        weight_transfer=SimpleNamespace(init_weight_transfer=lambda: done.append("open")),
        rollout_worker=SimpleNamespace(start=lambda: done.append("start")),
        _sync_weight=lambda: done.append("sync"),
    )
    callback = callback_class(trainer)
    for _ in range(2):
        callback.on_train_begin(None, None, None)
    return done


def _every_third(callback_class: Any) -> list[int]:
    found: list[int] = []
    step = SimpleNamespace(global_step=0)
    callback = callback_class(lambda: found.append(step.global_step), 3)
    for step.global_step in range(1, 8):
        callback.on_step_end(None, step, None)
    return found


UNSAVED = KnownFailure(
    "asynchronous training that stops after its last prompts writes no last checkpoint",
    finding=FUNCTIONS,
    releases=before("trl", "1.16"),
)


def _of_trainer(name: str, what: str, call: Callable[..., Any], right: Any, subject: str) -> list[Row]:
    return [Row(subject, f"{place}:{name}", what, call, right) for place in (GRPO, DISTILLATION)]


COLLECTED_ROWS: Sequence[Row] = (
    *_of_trainer("_reduce_metric", "pairs, totals, extremes", _reduced, [1.5, math.nan, 5.0, 4.0, 1.0, 2.0], "metrics"),
    *_of_trainer("round_lora_rank", "ranks", _ranks, [1, 8, 8, 16, 256, 320, 512, "refused"], "counts"),
    *_of_trainer("_iter_vllm_named_params", "a frozen part, adapters", _sent, [[], [], []], "parts"),
    *(
        row
        for what, options, right in VALID
        for row in _of_trainer("validate_lora_for_vllm_sync", what, partial(_valid, options), right, "refusals")
    ),
    *_of_trainer("validate_lora_for_vllm_sync", "the adapter that is active", _two, [2, 3], "refusals"),
    *(
        row
        for what, has, parts, options, right in SELECTED
        for row in _of_trainer("select_adapter_sync", what, partial(_selected, has, parts, options), right, "samplers")
    ),
    *(
        row
        for name, rank in (("default", 2), ("other", 3))
        for row in _of_trainer(
            "save_lora_adapter", f"the adapter {name}", partial(_written, name), [[], rank, ["adapter"], False],
            "checkpoints",
        )
    ),
    *(
        row._replace(known=UNSAVED)
        for row in _of_trainer(
            "_EpochStopCallback", "groups before a resume", _ended, [[2, True], [2, False]], "steps"
        )
    ),
    *_of_trainer("_TrainBeginCallback", "twice", _begun, ["open", "sync", "start"], "steps"),
    *_of_trainer("StepIntervalCallback", "every third step", _every_third, [3, 6], "steps"),
    *(
        Row("rollouts", f"{WORKER}:_chain_to_sequences", what, partial(_chained, turns, limit, tally), [rows, tally])
        for what, turns, limit, rows, tally in CHAINS
    ),
    *BATCH_ROWS,
)  # fmt: skip
