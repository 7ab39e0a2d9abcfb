"""TRL's functions of conversations, mixtures, options of scripts and averages of weights, in the contract's form."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from inspect import getmodule, getsource, signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl.named import code_has, extracts_turns_alone
from seatrial.targets.trl.preferences import find_trainer

DATA = ("trl.data_utils", "trl")
SCRIPTS = ("trl.scripts.utils", "trl.scripts", "trl")


VARIABLES = "chat_template_kwargs"


def _reads_variables() -> bool:
    """Return whether a trainer of the release reads a record's own variables of the template."""
    try:
        return code_has(f'.get("{VARIABLES}"', find_trainer("SFT")[0])
    except Gone:
        return False


def _apply_template(apply: Any) -> Callable[..., Any]:
    def applied(record: Mapping[str, Any], template: str, tools: Sequence[str]) -> Any:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = template
        listed = [{"type": "function", "function": {"name": name}} for name in tools]
        if VARIABLES in record and not (VARIABLES in getsource(apply) or _reads_variables()):
            raise NotServed(f"records of trl {release('trl')} have no variables of their own")
        if listed and "tools" not in signature(apply).parameters:
            raise NotServed(f"templates of trl {release('trl')} are given no tools")
        return apply(dict(record), tokenizer, **({"tools": listed} if listed else {}))

    return applied


def _mixture(get: Any) -> Callable[..., Any]:
    """Return it on data sets in files, each with its share."""
    from trl.scripts import utils

    def mixed(
        sets: Sequence[Sequence[Mapping[str, Any]]],
        columns: list[str] | None,
        shares: Sequence[float] | None,
        test: float | None,
    ) -> dict[str, list[Any]]:
        takes_shares = "fraction" in utils.DatasetConfig.__dataclass_fields__
        if shares and not takes_shares:
            raise NotServed(f"mixtures of trl {release('trl')} have no shares")
        with tempfile.TemporaryDirectory() as folder, _quiet_bars():
            listed = []
            for number, rows in enumerate(sets):
                file = Path(folder) / f"{number}.jsonl"
                file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
                share = {"fraction": shares[number]} if shares else {}
                listed.append(
                    utils.DatasetConfig(
                        path="json", data_files=str(file), split="train", columns=columns, **share
                    )
                )
            found = get(utils.DatasetMixtureConfig(datasets=listed, test_split_size=test))
            return {part: list(found[part]) for part in found}

    return mixed


@contextmanager
def _quiet_bars() -> Iterator[None]:
    import datasets

    was_on = datasets.utils.logging.is_progress_bar_enabled()
    datasets.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            datasets.utils.logging.enable_progress_bar()


@dataclass
class Options:
    """Options of a made script."""

    rate: float = 0.5
    count: int = 3
    word: str = "none"
    flag: bool = False
    names: list[str] = field(default_factory=lambda: ["x"])


def _parse_options(parser_class: Any) -> Callable[..., Any]:
    def parsed(file: Mapping[str, Any], line: Sequence[str]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "options.yaml"
            path.write_text(json.dumps(dict(file)), encoding="utf-8")
            given = [*line, "--config", str(path)]
            parse = parser_class((Options,)).parse_args_and_config
            if "args" in signature(parse).parameters:
                (found,) = parse(given)
            else:
                with patch.object(sys, "argv", ["script", *given]):
                    (found,) = parse()
        return asdict(found)

    return parsed


class _Weights(torch.nn.Module):
    """A module of one row of weights, as its configuration says."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.row = torch.nn.Parameter(torch.zeros(config.size))


def _averaged(callback_class: Any) -> Callable[..., Any]:
    return lambda steps, options: _averages(callback_class, steps, options)[0]


def _averaged_reference(callback_class: Any) -> Callable[..., Any]:
    return lambda steps, options: _averages(callback_class, steps, {**options, "update_ref_model": True})[1]


def _averages(callback_class: Any, steps: Tensor, options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the average of a model's weights after steps, and the weights of its reference."""
    module, reference = (_Weights(SimpleNamespace(size=steps.shape[1])) for _ in range(2))
    callback = callback_class(**options)
    state = SimpleNamespace(global_step=0, is_world_process_zero=False)
    with torch.no_grad():
        for number, row in enumerate(steps):
            state.global_step = number
            module.row.copy_(row)
            if number == 0:
                callback.on_train_begin(None, state, None, model=module)
            else:
                callback.on_step_end(None, state, None, model=module, ref_model=reference)
    average: Tensor = callback.running_model.row
    return average.detach().clone(), reference.row.detach().clone()


def _cosine(make: Any) -> Callable[..., Any]:
    """Return it with the verdicts that its correctness would have, which needs another package."""
    module: Any = getmodule(make)

    def scaled(
        correct: Sequence[bool | None],
        lengths: Sequence[int],
        longest: int,
        wrong: tuple[float, float],
        right: tuple[float, float],
    ) -> Any:
        own = module.accuracy_reward
        module.accuracy_reward = lambda completions, solution, **_: [
            None if one is None else float(one) for one in correct
        ]
        try:
            bounds = {"min_value_wrong": wrong[0], "max_value_wrong": wrong[1]}
            bounds |= {"min_value_correct": right[0], "max_value_correct": right[1]}
            texts = [[{"role": "assistant", "content": "x"}]] * len(lengths)
            ids = [[1] * length for length in lengths]
            return make(longest, **bounds)(texts, ["x"] * len(lengths), completion_ids=ids)
        finally:
            module.accuracy_reward = own

    return scaled


def need_turns(chosen: Any) -> None:
    """Check that the installed release finds the prompt that both answers of a pair begin with.

    Raises:
        NotServed: it does so of turns alone, and the answers are texts.
    """
    if isinstance(chosen, str) and extracts_turns_alone():
        raise NotServed(f"pairs of texts of trl {release('trl')} have prompts of their own")


def _own_prompt(extract: Any) -> Callable[..., Any]:
    def extracted(record: Mapping[str, Any]) -> Any:
        need_turns(record.get("chosen"))
        return extract(dict(record))

    return extracted


def _plain(function: Any) -> Callable[..., Any]:
    return lambda record: function(dict(record))


SOURCES: Mapping[str, tuple[str, Sequence[str], Callable[[Any], Callable[..., Any]]]] = {
    "apply template": ("apply_chat_template", DATA, _apply_template),
    "to messages": ("maybe_convert_to_chatml", DATA, _plain),
    "is conversational": ("is_conversational", DATA, _plain),
    "own prompt": ("maybe_extract_prompt", DATA, _own_prompt),
    "mixture": ("get_dataset", SCRIPTS, _mixture),
    "parse options": ("TrlParser", SCRIPTS, _parse_options),
    "averaged weights": ("BEMACallback", ("trl.trainer.callbacks", "trl"), _averaged),
    "averaged reference": ("BEMACallback", ("trl.experimental.bema_for_ref_model",), _averaged_reference),
    "cosine": ("get_cosine_scaled_reward", ("trl.rewards",), _cosine),
}
"""The name, where releases keep it, and what fits it to the contract."""
