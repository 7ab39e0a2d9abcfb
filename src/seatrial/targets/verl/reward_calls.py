"""verl's registered reward managers, each with a reward function that keeps what it is given."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch

from seatrial.relations.laws.utilities.reward_calls import Kind, RewardCall, ScoredRow, returned
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import START, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.verl.reward_loop import assembled, loop_manager, made_manager
from seatrial.targets.verl.rewards import objects

LEGACY = "verl.workers.reward_manager"
CLASSES: Mapping[str, str] = {
    "naive": "NaiveRewardManager",
    "prime": "PrimeRewardManager",
    "dapo": "DAPORewardManager",
}
"""Managers of releases without a registry, by the names that later ones register."""
EXPERIMENT = "an experiment"


WITH_SPECIAL_TOKENS = KnownFailure(
    "a reward function is given the special tokens of an answer",
    finding="verl: small functions of older releases",
    releases=before("verl", "0.3"),
).of("R31.reward_calls/what a reward function is given", "R31.reward_calls/rewards of rows")


class VerlRewardCalls(KnowsFailures):
    """One manager: what its function is given of rows, and what becomes of the results."""

    manager: ClassVar[str]
    """Its registered name."""
    passed: ClassVar[tuple[str, ...]] = ("num_turns", "rollout_reward_scores")
    """Names under which a function is given turns and of earlier scores."""
    records_numbers: ClassVar[bool] = False
    """Whether a number that a function returns is recorded as the row's accuracy."""
    keeps: ClassVar[bool] = True
    """Whether what a function returns besides the score is kept; otherwise functions return numbers alone."""

    def __init__(self) -> None:
        """Find the manager."""
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.tokenizer = tiny_tokenizer(padding_side="right")
        self.manager_class = self.find()
        self._kept = self.keeps and self._returns_more()
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "reward calls": lambda rows, kind: [call for call, _ in self._scored(rows, kind)[0]],
            "rewards of calls": lambda rows, kind: self._scored(rows, kind)[1],
            **(
                {"returned with rewards": lambda rows, kind: self._scored(rows, kind)[2]}
                if self._kept
                else {}
            ),
            **({"accuracies of numbers": self._accuracies} if self._kept and self.records_numbers else {}),
            **({"turns of reward calls": self._passed} if self._passes_turns() else {}),
            **({"given rewards": self._given} if self._takes_given() else {}),
        }

    def find(self) -> Any:
        """Return the manager of the name."""
        try:
            get = find_name("verl", [f"{LEGACY}:get_reward_manager_cls"])
        except Gone:
            if self.manager not in CLASSES:
                raise
            return find_name("verl", [f"{LEGACY}:{CLASSES[self.manager]}"])
        try:
            return get(self.manager)
        except (AssertionError, KeyError, ValueError) as error:
            raise Gone(f"verl {release('verl')} has no reward manager {self.manager}") from error

    def options(self) -> dict[str, Any]:
        """Return options of the manager: that of DAPO needs a buffer, which is off."""
        if self.manager != "dapo":
            return {}
        buffer = SimpleNamespace(enable=False, len=0, penalty_factor=0.0, log=False)
        return {"overlong_buffer_cfg": buffer, "max_resp_len": 4096}

    def score(self, batch: Any, score: Callable[..., Any]) -> tuple[Any, Mapping[str, Any]]:
        """Return rewards of tokens, and what was returned besides."""
        manager = self.manager_class(
            tokenizer=self.tokenizer, num_examine=0, compute_score=score, **self.options()
        )
        if not self._returns_more():
            return manager(batch), {}
        found = manager(batch, return_dict=True)
        return found["reward_tensor"], found.get("reward_extra_info", {})

    def _returns_more(self) -> bool:
        """Return whether the manager returns more than rewards."""
        return "return_dict" in inspect.signature(self.manager_class.__call__).parameters

    def _passes_turns(self) -> bool:
        """Return whether the release's manager gives a function turns and earlier scores."""
        if len(self.passed) != 2:
            return False
        module = inspect.getsource(inspect.getmodule(self.manager_class) or type(self))
        return all(name in module for name in self.passed)

    def awaited(self, score: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as one that is awaited.

        Raises:
            NotServed: the manager calls functions that return at once.
        """
        raise NotServed(f"the manager {self.manager} awaits no function")

    def _takes_given(self) -> bool:
        """Return whether the release's manager returns rewards that the batch has, with what came with them."""
        return hasattr(self.manager_class, "_extract_reward_from_rm_scores")

    def _given(self, rows: Sequence[ScoredRow]) -> tuple[list[float], list[Any], int]:
        calls: list[Any] = []
        batch, ends = self._batch(rows)
        rewards_BT = torch.zeros(batch.batch["responses"].shape)
        for row, end in enumerate(ends):
            rewards_BT[row, end] = rows[row].earlier["style"]
        batch.batch["rm_scores"] = rewards_BT
        batch.non_tensor_batch["said"] = objects([row.answer for row in rows])
        batch.meta_info["reward_extra_keys"] = ["said"]

        def score(*given: Any, **more: Any) -> float:
            calls.append((given, more))
            return 0.0

        found, kept = self.score(batch, score)
        return found.sum(1).tolist(), list(kept.get("said", [])), len(calls)

    def _accuracies(self, rows: Sequence[ScoredRow], kind: Kind) -> list[float]:
        return [float(one) for one in self._scored(rows, kind)[2].get("acc", [])]

    def _passed(self, rows: Sequence[ScoredRow], kind: Kind) -> list[Mapping[str, Any]]:
        turns, earlier = self.passed
        calls = self._scored(rows, kind)[0]
        return [{"turns": passed[turns], "earlier": passed[earlier]} for _, passed in calls]

    def _scored(
        self, rows: Sequence[ScoredRow], kind: Kind
    ) -> tuple[list[tuple[RewardCall, dict[str, Any]]], list[float], dict[str, list[Any]]]:
        """Return the calls in the order of the rows, each with what else it is given; rewards; what is kept."""
        calls: list[tuple[RewardCall, dict[str, Any]]] = []
        own_names = set(rows[0].extra)

        def score(
            data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any], **_: Any
        ) -> Any:
            own = {name: value for name, value in extra_info.items() if name in own_names}
            call = RewardCall(data_source, str(solution_str), ground_truth, own)
            calls.append((call, {name: value for name, value in extra_info.items() if name not in own_names}))
            return returned(call, kind if self._kept else "number")

        function = self.awaited(score) if kind == "awaited" else score
        batch, ends = self._batch(rows)
        with contextlib.redirect_stdout(io.StringIO()):
            rewards_BT, kept = self.score(batch, function)
        order = [row.extra["index"] for row in rows]
        calls.sort(key=lambda one: order.index(one[0].extra["index"]))
        rewards_B = rewards_BT.gather(1, torch.tensor(ends)[:, None])[:, 0]
        if not torch.equal(rewards_BT.sum(1), rewards_B):
            raise ValueError("a reward is at another token than the last of its row")
        return calls, [float(one) for one in rewards_B], {name: list(value) for name, value in kept.items()}

    def _batch(self, rows: Sequence[ScoredRow]) -> tuple[Any, list[int]]:
        """Return a padded batch, and the place of each answer's last token."""
        prompts = [self._ids(row.prompt) for row in rows]
        answers = [self._turns(self._ids(row.answer)) for row in rows]
        P, T, pad = max(map(len, prompts)), max(map(len, answers)) + 1, self.tokenizer.pad_token_id
        masks = [
            [0] * (P - len(prompt)) + [1] * (len(prompt) + len(answer)) + [0] * (T - len(answer))
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        batch = self.batch_class.from_dict(
            tensors={
                "prompts": torch.tensor([[pad] * (P - len(one)) + one for one in prompts]),
                "responses": torch.tensor([one + [pad] * (T - len(one)) for one in answers]),
                "attention_mask": torch.tensor(masks),
            },
            non_tensors={
                "reward_model": objects([{"ground_truth": row.right} for row in rows]),
                "data_source": objects([row.source for row in rows]),
                "extra_info": objects([dict(row.extra) for row in rows]),
                "__num_turns__": objects([row.turns for row in rows]),
                "reward_scores": objects([dict(row.earlier) for row in rows]),
            },
        )
        return batch, [len(one) - 1 for one in answers]

    def _turns(self, ids: list[int]) -> list[int]:
        """Return ids with the special tokens of two turns, which are no part of the text."""
        end, (begin,) = self.tokenizer.eos_token_id, self._ids(START)
        middle = len(ids) // 2
        return [*ids[:middle], end, begin, *ids[middle:], end]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


class VerlBatchCalls(VerlRewardCalls):
    """`BatchRewardManager`, whose function is given all rows at once."""

    manager = "batch"
    passed = ("rollout_reward_scores",)

    def score(self, batch: Any, score: Callable[..., Any]) -> tuple[Any, Mapping[str, Any]]:
        def of_all(
            data_sources: Any, solution_strs: Any, ground_truths: Any, extra_infos: Any, **_: Any
        ) -> list[Any]:
            columns = zip(data_sources, solution_strs, ground_truths, extra_infos, strict=True)
            return [score(*row) for row in columns]

        return super().score(batch, of_all)


class VerlPrimeCalls(VerlRewardCalls):
    """`PrimeRewardManager`, whose processes are threads here."""

    manager = "prime"
    passed = ()
    keeps = False

    def score(self, batch: Any, score: Callable[..., Any]) -> tuple[Any, Mapping[str, Any]]:
        try:
            with mock.patch(f"{LEGACY}.prime.ProcessPoolExecutor", _Threads):
                return super().score(batch, score)
        finally:
            # The manager leaves a closed loop as the process's own.
            asyncio.set_event_loop(asyncio.new_event_loop())


class _Threads(ThreadPoolExecutor):
    """Threads in place of processes, of which there are none to end."""

    _processes: Mapping[int, Any] = {}


class VerlLoopCalls(VerlRewardCalls):
    """A manager of the reward loop, which scores rows one by one."""

    def find(self) -> Any:
        from omegaconf import OmegaConf

        found = loop_manager(self.manager)
        own = {"reward_kwargs": {}, "num_workers": 1, "timeout": 60.0}
        self.config = OmegaConf.create(
            {
                "reward": own,
                "reward_model": own,
                "trainer": {"experiment_name": EXPERIMENT},
            }
        )
        return found

    def _returns_more(self) -> bool:
        return True

    def _takes_given(self) -> bool:
        return False

    def awaited(self, score: Callable[..., Any]) -> Callable[..., Any]:
        async def compute(**given: Any) -> Any:
            return score(**given)

        return compute

    def made(self, score: Callable[..., Any]) -> Any:
        """Return the manager with a function."""
        return made_manager(
            self.manager_class, config=self.config, tokenizer=self.tokenizer, compute_score=score
        )

    def score(self, batch: Any, score: Callable[..., Any]) -> tuple[Any, Mapping[str, Any]]:
        manager = self.made(score)
        # Of several outputs of an agent the last one is scored.
        before = int("data[-1:]" in inspect.getsource(self.manager_class.run_single))
        found = [
            manager.loop.run_until_complete(manager.run_single(batch[max(0, place - before) : place + 1]))
            for place in range(len(batch))
        ]
        scores = [float(one["reward_score"]) for one in found]
        extras = [one["reward_extra_info"] for one in found]
        kept = {name: [one.get(name) for one in extras] for name in {key for one in extras for key in one}}
        return assembled(self.manager_class, batch, scores), kept


class VerlRemoteCalls(VerlLoopCalls):
    """`RemoteRewardManager`, whose worker is in this process."""

    manager = "remote"

    def awaited(self, score: Callable[..., Any]) -> Callable[..., Any]:
        raise NotServed("the worker awaits the function, and is in this process")

    def made(self, score: Callable[..., Any]) -> Any:
        async def compute(**given: Any) -> Any:
            return score(**given)

        manager = object.__new__(self.manager_class)
        worker = SimpleNamespace(compute_score=SimpleNamespace(remote=compute))
        manager.choose_reward_worker = lambda: worker
        manager.tokenizer, manager.config, manager.compute_score = self.tokenizer, self.config, score
        manager.reward_router_address = manager.reward_model_tokenizer = None
        manager.loop = find_name("verl", ["verl.utils.ray_utils:get_event_loop"])()
        return manager


class VerlRewardFiles(KnowsFailures):
    """`get_custom_reward_fn`, one file after the other in one process."""

    thorough = True
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the second file of reward functions is not loaded, the first one's is taken (verl#4615)",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.6.2"),
        ).of("R31.reward_calls/each reward function is of its own file"),
    )

    def __init__(self) -> None:
        """Find the function that loads."""
        self.load = find_name("verl", ["verl.trainer.ppo.reward:get_custom_reward_fn"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"reward functions of files": self.loaded}

    def loaded(self, scores: Sequence[float]) -> list[float]:
        """Return what each file's function returns."""
        from omegaconf import OmegaConf

        folder = Path(new_folder())
        functions = []
        for number, score in enumerate(scores):
            path = folder / f"rewards_{number}.py"
            path.write_text(f"def scored(**facts):\n    return {score}\n", encoding="utf-8")
            own = {"path": str(path), "name": "scored"}
            with contextlib.redirect_stdout(io.StringIO()):
                config = OmegaConf.create(
                    {"custom_reward_function": own, "reward": {"custom_reward_function": own}}
                )
                functions.append(self.load(config))
        facts = {"data_source": "", "solution_str": "", "ground_truth": ""}
        return [float(function(**facts)) for function in functions]


def _of(
    base: type[VerlRewardCalls],
    name: str,
    passed: tuple[str, ...] = VerlRewardCalls.passed,
    known: Sequence[KnownFailure] = (),
    **more: Any,
) -> type[Any]:
    own = {"manager": name, "passed": passed, "known_failures": known, **more}
    return type(f"Verl_{name}", (base,), {"__doc__": f"`{name}`.", **own})


ADAPTERS: dict[str, type[Any]] = {
    "reward-calls": _of(VerlRewardCalls, "naive", known=[WITH_SPECIAL_TOKENS]),
    "reward-calls-dapo": _of(VerlRewardCalls, "dapo", ("rollout_reward_scores",), records_numbers=True),
    "reward-calls-batch": VerlBatchCalls,
    "reward-calls-prime": VerlPrimeCalls,
    "loop-calls": _of(VerlLoopCalls, "naive", records_numbers=True),
    "loop-calls-dapo": _of(VerlLoopCalls, "dapo", (), records_numbers=True),
    "loop-calls-gdpo": _of(VerlLoopCalls, "gdpo", ()),
    "loop-calls-limited": _of(VerlLoopCalls, "rate_limited", (), records_numbers=True),
    "loop-calls-remote": VerlRemoteCalls,
}
"""Managers by the names of both registries."""
NAMES = frozenset(adapter.manager for adapter in ADAPTERS.values())
ADAPTERS["reward-files"] = VerlRewardFiles
