"""verl's reward function of an episode: its worker and the manager of its reward loop, one after the other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import getsource
from types import SimpleNamespace
from typing import Any
from unittest import mock

from seatrial.relations.contracts.utilities import Rollout
from seatrial.relations.laws.utilities.padded_episodes import P, T
from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.verl.rollouts import LOOPS, STAND_INS, import_loops, made_worker

MANAGERS = {
    "verl.experimental.reward_loop.reward_manager.naive": "NaiveRewardManager",
    "verl.experimental.reward.reward_loop.naive": "NaiveRewardLoopManager",
}
"""Modules and classes, the newest first."""
MADE = "made"


class VerlScoredEpisodes:
    """`AgentLoopWorker._run_agent_loop` with an agent that gives an episode; `naive` of the reward loop scores it."""

    def __init__(self) -> None:
        """Find the classes.

        Raises:
            Gone: the release has no reward loop.
        """
        import_loops(LOOPS)
        self._loops = sys.modules[LOOPS]
        self.worker = undecorated(find_name("verl", [f"{LOOPS}:AgentLoopWorker"]))
        self._output = find_name("verl", [f"{LOOPS}:AgentLoopOutput"])
        if "compute_score.remote" not in getsource(self._loops) or "extra_fields" not in getsource(
            self._loops
        ):
            raise Gone(
                f"agent loops of verl {release('verl')} pass nothing of an episode to a reward function"
            )
        self.manager = _manager()
        self.utilities: Mapping[str, Callable[..., Any]] = {"reward calls of episodes": self._calls}

    def _calls(self, rows: Sequence[Rollout]) -> list[Mapping[str, Any]]:
        """Return what the function is given of each row; the release's own facts are left out."""
        return [asyncio.run(self._call(number, row)) for number, row in enumerate(rows)]

    async def _call(self, number: int, row: Rollout) -> Mapping[str, Any]:
        tokenizer = tiny_tokenizer()
        called: list[Mapping[str, Any]] = []

        def score(solution_str: str, extra_info: Mapping[str, Any], **_: Any) -> float:
            facts = {name: extra_info[name] for name in ("index", *row.extras) if name in extra_info}
            called.append({"ids": tokenizer(solution_str)["input_ids"], "facts": facts})
            return 0.0

        manager = self.manager(config=_configuration(), tokenizer=tokenizer, compute_score=score)
        manager.loop = asyncio.get_running_loop()
        worker = made_worker(
            self.worker, tokenizer, None, manager.run_single, prompt_length=P, response_length=T
        )
        agent = SimpleNamespace(run=self._agent(row))
        with (
            mock.patch("hydra.utils.instantiate", lambda *_, **__: agent),
            mock.patch.dict(self._loops._agent_loop_registry, {MADE: {}}),
        ):
            await worker._run_agent_loop(
                {},
                {"step": 1, "sample_index": number, "rollout_n": 0, "validate": False},
                agent_name=MADE,
                raw_prompt=[{"role": "user", "content": "?"}],
                data_source="made",
                reward_model={"ground_truth": "right"},
                extra_info={"index": number},
            )
        (call,) = called
        return call

    def _agent(self, row: Rollout) -> Callable[..., Any]:
        async def run(*_: Any, **__: Any) -> Any:
            return self._output(
                prompt_ids=row.prompt_ids,
                response_ids=row.response_ids,
                response_mask=row.mask,
                num_turns=row.num_turns,
                metrics=self._loops.AgentLoopMetrics(),
                extra_fields=dict(row.extras),
            )

        return run


def _configuration() -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.create({"reward": {"reward_kwargs": {}}, "trainer": {"experiment_name": MADE}})


def _manager() -> Any:
    """Return the class of the manager `naive` of the reward loop.

    Raises:
        Gone: the release has none.
    """
    for module, name in MANAGERS.items():
        try:
            return getattr(import_without(module, (*STAND_INS, "aiohttp")), name)
        except ModuleNotFoundError as error:
            if not f"{module}.".startswith(f"{error.name}."):
                raise
    raise Gone(f"verl {release('verl')} has no reward loop")


ADAPTERS: dict[str, type[Any]] = {"scored-episodes": VerlScoredEpisodes}
