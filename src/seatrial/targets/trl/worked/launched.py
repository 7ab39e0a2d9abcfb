"""Scripts run whole: a main function with options and a local data set, compared with its trainer made directly."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import yaml

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.trainers import freeze_imports, new_folder
from seatrial.targets.trl.compared.rows import with_turns
from seatrial.targets.trl.compared.running import UNTIMED
from seatrial.targets.trl.former import TYPES, UNREAD_OPTIONS
from seatrial.targets.trl.named import parameters_of
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.limits import made_rows
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.seen import OPTIONS, known_options, or_refused

KINDS: Mapping[str, tuple[str, str]] = {
    "sft": ("SFT", "completions"),
    "dpo": ("DPO", "pairs"),
    "kto": ("KTO", "labels"),
    "reward": ("Reward", "pairs"),
    "grpo": ("GRPO", "prompts"),
    "rloo": ("RLOO", "prompts"),
}
"""The trainer of a script, and the kind of its rows."""
LENGTHS = ((3, 5, 7), (6, 2, 4), (8, 9, 3), (2, 7, 8))
OF_A_FILE, OF_A_TYPE = "options of the model in a file", "attention and type"
KNOWN: Mapping[str, KnownFailure] = {OF_A_FILE: UNREAD_OPTIONS, OF_A_TYPE: TYPES}
THINKS = "think_format_reward"
Run = tuple[dict[str, torch.Tensor], list[dict[str, float]]]
"""The saved tensors, and the log."""


def _options(config_class: Any) -> dict[str, Any]:
    wanted = {
        **OPTIONS,
        "per_device_train_batch_size": 2,
        "learning_rate": 0.01,
        "max_steps": 2,
        "optim": "adamw_torch",
    }
    return {name: value for name, value in wanted.items() if name in known_options(config_class)}


@lru_cache(maxsize=8)
def model_folder(kind: str) -> str:
    """Return a folder with a tiny model of a kind (`policy`, `scorer`, `reward`) and its tokenizer."""
    folder = new_folder()
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0) if kind == "policy" else tiny_scorer(0 if kind == "scorer" else 5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@lru_cache(maxsize=8)
def _data_folder(kind: str) -> str:
    """Return a folder with a data set of two splits; the held-out rows are the others in reverse."""
    folder = Path(new_folder())
    rows = [{**row, "source": "a"} for row in made_rows(kind, LENGTHS)]
    if kind == "prompts":  # a reward function reads turns
        rows = [with_turns(row) for row in rows]
    for name, one in (("train", rows), ("test", rows[::-1])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, one)) + "\n", encoding="utf-8")
    return str(folder)


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command line."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, list):
            found += [f"--{name}", *map(str, value)] if value else []
        else:
            found += [f"--{name}", str(value)]
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard what is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _saved(folder: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    files = [*Path(folder).glob("model*.safetensors"), *Path(folder).glob("adapter_model.safetensors")]
    return {f"{file.stem}/{name}": value for file in files for name, value in load_file(file).items()}


def _logged(trainer: Any) -> list[dict[str, float]]:
    return [
        {
            name: float(value)
            for name, value in entry.items()
            if isinstance(value, int | float) and not UNTIMED.search(name)
        }
        for entry in trainer.state.log_history
    ]


def _of_script(script: str, words: Sequence[str], file: Mapping[str, Any] | None) -> Run:
    """Run a script's main function, and return what it saved and logged."""
    import transformers

    name, kind = KINDS[script]
    module = importlib.import_module(f"trl.scripts.{script}")
    trainer_class, config_class = find_trainer(name)
    folder = new_folder()
    given = [
        *_words({**_options(config_class), "output_dir": folder}),
        *("--model_name_or_path", model_folder("scorer" if name == "Reward" else "policy")),
        *([] if file and "datasets" in file else ["--dataset_name", _data_folder(kind)]),
        *words,
    ]
    if file is not None:
        path = Path(folder) / "options.yaml"
        path.write_text(yaml.safe_dump(dict(file)), encoding="utf-8")
        given += ["--config", str(path)]
    made: list[Any] = []
    train = trainer_class.train

    def kept(self: Any, *args: Any, **more: Any) -> Any:
        made.append(self)
        return train(self, *args, **more)

    parsed = module.make_parser().parse_args_and_config(given)
    transformers.set_seed(7)
    with patch.object(trainer_class, "train", kept), quiet():
        module.main(*parsed)
    return _saved(folder), _logged(made[0])


