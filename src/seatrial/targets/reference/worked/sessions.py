"""Worked examples of sessions: what a run is built of, and which options each part gets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import AutoModelForCausalLM

from refrl.checkpointing.checkpointer import Checkpointer
from refrl.config import ConfigError, GRPORunConfig, SFTRunConfig
from refrl.generation.torch_engine import TorchGenerator
from refrl.logging import RunLogger
from refrl.models.loading import load_model
from refrl.policy.scoring import make_scoring
from refrl.tasks import make_splits
from refrl.training import build, opening, sft
from refrl.training.session import Observer
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration, model_directory, tuning_configuration
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.made import batch, example, read_once, refused
from seatrial.targets.reference.worked.steps import quietly


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_opened()


class _Events(Observer):
    """An observer that notes when a run starts and ends."""

    def __init__(self) -> None:
        self.noted: list[Any] = []

    def started(self, session: Any) -> None:
        self.noted.append(("started", session.policy.version))

    def ended(self, session: Any) -> None:
        self.noted.append("ended")


def _config(folder: Path, *, tunes: bool = False, **options: Any) -> Any:
    named = {
        "logger__log_dir": str(folder / "log"),
        "checkpointing__enabled": True,
        "checkpointing__checkpoint_dir": str(folder / "kept"),
        "checkpointing__async_save": False,
        "checkpointing__save_period": 1,
        **options,
    }
    chosen = {name.replace("__", "."): value for name, value in named.items()}
    return tuning_configuration(chosen) if tunes else configuration(chosen)


@contextmanager
def _opened(config: GRPORunConfig | SFTRunConfig, observer: Observer, **more: Any) -> Iterator[Any]:
    loop = config.grpo if isinstance(config, GRPORunConfig) else config.sft
    chosen = {"num_updates": 4, "with_reference": False, **more}
    with (
        patch.object(AutoModelForCausalLM, "from_pretrained", read_once),
        opening.open_session(config, loop, observer=observer, **chosen) as session,
    ):
        yield session


def _parts(
    folder: Path, *, tunes: bool = False, more: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Open a session, take an update, save, and return what is there."""
    config, events = _config(folder, tunes=tunes, **options), _Events()
    found: dict[str, Any] = {}
    loop = "sft" if tunes else "grpo"

    def call() -> None:
        with _opened(config, events, **(more or {})) as session:
            made = _scored(session)
            found["validation"] = len(session.validation)
            splits = make_splits(config.data)
            found["first"] = [*session.validation] == [*splits.validation[: len(session.validation)]]
            found["train"] = len(session.train_examples)
            found["first rate"] = session.policy.train(made, sft.answer_loss)["lr"]
            found["reference"] = session.policy.reference_logprobs(made) is not None
            found["final"] = None if session.final is None else session.final.name
            found["metric"] = session.checkpoint_metric
            found["ends at"] = sorted(session.sampling.stop_token_ids)[:2]
            found["sampling"] = astuple(session.sampling)[:4]
            found["worker"] = session.worker.tokenizer is session.tokenizer
            session.save(1, finished=False)

    with patch("torch.manual_seed", lambda seed: found.setdefault("seed", seed)):
        found["printed"] = [line for line in quietly(call).splitlines() if not line.startswith("checkpoint")]
    info = json.loads((folder / "log" / "run_info.json").read_text(encoding="utf-8"))
    saved = json.loads((folder / "kept" / "step_1" / "training_info.json").read_text(encoding="utf-8"))
    found["logged"] = {name: info.get(name) for name in ("seed", "device", "sandbox")}
    found["backend"] = info["policy"]["name"], info["placement"]["by"], len(info["placement"]["ranks"])
    found["saved"] = (saved["step"], saved["seed"], sorted(saved["parts"]), saved["run_id"] == info["run_id"])
    found["options"] = saved["config"][loop]["seed"]
    found["noted"] = events.noted
    return found


def _scored(session: Any) -> Any:
    """Return rows that one update takes."""
    made = batch()
    made.old_logprobs_BT = torch.zeros_like(made.mask_BT)
    made.advantages_B = torch.ones(made.num_rows)
    return made


def _of(names: Sequence[str]) -> Any:
    """Return a function that opens a session in a folder of its own, and returns these facts of it."""

    def call(folder: Path, **options: Any) -> Any:
        found = _parts(folder, **options)
        return {name: found[name] for name in names}

    return in_folder(call)


