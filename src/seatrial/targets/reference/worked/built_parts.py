"""Worked examples of what builders of a run pass on, and of validations and records whose figures differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch

from refrl.distributed import World
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rewards import VerifierError, weighted
from refrl.rewards.weighted import Part, VerifierStats, WeightedVerifier
from refrl.timing import Timer
from refrl.training import asynchronous, build, build_generation, grpo, step_records
from refrl.training.session import Observer, make_observer
from refrl.training.steps import Steps
from refrl.training.validation import METRICS, check_validation_metric, is_validation_step, validate
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration, tuning_configuration
from seatrial.targets.reference.worked.made import batch, example, refused, rollouts, sample
from seatrial.targets.reference.worked.rewards import several
from seatrial.targets.reference.worked.steps import made_session, options_of, quietly


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_builders()
    yield from _of_generators()
    yield from _of_validations()
    yield from _of_records()


def _of_builders() -> Iterator[WorkedExample]:
    right: Any
    for name, right in ((None, "model"), ("own", "own")):
        yield example(f"the tokenizer of a model where {name} is named", ["model", right], _tokenizer, name)
    for most, buckets, right in (
        (6, [], (4, 6)),
        (9, [], (7, 9)),
        (9, [5], (3, 5)),
        (9, [7, 8], (6, 8)),
        (64, [], (8, 10)),
    ):
        what = f"a row of ten tokens in a batch of at most {most}, in buckets {buckets}"
        yield example(what, right, _cut, most, buckets)
    for system, template in ((None, None), (None, "byte"), ("be brief", "byte")):
        right = {"chat_template": template, "system_prompt": system, "media_token_id": 7}
        yield example(f"the encoder with {system!r} and {template}", right, _encoder, system, template)
    for stops, right in ((None, (1, 5, 258)), ([9], (9,)), ([], ())):
        yield example(f"where completions end with {stops}", right, _stops, stops)
    for backend in ("torch", "vllm", "megatron"):
        python = "own" if backend == "vllm" else None
        right = (python, True, "cuda:1", None)
        yield example(f"the interpreter of an engine of {backend}", right, _interpreter, backend)
    for needed in (True, False):
        right = ["update"] if needed else []
        yield example(f"updates that an observer gets, needed: {needed}", right, _updates, needed)
    yield example("a batch of tools' tokens without filters", 0.0, _unfiltered)
    yield example("observers in order", ["named", "given"], _observers)
    for num in (0, 1):
        right = {"prompts_per_step": 2, "prompts_per_forward_backward": 2, "max_staleness": num + 1}
        yield example(f"the schedule of an age of {num + 1}", right, _schedule, num + 1)
    for first in (0, 3):
        yield example(f"names that are checked from step {first + 1} on", [first + 1], _checked_names, first)


def _tokenizer(name: str | None) -> list[str]:
    read: list[str] = []
    config: Any = SimpleNamespace(model_name="model", tokenizer=SimpleNamespace(name=name))
    with (
        patch.object(build, "check_model_directory", lambda path: read.append(str(path))),
        patch.object(build, "load_tokenizer", lambda path: read.append(str(path))),
    ):
        build.build_tokenizer(config)
    return read


def _cut(most: int, buckets: Sequence[int]) -> Any:
    """Return how many of eight tokens are kept after a prompt of two, and the width of the batch."""
    config: Any = SimpleNamespace(sequence_length_buckets=buckets, max_total_sequence_length=most)
    made = build.build_batch([sample([1, 1], [2] * 8)], config, pad_token_id=0)
    return int(made.completion_lens_B[0]), made.input_ids_BS.shape[1]


def _encoder(system: str | None, template: str | None) -> Mapping[str, Any]:
    config: Any = SimpleNamespace(model_name="model", tokenizer=SimpleNamespace(chat_template=template))
    data: Any = SimpleNamespace(system_prompt=system)
    with (
        patch.object(build, "PromptEncoder", lambda tokenizer, **options: options),
        patch.object(build, "media_token_id", lambda path: 7 if path == Path("model") else None),
    ):
        found: Any = build.build_encoder(config, data, make_byte_tokenizer())
    return dict(found)


def _stops(stops: Sequence[int] | None) -> Any:
    config: Any = SimpleNamespace(
        stop_token_ids=None if stops is None else tuple(stops),
        max_new_tokens=3,
        temperature=0.5,
        top_p=0.25,
        top_k=2,
    )
    generator: Any = SimpleNamespace(stop_ids=lambda: {5, 1})
    encoder: Any = SimpleNamespace(end_token_id=lambda: 258)
    made = build.build_sampling(config, generator, encoder)
    assert (made.max_new_tokens, made.temperature, made.top_p, made.top_k) == (3, 0.5, 0.25, 2), made
    return made.stop_token_ids


def _interpreter(backend: str) -> Any:
    """Return the interpreter of an engine's process, whether its link gets its device, and device and padding."""
    linked: list[Any] = []
    generation = SimpleNamespace(
        backend=backend, vllm_cfg=SimpleNamespace(python="own"), weight_transport="messages"
    )
    config: Any = SimpleNamespace(generation=generation)
    device, none = torch.device("cuda:1"), cast(int, None)
    links = {"messages": lambda python, device: linked.append((python, device))}

    def made(config: Any, *, connect: Any, pad_token_id: int, device: Any) -> Any:
        connect()
        return str(device), pad_token_id

    with (
        patch.object(build_generation, "LINKS", links),
        patch.object(build_generation, "ProcessGenerator", made),
    ):
        found: Any = build_generation._engine_in_process(config, pad_token_id=none, device=device)
    return linked[0][0], linked[0][1] is device, *found