def _direct(script: str, options: Mapping[str, Any], arguments: Mapping[str, Any], rows: Any) -> Run:
    """Run a script's trainer, made directly."""
    import datasets
    import transformers

    name, kind = KINDS[script]
    trainer_class, config_class = find_trainer(name)
    data = datasets.load_dataset(_data_folder(kind))
    folder = new_folder()
    model = model_folder("scorer" if name == "Reward" else "policy")
    args = config_class(output_dir=folder, **{**_options(config_class), **options})
    takes = parameters_of(trainer_class)
    given: dict[str, Any] = {
        "model": model,
        "args": args,
        "train_dataset": data["train"] if rows is None else rows(data),
        "eval_dataset": data["test"] if args.eval_strategy != "no" else None,
        **({"reward_funcs": [_thinks()]} if "reward_funcs" in takes else {}),
    }
    source = inspect.getsource(importlib.import_module(f"trl.scripts.{script}"))
    if "processing_class" in source:
        given["processing_class"] = transformers.AutoTokenizer.from_pretrained(model)
    transformers.set_seed(7)
    with quiet():
        trainer = trainer_class(**{**given, **arguments})
        trainer.train()
        if args.eval_strategy != "no" and "trainer.evaluate()" in source:
            trainer.evaluate()
        trainer.save_model(folder)
    return _saved(folder), _logged(trainer)


def _thinks() -> Any:
    return find_name("trl", [f"trl.rewards:{THINKS}"])


def digits(completions: Sequence[Any], **_: Any) -> list[float]:
    """Return a reward of each completion that depends on its text alone."""
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [sum(map(ord, text)) % 7 / 3 for text in texts]


def _adapter(**options: Any) -> Any:
    from peft import LoraConfig

    return LoraConfig(bias="none", **{"lora_dropout": 0.0, **options})


def _differences(first: Run, second: Run) -> list[str]:
    """Return what a run of a script and one of its trainer do not have in common."""
    found = []
    if first[0].keys() != second[0].keys():
        found.append(f"saved by one alone: {sorted(first[0].keys() ^ second[0].keys())[:4]}")
    found += [
        name
        for name in sorted(first[0].keys() & second[0].keys())
        if not torch.allclose(first[0][name].double(), second[0][name].double(), atol=1e-6)
    ]
    for step, (one, other) in enumerate(zip(first[1], second[1], strict=False)):
        found += [
            f"{name} of entry {step}: {one.get(name)} and {other.get(name)}"
            for name in sorted(one.keys() | other.keys())
            if not _close(one.get(name), other.get(name))
        ]
    return found + (
        [f"{len(first[1])} and {len(second[1])} entries"] if len(first[1]) != len(second[1]) else []
    )


