"""Worked examples of verl's traces of rollouts and of rollouts that are read from files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.logged import batch_of
from seatrial.targets.verl.worked.tools import folder, raised

TRACES = "verl.utils.rollout_trace:"
SKIPS = "verl.utils.skip."


class _Client:
    """Keeps the calls of a trace."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.ended: list[Any] = []

    def create_call(self, op: str, inputs: Any, attributes: Any) -> int:
        """Return the number of a call."""
        self.calls.append([op.rpartition(".")[2], dict(inputs), dict(attributes)])
        return len(self.calls)

    def finish_call(self, call: int, output: Any = None, exception: Any = None) -> None:
        """Keep what a call gave."""
        self.ended.append([call, output, type(exception).__name__ if exception else None])


class _Traced:
    """An agent with calls that are traced."""

    tokenizer = SimpleNamespace(decode=lambda ids: "".join(chr(96 + one) for one in ids))

    def __init__(self, decorate: Callable[..., Any]) -> None:
        self.decorate = decorate

    def made(self) -> Any:
        """Return an object with both kinds of calls."""
        decorate = self.decorate

        class _Agent:
            tokenizer = _Traced.tokenizer

            @decorate
            async def later(self, prompt_ids: Any, more: int = 3) -> Any:
                if more == 0:
                    raise ValueError("none")
                return {"prompt_ids": prompt_ids, "response_ids": [2, 3], "more": more}

            @decorate
            def now(self, value: int, plus: int = 1) -> int:
                return value + plus

        return _Agent()


def _traced(decorate: Callable[..., Any]) -> dict[str, Any]:
    """Return what a backend is given of calls: inputs with defaults, attributes, outputs with texts, errors."""
    import verl.utils.rollout_trace as traces

    config = traces.RolloutTraceConfig
    client = _Client()
    attributes: dict[str, Any] = {}

    @contextlib.contextmanager
    def within(own: Any) -> Any:
        attributes.clear()
        attributes.update(own)
        yield

    weave, trace, context = ModuleType("weave"), ModuleType("weave.trace"), ModuleType("weave.trace.context")
    vars(weave).update(init=lambda name: client, attributes=within)
    vars(context).update(
        call_context=SimpleNamespace(call_attributes=SimpleNamespace(get=lambda: attributes))
    )
    modules = {"weave": weave, "weave.trace": trace, "weave.trace.context": context}
    agent = _Traced(decorate).made()
    config.reset()
    try:
        plain = [agent.now(1), asyncio.run(agent.later([1])), config.get_backend()]
        with mock.patch.dict(sys.modules, modules):
            config.init("project", "run", "weave", token2text=True)
            config.init("other", "other", None)
            with traces.rollout_trace_attr(sample_index=4, step=5, rollout_n=6, validate=True):
                value = agent.now(1, plus=5)
                result = asyncio.run(agent.later([1], more=4))
                failed = raised(lambda: asyncio.run(agent.later([1], 0)))
            with traces.rollout_trace_attr(sample_index=4, trace=False):
                silent = agent.now(7)
        return {
            "plain": plain,
            "results": [value, result, failed, silent],
            "calls": [[name, inputs] for name, inputs, _ in client.calls],
            "attributes": client.calls[0][2],
            "ended": client.ended,
            "configured": [config.get_instance().project_name, config.enable_token2text()],
        }
    finally:
        config.reset()


_GIVEN = {"prompt_ids": [1], "response_ids": [2, 3], "more": 4}
TRACED: Mapping[str, Any] = {
    "plain": [2, {**_GIVEN, "more": 3}, None],
    "results": [6, _GIVEN, "ValueError", 8],
    "calls": [
        ["now", {"value": 1, "plus": 5}],
        ["later", {"prompt_ids": [1], "more": 4}],
        ["later", {"prompt_ids": [1], "more": 0}],
    ],
    "attributes": {"sample_index": 4, "step": 5, "rollout_n": 6, "validate": True, "experiment_name": "run"},
    "ended": [
        [1, 6, None],
        [2, {**_GIVEN, "prompt_text": "a", "response_text": "bc"}, None],
        [3, None, "ValueError"],
    ],
    "configured": ["project", True],
}


