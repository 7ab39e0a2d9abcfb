"""Worked examples of searches of options by Transformers' trainer, and of what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import arguments, line, numbered

REPORTS = "transformers.integrations.integration_utils"


class _PrunedError(Exception):
    """What a study raises for a trial that is given up."""


class _Trial:
    """A trial that suggests values in turn."""

    def __init__(self, number: int, prunes: bool = False) -> None:
        self.number, self.prunes, self.params = number, prunes, dict[str, Any]()
        self.asked: list[Any] = []
        self.reports: list[Any] = []
        self.study = SimpleNamespace(_is_multi_objective=lambda: False)

    def _suggest(self, name: str, found: Any, *given: Any, **more: Any) -> Any:
        self.asked.append([name, *given, *more.values()])
        self.params[name] = found
        return found

    def suggest_float(self, name: str, *given: Any, **more: Any) -> Any:
        return self._suggest(name, 0.01 * (self.number + 1), *given, **more)

    def suggest_int(self, name: str, *given: Any, **more: Any) -> Any:
        return self._suggest(name, self.number + 1, *given, **more)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._suggest(name, choices[self.number], choices)

    def report(self, value: float, step: int) -> None:
        self.reports.append([round(value, 5), step])

    def should_prune(self) -> bool:
        return self.prunes


class _Study:
    """A study of several trials; the best one is that of the least value, or the greatest."""

    def __init__(self, **given: Any) -> None:
        self.given, self.trials, self.called = given, list[Any](), dict[str, Any]()

    def _is_multi_objective(self) -> bool:
        return self.given["directions"] is not None

    def optimize(self, objective: Callable[[Any], float], n_trials: int, **more: Any) -> None:
        self.called = {"n_trials": n_trials, **more}
        for number in range(n_trials):
            trial: Any = _Trial(number)
            trial.value = objective(trial)
            trial.values = trial.value
            self.trials.append(trial)

    @property
    def best_trial(self) -> Any:
        sign = -1 if self.given["direction"] == "maximize" else 1
        return min(self.trials, key=lambda one: sign * one.value)

    @property
    def best_trials(self) -> Any:
        return self.trials[:2]


class _Optuna:
    """A stand-in for the package, which is said to be installed."""

    def __init__(self) -> None:
        self.studies: list[_Study] = []

    def __enter__(self) -> _Optuna:
        made: Any = ModuleType("optuna")
        made.TrialPruned, made.Trial = _PrunedError, _Trial
        made.trial = SimpleNamespace(BaseTrial=_Trial)

        def create(**given: Any) -> _Study:
            self.studies.append(_Study(**given))
            return self.studies[-1]

        made.create_study = create
        self._patches: list[Any] = [
            patch.dict(sys.modules, {"optuna": made}), patch(f"{REPORTS}.is_optuna_available", lambda: True),
            patch("transformers.integrations.is_optuna_available", lambda: True),
            patch("transformers.hyperparameter_search.is_optuna_available", lambda: True),
        ]  # fmt: skip
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *error: object) -> None:
        for one in reversed(self._patches):
            one.stop()


def _searching(trainer_class: Any, **options: Any) -> Any:
    own = {
        "learning_rate": 0.5,
        "per_device_train_batch_size": 7,
        "optim": "sgd",
        "num_train_epochs": 1,
        **options,
    }
    return trainer_class(
        model_init=Line, args=arguments(**own), train_dataset=numbered(), eval_dataset=numbered(3)
    )


def _space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 0, 1),
        "seed": trial.suggest_int("seed", 1, 9),
    }


def _loss(rate: float) -> float:
    """Return the loss of three rows after a step of a rate on seven."""
    model = Line()
    rows = {name: torch.tensor([float(row[name]) for row in numbered()]) for name in ("number", "labels")}
    model(**rows)["loss"].backward()
    with torch.no_grad():
        for value in model.parameters():
            assert value.grad is not None
            value.sub_(rate * value.grad)
        return float(model(**{name: column[:3] for name, column in rows.items()})["loss"])


def _searched(trainer_class: Any) -> list[Any]:
    """Return the best of trials by direction and objective, with what the study is given and left of the trainer."""
    found: list[Any] = []
    for direction, objective, more in (
        ("minimize", None, {}), ("maximize", None, {"timeout": 5, "n_jobs": 2, "study_name": "own"}),
        ("maximize", lambda metrics: -metrics["eval_loss"], {}),
    ):  # fmt: skip
        with _Optuna() as optuna:
            trainer = _searching(trainer_class, eval_strategy="epoch")
            best = trainer.hyperparameter_search(
                _space, compute_objective=objective, n_trials=3, direction=direction, backend="optuna", **more
            )
            (study,) = optuna.studies
            losses = [_loss(0.01 * (number + 1)) for number in range(3)]
            values = [-one for one in losses] if objective is not None else losses
            wrong = unlike([one.value for one in study.trials], values, direction, 1e-4)
            found.append(
                [
                    best.run_id, {name: round(one, 3) for name, one in best.hyperparameters.items()}, wrong,
                    study.given["direction"], study.given.get("study_name"), study.called["n_trials"],
                    study.called["timeout"], study.called["n_jobs"], trainer.hp_search_backend,
                ]
            )  # fmt: skip
    return found


def _best(number: int, direction: str, *more: Any) -> list[Any]:
    params = {"learning_rate": round(0.01 * (number + 1), 3), "seed": number + 1}
    return [str(number), params, [], direction, *more]


SEARCHED = [
    _best(2, "minimize", None, 3, None, 1, None), _best(0, "maximize", "own", 3, 5, 2, None),
    _best(2, "maximize", None, 3, None, 1, None),
]  # fmt: skip


def _folders(trainer_class: Any) -> list[Any]:
    """Return folders of trials and their names in the state, by number and by a function."""
    found: list[Any] = []
    for name in (None, lambda trial: f"own {trial.number}"):
        with _Optuna():
            trainer = _searching(trainer_class, save_strategy="epoch", save_only_model=True)
            trainer.hyperparameter_search(
                _space, n_trials=2, backend="optuna", hp_name=name, direction="minimize"
            )
            root = Path(trainer.args.output_dir)
            found.append(sorted(str(one.relative_to(root)) for one in root.glob("*/checkpoint-*")))
            found.append([trainer.state.trial_name, sorted(trainer.state.trial_params)])
            found.append(trainer.state.is_hyper_param_search)
    return found


FOLDERS = [
    ["run-0/checkpoint-1", "run-1/checkpoint-1"], [None, ["learning_rate", "seed"]], True,
    ["own 0/checkpoint-1", "own 1/checkpoint-1"], ["own 1", ["learning_rate", "seed"]], True,
]  # fmt: skip


def _reported(trainer_class: Any) -> list[Any]:
    """Return what evaluations report to a trial, one that is given up among them."""
    found: list[Any] = []
    for prunes in (False, True):
        with _Optuna():
            trainer = _searching(trainer_class, eval_strategy="steps", eval_steps=1, max_steps=2)
            trial = _Trial(0, prunes)
            trainer.hp_search_backend = "optuna"
            trainer.hp_space, trainer.hp_name = _space, None
            trainer.compute_objective = lambda metrics: metrics["eval_loss"] + 1
            try:
                trainer.train(trial=trial)
                found.append("done")
            except _PrunedError:
                found.append("given up")
            due = [entry["eval_loss"] + 1 for entry in trainer.state.log_history if "eval_loss" in entry]
            found.append(
                [[one[1] for one in trial.reports], unlike([one[0] for one in trial.reports], due, "", 1e-4)]
            )
    return found


def _spaces(function: Any) -> Any:
    """Return what a trial is asked for."""
    with _Optuna():
        trial = _Trial(0)
        return [sorted(function(trial)), trial.asked]


SPACES = [
    ["learning_rate", "num_train_epochs", "per_device_train_batch_size", "seed"],
    [
        ["learning_rate", 1e-6, 1e-4, True], ["num_train_epochs", 1, 5], ["seed", 1, 40],
        ["per_device_train_batch_size", [4, 8, 16, 32, 64]],
    ],
]  # fmt: skip


def _init(rate: float = 1.0) -> Any:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)


class _Collator:
    def collate_batch(self, rows: Any) -> Any:
        return rows


def _columns() -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"one": 1}, {"one": 2}])


Unfit = Sequence[tuple[str, Callable[[Any], Any], str]]
UNFIT: Unfit = (
    (
        "metrics of batches that take no last one",
        lambda made: made(model=Line(), args=arguments(batch_eval_metrics=True), compute_metrics=lambda found: {}),
        "compute_result",
    ),
    (
        "evaluations without rows",
        lambda made: made(model=Line(), args=arguments(eval_strategy="steps", eval_steps=1)), "eval_dataset",
    ),
    (
        "saves of the best by no metric",
        lambda made: made(model=Line(), args=arguments(save_strategy="best")), "metric_for_best_model",
    ),
    (
        "two optimizers",
        lambda made: made(
            model=Line(), args=arguments(), optimizers=(_init(), None),
            optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1}),
        ),
        "incompatible",
    ),
    (
        "a function of models and an optimizer",
        lambda made: made(model_init=Line, args=arguments(), optimizers=(_init(), None)), "incompatible",
    ),
    (
        "a collator that is not called",
        lambda made: made(model=Line(), args=arguments(), data_collator=_Collator()), "simple callable",
    ),
    ("training without rows", lambda made: made(model=Line(), args=arguments()).train(), "requires a train_dataset"),
    ("an evaluation without rows", lambda made: made(model=Line(), args=arguments()).evaluate(), "eval_dataset"),
    ("rows of no known column", lambda made: made(model=Line(), args=arguments(), train_dataset=_columns()).train(),
        "No columns in the dataset match"),
    (
        "a search without a function of models",
        lambda made: _search_of(line(made)), "model_init",
    ),
)  # fmt: skip


def _search_of(trainer: Any) -> Any:
    with _Optuna():
        return trainer.hyperparameter_search(n_trials=1, backend="optuna")


PLACE = "transformers:Trainer"
# Sources: the documentation of Trainer.
SEARCH_ROWS: Sequence[Row] = (
    Row("starts", PLACE, "the best of trials", _searched, SEARCHED, since="4.57"),
    Row("starts", PLACE, "folders of trials", _folders, FOLDERS, since="4.57"),
    Row(
        "starts", PLACE, "reports of trials", _reported, ["done", [[1, 2], []], "given up", [[1], []]], since="4.57"
    ),
    Row("starts", "transformers.trainer_utils:default_hp_space_optuna", "what is tried", _spaces, SPACES, since="4.57"),
    *(Row("combinations", PLACE, f"what it refuses, {what}", call, Refused(words), since="4.57") for what, call,
        words in UNFIT),
)  # fmt: skip