def _close(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return False
    return first == second or abs(first - second) < 1e-5 or (first != first and second != second)


class Start(NamedTuple):
    """A way to start a script, and what its trainer is made with directly."""

    subject: str
    what: str
    words: Sequence[str] = ()
    file: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = MappingProxyType({})
    arguments: Callable[[], Mapping[str, Any]] = dict
    rows: Callable[[Any], Any] | None = None


def _same(script: str, start: Start, _: Any) -> list[str]:
    """Return what both runs do not have in common."""
    freeze_imports()
    words = list(start.words)
    if KINDS[script][1] == "prompts" and "--reward_funcs" not in words:
        words += ["--reward_funcs", THINKS]
    known = known_options(find_trainer(KINDS[script][0])[1])
    if missing := sorted(set(start.options) - set(known)):
        raise NotServed(f"no {', '.join(missing)}")
    direct = _direct(script, start.options, start.arguments(), start.rows)
    return _differences(_of_script(script, words, start.file), direct)


def _mixture(script: str) -> dict[str, Any]:
    kind = KINDS[script][1]
    columns = list(made_rows(kind, LENGTHS)[0])
    folder = _data_folder(kind)
    return {
        "datasets": [
            {"path": folder, "split": "test", "columns": columns},
            {"path": folder, "split": "train[1:3]", "columns": columns},
        ]
    }


def _mixed(script: str, data: Any) -> Any:
    import datasets

    columns = list(made_rows(KINDS[script][1], LENGTHS)[0])
    return datasets.concatenate_datasets([data["test"], data["train"].select([1, 2])]).select_columns(columns)


def _starts(script: str) -> Sequence[Start]:
    name, kind = KINDS[script]
    head, task = ("score", "SEQ_CLS") if name == "Reward" else ("lm_head", "CAUSAL_LM")
    lora = (
        "--use_peft",
        "--lora_dropout",
        "0.0",
        "--lora_task_type",
        task,
        "--lora_r",
        "3",
        "--lora_alpha",
        "5",
    )
    eager = ("--attn_implementation", "eager")
    initial, own = {"attn_implementation": "eager"}, {"rms_norm_eps": 0.3}
    own_reward = f"{__name__}.digits"

    def adapted(**more: Any) -> Callable[[], Mapping[str, Any]]:
        return lambda: {"peft_config": _adapter(task_type=task, r=3, lora_alpha=5, **more)}

    def judged(*makers: Callable[[], Any]) -> Callable[[], Mapping[str, Any]]:
        return lambda: {"reward_funcs": [make() for make in makers]}

    evaluated = {"eval_strategy": "steps", "eval_steps": 1}
    of_file = {"adam_beta1": 0.3, "weight_decay": 0.2}
    queries, values, outputs = "q_proj", "v_proj", "o_proj"
    found = [
        Start("starts", "nothing more"),
        Start("starts", "evaluation", _words(evaluated), options=evaluated),
        Start("files", "another split", ("--dataset_train_split", "test"), rows=lambda data: data["test"]),
        Start("files", "a mixture", file=_mixture(script), rows=partial(_mixed, script)),
        Start(
            "files",
            "a stream",
            ("--dataset_streaming", "true"),
            rows=lambda data: data["train"].to_iterable_dataset(),
        ),
        Start("options", "a file", file=of_file, options=of_file),
        Start(
            "options",
            "a file and words",
            ("--learning_rate", "0.03"),
            {"learning_rate": 0.5, **of_file},
            {"learning_rate": 0.03, **of_file},
        ),
        Start(
            "wrappers",
            "adapters of two layers, and a head that is saved",
            (*lora, "--lora_target_modules", queries, values, "--lora_modules_to_save", head),
            arguments=adapted(target_modules=[queries, values], modules_to_save=[head]),
        ),
        Start(
            "wrappers",
            "adapters that are scaled by their root",
            (*lora, "--use_rslora", "--lora_target_modules", queries, values),
            arguments=adapted(target_modules=[queries, values], use_rslora=True),
        ),
        Start(
            "wrappers",
            "adapters of directions",
            (*lora, "--use_dora", "--lora_target_modules", queries, outputs),
            arguments=adapted(target_modules=[queries, outputs], use_dora=True),
        ),
        Start(
            "models",
            OF_A_TYPE,
            (*eager, "--dtype", "bfloat16"),
            options={"model_init_kwargs": {**initial, "dtype": "bfloat16"}},
        ),
        Start(
            "models",
            OF_A_FILE,
            eager,
            {"model_init_kwargs": own},
            {"model_init_kwargs": {**initial, **own}},
        ),
    ]
    if kind == "prompts":
        weighted, weights = ("--reward_weights", "0.5", "2.0"), {"reward_weights": [0.5, 2.0]}
        reward = model_folder("reward")
        found += [
            Start(
                "rewards",
                "two functions with weights",
                ("--reward_funcs", THINKS, own_reward, *weighted),
                options=weights,
                arguments=judged(_thinks, lambda: digits),
            ),
            Start(
                "rewards",
                "a model and a function",
                ("--reward_model_name_or_path", reward, "--reward_funcs", own_reward),
                arguments=judged(lambda: reward, lambda: digits),
            ),
        ]
    return found


def _made(script: str) -> Sequence[Row]:
    """Return the rows of a script.

    Raises:
        Gone: the release does not have it.
    """
    try:
        importlib.import_module(f"trl.scripts.{script}")
    except ModuleNotFoundError as error:
        raise Gone(f"trl {release('trl')} has no script {script}") from error
    place = f"trl.scripts.{script}:main"
    return [
        Row(
            one.subject,
            place,
            one.what,
            or_refused(partial(_same, script, one)),
            [],
            known=KNOWN.get(one.what),
        )
        for one in _starts(script)
    ]


LAUNCHED: Mapping[str, Callable[[], Sequence[Row]]] = {
    f"script-{script}": partial(_made, script) for script in KINDS
}
