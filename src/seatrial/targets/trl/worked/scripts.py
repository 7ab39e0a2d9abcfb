"""Worked examples of what TRL's scripts are built of: options, data sets and trainers."""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any
from unittest.mock import MagicMock, patch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.trainers import CPU_OPTIONS
from seatrial.targets.trl.worked.rows import UTILS, Row
from seatrial.targets.trl.worked.seen import or_refused

PARSER = "trl.scripts._hf_argparser"
SCRIPTS: Mapping[str, str] = {
    "sft": "SFTTrainer",
    "dpo": "DPOTrainer",
    "kto": "KTOTrainer",
    "reward": "RewardTrainer",
    "grpo": "GRPOTrainer",
    "rloo": "RLOOTrainer",
    "distillation": "DistillationTrainer",
}
"""By script: the trainer that it makes."""
UNKNOWN: Mapping[str, Sequence[str]] = {
    "SFT": ("eos_token", "pad_token"),
    "DPO": ("pad_token",),
    "Reward": ("eos_token", "pad_token"),
}
"""By trainer: options that name a token."""
GIVEN: Mapping[str, Any] = {
    "a mixture alone": "mixed train",
    "a name alone": "named train",
    "both": "mixed train",
    "none": "an error",
    "parts": ["mixed first", "mixed second"],
    "no evaluation": None,
}
"""What a script trains and evaluates on, by what it is given: a mixture is preferred."""


def _parts(origin: str) -> Any:
    found = MagicMock()
    found.__getitem__.side_effect = lambda part: f"{origin} {part}"
    return found


def _refusal(trainer: str, option: str, trainer_class: Callable[..., Any]) -> str:
    """Return whether a trainer refuses an option that names a token that the tokenizer does not have."""
    import trl
    from datasets import Dataset

    tokenizer = tiny_tokenizer()
    tokenizer.unk_token = tokenizer.pad_token  # what an unknown name is read as
    rows = (
        {"prompt": ["a"], "completion": ["b"]} if trainer == "SFT" else {"chosen": ["a"], "rejected": ["b"]}
    )
    model = tiny_scorer(0) if trainer == "Reward" else tiny_model(tokenizer, 0)
    more = {"ref_model": tiny_model(tokenizer, 0)} if trainer == "DPO" else {}
    with tempfile.TemporaryDirectory() as folder:
        arguments = getattr(trl, f"{trainer}Config")(
            output_dir=folder, **CPU_OPTIONS, **{option: "<unknown>"}
        )
        try:
            trainer_class(
                model=model,
                args=arguments,
                train_dataset=Dataset.from_dict(rows),
                processing_class=tokenizer,
                **more,
            )
        except ValueError:
            return "refused"
    return "taken"


def _run(main: Callable[..., Any], *words: str) -> Any:
    """Run a script's main function with options of a command line and stand-ins for data and the trainer.

    Returns:
        The arguments of the trainer.
    """
    import datasets
    import trl

    script = main.__module__.rpartition(".")[2]
    module = importlib.import_module(main.__module__)
    made = MagicMock()
    own = {"get_dataset": MagicMock(return_value=_parts("mixed")), SCRIPTS[script]: made}
    found = {name: one for name, one in own.items() if hasattr(trl, name)}
    if len(found) < len(own):
        raise NotServed(f"this release of trl has no {', '.join(set(own) - set(found))}")
    load = MagicMock(return_value=_parts("named"))
    options = ["--model_name_or_path", "m", "--output_dir", "o", "--report_to", "none", "--use_cpu", *words]
    if script == "distillation":
        options += ["--teacher_model_name_or_path", "t"]
    given = module.make_parser().parse_args_and_config(options)
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(datasets, "load_dataset", load))
        for name, one in found.items():
            stack.enter_context(patch.object(trl, name, one))
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, one))
        if hasattr(module, "load_dataset"):
            stack.enter_context(patch.object(module, "load_dataset", load))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        main(*given)
    return made.call_args.kwargs


def _data_of(main: Callable[..., Any]) -> dict[str, Any]:
    from trl.scripts.utils import DatasetMixtureConfig

    name, mixture = ["--dataset_name", "n"], [{"path": "x"}]
    words = {"a mixture alone": [], "a name alone": name, "both": name, "none": []}
    found: dict[str, Any] = {}
    for what, one in words.items():
        given = mixture if what in ("a mixture alone", "both") else []
        with patch.object(
            DatasetMixtureConfig,
            "__init__",
            _filled(DatasetMixtureConfig.__init__, given),
        ):
            try:
                found[what] = _run(main, *one)["train_dataset"]
            except (ValueError, UnboundLocalError):
                # Releases before 0.23 say that they prefer a mixture, and stop: that is no silent mistake.
                found[what] = GIVEN[what] if what == "both" else "an error"
    with patch.object(DatasetMixtureConfig, "__init__", _filled(DatasetMixtureConfig.__init__, mixture)):
        parts = ["--dataset_train_split", "first", "--dataset_test_split", "second"]
        both = _run(main, *parts, "--eval_strategy", "steps", "--eval_steps", "5")
        found["parts"] = [both["train_dataset"], both["eval_dataset"]]
        found["no evaluation"] = _run(main)["eval_dataset"]
    return found


def _filled(init: Callable[..., None], sets: list[Any]) -> Callable[..., None]:
    """Return an initializer whose data sets are these, as a file of options gives them."""

    def own(self: Any, *words: Any, **options: Any) -> None:
        init(self, *words, **{**options, "datasets": sets})

    return own