def _updates(needed: bool) -> list[Any]:
    session = made_session()
    session.observer.needs_gradients = needed
    found: list[Any] = []
    quietly(lambda: found.append(grpo.update_policy(session, options_of(), 1, rollouts())))
    return list(found[0].updates)


def _unfiltered() -> float:
    made = replace(batch(), mask_BT=torch.zeros(3, 3))
    return float(
        grpo.mask_filtered(
            made, rollouts(), options_of(grpo__overlong_filtering=False).grpo, 1
        ).batch.mask_BT.sum()
    )


class _Named(Observer):
    def __init__(self, noted: list[str], name: str) -> None:
        self._noted, self._name = noted, name

    def ended(self, session: Any) -> None:
        """Note the name."""
        self._noted.append(self._name)


NOTED: list[str] = []


def named_observer(config: Any) -> Observer:
    """Return an observer that a configuration names."""
    return _Named(NOTED, "named")


def _observers() -> list[str]:
    NOTED.clear()
    config: Any = SimpleNamespace(logger=SimpleNamespace(observers=(f"{__name__}:named_observer",)))
    session: Any = None
    make_observer(config, _Named(NOTED, "given")).ended(session)
    return list(NOTED)


def _schedule(age: int) -> Any:
    aged = SimpleNamespace(max_trajectory_age_steps=age)
    config: Any = SimpleNamespace(num_prompts_per_step=2, async_grpo=aged)
    with patch.object(asynchronous, "make_schedule", lambda **options: options):
        return asynchronous.build_schedule(config)


def _checked_names(first: int) -> list[int]:
    """Return after which steps the metric's name is checked."""
    checked: list[int] = []
    taken: list[int] = []
    checkpointer = SimpleNamespace(
        check_training_metric=lambda names: checked.append(taken[-1]) if names == ["loss"] else None,
        is_out_of_time=lambda: False,
        is_due=lambda step, **options: False,
    )
    logger = SimpleNamespace(names=lambda prefix: ["loss"] if prefix == "train" else [])
    attempt = SimpleNamespace(step=first, is_finished=False)
    session: Any = SimpleNamespace(attempt=attempt, checkpointer=checkpointer, logger=logger)
    for step in Steps(session, 5):
        taken.append(step)
    return checked


def _of_generators() -> Iterator[WorkedExample]:
    timer = Timer()
    yield example("the timer of a weight sync", True, lambda: _synced(timer) is timer)
    yield example("a weight sync without a timer", True, lambda: isinstance(_synced(None), Timer))


def _synced(timer: Timer | None) -> Any:
    nothing: Any = SimpleNamespace()
    with patch.object(build_generation, "make_weight_sync", lambda config, policy, generator, timer: timer):
        return build_generation.build_weight_sync(nothing, nothing, nothing, timer)


def _of_validations() -> Iterator[WorkedExample]:
    figures = {
        "accuracy": 0.5,
        "reward": 0.5625,
        "avg_length": 2.25,
        "truncation_rate": 0.75,
        "num_verifier_errors": 1.0,
    }
    yield example("a validation of which most was cut off", (0.5, figures), _validated)
    names = [*METRICS, *(f"verifier/exact_match/{one}" for one in ("reward", "num_errors", "num_timeouts"))]
    for name in names:
        for tunes in (False, True):
            yield example(f"checkpoints by {name}, tuning: {tunes}", None, _ranked_by, name, tunes)
    yield example("checkpoints by the loss of a validation", None, _ranked_by, "val_loss", True)
    for name in ("val_loss", "verifier/byte_closeness/reward", "loss"):
        yield refused(
            "is not a metric of this run", f"checkpoints of GRPO by {name}", _ranked_by, name, False
        )
    for tunes, section in ((False, "grpo"), (True, "sft")):
        words = f"has none after a step: set {section}.val_period to a divisor of checkpointing.save_period"
        yield refused(
            words, f"checkpoints by no validation, tuning: {tunes}", _ranked_by, "accuracy", tunes, 0
        )
        yield example(
            f"checkpoints by the last validation, tuning: {tunes}",
            None,
            _ranked_by,
            "accuracy",
            tunes,
            0,
            True,
        )
    for start, end, period, right in (
        (False, False, 0, []),
        (True, False, 0, [0]),
        (False, True, 0, [5]),
        (False, False, 2, [2, 4]),
        (True, True, 2, [0, 2, 4, 5]),
        (False, True, 5, [5]),
    ):
        loop: Any = SimpleNamespace(val_at_start=start, val_at_end=end, val_period=period, max_num_steps=5)
        name = f"validations every {period} of 5 steps, at the start: {start}, at the end: {end}"
        yield example(name, right, _validation_steps, loop)


