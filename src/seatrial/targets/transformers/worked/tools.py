"""Worked examples of the functions that Transformers' trainer is made of: files, seeds and metrics."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.parts import Mixed
from seatrial.targets.transformers.worked.runs import arguments, line


def _folder(*names: str) -> Path:
    """Return a new folder with folders of these names, and a file for those that end in a dot."""
    folder = Path(new_folder())
    for name in names:
        if name.endswith("."):
            (folder / name.removesuffix(".")).write_text("", encoding="utf-8")
        else:
            (folder / name).mkdir()
    return folder


NAMES = (
    "checkpoint-9",
    "checkpoint-10",
    "checkpoint-100",
    "checkpoint-2",
    "other-3",
    "checkpoint-7.",
    "checkpoint-x",
)


def _sorted(function: Any) -> list[list[str]]:
    """Return checkpoints by their steps; the best one is the last but one, unless it is the last."""
    folder, found = _folder(*NAMES), []
    for best in (None, "checkpoint-9", "checkpoint-100", "checkpoint-3"):
        given = None if best is None else str(folder / best)
        found.append([Path(one).name for one in function(str(folder), best_model_checkpoint=given)])
    found.append([Path(one).name for one in function(str(folder), checkpoint_prefix="other")])
    return found


def _last(function: Any) -> list[Any]:
    found = [function(str(_folder(*NAMES))), function(str(_folder("other-3"))), function(str(_folder()))]
    return [None if one is None else Path(one).name for one in found]


def _rotated(function: Any) -> list[list[str]]:
    """Return what is left of checkpoints: the newest, the best one and the last."""
    found = []
    for limit, best in ((None, None), (0, None), (1, None), (2, None), (2, "checkpoint-2"), (1, "checkpoint-2"), (9,
        None)):  # fmt: skip
        folder = _folder("checkpoint-9", "checkpoint-10", "checkpoint-100", "checkpoint-2", "other-3")
        given = None if best is None else str(folder / best)
        function(str(folder), save_total_limit=limit, best_model_checkpoint=given)
        found.append(sorted(one.name.rpartition("-")[2] for one in folder.iterdir() if one.name[0] == "c"))
    return found


def _objective(function: Any) -> list[Any]:
    loss = {"eval_loss": 0.5, "epoch": 2.0, "eval_runtime": 3.0, "eval_samples_per_second": 4.0}
    scored = {**loss, "eval_f1": 0.25, "eval_accuracy": 0.5, "eval_steps_per_second": 1.0}
    found = [function(loss), function(scored), function({"eval_f1": 2.0})]
    return [*found, len(scored)]


def _speed(function: Any) -> list[Any]:
    found = []
    with patch("time.time", lambda: 104.0):
        for counts in (
            {},
            {"num_samples": 10},
            {"num_steps": 2},
            {"num_samples": 10, "num_steps": 2, "num_tokens": 100},
        ):
            found.append(function("eval", 100.0, **counts))
        found.append(function("train", 104.0, num_samples=1))
    return found


def _formatted(function: Any) -> list[Any]:
    given = {
        "a_mem_b": 3 << 20,
        "train_runtime": 3723.456,
        "total_flos": 5.0 * 2**30,
        "loss": 0.123456,
        "steps": 7,
    }
    return [function(given), given["loss"]]


def _filed(trainer_class: Any) -> list[Any]:
    """Return what is written of metrics of two splits, of a state, and the lines of a report."""
    trainer = line(trainer_class)
    trainer.state.global_step = 7
    trainer.save_metrics("train", {"train_loss": 0.123456, "epoch": 1.0})
    trainer.save_metrics("eval", {"eval_loss": 0.5, "epoch": 2.0})
    trainer.save_metrics("test", {"test_loss": 9.0}, combined=False)
    trainer.save_state()
    folder = Path(trainer.args.output_dir)
    names = ("train_results", "eval_results", "test_results", "all_results")
    kept = [json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in names]
    state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        trainer.log_metrics("train", {"train_loss": 0.123456, "epoch": 1.0})
    return [*kept, state, [line.split() for line in said.getvalue().splitlines()]]


def _counted(trainer_class: Any) -> list[Any]:
    """Return refusals without an optimizer, then the number of trainable weights, rates of groups and their sizes."""
    model = Mixed()
    trainer = trainer_class(model=model, args=arguments(weight_decay=0.3, learning_rate=0.25))
    refused = []
    for call in (trainer.get_learning_rates, trainer.get_optimizer_group):
        try:
            call()
        except ValueError as error:
            refused.append("optimizer is None" in str(error))
    trainer.create_optimizer()
    return [
        refused,
        trainer.get_num_trainable_parameters(),
        trainer.get_learning_rates(),
        [len(one) for one in trainer.get_optimizer_group()],
    ]


def _groups(trainer_class: Any) -> list[float]:
    """Return the decay of the group of each weight that trains."""
    model = Mixed()
    trainer = trainer_class(model=model, args=arguments(weight_decay=0.3))
    trainer.create_optimizer()
    values = (model.first.weight, model.first.bias, model.norm.weight, model.last.weight, model.last.bias)
    return [trainer.get_optimizer_group(value)["weight_decay"] for value in values]


def _decaying(trainer_class: Any) -> list[str]:
    """Return the weights of a model that decay: no biases, no norms of any class or name."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

    class Model(Mixed):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.input_layernorm, self.RMSNorm = nn.Embedding(3, 2), Norm(), Norm()
            self.more, self.alone = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    trainer = trainer_class(model=Line(), args=arguments())
    return sorted(trainer.get_decay_parameter_names(Model()))