def _reward_functions(main: Callable[..., Any]) -> list[str]:
    names = ["think_format_reward", "get_soft_overlong_punishment", "math.floor"]
    given = _run(main, "--dataset_name", "n", "--reward_funcs", *names)["reward_funcs"]
    overlong = given[1](completion_ids=[[1] * 1024, [1] * 1152, [1] * 1281])
    return [given[0].__name__, overlong, given[2].__name__]


def _model_options(main: Callable[..., Any]) -> dict[str, Any]:
    names = {item.name for item in fields(find_name("trl", ["trl:ModelConfig"]))}
    words = [
        "--dataset_name",
        "n",
        "--dtype" if "dtype" in names else "--torch_dtype",
        "bfloat16",
        "--attn_implementation",
        "eager",
        "--model_revision",
        "r",
    ]
    given = _run(main, *words, "--use_peft", "--lora_r", "3")
    arguments, adapter = given["args"], given.get("peft_config")
    own = arguments.model_init_kwargs
    if own is None:
        raise NotServed("the script gives the trainer a model, and no options of one")
    return {
        **{name: own[name] for name in ("revision", "attn_implementation")},
        "dtype": str(own.get("dtype", own.get("torch_dtype"))).removeprefix("torch."),
        "rank": getattr(adapter, "r", None),
    }


@dataclass
class _Options:
    """Options of every kind."""

    word: str = "w"
    count: int | None = None
    flag: bool = False
    kept: bool = True
    rates: list[float] = field(default_factory=lambda: [0.5])


def _parsed(parser_class: Any, *words: str) -> Any:
    (found,) = parser_class((_Options,)).parse_args_into_dataclasses(list(words))
    return [found.word, found.count, found.flag, found.kept, found.rates]


def _field(make: Callable[..., Any]) -> list[Any]:
    found = make(aliases=["-e"], help="h", default=3)
    return [found.default, found.metadata["aliases"], found.metadata["help"]]


def _mixture(config_class: Any) -> list[Any]:
    found = config_class(datasets=[{"path": "x", "split": "test", "columns": ["a"]}])
    (one,) = found.datasets
    return [type(one).__name__, one.path, one.split, one.columns, found.streaming, found.test_split_size]


def _printed(show: Callable[..., Any]) -> list[bool]:
    from rich import console

    written = io.StringIO()
    wide = console.Console(width=200, file=written)
    with patch(f"{UTILS}.Console", lambda *_, **__: wide):
        show(["sky"], ["blue"], {"right": [0.123]}, [0.987], 42)
    text = written.getvalue()
    return [word in text for word in ("sky", "blue", "right", "0.12", "0.99", "42")]


SCRIPT_ROWS: Sequence[Row] = (
    *(
        Row(
            "commands",
            f"trl.scripts.{name}:main",
            "data that it trains on",
            _data_of,
            dict(GIVEN),
            since="0.24",  # earlier ones stop where both are given
        )
        for name in SCRIPTS
    ),
    *(
        Row(
            "options",
            f"trl.scripts.{name}:main",
            "options of the model and of an adapter",
            _model_options,
            {"revision": "r", "attn_implementation": "eager", "dtype": "bfloat16", "rank": 3},
        )
        for name in SCRIPTS
    ),
    *(
        Row(
            "rewards",
            f"trl.scripts.{name}:main",
            "reward functions by name",
            or_refused(_reward_functions),
            ["think_format_reward", [0.0, -0.5, -1.0], "floor"],
        )
        for name in ("grpo", "rloo")
    ),
    Row(
        "options",
        f"{PARSER}:string_to_bool",
        "words",
        lambda read: [read(one) for one in (True, "yes", "T", "1", "no", "FALSE", "0")],
        [True, True, True, True, False, False, False],
    ),
    Row(
        "options",
        f"{PARSER}:make_choice_type_function",
        "numbers, a word, another one",
        lambda make: [make([1, 2.5, "a"])(one) for one in ("1", "2.5", "a", "b")],
        [1, 2.5, "a", "b"],
    ),
    Row("options", f"{PARSER}:HfArg", "a name, a text, a default", _field, [3, ["-e"], "h"]),
    Row(
        "options",
        f"{PARSER}:HfArgumentParser transformers:HfArgumentParser",
        "defaults",
        _parsed,
        ["w", None, False, True, [0.5]],
    ),
    Row(
        "options",
        f"{PARSER}:HfArgumentParser transformers:HfArgumentParser",
        "every kind",
        lambda parser: _parsed(
            parser, "--word", "x", "--count", "3", "--flag", "--no_kept", "--rates", "1", "2.5"
        ),
        ["x", 3, True, False, [1.0, 2.5]],
    ),
    Row(
        "options",
        "trl.scripts.utils:DatasetMixtureConfig",
        "a data set of a file of options",
        _mixture,
        ["DatasetConfig", "x", "test", ["a"], False, None],
    ),
    *(
        Row(
            "options",
            f"trl:{trainer}Trainer",
            f"{option} that the vocabulary does not have",
            partial(_refusal, trainer, option),
            "refused",
            since="1.1",
        )
        for trainer, options in UNKNOWN.items()
        for option in options
    ),
    Row(
        "commands",
        f"{UTILS}:print_prompt_completions_sample",
        "a row",
        _printed,
        [True] * 6,
        since="0.18",
    ),
)