def _listed(decorate: Callable[..., Any]) -> list[Any]:
    """Return the traces that Trackio gets: messages of a chat, or of inputs and outputs, and what is known of them."""
    import verl.utils.rollout_trace as traces

    config = traces.RolloutTraceConfig
    logged: list[Any] = []
    trackio, context = ModuleType("trackio"), ModuleType("trackio.context_vars")
    vars(trackio).update(
        init=lambda **_: None,
        Trace=lambda messages, metadata: [messages, metadata],
        log=lambda data, step: logged.append([data, step]),
        context_vars=context,
    )
    vars(context).update(current_run=SimpleNamespace(get=lambda: None))

    class _Agent:
        @decorate
        def answer(self, messages: Any, own: Any = None) -> Any:
            if own is None:
                raise KeyError("x")
            return own

    config.reset()
    try:
        with mock.patch.dict(sys.modules, {"trackio": trackio, "trackio.context_vars": context}):
            config.init("project", "run", "trackio")
            agent = _Agent()
            with traces.rollout_trace_attr(step=5, sample_index=2):
                agent.answer([{"role": "user", "content": "q"}, "odd"], {"response_text": "r"})
                agent.answer("text", {"answer": 3})
                agent.answer([{"role": "user", "content": "q"}], [1])
                raised(agent.answer, [])
    finally:
        config.reset()
    found = []
    for data, step in logged:
        ((name, (messages, metadata)),) = data.items()
        found.append(
            [
                name.rpartition(".")[2],
                step,
                [one["role"] for one in messages],
                messages[-1]["content"],
                metadata["status"],
            ]
        )
    return [found, logged[0][0][next(iter(logged[0][0]))][1]["sample_index"]]


LISTED: Sequence[Any] = [
    [
        ["answer", 5, ["user", "assistant"], "r", "success"],
        ["answer", 5, ["system", "user", "assistant"], "3", "success"],
        ["answer", 5, ["user", "assistant"], '{"output": [1]}', "success"],
        [
            *("answer", 5, ["system", "user", "assistant"]),
            *('{"exception_type": "KeyError", "exception": "\'x\'"}', "error"),
        ],
    ],
    2,
]


def _skipped(manager: Any) -> dict[str, Any]:
    """Return which steps are sampled, kept and read again: the same step, or one that is near."""
    from omegaconf import OmegaConf

    root = folder()
    sampled: list[int] = []

    class _Agents:
        @manager.annotate(role="rollout")  # type: ignore[untyped-decorator]
        def generate(self, prompts: Any) -> Any:
            sampled.append(manager.step)
            return batch_of({"ids": [[manager.step]]})

    def configured(**options: Any) -> Any:
        own = {"enable": True, "dump_dir": str(root), "steps": [1, 2, 5], **options}
        manager.init(
            OmegaConf.create(
                {
                    "skip": {"rollout": own},
                    "trainer": {"experiment_name": "e", "project_name": "p", "v1": {"trainer_mode": "sync"}},
                    "data": {"train_batch_size": 3, "max_response_length": 4, "max_prompt_length": 5},
                    "actor_rollout_ref": {"rollout": {"n": 2}},
                }
            )
        )
        return _Agents()

    def steps(agents: Any, *numbers: int, validate: bool = False) -> list[int]:
        found = []
        for number in numbers:
            manager.set_step(number)
            prompts = batch_of({"x": [[0]]}, validate=validate)
            found.append(int(agents.generate(prompts).batch["ids"][0, 0]))
        return found

    with contextlib.redirect_stdout(io.StringIO()):
        agents = configured(action="cache")
        found: dict[str, Any] = {
            "first": steps(agents, 1, 2, 3),
            "again": steps(agents, 1, 2, 3),
            "sampled": list(sampled),
        }
        sampled.clear()
        found["validations"] = [steps(agents, 1, validate=True), list(sampled)]
        sampled.clear()
        found["near"] = [steps(configured(action="repeat"), 5, 1), list(sampled)]
        sampled.clear()
        found["off"] = [steps(configured(action="cache", enable=False), 1), list(sampled)]
    found["places"] = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir())
    manager.skip_instances = {}
    return found


SKIPPED: Mapping[str, Any] = {
    "first": [1, 2, 3],
    "again": [1, 2, 3],
    "sampled": [1, 2, 3, 3],
    "validations": [[1], [1]],
    "near": [[2, 1], []],
    "off": [[1], [1]],
    "places": ["e_p", "e_p/GBS3_N2_in5_out4", "e_p/GBS3_N2_in5_out4/1", "e_p/GBS3_N2_in5_out4/2"],
}
ROWS: Sequence[Row] = (
    Row("rollouts", f"{TRACES}rollout_trace_op", "calls, texts and errors", _traced, TRACED, since="0.9"),
    Row("rollouts", f"{TRACES}rollout_trace_op", "chats of Trackio", _listed, LISTED, since="0.8"),
    Row(
        "rollouts", f"{SKIPS}skip_manager:SkipManager", "steps that are read", _skipped, SKIPPED, since="0.4"
    ),
)
