"""Checks that what is random in a run of refrl follows from its seeds: splits, order of prompts, sampled tokens.

Splits and orders are recomputed here from the configured seed (docs/use/guards.md names the streams), and a few tokens
are sampled a second time with the streams that it gives.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.generation.base import Completion, MediaSampler, SamplingParams
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example
from refrl.tasks.base import make_task
from refrl.training.session import TrainedStep, TunedStep
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import RunConfig, check, loop_of
from seatrial.targets.reference.guards.files import distinct_rows, small_enough
from seatrial.targets.reference.guards.masks import check_kept_ids

if TYPE_CHECKING:
    from refrl.training.session import Session

MADE_TRAIN, MADE_VALIDATION = 1024, 128
"""Prompts of a generated task where no number is configured."""
MOST_PROMPTS = 200_000
"""The order of longer splits is not recomputed: that takes as long as a step."""
REPLAYED_ROWS, REPLAYED_TOKENS = 2, 4
"""Rows that are sampled a second time, and tokens of each."""


class SeedGuard:
    """Checks that what a run draws is what its seeds give."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin with nothing drawn."""
        self._config, self._guards = config, guards
        self._loop = loop_of(config)
        self._order: tuple[int, list[int]] | None = None
        self._num_drawn = 0
        self._is_known, self._is_too_long = True, False
        self._replayed: Sequence[Completion] | None = None

    def started(self, session: Session) -> None:
        """Check that the splits are those that `data.seed` gives."""
        prompts = _expected_splits(self._config)
        if prompts is not None:
            train, validation = prompts
            validation = validation[: self._loop.max_val_samples]
            given = [_key(self._config, one) for one in session.train_examples]
            held_out = [_key(self._config, one) for one in session.validation]
            wrong = _first_difference("training", given, train) or _first_difference(
                "held-out", held_out, validation
            )
            check(self._guards, "splits as seeded", wrong, number=len(given) + len(held_out))
        # What an earlier attempt drew is known if each step draws the same number.
        self._is_too_long = len(session.train_examples) > MOST_PROMPTS
        self._is_known = not self._is_too_long and (not session.attempt.step or self._draws_evenly())
        self._num_drawn = session.attempt.step * self._num_a_step()

    def synced(self, session: Session) -> None:
        """Before the first rollouts: sample the beginning of the first rows with the stream that the seed gives."""
        if self._replayed is not None or not self._can_replay(session) or not self._draws_evenly():
            return
        assert isinstance(self._config, GRPORunConfig)
        if not self._is_known:
            self._replayed = ()
            return
        size = self._config.grpo.num_generations_per_prompt
        examples = self._next(session, REPLAYED_ROWS)
        rows = [example for example in examples for _ in range(size)][:REPLAYED_ROWS]
        self._replayed = self._sampled(session, rows, "rollout", session.attempt.step + 1, greedy=False)
        check_kept_ids(session, self._config, self._guards, self._replayed)

    def check_step(self, session: Session, step: TrainedStep) -> None:
        """Check that prompts come in the seeded order, and that the first rows are those of the seeded stream."""
        self._count_drawn(step)
        self._check_order(session, step.step, [example.prompt_id for example in step.served])
        if self._replayed:
            self._check_replay(
                f"step {step.step}", self._replayed, step.rollouts.completions[:REPLAYED_ROWS], "rollouts"
            )
            self._replayed = ()

    def _count_drawn(self, step: TrainedStep) -> None:
        """After a resume, take what was drawn before from the number of the first group with asynchronous rollouts."""
        assert isinstance(self._config, GRPORunConfig)
        if self._is_known or not step.fates or self._config.grpo.use_dynamic_sampling:
            return
        size = self._num_a_step()
        # The prompts of a batch are listed at the step of its first group.
        self._num_drawn = -(-min(group.number for group in step.fates) // size) * size
        self._is_known = not self._is_too_long

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Check that examples of fine-tuning come in the seeded order."""
        self._check_order(session, step.step, step.batch.group_ids_B.tolist())

    def validated(self, session: Session, step: int, rollouts: Rollouts) -> None:
        """Check that a validation draws from the stream of validations."""
        if not self._can_replay(session):
            return
        rows = list(session.validation[:REPLAYED_ROWS])
        again = self._sampled(session, rows, "validation", 0, greedy=self._loop.val_greedy)
        self._check_replay(
            f"validation after step {step}", again, rollouts.completions[:REPLAYED_ROWS], "validations"
        )

    def _draws_evenly(self) -> bool:
        """Return whether every step draws the same number of prompts, at its beginning."""
        if isinstance(self._config, SFTRunConfig):
            return True
        grpo = self._config.grpo
        return not grpo.use_dynamic_sampling and not grpo.async_grpo.enabled

    def _num_a_step(self) -> int:
        if isinstance(self._config, SFTRunConfig):
            return self._config.policy.train_global_batch_size
        return self._config.grpo.num_prompts_per_step

    def _next(self, session: Session, num: int) -> list[Example]:
        """Return the next prompts of the seeded order."""
        examples, drawn = session.train_examples, []
        for number in range(self._num_drawn, self._num_drawn + num):
            epoch, place = divmod(number, len(examples))
            if self._order is None or self._order[0] != epoch:
                order = list(range(len(examples)))
                if self._config.data.shuffle:
                    random.Random(f"order of epoch {epoch}: {self._loop.seed}").shuffle(order)
                self._order = (epoch, order)
            drawn.append(examples[self._order[1][place]])
        return drawn

    def _check_order(self, session: Session, step: int, drawn: Sequence[int]) -> None:
        if not self._is_known or not drawn:
            return
        right = [example.prompt_id for example in self._next(session, len(drawn))]
        self._num_drawn += len(drawn)
        wrong = _first_difference("drawn", drawn, right)
        check(self._guards, "prompts in the seeded order", wrong, where=f"step {step}: ", number=len(drawn))

    def _can_replay(self, session: Session) -> bool:
        """Return whether a sampler of this run gives a row the same tokens in every batch."""
        policy = self._config.policy
        return (
            policy.precision == "float32"
            and policy.generation.backend == "torch"
            and session.world.size == 1
            and session.generator.weight_version == session.policy.version
        )

    def _sampled(
        self, session: Session, rows: Sequence[Example], purpose: str, step: int, *, greedy: bool
    ) -> list[Completion]:
        """Sample the beginning of rows as the configuration says, with the stream of a purpose and step."""
        wanted = self._config.policy.generation
        params = SamplingParams(
            max_new_tokens=min(REPLAYED_TOKENS, wanted.max_new_tokens),
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            stop_token_ids=session.sampling.stop_token_ids
            if wanted.stop_token_ids is None
            else tuple(wanted.stop_token_ids),
            greedy=greedy,
        )
        digest = hashlib.sha256(f"{self._loop.seed}/{purpose}/{step}".encode()).digest()
        stream = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        prompts = session.encoder.prompts([one.prompt for one in rows])
        if any(one.media for one in rows) and isinstance(session.generator, MediaSampler):
            media = [one.media for one in rows]
            return session.generator.generate_with_media(prompts, media, params, stream)
        return session.generator.generate(prompts, params, stream)

    def _check_replay(
        self, where: str, again: Sequence[Completion], given: Sequence[Completion], what: str
    ) -> None:
        wrong = [
            f"{where}, row {row} begins with {list(found.ids[: len(right.ids)])}; the configured seed and sampling "
            f"give {list(right.ids)}"
            for row, (right, found) in enumerate(zip(again, given, strict=True))
            if right.ids != found.ids[: len(right.ids)]
        ]
        check(self._guards, f"{what} as seeded", wrong[:1], number=sum(len(one.ids) for one in again))


def _key(config: RunConfig, example: Example) -> str | int:
    """Return what identifies a prompt of a split: its text in a file, its number in a generated task."""
    return example.prompt if config.data.task is None else example.prompt_id


def _expected_splits(
    config: RunConfig,
) -> tuple[Sequence[str | int], Sequence[str | int]] | None:
    """Return the prompts to train on and those held out; None where they are unknown."""
    data = config.data
    if data.task is not None:
        size = make_task(data.task, data.task_args).num_examples
        num_train, num_held_out = data.num_train or MADE_TRAIN, data.num_validation or MADE_VALIDATION
        if size >= 2**63 or num_train + num_held_out > size:
            return None
        stream = random.Random(f"splits of {data.task}: {data.seed}")
        validation = stream.sample(range(size), num_held_out)
        held_out = set(validation)
        drawn = stream.sample(range(size), num_held_out + num_train)
        return [number for number in drawn if number not in held_out][:num_train], validation
    return _splits_of_files(config)


def _splits_of_files(
    config: RunConfig,
) -> tuple[Sequence[str | int], Sequence[str | int]] | None:
    data = config.data
    if not all(small_enough(path) for path in (data.train_path, data.validation_path) if path):
        return None
    rows = distinct_rows(data.train_path, data.prompt_key)
    other = distinct_rows(data.validation_path, data.prompt_key) if data.validation_path else None
    if rows is None or (data.validation_path and other is None):
        return None
    prompts = list(rows)
    if other is not None:
        own = [prompt for prompt in prompts if prompt not in other]
        held = _chosen(list(other), data.num_validation, f"num_validation of a file: {data.seed}")
        return _chosen(own, data.num_train, f"num_train of a file: {data.seed}"), held
    num = data.num_validation or max(1, min(128, len(prompts) // 10))
    numbers = set(random.Random(f"held out of a file: {data.seed}").sample(range(len(prompts)), num))
    own = [prompt for number, prompt in enumerate(prompts) if number not in numbers]
    return (
        _chosen(own, data.num_train, f"num_train of a file: {data.seed}"),
        [prompts[number] for number in sorted(numbers)],
    )


def _chosen(prompts: list[str], num: int | None, stream: str) -> list[str]:
    if num is None or num >= len(prompts):
        return prompts
    return [prompts[place] for place in sorted(random.Random(stream).sample(range(len(prompts)), num))]


def _first_difference(what: str, given: Sequence[str | int], right: Sequence[str | int]) -> str:
    """Return where prompts differ from those that a seed gives."""
    if list(given) == list(right):
        return ""
    if len(given) != len(right):
        return f"{len(given)} {what} prompts, the configuration gives {len(right)}"
    place = next(place for place, pair in enumerate(zip(given, right, strict=True)) if pair[0] != pair[1])
    return f"{what} prompt {place} is {given[place]!r}, the seed gives {right[place]!r}"
