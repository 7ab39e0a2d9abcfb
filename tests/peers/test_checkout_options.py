"""Every stage of NeMo RL and verl asks a real checkout for options that it has, and gets what the stage is about.

The checkouts are those of NEMO_RL_REPO and VERL_REPO; a copy is used, because scripts delete folders of theirs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from seatrial.errors import BlockedError
from seatrial.targets.common.stages import Checkout, read_stages, resolved, unmet

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1500)]
STACKS = {"nemo_rl": "NEMO_RL_REPO", "verl": "VERL_REPO"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkout]:
    """Return a function that copies a stack's checkout, once."""
    made: dict[str, Checkout] = {}

    def copy(stack: str) -> Checkout:
        if stack not in made:
            place = os.environ.get(STACKS[stack])
            if not place:
                remote = read_stages(f"seatrial.targets.{stack}").remote
                pytest.skip(f"set {STACKS[stack]} to a checkout: git clone {remote}")
            folder = tmp_path_factory.mktemp(stack) / "checkout"
            shutil.copytree(place, folder, symlinks=True, ignore=shutil.ignore_patterns(".git"))
            table = read_stages(f"seatrial.targets.{stack}")
            made[stack] = Checkout(stages=table, path=folder, bridge=None, environment={})
        return made[stack]

    return copy


@pytest.mark.parametrize(
    ("stack", "trial"),
    [(stack, trial) for stack in STACKS for trial in read_stages(f"seatrial.targets.{stack}").stages],
)
def test_a_stage_asks_for_what_it_is_about(
    checkout: Callable[[str], Checkout],
    peer_python: Callable[[str], Path],
    stack: str,
    trial: str,
    tmp_path: Path,
) -> None:
    found = checkout(stack)
    stage = found.stages.stages[trial]
    assert unmet(stage, resolved(found, stage, tmp_path, str(peer_python("hydra")))) == []


@pytest.mark.parametrize(
    ("stack", "word"), [("nemo_rl", "policy.megatron_cfg.tensr=2"), ("verl", "trainer.save_frek=1")]
)
def test_a_key_that_the_checkout_does_not_have_is_refused(
    checkout: Callable[[str], Checkout],
    peer_python: Callable[[str], Path],
    stack: str,
    word: str,
    tmp_path: Path,
) -> None:
    found = checkout(stack)
    stage = found.stages.stages["grpo-smoke"]
    renamed = replace(stage, words=(*stage.words, word))
    with pytest.raises(BlockedError, match=word.partition("=")[0].rpartition(".")[2]):
        resolved(found, renamed, tmp_path, str(peer_python("hydra")))


def test_files_that_the_tables_name_exist(checkout: Callable[[str], Checkout]) -> None:
    for stack in STACKS:
        found = checkout(stack)
        of_stack = (check for check in found.stages.checks if check.where == "{copy}")
        paths = [f"{check.below}/{test}".lstrip("/") for check in of_stack for test in check.tests]
        paths += [stage.script for stage in found.stages.stages.values() if stage.script]
        assert [path for path in paths if not (found.path / path).is_file()] == []