TARGETS: Sequence[tuple[Any, str, tuple[bool, bool]]] = (
    ("all.*", "all.linear", (True, True)), ("all", "all.linear", (False, True)), ("all", "all", (True, False)),
    (["all.linear"], "all.linear", (True, False)), (["linear"], "all.linear", (True, False)), ([r"all\.\w+"],
        "all.linear", (True, True)),
    (["other"], "all.linear", (False, False)), ([], "all", (False, False)),
)  # fmt: skip


def _targets(function: Any) -> list[Any]:
    return [
        [function(targets, key), list(function(targets, key, return_is_regex=True)) == [found, regex]]
        == [found, True]
        for targets, key, (found, regex) in TARGETS
    ]


def _arguments_of(function: Any) -> list[int]:
    def three(a: int, b: int, c: int = 1) -> None:
        pass

    return [
        function(three),
        function(partial(three, 1)),
        function(partial(three, b=1)),
        function(lambda: None),
    ]


def _executed(function: Any) -> list[Any]:
    found = [function(lambda batch_size: batch_size, starting_batch_size=6)()]
    found.append(function(starting_batch_size=5)(lambda batch_size, more=1: batch_size + more)(more=2))

    def limited(batch_size: int) -> int:
        if batch_size > 3:
            raise RuntimeError("CUDA out of memory.")
        return batch_size

    found.append(function(limited, starting_batch_size=16, auto_find_batch_size=True)() <= 3)
    return found


def _items(function: Any) -> Any:
    given = {
        "a": np.float32(1.5),
        "b": [torch.tensor(2), (np.int64(3), "word")],
        "c": torch.ones(2),
        "d": np.ones(1),
    }
    found = function(given)
    return [
        found["a"],
        found["b"],
        type(found["c"]).__name__,
        type(found["d"]).__name__,
        type(found["a"]).__name__,
    ]


def _lengths(function: Any) -> list[bool]:
    class Failing:
        def __len__(self) -> int:
            raise TypeError("no length")

    return [function([1]), function([]), function(iter([1])), function(Failing())]


def _pairs(prediction: Any) -> list[Any]:
    """Return the elements of what metrics are given: inputs and losses only where they are given."""
    found: list[Any] = []
    for more in ({}, {"inputs": 3}, {"losses": 4}, {"inputs": 3, "losses": 4}):
        one = prediction(predictions=1, label_ids=2, **more)
        found.append([list(one), one[0], one[1], one.inputs, one.losses])
    try:
        prediction(1, 2)[2]
    except IndexError:
        found.append("refused")
    return found


