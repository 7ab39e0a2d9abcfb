"""verl's worker of agent loops and its client, with a fake of the inference server; see `contracts.rollouts`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from inspect import getsource, signature
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch

from seatrial.relations.contracts.rollouts import Asked, Part, Resumed, Rolled
from seatrial.relations.laws.utilities.rollouts import BUDGET, PENALTY, TRAINING, VALIDATION, P, T
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.offered import undecorated
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.rewards import objects
from seatrial.targets.verl.turns import NoImages, own_settings

LOOPS = "verl.experimental.agent_loop.agent_loop"
SINGLE = "verl.experimental.agent_loop.single_turn_agent_loop"
SERVERS = "verl.workers.rollout.llm_server"
ROLLOUTER = "verl.experimental.fully_async_policy.fully_async_rollouter"
STAND_INS = (*UNUSED, "openai", "qwen_vl_utils")


def import_loops(module: str) -> None:
    """Import a module of agent loops.

    Raises:
        Gone: the release has none.
    """
    if find_spec("verl.experimental") is None:
        raise Gone(f"verl {release('verl')} has no agent loops")
    for name in ("verl.tools.schemas", LOOPS, module):
        import_without(name, STAND_INS)


class _Remote:
    """A method as an actor of Ray has it, in this process."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.remote = method


class VerlRollouts(KnowsFailures):
    """`AgentLoopWorker.generate_sequences` with the agent of one turn, and `AgentLoopManager` over several workers."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "each request has the penalty 1 and not `rollout.repetition_penalty`",
            finding="verl: a penalty of repetitions that has no effect",
        ).of("R31.rollouts/penalty of repetitions of a batch"),
    )

    def __init__(self) -> None:
        """Find the classes."""
        import_loops(SINGLE)
        self.worker = undecorated(find_name("verl", [f"{LOOPS}:AgentLoopWorker"]))
        self._manager = find_name("verl", [f"{LOOPS}:AgentLoopManager"])
        self._proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        if ".token_ids" in getsource(sys.modules[SINGLE]):
            self._output = find_name("verl", ["verl.workers.rollout.replica:TokenOutput"])
        else:  # to 0.5 a server gives ids alone
            self._output = lambda token_ids, **_: token_ids
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "rollouts": self._rolled,
            "rollouts with rewards": self._rolled,
        }
        source = getsource(sys.modules[self.worker.__module__])
        self._arrays = "messages.tolist()" in source  # as files of older data sets give conversations
        if "__do_sample__" in source:
            self.utilities["greedy rollouts"] = self._greedy
        if "num_preempted" in source and "agent_loop/compute_score" in source:
            self.utilities["times of rollouts"] = self._timed
        if "compute_score.remote" not in source:
            del self.utilities["rollouts with rewards"]
        if "asyncio.gather" in getsource(self._manager.generate_sequences):
            self.utilities["rollouts of workers"] = self._rolled

    def _rolled(self, rows: Sequence[Asked], plan: Mapping[str, Any]) -> Rolled:
        """Return what a worker, or a manager of several, makes of a batch."""
        return asyncio.run(self._run(rows, plan))

    def _greedy(self, rows: Sequence[Asked], greedy: Sequence[bool]) -> Sequence[Mapping[str, Any]]:
        """Return the options of each row's request, in a batch whose rows say whether they are sampled."""
        plan = {"workers": 1, "validates": False, "rewarded": False, "greedy": greedy}
        return self._rolled(rows, plan).sampling

    async def _run(self, rows: Sequence[Asked], plan: Mapping[str, Any]) -> Rolled:
        tokenizer = tiny_tokenizer(padding_side="left")
        server = _Server(tokenizer, rows, self._output)
        scorer = _scored(rows) if plan["rewarded"] else None
        workers = [made_worker(self.worker, tokenizer, server, scorer) for _ in range(plan["workers"])]
        batch = self._proto.from_dict(
            tensors={"dummy_tensor": torch.zeros(len(rows), 1)},
            non_tensors={
                "raw_prompt": objects(
                    [objects(row.messages) if self._arrays else [*row.messages] for row in rows]
                ),
                "row": objects(range(len(rows))),
                **(
                    {"__do_sample__": objects([not one for one in plan["greedy"]])}
                    if "greedy" in plan
                    else {}
                ),
            },
            meta_info={"validate": plan["validates"], "global_steps": 3},
        )
        if len(workers) == 1:
            found = await workers[0].generate_sequences(batch)
        else:
            manager = object.__new__(self._manager)
            manager.agent_loop_workers = [
                SimpleNamespace(generate_sequences=_Remote(one.generate_sequences)) for one in workers
            ]
            found = await manager.generate_sequences(batch)
        shown, extras = found.batch["attention_mask"].bool(), found.non_tensor_batch
        return Rolled(
            prompts=[
                tokenizer.apply_chat_template(
                    list(row.messages), add_generation_prompt=True, return_dict=False
                )
                for row in rows
            ],
            columns=dict(found.batch.items()),
            positions=[
                row[own].tolist() for row, own in zip(found.batch["position_ids"], shown, strict=True)
            ],
            sampling=[server.sampling[row] for row in range(len(rows))],
            turns=[int(one) for one in extras["__num_turns__"]],
            asked=list(extras.get("raw_prompt", [row.messages for row in rows])),
            scored=list(extras.get("tokens", [None] * len(rows))),
        )

    def _timed(
        self, chunks: Sequence[Sequence[Mapping[str, float]]], lengths: Sequence[tuple[int, int]]
    ) -> dict[str, float]:
        """Return the metrics of the times of rows."""
        masks = [
            [0] * (P - prompt) + [1] * (prompt + answer) + [0] * (T - answer) for prompt, answer in lengths
        ]
        batch = {"prompts": torch.zeros(len(lengths), P), "attention_mask": torch.tensor(masks)}
        found = object.__new__(self._manager)._performance_metrics(
            [[dict(row) for row in chunk] for chunk in chunks], SimpleNamespace(batch=batch)
        )
        return {name: float(value) for name, value in found.items()}


