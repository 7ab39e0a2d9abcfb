"""Small rows, rollouts and examples of calls that the worked examples share."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example
from seatrial.relations.contracts.worked import Refused, WorkedExample

PAD = 9
_FROM_FILES = AutoModelForCausalLM.from_pretrained
_READ: dict[str, Any] = {}


def example(
    name: str, right: Any, function: Callable[..., Any], *words: Any, **options: Any
) -> WorkedExample:
    """Return the example of a call with these arguments."""
    return WorkedExample(name=name, call=partial(function, *words, **options), right=right)


def refused(
    words: str, name: str, function: Callable[..., Any], *given: Any, **options: Any
) -> WorkedExample:
    """Return the example of a call that must raise, with these words in the message."""
    return WorkedExample(name=name, call=partial(function, *given, **options), right=Refused(words))


def read_once(*words: Any, **options: Any) -> Any:
    """Return a copy of what `AutoModelForCausalLM.from_pretrained` returns: it takes most of the time of a session."""
    key = repr((words, sorted(options.items())))
    if key not in _READ:
        _READ[key] = _FROM_FILES(*words, **options)
    return copy.deepcopy(_READ[key])


def for_all(
    properties: Mapping[str, tuple[Callable[[random.Random], bool], int]],
) -> Iterator[WorkedExample]:
    """Yield an example of each property: the streams of random inputs, by their seed, for which it does not hold.

    Args:
        properties: by name, the function that says whether it holds for a stream, and how many streams are tried.
    """
    for name, (holds, num_seeds) in properties.items():
        yield example(name, [], _failing, holds, num_seeds)


def _failing(holds: Callable[[random.Random], bool], num_seeds: int) -> list[int]:
    return [seed for seed in range(num_seeds) if not holds(random.Random(seed))]


def made_tensor(
    stream: random.Random, shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return a tensor of random eighths, which every type of numbers in use holds."""
    values = [stream.randrange(-100, 100) / 8 for _ in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).reshape(tuple(shape)).to(dtype)


def close(found: torch.Tensor, right: Sequence[Any], tolerance: float = 1e-9) -> bool:
    """Return whether a tensor has the shape and, within the tolerance, the values of lists."""
    due = torch.tensor(right, dtype=torch.float64)
    return found.shape == due.shape and torch.allclose(found.double(), due, rtol=tolerance, atol=tolerance)


def mask_of_any_kind(stream: random.Random, values: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return a mask as booleans, integers or floats, at times as a view that is not contiguous."""
    made = torch.tensor(values).to(stream.choice((torch.bool, torch.long, torch.float32)))
    return made.T.contiguous().T if stream.random() < 0.5 else made


def sample(
    prompt: Sequence[int], completion: Sequence[int], group: int = 0, reward: float = 0.0, **more: Any
) -> TrainSample:
    """Return a row whose token t has the log-probability -(t + 1) / 8."""
    logprobs = tuple(-(place + 1) / 8 for place in range(len(completion)))
    return TrainSample(
        prompt_ids=tuple(prompt),
        completion_ids=tuple(completion),
        sampling_logprobs=logprobs,
        reward=reward,
        group_id=group,
        **more,
    )


def rows() -> list[TrainSample]:
    """Return three rows of unequal lengths; a tool wrote the middle token of the second."""
    return [
        sample([1], [2, 3], group=4, reward=1.0),
        sample([4, 5, 6], [7, 8, 1], group=2, reward=0.25, completion_mask=(1, 0, 1)),
        sample([2, 2], [3], group=4, reward=0.0),
    ]


def batch(**options: Any) -> Batch:
    """Return the batch of `rows`."""
    return make_batch(rows(), pad_token_id=PAD, **options)


def rollouts() -> Rollouts:
    """Return four rows of two prompts, with a tool's words, a cut-off, a failure and penalties."""
    first, second = Example(5, "p", "a", "made"), Example(3, "q", "b", "made", solution="c")
    return Rollouts(
        examples=[first, first, second, second],
        completions=[
            Completion(
                prompt_ids=(1, 2),
                ids=(3, 4, 5),
                logprobs=(-0.1, -0.2, -0.3),
                finish_reason="stop",
                weight_version=4,
            ),
            Completion(
                prompt_ids=(1, 2),
                ids=(3, 8, 8, 5, 6),
                logprobs=(-0.1, 0.0, 0.0, -0.3, -0.4),
                finish_reason="length",
                mask=(1, 0, 0, 1, 1),
                weight_version=3,
            ),
            Completion(
                prompt_ids=(7,),
                ids=(6,),
                logprobs=(-0.7,),
                finish_reason="stop",
                kept_ids=((6, 2),),
                weight_version=5,
            ),
            Completion(
                prompt_ids=(7,),
                ids=(2, 2),
                logprobs=(-1 / 3, -2 / 3),
                finish_reason="length",
                version_segments=((0, 5), (1, 6)),
                weight_version=5,
            ),
        ],
        texts=["x", "y", "z", "w"],
        scores=Scores(
            rewards=[1.0, 0.25, 0.0, -0.5],
            num_errors=1,
            first_error="row 2: no",
            penalties=[0.0, -0.25, 0.0, -0.5],
            failed=[False, False, True, False],
            unshaped=[1.0, 0.5, 0.0, 0.0],
        ),
    )