def _sharded(function: Any) -> list[Any]:
    """Return the weights of a model in two files after they are loaded, and what is missing or left over."""
    from safetensors.torch import save_file

    folder, model = _folder(), Line()
    save_file({"slope": torch.tensor(7.0)}, str(folder / "one.safetensors"))
    save_file({"bias": torch.tensor(9.0), "more": torch.tensor(1.0)}, str(folder / "two.safetensors"))
    index = folder / "model.safetensors.index.json"

    def indexed(names: Mapping[str, str]) -> None:
        index.write_text(json.dumps({"weight_map": names}), encoding="utf-8")

    refused = []
    for place in (folder, _folder()):
        indexed({"slope": "one.safetensors", "more": "two.safetensors"})
        try:
            function(model, str(place))
        except (RuntimeError, ValueError) as error:
            refused.append([word in str(error) for word in ('"bias"', '"more"', "index")])
    found = function(model, str(folder), strict=False)
    loose = [list(found.missing_keys), list(found.unexpected_keys), float(model.slope)]
    indexed({"slope": "one.safetensors", "bias": "two.safetensors"})
    found = function(model, str(folder))
    return [
        refused,
        loose,
        [float(model.slope), float(model.bias)],
        [*found.missing_keys, *found.unexpected_keys],
    ]


def _classes(function: Any) -> list[Any]:
    found = [function(Mixed(), name) for name in ("LayerNorm", "Mixed", "Conv2d")]
    return [None if one is None else one.__name__ for one in found]


def _rebuilt(function: Any) -> list[Any]:
    """Return warnings of options of a run that are others than those of the checkpoint that it resumes."""
    import transformers.trainer_utils

    found = []
    for more, state in (({}, {}), ({"save_steps": 7}, {}), ({}, {"train_batch_size": 4}), ({"eval_steps": 3,
        "logging_steps": 2}, {})):  # fmt: skip
        said: list[str] = []
        args = SimpleNamespace(**{"logging_steps": 1, "eval_steps": 1, "save_steps": 1,
            "per_device_train_batch_size": 2, "n_gpu": 0, **more})  # fmt: skip
        kept = SimpleNamespace(
            **{"logging_steps": 1, "eval_steps": 1, "save_steps": 1, "train_batch_size": 2, **state}
        )
        with patch.object(transformers.trainer_utils.logger, "warning_once", said.append):
            function(args, kept)
        found.append(
            [
                name
                for name in ("logging_steps", "eval_steps", "save_steps", "batch_size")
                if name in "".join(said)
            ]
        )
    return found