def made_worker(
    worker_class: Any, tokenizer: Any, server: Any, score: Callable[..., Any] | None, **rollout: Any
) -> Any:
    """Return a worker without its `__init__`; `score` is what its reward worker does, `rollout` further settings."""
    worker = object.__new__(worker_class)
    config = _configuration()
    config.actor_rollout_ref.rollout.update(rollout)
    config.reward_model.enable = score is None  # a model of its own scores: the loop does not
    scorer = SimpleNamespace(compute_score=_Remote(score or _scored([])))
    parts: dict[str, Any] = {
        "config": config,
        "rollout_config": config.actor_rollout_ref.rollout,
        "model_config": config.actor_rollout_ref.model,
        "dataset_cls": NoImages,
        "tokenizer": tokenizer,
        "processor": None,
        "mm_processor_kwargs": {},
        "hf_model_type": None,
        "llm_client": server,
        "server_manager": server,
        "tools": [],
        "distillation_enabled": False,
        "stream_teacher_with_rollout": False,
        "reward_loop_worker_handles": [scorer] if score else None,
        "reward_loop_worker": scorer,
        "use_reward_loop": score is not None,
        "reward_router_address": None,
        "reward_manager_worker": scorer,
        "rm_executor": None,
    }
    for name, part in parts.items():
        setattr(worker, name, part)
    return worker


def _configuration() -> Any:
    """Return the release's own settings of rollouts with those of the law."""
    from omegaconf import OmegaConf

    own = {
        "prompt_length": P,
        "response_length": T,
        "calculate_log_probs": True,
        "full_determinism": False,
        "val_kwargs": {**VALIDATION, "do_sample": True, "n": 1},
        "agent": {"default_agent_loop": "single_turn_agent"},
        "multi_turn": {"tokenization_sanity_check_mode": "disable"},
        "repetition_penalty": PENALTY,
        **TRAINING,
    }
    rollout = OmegaConf.merge(own_settings("rollout/rollout.yaml"), own)
    own_data: dict[str, Any] = {"tool_config_path": None, "apply_chat_template_kwargs": {}}
    data = OmegaConf.merge(own_settings("data/legacy_data.yaml"), own_data)
    return OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": rollout, "model": {"path": None}},
            "data": data,
            "reward_model": {"enable": False, "enable_resource_pool": False},
            "trainer": {"project_name": "made", "experiment_name": "made"},
        }
    )


class _Server:
    """A fake of the inference server: answers rows by their conversation, the last one first, and keeps options."""

    def __init__(self, tokenizer: Any, rows: Sequence[Asked], output: Any) -> None:
        self.tokenizer, self.rows, self.output = tokenizer, rows, output
        self.sampling: dict[int, dict[str, Any]] = {}

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """Return the answer of the row that the prompt is of."""
        text = self.tokenizer.decode(prompt_ids)
        row = next(row for row, one in enumerate(self.rows) if f"{one.messages[-1]['content']}<" in text)
        self.sampling[row] = dict(sampling_params)
        for _turn in range(4 * (len(self.rows) - row)):
            await asyncio.sleep(0)
        asked = self.rows[row]
        return self.output(
            token_ids=list(asked.answer), log_probs=list(asked.logprobs), stop_reason="completed"
        )


