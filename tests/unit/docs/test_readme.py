"""What the README states is what the code does; its table of counts is generated (test_generated_pages)."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from refrl.config import GRPORunConfig
from seatrial.cli import COMMANDS
from seatrial.targets import target_names
from seatrial.targets.trl.recipes import RECIPES
from seatrial.trials.plan import MAX_LEVEL
from seatrial.verdict import Outcome, exit_code

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text()
TEXT = " ".join(README.split())


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize(
    "command", ["watch", "triage", "syncproof", "relations --target trl", "run --target trl"]
)
def test_it_shows_these_commands(command: str) -> None:
    assert f"seatrial {command} " in README


def test_every_command_and_target_that_it_names_exists() -> None:
    assert set(re.findall(r"^seatrial ([a-z]+)", README, re.MULTILINE)) <= set(COMMANDS)
    assert set(re.findall(r"--target ([a-z-]+)", README)) <= set(target_names())


def test_the_levels_that_it_states_are_those_of_the_targets() -> None:
    """Of refrl every level; of TRL those whose recipes it has."""
    assert f"`reference` (refrl, levels 0 to {MAX_LEVEL})" in TEXT
    recipes_of = {
        0: {"grpo-smoke"},
        1: {"grpo-lora", "grpo-checkpoint-save", "sft-resume-diamond"},
        2: {"grpo-refit-noncolocated", "grpo-refit-delta", "grpo-async"},
        3: {"grpo-generation-vllm", "grpo-generation-megatron"},
        6: {"sft-warmup", "grpo-learning"},
    }
    levels = [str(level) for level, recipes in recipes_of.items() if recipes <= set(RECIPES)]
    assert set(RECIPES) == {name for level in levels for name in recipes_of[int(level)]}
    assert f"`trl` (levels {', '.join(levels)})" in TEXT


def test_the_groups_of_entry_points_that_it_names_are_those_of_the_code() -> None:
    """Each is the value of a constant or of a registry in one module."""
    named = set(re.findall(r"`((?:seatrial|refrl)\.[a-z_]+)`", README))
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        if "entry_points" in text or "Registry(" in text:
            found |= set(re.findall(r"""^GROUP = "([a-z_.]+)"|"((?:refrl)\.[a-z_]+)",""", text, re.MULTILINE))
    assert named == {group for pair in found for group in pair if group}


def test_the_parallelism_that_it_states_is_configurable() -> None:
    """A size for each, pipeline stages on Megatron-core alone."""
    policy = GRPORunConfig.model_fields["policy"].annotation
    sizes = {
        backend: {
            name.removesuffix("_model_parallel_size").removesuffix("_parallel_size")
            for name in policy.model_fields[backend].annotation.model_fields  # type: ignore[union-attr]
            if name.endswith("_parallel_size")
        }
        for backend in ("dtensor_cfg", "megatron_cfg")
    }
    assert sizes["dtensor_cfg"] == {"tensor", "context", "expert"}
    assert sizes["megatron_cfg"] == sizes["dtensor_cfg"] | {"pipeline", "expert_tensor"}
    assert "data, tensor, sequence, context, expert and (Megatron-core) pipeline parallelism" in TEXT


def test_the_exit_codes_that_it_states_are_those_of_verdicts() -> None:
    verdict = importlib.import_module("seatrial.verdict")
    codes = {
        name: int(code) for code, name in re.findall(r"(\d+) ([A-Za-z ]+)[,.]", TEXT.split("Exit codes:")[1])
    }
    assert {"Pass": exit_code(Outcome.PASS), "Fail": exit_code(Outcome.FAIL)}.items() <= codes.items()
    assert codes["Blocked"] == verdict.EXIT_BLOCKED == exit_code(Outcome.BLOCKED)
    assert codes["wrong usage"] == verdict.EXIT_USAGE
    assert codes["interrupted"] == verdict.EXIT_INTERRUPTED
    assert codes["nothing ran"] == exit_code(Outcome.SKIPPED)
