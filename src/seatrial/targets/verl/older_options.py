"""Options that verl's commands take under the names of older releases, and where the commands put them."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from seatrial.relations.laws.utilities.older_options import MovedOption
from seatrial.targets.common.known import KnownFailure, KnowsFailures, between, since
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, release
from seatrial.targets.verl.estimators import UNUSED

SECTIONS = ("reward_model", "custom_reward_function", "sandbox_fusion")
"""Of `legacy_reward_impl.yaml`."""
PLACES: Mapping[str, str] = {
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.rollout.*": "reward.reward_model.rollout.*",
    "reward_model.*": "reward.reward_model.*",
    "custom_reward_function.*": "reward.custom_reward_function.*",
    "sandbox_fusion.*": "reward.sandbox_fusion.*",
}
"""Where releases with a section `reward` read an option; the first pattern of its older name is its place."""
WITHOUT_PLACE: Mapping[str, str] = dict.fromkeys(
    ("reward_model.model.external_lib", "reward_model.model.trust_remote_code"),
    "no release with a section `reward` has such an option",
)
UNRELEASED = "0.8.0.dev0"
"""Of trees between 0.7.1 and 0.8, the first with these commands and older names."""
STAND_INS = (*UNUSED, "openai", "qwen_vl_utils", "transfer_queue")


def _has(module: str) -> bool:
    """Return whether a module is in the release, also where its package is not."""
    package = module.rpartition(".")[0]
    return ("." not in package or _has(package)) and find_spec(module) is not None


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "config"


def _marked(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield each option of the older sections with a value of its own that no release has by itself."""
    from omegaconf import OmegaConf

    numbers = {"num_workers", "n_gpus_per_node", "nnodes", "max_concurrent", "memory_limit_mb"}
    for section in SECTIONS:
        if section not in config:
            continue
        for place, old in enumerate(_leaves(OmegaConf.to_container(config[section], resolve=False), section)):
            name = old.rpartition(".")[2]
            yield old, 300 + place if name in numbers else name == "enable" or f"made-{place}"
    if "reward_model" in config:
        yield "reward_model.reward_kwargs", {"made": 1}


def _leaves(value: Any, prefix: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _leaves(one, f"{prefix}.{name}")
    else:
        yield prefix


def _place(old: str) -> str:
    pattern = next(one for one in PLACES if fnmatchcase(old, one))
    return PLACES[pattern].replace("*", old.removeprefix(pattern[:-1])) if "*" in pattern else PLACES[pattern]


def _read(module: str, config: Any) -> Any:
    """Return the options that a command trains with, of which nothing is trained."""
    import_without(module, STAND_INS)
    command, trainer = importlib.import_module(module), importlib.import_module("verl.trainer.main_ppo")
    found: list[Any] = []

    def run(config: Any, *_: Any, **__: Any) -> None:
        found.append(config)

    def valid(*_: Any, **__: Any) -> None:
        return None

    with contextlib.ExitStack() as stack:
        for place in {command, trainer}:
            stack.enter_context(mock.patch.object(place, "run_ppo", run, create=True))
            stack.enter_context(mock.patch.object(place, "validate_config", valid, create=True))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        command.main(config)
    return found[0]


class VerlOlderOptions(KnowsFailures):
    """What `main_ppo` makes of the sections of `legacy_reward_impl.yaml`."""

    module: ClassVar[str] = "verl.trainer.main_ppo"
    configuration: ClassVar[str] = "ppo_trainer"
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the older sections are taken and not read: a custom reward function is not called",
            finding="verl: older names of options that are lost",
            releases=since("verl", "0.9"),
        ).of("R31.older/options under older names"),
    )

    def __init__(self) -> None:
        """Find the command.

        Raises:
            Gone: its options of rewards have no older names, or it is not in this release.
        """
        folder = _folder("verl.trainer")
        needed = [folder / "legacy_reward_impl.yaml", folder / "reward" / "reward.yaml"]
        if not all(one.exists() for one in needed) or not _has(self.module):
            raise Gone(f"verl {release('verl')} has no older names of options of rewards in {self.module}")
        import_without(self.module, STAND_INS)
        self.utilities: Mapping[str, Callable[..., Any]] = {"older options": self._moved}

    def _moved(self) -> list[MovedOption]:
        """Return every option of the older sections."""
        import hydra
        from omegaconf import OmegaConf

        package = self.module.rpartition(".")[0]
        with hydra.initialize_config_dir(str(_folder(package)), version_base=None):
            path = (
                [] if package == "verl.trainer" else [f"hydra.searchpath=[file://{_folder('verl.trainer')}]"]
            )
            config = hydra.compose(self.configuration, overrides=path)
        given = {old: value for old, value in _marked(config) if old not in WITHOUT_PLACE}
        for old, value in given.items():
            OmegaConf.update(config, old, value, force_add=True)
        found, moved = _read(self.module, config), []
        for old, value in given.items():
            kept = OmegaConf.select(found, _place(old))
            plain = OmegaConf.to_container(kept) if OmegaConf.is_config(kept) else kept
            moved.append(MovedOption(old, _place(old), value, plain))
        return moved


class VerlOlderOptionsAsync(VerlOlderOptions):
    """What the command of fully asynchronous training makes of them."""

    module = "verl.experimental.fully_async_policy.fully_async_main"
    configuration = "fully_async_ppo_trainer"
    known_failures = tuple(
        replace(one, releases=between("verl", UNRELEASED, "0.8")) for one in VerlOlderOptions.known_failures
    )


class VerlOlderOptionsOneStep(VerlOlderOptions):
    """What the command of training one step off the policy makes of them."""

    module = "verl.experimental.one_step_off_policy.main_ppo"
    configuration = "one_step_off_ppo_trainer"
    known_failures = tuple(
        replace(one, releases=since("verl", UNRELEASED)) for one in VerlOlderOptions.known_failures
    )


ADAPTERS: dict[str, type[Any]] = {
    "older-options": VerlOlderOptions,
    "older-options-async": VerlOlderOptionsAsync,
    "older-options-one-step": VerlOlderOptionsOneStep,
}
