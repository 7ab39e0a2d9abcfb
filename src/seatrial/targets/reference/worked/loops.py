"""Worked examples of loops: what they open a session with, what they do in order, and which prompts they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.training import build, grpo, sft
from refrl.training.session import Observer
from refrl.training.steps import Steps
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration, tuning_configuration
from seatrial.targets.reference.worked.made import example, refused


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_calls()
    yield from _of_loops()
    yield from _of_prompts()


class _StoppedError(Exception):
    """Ends a call early."""


def _called(run: Any, module: Any, config: Any) -> Any:
    """Return what a loop opens its session with."""
    found: list[Any] = []

    def opened(config: Any, loop: Any, **options: Any) -> Any:
        found.append((loop, options))
        raise _StoppedError

    mine = Observer()
    with patch.object(module, "open_session", opened), suppress(_StoppedError):
        run(config, mine)
    (loop, options) = found[0]
    observer = options.pop("observer")
    others = getattr(observer, "_observers", [observer])
    return (
        loop is getattr(config, "grpo", None) or loop is getattr(config, "sft", None),
        mine in others,
        options,
    )


def _of_calls() -> Iterator[WorkedExample]:
    for name, options, right in (
        ("two updates a step", {}, {"num_updates": 4, "with_reference": True}),
        (
            "one update a step, and no penalty",
            {
                "policy.train_global_batch_size": 8,
                "grpo.max_num_steps": 5,
                "loss_fn.reference_policy_kl_penalty": 0.0,
            },
            {"num_updates": 5, "with_reference": False},
        ),
        (
            "a penalty in the reward",
            {"loss_fn.kl_in": "reward", "loss_fn.reference_policy_kl_penalty": 1e-9},
            {"num_updates": 4, "with_reference": True},
        ),
    ):
        chosen = {"policy.train_global_batch_size": 4, "grpo.max_num_steps": 2, **options}
        yield example(
            f"a run of {name}",
            (True, True, right),
            lambda chosen=chosen: _called(grpo.run_grpo, grpo, configuration(chosen)),
        )
    yield example(
        "fine-tuning",
        (True, True, {"num_updates": 3, "with_reference": False, "temperature": 1.0}),
        lambda: _called(sft.run_sft, sft, tuning_configuration({"sft.max_num_steps": 3})),
    )


def _looped(tunes: bool, *, resumed: int = 0, reached: int | None = None, **options: Any) -> list[Any]:
    """Return what a loop of made parts does, in order.

    Args:
        tunes: fine-tuning, or GRPO.
        resumed: last step of an earlier attempt; 0: none.
        reached: step after which the accuracy is that of `stop_at_accuracy`.
        options: of the loop.
    """
    module: Any = sft if tunes else grpo
    section = "sft" if tunes else "grpo"
    chosen = {f"{section}.{name}": value for name, value in options.items()}
    config: Any = (tuning_configuration if tunes else configuration)(chosen)
    noted: list[Any] = []
    checkpointer = SimpleNamespace(
        check_training_metric=lambda names: None,
        is_out_of_time=lambda: False,
        is_due=lambda step, *, ends, is_out_of_time: ends,
    )
    session: Any = SimpleNamespace(
        attempt=SimpleNamespace(step=resumed, is_finished=False, checkpoint="kept" if resumed else None),
        checkpointer=checkpointer,
        logger=SimpleNamespace(names=lambda prefix: []),
        save=lambda step, *, finished: noted.append(("saved", step, finished)),
        final=None,
        world=None,
    )

    @contextmanager
    def opened(*words: Any, **more: Any) -> Iterator[Any]:
        yield session

    def validate(session: Any, loop: Any, step: int) -> float:
        noted.append(("validated", step))
        return 0.9 if step == reached else 0.1

    with ExitStack() as stack:
        stack.enter_context(patch.object(Steps, "export", lambda steps: noted.append(("exported",))))
        for name, made in (
            ("open_session", opened),
            ("collecting", opened),
            ("validate", validate),
            ("train_step", lambda session, config, step: noted.append(("trained", step))),
            ("log_validation_loss", lambda session, config, step: noted.append(("loss", step))),
        ):
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, made))
        (sft.run_sft if tunes else grpo.run_grpo)(config)
    assert noted.pop() == ("exported",)
    return [(what, *rest) for what, *rest in noted]


def _of_loops() -> Iterator[WorkedExample]:
    trained = [("trained", step) for step in (1, 2, 3)]
    yield example(
        "a loop",
        [*trained, ("saved", 3, False)],
        _looped,
        False,
        max_num_steps=3,
        val_period=0,
        val_at_start=False,
        val_at_end=False,
    )
    start, end = ("validated", 0), ("validated", 3)
    both = {"max_num_steps": 3, "val_period": 0, "val_at_start": True, "val_at_end": True}
    yield example(
        "a loop that validates", [start, *trained, end, ("saved", 3, False)], _looped, False, **both
    )
    yield example(
        "a loop that continues",
        [("trained", 3), end, ("saved", 3, False)],
        _looped,
        False,
        resumed=2,
        **both,
    )
    losses = [start, ("loss", 0), *trained, end, ("loss", 3), ("saved", 3, False)]
    yield example("fine-tuning that validates", losses, _looped, True, **both)
    goal = {**both, "val_period": 1, "stop_at_accuracy": 0.9}
    yield example(
        "fine-tuning that reaches its goal",
        [start, ("loss", 0), ("trained", 1), ("validated", 1), ("loss", 1), ("saved", 1, True)],
        _looped,
        True,
        reached=1,
        **goal,
    )
    yield example(
        "fine-tuning that starts at its goal", [start, ("loss", 0)], _looped, True, reached=0, **goal
    )
    yield example(
        "fine-tuning that continues at its goal",
        [("trained", 3), end, ("loss", 3), ("saved", 3, False)],
        _looped,
        True,
        resumed=2,
        reached=3,
        **goal,
    )


def _of_prompts() -> Iterator[WorkedExample]:
    def encoded(*prompts: str, largest: int = 9, positions: int | None = 8, limit: int = 8) -> Any:
        asked: list[list[str]] = []

        def ids(texts: Sequence[str]) -> list[tuple[int, ...]]:
            asked.append(list(texts))
            return [tuple(range(len(text))) for text in texts]

        options = {"policy.max_total_sequence_length": limit, "policy.generation.max_new_tokens": 3}
        config = configuration(options).policy
        encoder: Any = SimpleNamespace(prompts=ids)
        policy: Any = SimpleNamespace(max_positions=positions, vocab_size=largest)
        made = build.PromptIds(encoder, policy, config)
        given: Any = [SimpleNamespace(prompt_id=len(text), prompt=text) for text in prompts]
        return [len(one) for one in made(given)], asked

    yield example("a repeated prompt", ([2, 4, 2], [["ab", "abcd"]]), encoded, "ab", "abcd", "ab")
    yield example("the longest prompt", ([5], [["abcde"]]), encoded, "abcde")
    yield refused("the longest prompt has 6 tokens", "a longer prompt", encoded, "a", "abcdef")
    yield example("the largest id", ([4], [["abcd"]]), encoded, "abcd", largest=4)
    yield refused("produces id 3", "an id beyond the vocabulary", encoded, "abcd", largest=3)
    yield example("a model without a limit", ([1], [["a"]]), encoded, "a", positions=None)
    yield refused(
        "=8 is more than the 7 positions", "a model with fewer positions", encoded, "a", positions=7
    )