def _of_opened() -> Iterator[WorkedExample]:
    common = {
        "backend": ("hf", "inline", 1),
        "train": 7,
        "first rate": 0.003,
        "printed": [],
        "final": "final",
    }
    common |= {"noted": [("started", 0), "ended"], "sampling": (7, 0.7, 1.0, None), "ends at": [1, 17]}
    common |= {"worker": True, "first": True}
    names = (*common, "validation", "seed", "logged", "saved", "options", "reference")

    def due(seed: int, num_validated: int, reference: bool) -> dict[str, Any]:
        return {
            **common,
            "validation": num_validated,
            "seed": seed,
            "logged": {"seed": seed, "device": "cpu", "sandbox": None},
            "saved": (1, seed, ["prompts"], True),
            "options": seed,
            "reference": reference,
        }

    yield example(
        "parts of a run",
        due(11, 2, True),
        _of(names),
        grpo__seed=11,
        grpo__max_val_samples=2,
        more={"with_reference": True},
    )
    tuning: Any = {"tunes": True, "sft__seed": 4, "sft__max_val_samples": 1}
    yield example("parts of fine-tuning", due(4, 1, False), _of(names), **tuning)
    for name, options, facts in _CHOSEN:
        yield example(name, facts, _of(tuple(facts)), **options)
    for name, (call, right) in _during().items():
        yield example(name, right, in_folder(call))
    yield refused("stop_token_ids", "an end id beyond the vocabulary", _of(()), **_ENDS_AT)
    yield refused(
        "256 positions", "rows longer than the model", _of(()), policy__max_total_sequence_length=257
    )
    for key in ("num_train", "num_validation"):
        yield example(f"prompts of {key} are checked", True, in_folder(_longest_is_checked), key)


_ENDS_AT: Mapping[str, Any] = {"policy__generation__stop_token_ids": (259,)}
_RANKS: Mapping[str, Any] = {"checkpointing__metric_name": "val:accuracy", "grpo__val_period": 1}
_SAMPLES = {"temperature": 0.5, "top_p": 0.25, "top_k": 3, "stop_token_ids": (200, 3)}
_CHOSEN: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = (
    (
        "what a session has of the options",
        {**_RANKS, "grpo__max_val_samples": 9, **{f"policy__generation__{key}": of for key, of in _SAMPLES.items()}},
        {"validation": 3, "metric": "validation/accuracy", "sampling": (7, 0.5, 0.25, 3), "ends at": [3, 200]},
    ),
    (
        "what it has where little is chosen",
        {"checkpointing__enabled": False, "policy__generation__stop_token_ids": None},
        {"final": None, "metric": None, "ends at": [258]},
    ),
    (
        "state of asynchronous rollouts",
        {"grpo__async_grpo__enabled": True, "policy__generation__colocated__enabled": False},
        {"saved": (1, 0, ["rollouts"], True)},
    ),
)  # fmt: skip
"""By name: options, and facts of the session."""


