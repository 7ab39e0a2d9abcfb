"""verl's parsers of tool calls, and its bookkeeping of checkpoints; see `contracts.utilities`."""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.verl.estimators import UNUSED

PARSERS = "verl.experimental.agent_loop.tool_parser"
MANAGER = "verl.utils.checkpoint.checkpoint_manager"


class VerlToolCalls(KnowsFailures):
    """`ToolParser` of each registered format, with a tokenizer whose ids are characters."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the types that a tool declares are not read: a text that is JSON becomes a number or a truth value",
            finding="verl: text arguments that look like numbers",
        ).of("R31.calls/texts that look like numbers, of formats with tags"),
        KnownFailure(
            "texts of several lines, lists and objects are read in parts",
            finding="verl: arguments of Gemma 4's calls",
        ).of("R31.calls/calls of Gemma 4, lines and nested values"),
    )

    def __init__(self) -> None:
        """Find the registry."""
        for module in ("verl.tools.schemas", PARSERS):
            import_without(module, (*UNUSED, "openai"))
        self.parser = find_name("verl", [f"{PARSERS}:ToolParser"])
        self.schema = find_name("verl", ["verl.tools.schemas:OpenAIFunctionToolSchema"])
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "call formats": lambda: list(self.parser._registry),
            "tool calls": self.read,
        }

    def read(
        self, form: str, text: str, types: Mapping[str, Mapping[str, str]]
    ) -> tuple[str, list[tuple[str, str]]]:
        """Return the text around calls, and the calls."""
        tokenizer = SimpleNamespace(
            decode=lambda ids, **_: "".join(map(chr, ids)),
            convert_tokens_to_ids=lambda *_: None,
            pad_token="<|pad|>",
        )
        parser = self.parser.get_tool_parser(form, tokenizer)
        takes_tools = "tools" in signature(parser.extract_tool_calls).parameters
        given = [
            list(map(ord, text)),
            *([[self._tool(*one) for one in types.items()]] if takes_tools else []),
        ]
        around, calls = asyncio.run(parser.extract_tool_calls(*given))
        return around, [(call.name, call.arguments) for call in calls]

    def _tool(self, name: str, types: Mapping[str, str]) -> Any:
        properties = {key: {"type": kind, "description": ""} for key, kind in types.items()}
        parameters = {"type": "object", "properties": properties, "required": []}
        function = {"name": name, "description": "", "parameters": parameters}
        return self.schema.model_validate({"type": "function", "function": function})


class VerlCheckpointFiles:
    """`find_latest_ckpt_path`, and the retention and random states of `BaseCheckpointManager`."""

    def __init__(self) -> None:
        """Find the functions."""
        self.find = find_name("verl", [f"{MANAGER}:find_latest_ckpt_path"])
        self.note = find_name("verl", [f"{MANAGER}:get_checkpoint_tracker_filename"])
        self.manager = find_name("verl", [f"{MANAGER}:BaseCheckpointManager"])
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "latest checkpoint": self.latest,
            "kept checkpoints": self.kept,
            "random state": self.random_state,
        }

    def latest(self, steps: Sequence[int], tracked: int | None) -> int | None:
        """Return the step of the checkpoint that is found."""
        root = Path(new_folder())
        for step in steps:
            (root / f"global_step_{step}").mkdir()
        if tracked is not None:
            Path(self.note(str(root))).write_text(str(tracked), encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()):
            found = self.find(str(root))
        return None if found is None else int(Path(found).name.removeprefix("global_step_"))

    def kept(self, number: int, limit: int | None) -> list[int]:
        """Return the steps that are left after saving so many checkpoints."""
        if not hasattr(self.manager, "register_checkpoint"):
            raise NotServed(f"BaseCheckpointManager of verl {release('verl')} registers no checkpoints")
        root = Path(new_folder())
        manager = object.__new__(self.manager)
        manager.previous_saved_paths = []
        with contextlib.redirect_stdout(io.StringIO()):
            for step in range(1, number + 1):
                folder = root / f"global_step_{step}" / "actor"
                manager.ensure_checkpoint_capacity(limit)
                folder.mkdir(parents=True)
                manager.register_checkpoint(str(folder), limit)
        return sorted(int(one.parent.name.removeprefix("global_step_")) for one in root.glob("*/actor"))

    def random_state(self) -> dict[str, bool]:
        """Return whether each library draws the same after the state is loaded."""

        def draws() -> dict[str, list[float]]:
            return {
                "torch": torch.rand(3).tolist(),
                "numpy": numpy.random.rand(3).tolist(),
                "random": [random.random() for _ in range(3)],
            }

        with mock.patch(f"{MANAGER}.get_device_name", lambda: "cpu", create=True):
            state = self.manager.get_rng_state()
            first = draws()
            self.manager.load_rng_state(state)
        second = draws()
        return {name: first[name] == second[name] for name in first}


ADAPTERS: dict[str, type[Any]] = {"tool-calls": VerlToolCalls, "checkpoint-files": VerlCheckpointFiles}