def _scored(rows: Sequence[Asked]) -> Callable[..., Any]:
    async def score(data: Any) -> dict[str, Any]:
        number = int(data.non_tensor_batch["row"][0])
        ids = data.batch["responses"][0].tolist()
        width = data.batch["prompts"].shape[-1]
        shown = data.batch["attention_mask"][0][width:].tolist()
        answer = [token for token, on in zip(ids, shown, strict=True) if on]
        right = answer == list(rows[number].answer[: len(answer)])
        return {
            "reward_score": rows[number].reward if right else float("nan"),
            "reward_extra_info": {"tokens": len(answer)},
        }

    return score


class VerlResumedAnswers(KnowsFailures):
    """`FullyAsyncLLMServerClient.generate`, with a balancer and servers that are fakes."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "what is left of the budget is written to the options of the caller",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.9"),
        ).of("R31.rollouts/options of an answer in parts"),
        KnownFailure(
            "a request that has no limit has none when it is resumed: the server allows a whole answer again",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.9.0"),
        ).of("R31.rollouts/an answer in parts, no limit among its options"),
    )

    def __init__(self) -> None:
        """Find the client.

        Raises:
            Gone: the release resumes no answers, or in another form.
        """
        if find_spec("verl.workers") is None or find_spec(SERVERS) is None:
            raise Gone(f"verl {release('verl')} has no {SERVERS}")
        import_loops(SERVERS)
        with contextlib.suppress(ImportError):
            import_without(ROLLOUTER, STAND_INS)
        name = "FullyAsyncLLMServerClient"
        self.client = find_name("verl", [f"{SERVERS}:{name}", f"{ROLLOUTER}:{name}"])
        self._output = find_name("verl", ["verl.workers.rollout.replica:TokenOutput"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"answer in parts": self._resumed}

    def _resumed(
        self, prompt: Sequence[int], parts: Sequence[Part], limit: int | None, resumes: bool
    ) -> Resumed:
        """Return what the client makes of parts, one a request."""
        from omegaconf import OmegaConf

        own = {"name": "vllm", "full_determinism": False, "response_length": BUDGET}
        config = OmegaConf.create(
            {
                "async_training": {"partial_rollout": resumes},
                "actor_rollout_ref": {"rollout": own},
            }
        )
        requests: list[list[int]] = []
        limits: list[int | None] = []
        released: list[str] = []

        async def generate(prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Any:
            part = parts[len(requests)]
            requests.append(list(prompt_ids))
            limits.append(sampling_params.get("max_tokens"))
            return self._output(
                token_ids=list(part.ids),
                log_probs=list(part.logprobs),
                stop_reason=part.stop,
                num_preempted=part.preempted,
                extra_fields={"global_steps": part.version},
            )

        async def acquired(**_: Any) -> tuple[str, Any]:
            return f"server {len(requests)}", SimpleNamespace(generate=_Remote(generate))

        async def fields() -> list[str]:
            return ["request_id"]

        async def at_once(*_: Any, **__: Any) -> None:
            return None

        balancer = SimpleNamespace(
            acquire_server=_Remote(acquired),
            release_server=_Remote(lambda server_id, **_: released.append(server_id)),
            require_acquire_fields=_Remote(fields),
            require_release_fields=_Remote(fields),
        )
        client = self._client(config, balancer)
        options = {"temperature": 0.5, **({} if limit is None else {"max_tokens": limit})}
        with mock.patch("asyncio.sleep", at_once):
            found = asyncio.run(client.generate("request", prompt_ids=list(prompt), sampling_params=options))
        extras = found.extra_fields
        return Resumed(
            ids=found.token_ids,
            logprobs=found.log_probs,
            stop=found.stop_reason,
            versions=(extras["min_global_steps"], extras["max_global_steps"]),
            preempted=found.num_preempted,
            requests=requests,
            limits=limits,
            options=options,
            released=released,
        )

    def _client(self, config: Any, balancer: Any) -> Any:
        takes = signature(self.client.__init__).parameters
        if "load_balancer_handle" not in takes:
            raise Gone(f"clients of verl {release('verl')} take {', '.join(takes)}")
        given: dict[str, Any] = {"servers": [("server 0", None)]} if "servers" in takes else {}
        return self.client(config=config, load_balancer_handle=balancer, **given)


ADAPTERS: dict[str, type[Any]] = {"rollouts": VerlRollouts, "resumed-answers": VerlResumedAnswers}