UTILITIES, POINTS = "transformers.trainer_utils", "transformers.trainer_pt_utils"
BY_STEP = ["checkpoint-2", "checkpoint-9", "checkpoint-10", "checkpoint-100"]
# Sources: the documentation of each function.
TOOL_ROWS: Sequence[Row] = (
    Row(
        "files", f"{UTILITIES}:sort_checkpoints", "in order of steps", _sorted,
        [BY_STEP, ["checkpoint-2", "checkpoint-10", "checkpoint-9", "checkpoint-100"], BY_STEP, BY_STEP, ["other-3"]],
            since="5",
    ),
    Row("files", f"{UTILITIES}:get_last_checkpoint", "of other names", _last, ["checkpoint-100", None, None],
        since="4.46"),
    Row(
        "files", f"{UTILITIES}:rotate_checkpoints", "by limits", _rotated,
        [["10", "100", "2", "9"]] * 2 + [["100"], ["10", "100"], ["100", "2"], ["100", "2"], ["10", "100", "2", "9"]],
            since="5",
    ),
    Row("calls", f"{UTILITIES}:default_compute_objective", "of metrics", _objective, [0.5, 0.75, 2.0, 7], since="4.46"),
    Row(
        "rates", f"{UTILITIES}:speed_metrics", "of each count", _speed,
        [
            {"eval_runtime": 4.0}, {"eval_runtime": 4.0, "eval_samples_per_second": 2.5},
            {"eval_runtime": 4.0, "eval_steps_per_second": 0.5},
            {
                "eval_runtime": 4.0, "eval_samples_per_second": 2.5, "eval_steps_per_second": 0.5,
                "eval_tokens_per_second": 25.0,
            },
            {"train_runtime": 0.0},
        ],
        since="4.46",
    ),
    Row(
        "metrics", f"{POINTS}:metrics_format", "for a reader", _formatted,
        [{"a_mem_b": "3MB", "train_runtime": "1:02:03.45", "total_flos": "5GF", "loss": 0.1235, "steps": 7},
            0.123456], since="4.57",
    ),
    Row(
        "files", "transformers:Trainer", "metrics and a state", _filed,
        [
            {"train_loss": 0.123456, "epoch": 1.0}, {"eval_loss": 0.5, "epoch": 2.0}, {"test_loss": 9.0},
            {"train_loss": 0.123456, "eval_loss": 0.5, "epoch": 2.0}, 7,
            [["*****", "train", "metrics", "*****"], ["epoch", "=", "1.0"], ["train_loss", "=", "0.1235"]],
        ],
        since="4.57",
    ),
    Row("counts", "transformers:Trainer", "weights, rates and groups", _counted, [[True, True], 19, [0.25, 0.25], [2,
        4]], since="4.57"),
    Row(
        "counts", "transformers:Trainer", "the group of a weight", _groups, [0.3, 0.0, 0.0, 0.3, 0.0], since="4.57",
        known=KnownFailure(
            "weights are compared by their numbers, which raises for all but the first of a group",
            finding="Transformers: the optimizer group of a weight",
        ),
    ),
    Row(
        "starts", "transformers:Trainer", "weights that decay", _decaying,
        ["alone", "embedding.weight", "first.weight", "frozen.weight", "last.weight", "more.weight"], since="4.57",
    ),
    Row("calls", f"{UTILITIES}:check_target_module_exists", "by names and patterns", _targets, [True] * len(TARGETS),
        since="4.46"),
    Row("calls", f"{UTILITIES}:number_of_arguments", "that are not given", _arguments_of, [3, 2, 2, 0], since="4.46"),
    Row("calls", f"{UTILITIES}:find_executable_batch_size", "given and found", _executed, [6, 7, True], since="4.46"),
    Row(
        "calls", f"{UTILITIES}:denumpify_detensorize", "of any structure", _items,
        [1.5, [2, (3, "word")], "Tensor", "ndarray", "float"], since="4.46",
    ),
    Row("calls", f"{UTILITIES}:has_length", "of rows and streams", _lengths, [True, True, False, False], since="4.46"),
    Row(
        "returns", f"{UTILITIES}:EvalPrediction", "with inputs and losses", _pairs,
        [
            [[1, 2], 1, 2, None, None], [[1, 2, 3], 1, 2, 3, None], [[1, 2, 4], 1, 2, None, 4], [[1, 2, 3, 4], 1, 2,
                3, 4],
            "refused",
        ],
        since="4.46",
    ),
    Row(
        "files", f"{UTILITIES}:load_sharded_checkpoint transformers.modeling_utils:load_sharded_checkpoint",
            "of two files", _sharded,
        [[[True, True, False], [False, False, True]], [["bias"], ["more"], 7.0], [7.0, 9.0], []], since="4.57",
    ),
    Row("calls", f"{POINTS}:get_module_class_from_name", "of a model", _classes, ["LayerNorm", "Mixed", None],
        since="4.46"),
    Row(
        "checkpoints", f"{UTILITIES}:compare_trainer_and_checkpoint_args", "options that differ", _rebuilt,
        [[], ["save_steps"], ["batch_size"], ["logging_steps", "eval_steps"]], since="5",
    ),
)  # fmt: skip