def _session(folder: Path, call: Any, *, more: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Return what a function of an open session returns."""
    found: list[Any] = []

    def opened() -> None:
        with _opened(_config(folder, **options), _Events(), **(more or {})) as session:
            found.append(call(session))

    quietly(opened)
    return found[0]


def _rates(session: Any) -> list[float]:
    made = _scored(session)
    return [session.policy.train(made, sft.answer_loss)["lr"] for _ in range(4)]


def _scores(session: Any) -> Any:
    return session.policy.logprobs(batch())


def _drawn(session: Any) -> list[int]:
    return [one.prompt_id for one in session.prompts.draw(7)]


def _during() -> Mapping[str, tuple[Any, Any]]:
    """Return functions of a folder, and their right results."""
    closed = ["checkpointer", "generator", "log"]
    notes = ["data: made note", "code: programs run in the sandbox: made"]
    return {
        "rates over the updates of the run": (_schedule, [1.0, 0.75, 0.5, 0.25]),
        "scores at the temperature of sampling": (_temperatures, (True, True, False)),
        "order of the prompts": (_orders, (True, True, False, False)),
        "a session that continues": (_continued, ([("started", 1), "ended"], 1, True, True, [None, 1])),
        "what is closed, and when": (_closed, (closed, [("started", 0)], closed)),
        "notes of the data, and the sandbox": (_notes, (notes, "made")),
        "observers of the configuration": (_observed, True),
    }


def _schedule(folder: Path) -> Any:
    """Return the rates of four updates of four, of which the first has the whole rate."""
    rates = _session(
        folder, _rates, policy__scheduler__name="linear", policy__optimizer__lr=1.0, more={"num_updates": 4}
    )
    return [round(rate, 6) for rate in rates]


def _temperatures(folder: Path) -> Any:
    """Return whether rows are scored at the sampling temperature, or at one that is given, and not at another."""
    model: Any = load_model(model_directory())
    model.eval()
    made = batch()

    def plain(temperature: float) -> torch.Tensor:
        with torch.no_grad():
            return make_scoring(configuration({}).policy, model, temperature).forward(model, made)[0]

    own = _session(folder / "own", _scores, policy__generation__temperature=0.5)
    given = _session(
        folder / "given", _scores, policy__generation__temperature=0.5, more={"temperature": 1.0}
    )
    return (
        torch.allclose(own, plain(0.5), atol=1e-5),
        torch.allclose(given, plain(1.0), atol=1e-5),
        torch.allclose(own, given, atol=1e-3),
    )


def _orders(folder: Path) -> Any:
    """Return whether one seed gives one order, files give their own, and other seeds others."""
    one, again, other = (
        _session(folder / f"{number}", _drawn, grpo__seed=seed) for number, seed in enumerate((3, 3, 4))
    )
    plain = _session(
        folder / "plain",
        lambda session: (_drawn(session), [one.prompt_id for one in session.train_examples]),
        data__shuffle=False,
    )
    return one == again, plain[0] == plain[1], one == other, one == plain[0]


def _continued(folder: Path) -> Any:
    """Return what a second start has: version, place among the prompts, random numbers, earlier starts."""
    after: dict[str, Any] = {}

    def first(session: Any) -> None:
        session.prompts.draw(3)
        session.policy.train(_scored(session), sft.answer_loss)
        session.save(1, finished=False)
        after["drawn"] = [one.prompt_id for one in session.prompts.draw(3)]
        after["number"] = torch.rand(1).tolist()

    _session(folder, first)
    events, found = _Events(), []

    def second() -> None:
        with _opened(_config(folder), events) as session:
            found.append(torch.rand(1).tolist() == after["number"])
            found.append([one.prompt_id for one in session.prompts.draw(3)] == after["drawn"])
            found.append(session.policy.version)

    quietly(second)
    info = json.loads((folder / "log" / "run_info.json").read_text(encoding="utf-8"))
    starts = [one["resumed_from"] for one in info["attempts"]]
    return events.noted, found[2], found[1], found[0], starts


def _closed(folder: Path) -> Any:
    """Return what is closed after a session, which events it has had if its block fails, and what is closed then."""
    well, _ = _closing(folder / "well", fails=False)
    ill, events = _closing(folder / "ill", fails=True)
    return sorted(well), events, sorted(ill)


def _closing(folder: Path, *, fails: bool) -> tuple[list[str], list[Any]]:
    noted: list[str] = []
    events, config = _Events(), _config(folder)
    places = (
        (Checkpointer, "close", "checkpointer"),
        (RunLogger, "__exit__", "log"),
        (TorchGenerator, "close", "generator"),
    )

    def call() -> None:
        with _opened(config, events):
            if fails:
                raise ConfigError("no")

    with ExitStack() as stack:
        for owner, method, name in places:
            stack.enter_context(patch.object(owner, method, _noting(noted, name, getattr(owner, method))))
        with suppress(ConfigError):
            quietly(call)
    return noted, events.noted


def _noting(noted: list[str], name: str, whole: Any) -> Any:
    def call(one: Any, *words: Any) -> Any:
        noted.append(name)
        return whole(one, *words)

    return call


def _notes(folder: Path) -> Any:
    """Return what is printed of the data and the sandbox, and the sandbox that is logged."""
    make = make_splits

    def splits(data: Any) -> Any:
        return replace(make(data), notes=("made note",))

    def call() -> None:
        with _opened(_config(folder), _Events()):
            pass

    with (
        patch.object(build, "make_splits", splits),
        patch.object(opening, "sandbox_of", lambda names: "made"),
    ):
        printed = quietly(call).splitlines()
    info = json.loads((folder / "log" / "run_info.json").read_text(encoding="utf-8"))
    return printed, info["sandbox"]


def make_named(config: Any) -> Observer:
    """Return an observer that a configuration names; it leaves a file where the log is."""

    class Named(Observer):
        def started(self, session: Any) -> None:
            (session.logger.directory / "named").touch()

    return Named()


def _observed(folder: Path) -> Any:
    _session(folder, lambda session: None, logger__observers=(f"{__name__}:make_named",))
    return (folder / "log" / "named").exists()


def _longest_is_checked(folder: Path, key: str) -> Any:
    """Return whether prompts of a split are among those that are checked before the first step."""
    seen: list[int] = []
    whole = build.PromptIds.__call__

    def note(one: Any, examples: Sequence[Any]) -> Any:
        seen.extend(example.prompt_id for example in examples)
        return whole(one, examples)

    with patch.object(build.PromptIds, "__call__", note):
        ids = _session(
            folder,
            lambda session: [
                one.prompt_id
                for one in (session.train_examples if key == "num_train" else session.validation)
            ],
        )
    return bool({*ids} & {*seen})
