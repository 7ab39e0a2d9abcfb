"""Worked examples of what builds parts: buffers, replicas, collectors, policies and engines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from refrl.config import GRPORunConfig
from refrl.errors import TrainingError
from refrl.timing import Timer
from refrl.training import asynchronous, build, build_generation
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration, policy_configuration
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_packages import package

ALONGSIDE: Mapping[str, Any] = {
    "grpo.async_grpo.enabled": True,
    "policy.generation.colocated.enabled": False,
}


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_buffers()
    yield from _of_collectors()
    yield from _of_models()


def _asynchronous(**options: Any) -> GRPORunConfig:
    chosen = {f"grpo.async_grpo.{name}": value for name, value in options.items() if "__" not in name}
    chosen |= {name.replace("__", "."): value for name, value in options.items() if "__" in name}
    return configuration({**ALONGSIDE, **chosen})


class Noted:
    """Takes the place of a class; keeps what it is made of."""

    def __init__(self, *words: Any, **options: Any) -> None:
        self.words, self.options = words, options


def _buffer(config: GRPORunConfig) -> Any:
    stale = patch.object(asynchronous, "StalenessFilter", lambda age: SimpleNamespace(age=age))
    with patch.object(asynchronous, "ReplayBuffer", Noted), stale:
        made: Any = asynchronous.build_buffer(config, "client")  # type: ignore[arg-type]
    filters = [_filter(one) for one in made.options.pop("filters", ())]
    return made.words, made.options, filters


def _filter(one: Any) -> Any:
    """Return what a filter is, with its limit."""
    limits = [value for value in vars(one).values() if isinstance(value, int | float)]
    inner = [_filter(value) for value in vars(one).values() if hasattr(value, "__dict__")]
    return [type(one).__name__, *limits, *inner]


def _of_buffers() -> Iterator[WorkedExample]:
    rows = {"grpo.num_prompts_per_step": 3, "grpo.num_generations_per_prompt": 4}
    rows |= {"policy.train_global_batch_size": 6}
    sizes = {"groups_per_step": 3, "group_size": 4}
    yield example(
        "the buffer of a step",
        (("client",), {**sizes, "capacity": 3, "timeout_s": 0.0}, []),
        _buffer,
        configuration(rows),
    )
    chosen = {name.replace(".", "__"): value for name, value in rows.items()}
    yield example(  # two updates a step, one step old at most
        "the buffer of rollouts alongside training",
        (("client",), {**sizes, "capacity": 9}, [["SimpleNamespace", 2]]),
        lambda: _buffer(_asynchronous(**chosen)),
    )
    yield example(
        "the buffer of older rollouts",
        (
            ("client",),
            {**sizes, "capacity": 15},
            [["SimpleNamespace", 6], ["WholeGroups", ["LengthFilter", 5]], ["ZeroVarianceFilter"]],
        ),
        lambda: _buffer(
            _asynchronous(max_trajectory_age_steps=3, drop_longer_than=5, drop_zero_variance=True, **chosen)
        ),
    )
    for options, right in (
        ({}, []),
        ({"drop_longer_than": 5}, [["WholeGroups", ["LengthFilter", 5]]]),
        ({"drop_zero_variance": True}, [["ZeroVarianceFilter"]]),
    ):
        yield example(
            f"filters of {options}",
            right,
            lambda options=options: [
                _filter(one) for one in asynchronous.build_filters(_asynchronous(**options).grpo.async_grpo)
            ],
        )


def _session(noted: list[Any], **more: Any) -> Any:
    parts = {
        "prompts": "prompts",
        "verifier": "verifier",
        "sampling": "sampling",
        "timer": Timer(),
        "tokenizer": SimpleNamespace(pad_token_id=3),
        "policy": SimpleNamespace(
            version=5, named_weights=lambda: iter([("a", torch.zeros(1)), ("b", torch.zeros(2))])
        ),
        "prepare_for_generation": "prepared",
        "progress": "progress",
        "attempt": SimpleNamespace(checkpoint=None),
        "logger": SimpleNamespace(
            log_parts=lambda parts: noted.append(("parts", sorted(parts), parts["trainer"] == os.getpid())),
            log_rows=lambda rows, name, step: noted.append((name, step, list(rows))),
        ),
        **more,
    }
    return SimpleNamespace(**parts)


@contextmanager
def _made_parts(noted: list[Any], left: Sequence[Any] = ()) -> Iterator[None]:
    """Let made parts take the place of stores, engines and collectors."""

    class Buffer(Noted):
        def close(self) -> Sequence[Any]:
            return left

    class Entered(Noted):
        def __enter__(self) -> Any:
            noted.append("entered")
            return self

        def __exit__(self, *words: Any) -> None:
            noted.append("left")

        def unused(self) -> list[Any]:
            return list(left)

    def generator(config: Any, tokenizer: Any, *, device: Any, number: int) -> Any:
        noted.append(("engine", tokenizer.pad_token_id, str(device), number))
        return SimpleNamespace(pid=None if number == 1 else 40 + number)

    with ExitStack() as stack:
        for name, made in {
            "opened_data_plane": _opened,
            "ReplayBuffer": Buffer,
            "Collector": Noted,
            "SyncCollector": Noted,
            "AsyncCollector": Entered,
            "PooledSampler": Noted,
            "build_generator": generator,
            "build_weight_sync": lambda config, policy, engine: ("sync", policy.version, engine.pid),
            "replace": lambda one, **changes: SimpleNamespace(**{**vars(one), **changes}),
            "asdict": lambda one: one,
        }.items():
            stack.enter_context(patch.object(asynchronous, name, made))
        yield


@contextmanager
def _opened(config: Any) -> Iterator[str]:
    yield "client"


def _collected(config: GRPORunConfig, left: Sequence[Any] = (), **more: Any) -> Any:
    """Return what a session collects with, and what is noted on the way."""
    noted: list[Any] = []
    session = _session(noted, worker=SimpleNamespace(generator="own", tokenizer="t"), **more)
    with _made_parts(noted, left), asynchronous.collecting(session, config) as collecting:
        source: Any = collecting.collector
        noted.append("collecting")
    inner = source.words[0].options
    return source, inner, noted, session


def _of_collectors() -> Iterator[WorkedExample]:
    def each_step() -> Any:
        source, inner, noted, session = _collected(configuration({}))
        return (
            inner["worker"] is session.worker,
            inner["timer"] is session.timer,
            [inner[name] for name in ("prompts", "verifier", "sampling")],
            source.words[1].options["capacity"],
            source.options["prepare"],
            source.options["version"](),
            noted,
        )

    yield example(
        "what collects for each step",
        (
            True,
            True,
            ["prompts", "verifier", "sampling"],
            2,
            "prepared",
            5,
            [("parts", ["trainer"], True), "collecting"],
        ),
        each_step,
    )
    group = SimpleNamespace(number=7)
    yield refused(
        "groups [7] were sampled and not trained on",
        "a group that is left",
        lambda: _collected(configuration({}), [group]),
    )

    def alongside(
        left: Sequence[Any] = (), *, saves: bool = False, resumed: bool = False, **options: Any
    ) -> Any:
        saving = {"checkpointing__enabled": True, "checkpointing__save_period": 1} if saves else {}
        config = _asynchronous(num_replicas=3, grpo__max_num_steps=9, **saving, **options)
        attempt = SimpleNamespace(checkpoint="kept" if resumed else None)
        source, inner, noted, session = _collected(config, left, attempt=attempt)
        _, sampler, buffer, schedule = source.words
        return {
            "replicas": [(one.name, one.engine.pid, one.weight_sync) for one in sampler.words[0]],
            "continues": sampler.options["continues"],
            "samples with": (inner["worker"].generator is sampler, inner["worker"].tokenizer),
            "own timer": inner["timer"] is session.timer,
            "timer": source.options["timer"] is session.timer,
            "version": source.options["version"](),
            "progress": source.options["progress"],
            "age": schedule.max_staleness,
            "buffer": buffer.options["capacity"],
            "noted": noted,
        }

    engines = [("engine", 3, "cpu", number) for number in range(3)]
    right = {
        "replicas": [
            ("generation/0", 40, ("sync", 5, 40)),
            ("generation/1", None, ("sync", 5, None)),
            ("generation/2", 42, ("sync", 5, 42)),
        ],
        "continues": False,
        "samples with": (True, "t"),
        "own timer": False,
        "timer": True,
        "version": 5,
        "progress": None,
        "age": 1,
        "buffer": 6,
        "noted": [
            *engines,
            ("parts", ["generation/0", "generation/2", "trainer"], True),
            "entered",
            "collecting",
            "left",
            ("unused_group_data", 9, [{"number": 4}]),
        ],
    }
    yield example("what collects alongside training", right, alongside, [{"number": 4}])
    for name, options, key, value in (
        ("updates in flight", {"in_flight_weight_updates": True}, "continues", True),
        ("older rollouts", {"max_trajectory_age_steps": 2}, "age", 2),
        ("a run that saves", {"saves": True}, "progress", "progress"),
        ("a run that was saved", {"resumed": True}, "progress", "progress"),
    ):
        yield example(
            f"what collects, with {name}", value, lambda options=options, key=key: alongside(**options)[key]
        )
    yield refused("no space", "an error of the block", lambda: _raised(configuration({})))


def _raised(config: GRPORunConfig) -> None:
    """Raise in a block that collects: what is left in the store is not the reason then."""
    noted: list[Any] = []
    session = _session(noted, worker=SimpleNamespace(generator="own"))
    with _made_parts(noted, [SimpleNamespace(number=7)]), asynchronous.collecting(session, config):
        raise TrainingError("no space")


def _of_models() -> Iterator[WorkedExample]:
    for adapts, reference in ((False, False), (False, True), (True, True), (True, False)):
        which = ("none", "the model" if adapts else "a copy in torch.bfloat16")[reference]
        for given in (None, 0.25):
            due = ["adapted", "optimizer of torch.float32", "compiled torch.bfloat16", which, given or 0.5, 4]
            name = f"a policy, adapted: {adapts}, with a reference: {reference}, at temperature {given}"
            yield example(name, due, _policy, adapts, reference, given)
    for positions, limit in ((None, 64), (32, 32), (99, 64)):
        right = ["torch.bfloat16", False, False, ("cpu", 64), 6, limit, 77]
        yield example(f"an engine of Megatron for {positions} positions", right, _megatron, positions)
    yield example("an engine of vLLM", ("cpu", True), _vllm)


def _policy(adapts: bool, with_reference: bool, temperature: float | None) -> Any:
    """Return how a policy is made: in which order, of which precision, with which reference and temperature."""
    noted: list[Any] = []
    model: Any = nn.Linear(2, 2)
    config = policy_configuration(
        {
            "precision": "bfloat16",
            "compile_layers": True,
            "generation.temperature": 0.5,
            "train_global_batch_size": 4,
        }
    )

    def optimizer(of: Any, section: Any, *, num_updates: int) -> Any:
        assert (of, section, num_updates) == (model, config, 7)
        noted.append(f"optimizer of {of.weight.dtype}")

    def adapters(of: Any, section: Any) -> str | None:
        noted.append("adapted")
        return "adapters" if adapts else None

    changes: Mapping[str, Any] = {
        "load_model": lambda path: model,
        "make_adapters": adapters,
        "build_optimizer": optimizer,
        "compile_layers": lambda of: noted.append(f"compiled {of.weight.dtype}"),
        "make_scoring": lambda section, of, at: at,
        "make_auxiliary": lambda section, of, *, num_updates, temperature: (num_updates, temperature),
        "HFPolicy": Noted,
    }
    with patch.multiple(build, **changes):
        made: Any = build.build_policy(
            config, "tokenizer", device=torch.device("cpu"), num_updates=7,  # type: ignore[arg-type]
            with_reference=with_reference, world="world", temperature=temperature,  # type: ignore[arg-type]
        )  # fmt: skip
    options, reference = made.options, made.options["reference"]
    assert made.words == (model, "tokenizer") and not model.training
    assert options["world"] == "world" and options["adapters"] == ("adapters" if adapts else None)
    assert options["auxiliary"] == (7, options["scoring"])
    which = "none" if reference is None else "the model" if reference is model else "a copy"
    if which == "a copy":
        assert not any(one.requires_grad for one in reference.parameters()) and model.weight.requires_grad
        which += f" in {reference.weight.dtype}"
    return [*noted, which, options["scoring"], options["global_batch_size"]]


def _megatron(positions: int | None) -> Any:
    """Return the model, place, padding, length and load of an engine of Megatron."""
    model: Any = nn.Linear(2, 2).train()
    model.config = SimpleNamespace(**({} if positions is None else {"max_position_embeddings": positions}))
    options = {"precision": "bfloat16", "max_total_sequence_length": 64, "generation.backend": "megatron",
               "generation.colocated.enabled": False,
               "generation.delta_compression.delta_load_batch_size_bytes": 77}  # fmt: skip
    served = package(
        "served", ServedModel=lambda config, device: (str(device), config.max_total_sequence_length)
    )
    with (
        patch.dict(sys.modules, {"refrl.policy.megatron.served": served}),
        patch.multiple(build_generation, load_model=lambda path: model, MegatronGenerator=Noted),
    ):
        made: Any = build_generation.build_engine(
            policy_configuration(options), pad_token_id=6, device=torch.device("cpu")
        )
    of, place = made.words
    of_model = [str(of.weight.dtype), of.weight.requires_grad, of.training]
    return [*of_model, place, *(made.options[name] for name in ("pad_token_id", "limit", "load_batch_bytes"))]


def _vllm() -> Any:
    config = policy_configuration({"generation.backend": "vllm", "generation.colocated.enabled": False})
    with patch.object(build_generation, "VllmGenerator", Noted):
        made: Any = build_generation.build_engine(config, pad_token_id=6, device=torch.device("cpu"))
    return str(made.options["device"]), made.words == (config,)