def _validation_steps(loop: Any) -> list[int]:
    return [step for step in range(6) if is_validation_step(loop, step)]


def _validated() -> Any:
    """Return accuracy and figures of a validation of which three of four completions were cut off."""
    made = rollouts()
    cut = [
        replace(one, finish_reason="stop" if at == 2 else "length") for at, one in enumerate(made.completions)
    ]
    scores = replace(made.scores, rewards=[1.0, 0.25, 0.0, 1.0])
    made = replace(made, completions=cut, scores=scores)
    session = made_session(verifier=lambda completion, answer: 1.0)
    session.validation = made.examples
    session.prepare_for_generation = lambda: None
    session.worker = SimpleNamespace(
        sample=lambda examples, params, stream: made.completions, reward=lambda *words: made
    )
    found: list[float] = []
    quietly(lambda: found.append(validate(session, options_of().grpo, 3)))
    return found[0], session.logger.of("validation", 3)


def _ranked_by(name: str, tunes: bool, period: int = 1, at_end: bool = False) -> None:
    section = "sft" if tunes else "grpo"
    options = {
        "checkpointing.metric_name": f"val:{name}",
        "checkpointing.save_period": 1,
        f"{section}.val_period": period,
        f"{section}.val_at_end": at_end,
        "data.verifiers": {"exact_match": 1.0},
        **({"data.verifier": None} if tunes else {}),
    }
    config: Any = (tuning_configuration if tunes else configuration)(options)
    check_validation_metric(config, getattr(config, section))


def _of_records() -> Iterator[WorkedExample]:
    yield example("figures of a verifier's parts over two ranks", (PARTS, SECONDS), _parts)
    yield example("the digest of an image in a row", [None, _digest("2:AADAPwAAAMA="), None], _media)
    yield refused(
        "needs batch.advantages_B", "metrics of no advantages", step_records.advantage_metrics, batch()
    )
    yield example("figures of several verifiers start again", True, _taken)
    yield example("seconds of a verifier's parts", {"one": 0.5, "two": 0.75}, _judging_seconds)


PARTS = {
    "verifier/one/reward": 0.5, "verifier/one/num_errors": 1.0, "verifier/one/num_timeouts": 0.0,
    "verifier/two/num_errors": 5.0, "verifier/two/num_timeouts": 3.0,
}  # fmt: skip
SECONDS = {"reward_calculation/one": 1.75, "reward_calculation/two": 0.5}


class _Two(World):
    """The first of two ranks, of which the second did the same and twice as long."""

    def gather(self, items: Any) -> Any:
        return [*items, *({name: of[1] for name, of in STATS.items()} for _ in items)]


STATS = {
    "one": (
        VerifierStats(num_calls=3, num_errors=1, seconds=0.75, total_reward=1.5),
        VerifierStats(num_calls=2, num_errors=0, seconds=1.0, total_reward=0.5),
    ),
    "two": (
        VerifierStats(num_calls=3, num_errors=3, num_timeouts=2, seconds=0.25),
        VerifierStats(num_calls=2, num_errors=2, num_timeouts=1, seconds=0.25),
    ),
}
"""What each part of a verifier did on each of two ranks."""


def _parts() -> Any:
    made = WeightedVerifier.__new__(WeightedVerifier)
    made.parts = [SimpleNamespace(name=name) for name in STATS]  # type: ignore[misc]
    made.stats = {name: of[0] for name, of in STATS.items()}
    return step_records.verifier_metrics(made, _Two(0, 2))


def _taken() -> bool:
    made = several()
    before = dict(made.stats)
    taken = made.take_stats()
    return taken == before and all(one == VerifierStats() for one in made.stats.values())


def _judging_seconds() -> Any:
    """Return the seconds of two parts, of which the second raises, on a clock that they move."""
    now = [100.0]

    def judge(seconds: float, error: Exception | None) -> Any:
        def call(completion: str, answer: str) -> float:
            now[0] += seconds
            if error is not None:
                raise error
            return 1.0

        return call

    parts = [Part("one", judge(0.5, None), 1.0), Part("two", judge(0.75, ValueError("no")), 3.0)]
    verifier = WeightedVerifier(parts)
    with (
        patch.object(weighted, "time", SimpleNamespace(perf_counter=lambda: now[0])),
        suppress(VerifierError),
    ):
        verifier("", "")
    return {name: one.seconds for name, one in verifier.take_stats().items()}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _media() -> list[Any]:
    """Return the digests that rows record of their images: the second row has one."""
    made = rollouts()
    made = made.rows([0, 1, 2])
    examples = [
        replace(one, media="2:AADAPwAAAMA=") if at == 1 else one for at, one in enumerate(made.examples)
    ]
    whole = replace(batch(), advantages_B=torch.zeros(3), old_logprobs_BT=torch.zeros(3, 3))
    filtered = step_records.Filtered(whole, [False] * 3, {})
    rows = step_records.train_rows(
        made_session(), options_of(), 1, replace(made, examples=examples), filtered
    )
    return [row.get("media") for row in rows]
