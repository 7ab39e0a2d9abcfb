"""Worked examples of what processes and parts exchange: requests and answers, weights under other names, errors."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch

from refrl import cli
from refrl.config.loading import ConfigError
from refrl.data_plane.flow import ConsumePlan, consume
from refrl.data_plane.metadata import KVBatchMeta
from refrl.generation import broadcast_link, torch_engine
from refrl.generation.base import Completion, MediaSampler, SamplingParams
from refrl.generation.messages import Message
from refrl.generation.process import GeneratorLostError, SocketLink
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rollout.multi_turn import take_turns
from refrl.rollout.sync import RolloutWorker
from refrl.runtime import generator_process
from refrl.streams import random_stream
from refrl.training import build
from refrl.weight_sync.receiver import _refuse
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.weights import of_weights


def of_exchanges() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_answers()
    yield from of_weights()
    yield from _of_requests()
    yield from _of_media()
    yield from _of_signals()


class _Engine:
    """An engine that draws a number, and notes what it is asked."""

    weight_version = 7

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def generate(self, prompts: Any, params: SamplingParams, stream: torch.Generator) -> list[Completion]:
        """Draw one number."""
        self.asked.append((prompts, params.stop_token_ids, params.temperature))
        number = int(torch.randint(100, (1,), generator=stream))
        return [
            Completion(
                prompt_ids=(1,), ids=(number,), logprobs=(-0.5,), finish_reason="stop", weight_version=7
            )
        ]

    def generate_with_media(self, prompts: Any, media: Any, params: Any, stream: Any) -> list[Completion]:
        """Raise what the media name, or return nothing."""
        self.asked.append((prompts, media))
        errors = {"type": TypeError, "value": ValueError, "run": RuntimeError, "key": KeyError}
        if media[0] in errors:
            raise errors[media[0]]("no\n such place")
        return []

    def begin(self, version: int, based_on: int | None) -> None:
        """Note it."""
        self.asked.append((version, based_on))
        if based_on == 9:
            raise ConfigError("nine")

    def commit(self, fingerprints: Any) -> Any:
        """Return a receipt."""
        self.asked.append(fingerprints)
        return SimpleNamespace(num_tensors=3, seconds={"a": 0.5}, largest_load_bytes=8)

    def abort(self) -> None:
        """Note it."""
        self.asked.append("abort")

    def resume(self) -> None:
        """Note it."""
        self.asked.append("resume")


def _of_answers() -> Iterator[WorkedExample]:
    for stop in (None, [3, 4]):

        def sampled(stop: Any = stop) -> Any:
            engine, stream = _Engine(), random_stream(5, "x", 0)
            params = {"max_new_tokens": 4, "temperature": 0.5, "stop_token_ids": stop}
            message = Message("generate", {"prompts": [[1]], "params": params}, [stream.get_state()])
            found: Any = generator_process._generate(cast(Any, engine), message)
            number = int(torch.randint(100, (1,), generator=stream))
            rows = found.fields["completions"]
            return (
                engine.asked,
                found.kind,
                [row["ids"] for row in rows] == [(number,)],
                torch.equal(found.tensors[0], stream.get_state()),
                type(engine.asked[0][1]).__name__,
            )

        due = [([[1]], stop, 0.5)], "sampled", True, True, "NoneType" if stop is None else "tuple"
        yield example(f"rows that a process samples, stop ids {stop}", due, sampled)

    def answered() -> Any:
        engine, served = _Engine(), generator_process.GeneratorServer()
        served.abort()
        served.resume()
        served._engine = cast(Any, engine)
        served.abort()
        served.resume()
        begun = [served.answer(Message("begin", {"version": 4, "based_on": one})) for one in (None, 3, 9)]
        done = served.answer(Message("commit", {"fingerprints": {"a": "b"}}))
        return engine.asked, [(one.kind, dict(one.fields)) for one in (*begun, done)]

    receipt = {"num_tensors": 3, "seconds": {"a": 0.5}, "largest_load_bytes": 8, "version": 7}
    kinds: list[Any] = [("begun", {})] * 2 + [
        ("error", {"error": "ConfigError", "message": "nine"}),
        ("committed", receipt),
    ]
    asked = ["abort", "resume", (4, None), (4, 3), (4, 9), {"a": "b"}]
    yield example("answers of a process", (asked, kinds), answered)

    def joined() -> Any:
        made: list[Any] = []

        class Pair:
            def __init__(self, **options: Any) -> None:
                made.append(options)

            def join(self) -> None:
                made.append("joined")

        with patch.object(broadcast_link, "BroadcastPair", Pair):
            broadcast_link.BroadcastEnd({"port": 5, "timeout_seconds": 2.5, "device": "cpu"})
        return made

    right = [{"port": 5, "timeout_seconds": 2.5, "device": torch.device("cpu")}, "joined"]
    yield example("how a process joins a broadcast", right, joined)

    def lost(error: Exception) -> Any:
        closed: list[Any] = []
        link: Any = SimpleNamespace(
            _connection=SimpleNamespace(settimeout=closed.append),
            timeout_seconds=2.5,
            _exchange=_raising(error),
            close=lambda: closed.append("closed"),
            pid=4,
            _process=SimpleNamespace(returncode=-9),
        )
        try:
            SocketLink.ask(link, Message("sample"))
        except GeneratorLostError as lost:
            return closed, str(lost)
        return None

    for error, how in (
        (TimeoutError(), "did not answer in time and was stopped"),
        (EOFError(), "ended by signal 9"),
        (ConnectionResetError(), "ended by signal 9"),
        (BrokenPipeError(), "ended by signal 9"),
    ):
        said = f"the generator's process 4 {how}, asked to sample"
        yield example(f"a process lost by {type(error).__name__}", ([2.5, "closed"], said), lost, error)
    for num in (0, 1, 3, 4, 5):
        wrong = {f"w{number}": f"how {number}" for number in range(num, 0, -1)}
        named = ", ".join(f"w{number} (how {number})" for number in range(1, min(num, 3) + 1))
        said = f"sent {named}{f' and {num - 3} more' if num > 3 else ''}$"
        yield example(f"{num} wrong tensors", said if num else None, _said, wrong)


def _raising(error: Exception) -> Any:
    def call(*words: Any, **options: Any) -> Any:
        raise error

    return call


def _said(wrong: Mapping[str, str]) -> str | None:
    try:
        _refuse(wrong, "sent")
    except Exception as error:  # noqa: BLE001  its words are compared
        return f"{error}$"
    return None


def _of_requests() -> Iterator[WorkedExample]:
    config = policy_configuration({"dtensor_cfg.enabled": True, "generation.temperature": 0.5})

    def built(temperature: float | None) -> Any:
        with patch.object(build, "make_policy", lambda request: request):
            made: Any = build.build_policy(
                config,
                cast(Any, "tokenizer"),
                device=torch.device("cpu"),
                num_updates=3,
                with_reference=True,
                temperature=temperature,
            )
        return made.temperature, made.num_updates, made.with_reference, made.tokenizer, made.world.size

    for temperature, right in ((None, 0.5), (0.75, 0.75)):
        yield example(
            f"a policy at temperature {temperature}", (right, 3, True, "tokenizer", 1), built, temperature
        )

    def claimed() -> Any:
        asked: list[Any] = []

        def claim(*words: Any, **options: Any) -> KVBatchMeta:
            asked.append((words, options))
            raise ValueError

        sizes = {"batch_size": 6, "min_batch_size": 2, "min_kept": 3}
        waits = {"timeout_s": 0.25, "lease_s": 7.5}
        plan = ConsumePlan(partition_id="p", task_name="t", fields=["x"], **sizes, **waits)  # type: ignore[arg-type]
        client: Any = SimpleNamespace(claim_meta=claim)
        with contextlib.suppress(ValueError):
            consume(client, plan, lambda batches: None, current_weight_version=1)
        ((words, options),) = asked
        return words, options.pop("timeout_s") <= 0.25, options

    planned = ("p", "t", ["x"], 6), True, {"min_batch_size": 3, "lease_s": 7.5}
    yield example("a claim as it is planned", planned, claimed)

    def asked() -> Any:
        said: list[Any] = []
        ends = ("stop", "length", "stop")
        rows = [
            Completion((1,), (97 + place,), (-0.5,), finish_reason=end, weight_version=0)  # type: ignore[arg-type]
            for place, end in enumerate(ends)
        ]

        def respond(turns: Sequence[str]) -> str | None:
            said.append(list(turns))
            return "!" if len(said) == 1 else None

        environment: Any = SimpleNamespace(max_turns=3, respond=respond)

        def generate(prompts: Sequence[Any], *words: Any) -> list[Completion]:
            return rows if len(prompts) == 3 else rows[1:2]

        sampler: Any = SimpleNamespace(generate=generate)
        encoder, params = make_byte_tokenizer(), SamplingParams(max_new_tokens=9)
        found = take_turns(sampler, environment, encoder, [(1,)] * 3, params, random_stream(0, "x", 0))
        return said, [one.ids for one in found]

    yield example("turns that are answered", ([["a"], ["c"]], [(97, 33, 98), (98,), (99,)]), asked)
    yield example("the word that a model takes its cache by", "past_key_values", _engine, "plain")
    for kind in ("fixed", "nameless"):
        words = "cannot be reordered by rows"
        yield refused(words, f"an engine of a {kind} model", _engine, kind)


def _engine(kind: str) -> Any:
    """Return the word that an engine gives a model its cache by."""

    class Model:
        config = None

        def forward(self, input_ids: Any, past_key_values: Any = None, position_ids: Any = None) -> Any:
            """Take a cache."""

    class Nameless(Model):
        def forward(self, input_ids: Any) -> Any:  # type: ignore[override]
            """Take none."""

    layers = [SimpleNamespace(batch_select_indices=None), *([SimpleNamespace()] if kind == "fixed" else [])]
    with patch.object(torch_engine, "DynamicCache", lambda config: SimpleNamespace(layers=layers)):
        return torch_engine.CachedDecoder(
            cast(Any, Nameless() if kind == "nameless" else Model())
        )._cache_word


def _of_media() -> Iterator[WorkedExample]:
    def sampled(media: str, environment: Any = None, *, takes: bool = True) -> Any:
        engine: Any = _Engine() if takes else SimpleNamespace(generate=lambda *words: [])
        assert isinstance(engine, MediaSampler) == takes
        examples = [SimpleNamespace(media=one) for one in (media, None)]
        worker = RolloutWorker(
            engine, make_byte_tokenizer(), lambda of: [(1,)] * len(of), environment=environment
        )
        worker.sample(cast(Any, examples), SamplingParams(max_new_tokens=1), torch.Generator())
        return engine.asked

    yield example("prompts with an image", [([(1,), (1,)], ["image", None])], sampled, "image")
    for media in ("type", "value", "run"):
        yield refused(
            "does not take its images or sounds (no such place)",
            f"media with an error: {media}",
            sampled,
            media,
        )
    yield refused("data.task has images or sounds", "an image in several turns", sampled, "image", object())
    yield refused(
        "data.task has images or sounds", "an image for another engine", sampled, "image", takes=False
    )


def _of_signals() -> Iterator[WorkedExample]:
    def kept(error: BaseException | None) -> Any:
        seen: list[Any] = []

        def run(arguments: Any) -> None:
            seen.extend(signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM))
            if error is not None:
                raise error

        command = SimpleNamespace(run=run, add_arguments=print)
        before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
        own = [signal.signal(one, _handled) for one in (signal.SIGINT, signal.SIGTERM)]
        try:
            with patch("importlib.import_module", lambda name: command):
                code = cli.main(["recipes"])
            after = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
        finally:
            for one, handler in zip((signal.SIGINT, signal.SIGTERM), own, strict=True):
                signal.signal(one, handler)
        return (
            code,
            seen == [signal.default_int_handler, cli._terminate],
            after == [_handled] * 2,
            before == own,
        )

    for error, code in (
        (None, 0),
        (ConfigError("x"), 2),
        (OSError("x"), 1),
        (FloatingPointError("x"), 1),
        (MemoryError("x"), 1),
        (KeyboardInterrupt(), 130),
        (cli.Terminated(), 143),
    ):
        yield example(
            f"signals of a command that ends with {type(error).__name__}",
            (code, True, True, True),
            kept,
            error,
        )


def _handled(number: int, frame: Any) -> None:
    """Handle a signal."""
