"""What the installed release of verl names: its losses, estimators, modes and options, read from its own registries."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from seatrial.targets.common.target import Gone, find_name

CORE = "verl.trainer.ppo.core_algos"
SCORE = "verl.utils.reward_score"


def losses() -> tuple[str, ...]:
    """Return the names of `POLICY_LOSS_REGISTRY`."""
    return tuple(find_name("verl", [f"{CORE}:POLICY_LOSS_REGISTRY"]))


def estimators() -> tuple[str, ...]:
    """Return the names of `ADV_ESTIMATOR_REGISTRY`."""
    return tuple(find_name("verl", [f"{CORE}:ADV_ESTIMATOR_REGISTRY"]))


def modes() -> tuple[str, ...]:
    """Return the modes of `agg_loss`, of which verl has no list: the texts that it compares `loss_agg_mode` with."""
    return compared_texts(find_name("verl", [f"{CORE}:agg_loss"]), "loss_agg_mode")


def penalties() -> tuple[str, ...]:
    """Return the kinds of `kl_penalty`, of which verl has no list; see `modes`."""
    return compared_texts(
        find_name("verl", [f"{CORE}:kl_penalty_forward", f"{CORE}:kl_penalty"]), "kl_penalty"
    )


def distillations() -> tuple[str, ...]:
    """Return the names of `DISTILLATION_LOSS_REGISTRY`."""
    return tuple(find_name("verl", ["verl.trainer.distillation.losses:DISTILLATION_LOSS_REGISTRY"]))


def rejections() -> tuple[str, ...]:
    """Return the criteria by which rollout correction rejects tokens and rows."""
    return tuple(
        sorted(find_name("verl", ["verl.trainer.ppo.rollout_corr_helper:SUPPORTED_ROLLOUT_RS_OPTIONS"]))
    )


def reward_managers() -> tuple[str, ...]:
    """Return the names that reward managers are registered by."""
    find_name("verl", ["verl.workers.reward_manager:NaiveRewardManager"])
    return tuple(find_name("verl", ["verl.workers.reward_manager.registry:REWARD_MANAGER_REGISTRY"]))


def scores() -> tuple[str, ...]:
    """Return the names of data that `default_compute_score` knows a rule of."""
    return compared_texts(find_name("verl", [f"{SCORE}:default_compute_score"]), "data_source")


def dispatches() -> tuple[str, ...]:
    """Return the modes by which a batch is sent to workers; a mode that always raises is none."""
    modes_of = find_name("verl", ["verl.single_controller.base.decorator:Dispatch"])
    names = modes_of.names() if hasattr(modes_of, "names") else modes_of.__members__  # an enumeration once
    modes = find_name("verl", ["verl.single_controller.base.decorator:DISPATCH_MODE_FN_REGISTRY"])
    known = {mode.name: one["dispatch_fn"].__name__ for mode, one in modes.items()}
    return tuple(name for name in names if name in known and not known[name].startswith("dummy"))


REGISTRIES: Mapping[str, Callable[[], tuple[str, ...]]] = {
    "loss": losses,
    "estimator": estimators,
    "mode": modes,
    "kl": penalties,
    "distillation": distillations,
    "rejection": rejections,
    "reward manager": reward_managers,
    "score": scores,
    "dispatch": dispatches,
}


def uncovered(covered: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Return by `kind: name` each that the installed release names and that no adapter covers, with the reason.

    Args:
        covered: what adapters cover, by the kinds of `REGISTRIES`.
    """
    found: dict[str, str] = {}
    for kind, names in REGISTRIES.items():
        try:
            given = names()
        except Gone:
            continue
        found |= {
            f"{kind} {name}": "the release has it, and no adapter covers it"
            for name in given
            if name not in covered.get(kind, frozenset())
        }
    return found


def compared_texts(function: Callable[..., Any], argument: str) -> tuple[str, ...]:
    """Return the texts that a function compares an argument with, in the order of its source."""
    found: dict[str, None] = {}
    for node in ast.walk(_tree(function)):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id == argument:
            for constant in (one for side in node.comparators for one in ast.walk(side)):
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    found[constant.value] = None
    return tuple(found)


def given_texts(function: Callable[..., Any], called: str, argument: str) -> tuple[str, ...]:
    """Return the texts that a function gives another one as an argument by name."""
    return tuple(
        keyword.value.value
        for node in ast.walk(_tree(function))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == called
        for keyword in node.keywords
        if keyword.arg == argument
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    )


def _tree(function: Callable[..., Any]) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
