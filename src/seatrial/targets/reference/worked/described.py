"""Worked examples of schemas as they are described, and of a recording of a run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field

from refrl.config import describe
from refrl.policy.base import Update
from refrl.rollout.collect import GroupFate
from refrl.training.recorder import RunRecorder, recorded_rows
from refrl.training.session import TrainedStep, TunedStep
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import batch, example, refused, rollouts


class Inner(BaseModel):
    """A section within.

    More of it.
    """

    size: Annotated[int, "rows"] = Field(default=3, ge=1, le=9)
    """Rows | columns."""


class Base(BaseModel):
    """What others inherit."""

    kept: str = "x"
    """Of the base."""
    replaced: str = "y"
    """Of the base, too."""


class Made(Base):
    """A section of every type,
    in two lines.
    """

    replaced: str = "z"
    """Of the section itself."""
    bare: bool = False
    needed: Any
    """Anything,
    in two lines."""
    inner: Inner = Inner()
    share: float | None = Field(default=None, gt=0, lt=0.5)
    """A share."""
    kind: Literal["a", "b"] = "a"
    """Its kind."""
    two: tuple[int, int] = (1, 2)
    """A pair."""
    many: tuple[str, ...] = ("ä",)
    """Several."""
    by_name: dict[str, float] = Field(default_factory=dict)
    """By name."""


ROWS = [
    '| `made.kept` | text | `"x"` | Of the base. |',
    '| `made.replaced` | text | `"z"` | Of the section itself. |',
    "| `made.bare` | true or false | `false` |  |",
    "| `made.needed` | anything | required | Anything, in two lines. |",
    "| `made.inner.size` | whole number, >= 1, <= 9 | `3` | Rows \\| columns. |",
    "| `made.share` | number or null, > 0, < 0.5 | `null` | A share. |",
    '| `made.kind` | `a` or `b` | `"a"` | Its kind. |',
    "| `made.two` | list of 2: whole number | `[1, 2]` | A pair. |",
    '| `made.many` | list: text | `["ä"]` | Several. |',
    "| `made.by_name` | mapping of names: number | `{}` | By name. |",
]
TEXT = """\
# Of the base.
kept: "x"
# Of the section itself.
replaced: "z"
bare: false
# Anything, in two lines.
needed: null
# A section within.
inner:
  # Rows | columns.
  size: 3
# A share.
share: null
# Its kind.
kind: "a"
# A pair.
two: [1, 2]
# Several.
many: ["ä"]
# By name.
by_name: {}
"""


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield example("rows of a schema of every type", ROWS, lambda: list(describe._rows(Made, "made")))
    yield example(
        "a configuration of every type as YAML", TEXT, lambda: describe.effective_yaml(Made(needed=None))
    )
    yield example("the doc of a schema", "A section of every type, in two lines.", describe._doc, Made)
    yield example("the doc of a schema with a second paragraph", "A section within.", describe._doc, Inner)
    yield refused("no words for the type", "a type without words", describe._type, complex)
    loops: Any = {"one": _schema("x", "both"), "two": _schema("both", "y")}
    readers = [("x", ["one"]), ("y", ["two"]), ("both", ["one", "two"])]
    yield example("which commands read a section", readers, lambda: list(describe._readers(loops).items()))
    long = "word " * 40
    widths = [True, True, True]
    yield example(
        "a long doc in lines", widths, lambda: [len(line) <= 100 for line in describe._comment(long, "  ")]
    )
    yield from _of_recordings()


def _schema(*sections: str) -> Any:
    return SimpleNamespace(model_fields=dict.fromkeys(sections))


def _session() -> Any:
    weight, reference, head = torch.ones(2), torch.zeros(2), torch.full((2,), 3.0)
    policy = SimpleNamespace(
        named_weights=lambda: [("w", weight)],
        state_tensors=lambda: {"w": weight, "draft.h": head, "draft.optimizer.m": head},
        reference_weights=lambda: [("w", reference)],
        named_gradients=lambda: {"w": None, "b": None},
        version=5,
        vocab_size=11,
        in_training_mode=False,
    )
    first, second = rollouts().examples[1:3]
    return SimpleNamespace(
        policy=policy,
        train_examples=[first],
        validation=[second],
        sampling=SimpleNamespace(stop_token_ids=(2, 1)),
    )


def _trained_batch() -> Any:
    made = batch()
    return replace(
        made,
        old_logprobs_BT=made.sampling_logprobs_BT - 1,
        ref_logprobs_BT=made.sampling_logprobs_BT - 2,
        advantages_B=torch.tensor([0.5, -0.5, 0.25]),
    )


def _of_recordings() -> Iterator[WorkedExample]:
    yield example("what a recording begins with", BEGUN, _begun)
    yield example("what a recording ends with", (True, False, False), _ended)
    yield example("a recorded step", STEP, _step)
    yield example("a recorded step of fine-tuning", (2, TUNED, {"loss": 1.0}, [2.0, 2.0]), _tuned)
    yield example("recorded answers of a validation", [4, TUNED, 0.75], _scored)
    yield example("a recorded validation", VALIDATED, _validated)
    yield example("recorded rows of no rollouts", [], recorded_rows, None, None)
    for index, right in enumerate(UNTRAINED):
        yield example(f"row {index} as it was sampled", right, _sampled, index)
    for index, right in enumerate(TRAINED):
        yield example(f"row {index} as it was trained on", right, _trained_row, index)


BEGUN = {
    "steps": [], "validations": [], "losses": [], "initial_weights": {"w": [1.0, 1.0]},
    "initial_draft_weights": {"draft.h": [3.0, 3.0]}, "reference_start": {"w": [0.0, 0.0]},
    "trainable": ["b", "w"], "train_prompts": [5], "held_out_prompts": [3], "vocab_size": 11, "stop_ids": [2, 1],
}  # fmt: skip


def _begun() -> Any:
    session, recorder = _session(), RunRecorder()
    recorder.started(session)
    next(iter(session.policy.named_weights()))[1].add_(7.0)  # what is recorded is a copy
    return recorder.recording


def _ended() -> Any:
    """Return whether streams are untouched where nothing is drawn and where one draws, and the recorded mode."""
    found = []
    state = random.getstate()
    for draws in (False, True):
        session, recorder = _session(), RunRecorder()
        recorder.started(session)
        if draws:
            random.random()
        recorder.ended(session)
        found.append(recorder.recording["global_streams_untouched"])
    random.setstate(state)
    assert recorder.recording["final_weights"]["w"].tolist() == [1.0, 1.0]
    assert recorder.recording["reference_end"]["w"].tolist() == [0.0, 0.0]
    return (*found, recorder.recording["in_training_mode"])


def _update() -> Any:
    return Update(
        first_row=2, num_rows=2, micro_batches=[[0], [1]], gradients={"w": torch.ones(1)}, grad_norm=0.5,
        learning_rate=0.25, weights={"w": torch.zeros(1)},
    )  # fmt: skip


UPDATE = {
    "row_indices": [2, 3], "micro_batches": [[0], [1]], "gradients": {"w": [1.0]}, "grad_norm": 0.5,
    "learning_rate": 0.25, "weights_after": {"w": [0.0]},
}  # fmt: skip
STEP = {
    "step": 7, "version": 5, "prompts_served": [5, 3], "rows": 3, "discarded_rows": 1,
    "groups": [{"number": 9, "prompt_id": 5, "fate": "stale", "weight_version": 4}], "updates": [UPDATE],
    "metrics": {"loss": 1.0}, "weights_after": {"w": [1.0, 1.0]}, "draft_weights_after": {"draft.h": [3.0, 3.0]},
}  # fmt: skip


def _step() -> Any:
    recorder = RunRecorder()
    made = rollouts()
    step = TrainedStep(
        step=7, served=made.examples[1:3], rollouts=made.rows([0, 1, 2]), discarded=made.rows([3]),
        fates=[GroupFate(9, 5, "stale", 4, 7)], batch=_trained_batch(), updates=[_update()], metrics={"loss": 1.0},
    )  # fmt: skip
    recorder.trained(_session(), step)
    (found,) = recorder.recording["steps"]
    return {**found, "rows": len(found["rows"]), "discarded_rows": len(found["discarded_rows"])}


TUNED = [
    {"prompt_id": 4, "prompt_ids": (1,), "ids": (2, 3), "mask": (1, 1), "media": [5.0]},
    {"prompt_id": 2, "prompt_ids": (4, 5, 6), "ids": (7, 8, 1), "mask": (1, 0, 1), "media": [6.0]},
    {"prompt_id": 4, "prompt_ids": (2, 2), "ids": (3,), "mask": (1,), "media": [7.0]},
]


def _answers() -> Any:
    return replace(batch(), media_BX=torch.tensor([[5.0], [6.0], [7.0]]))


def _tuned() -> Any:
    recorder, session = RunRecorder(), _session()
    next(iter(session.policy.named_weights()))[1].add_(1.0)
    recorder.tuned(session, TunedStep(step=2, batch=_answers(), updates=[], metrics={"loss": 1.0}))
    (found,) = recorder.recording["steps"]
    return found["step"], found["rows"], found["metrics"], found["weights_after"]["w"]


def _scored() -> Any:
    recorder = RunRecorder()
    recorder.scored(_session(), 4, _answers(), 0.75)
    (found,) = recorder.recording["losses"]
    return [found["step"], found["rows"], found["loss"]]


VALIDATED = {
    "step": 3, "rows": [(5, "x", 1.0), (3, "z", 0.0)], "metrics": {"accuracy": 0.5},
    "sampled": [((1, 2), (3, 4, 5)), ((7,), (6,))], "media": [None, None],
}  # fmt: skip


def _validated() -> Any:
    recorder = RunRecorder()
    recorder.validated(_session(), 3, rollouts().rows([0, 2]), {"accuracy": 0.5})
    return recorder.recording["validations"][0]


UNTRAINED = [
    {
        "prompt_id": 5, "prompt_ids": (1, 2), "ids": (3, 8, 8, 5, 6), "mask": (1,) * 5,
        "sampling_logprobs": (-0.1, 0.0, 0.0, -0.3, -0.4), "old_logprobs": (), "ref_logprobs": None,
        "kept_support": None, "reward": 0.25, "reward_before_shaping": 0.5, "advantage": 0.0,
        "finish_reason": "length", "completion": "y", "prompt": "p", "answer": "a", "weight_version": 3,
        "version_segments": (), "sampled": (1, 0, 0, 1, 1), "media": None,
    },
    {
        "prompt_id": 3, "prompt_ids": (7,), "ids": (6,), "mask": (1,), "sampling_logprobs": (-0.7,),
        "old_logprobs": (), "ref_logprobs": None, "kept_support": ((6, 2),), "reward": 0.0,
        "reward_before_shaping": 0.0, "advantage": 0.0, "finish_reason": "stop", "completion": "z", "prompt": "q",
        "answer": "b", "weight_version": 5, "version_segments": (), "sampled": (), "media": None,
    },
]  # fmt: skip
"""The second and the third row of `rollouts`."""


def _sampled(index: int) -> Any:
    return recorded_rows(rollouts().rows([1, 2]), None)[index]


TRAINED = [
    {
        "prompt_ids": (1,), "ids": (2, 3), "mask": (1, 1), "sampling_logprobs": (-0.125, -0.25),
        "old_logprobs": (-1.125, -1.25), "ref_logprobs": (-2.125, -2.25), "reward": 1.0, "advantage": 0.5,
    },
    {
        "prompt_ids": (4, 5, 6), "ids": (7, 8, 1), "mask": (1, 0, 1), "sampling_logprobs": (-0.125, 0.0, -0.375),
        "old_logprobs": (-1.125, -1.0, -1.375), "ref_logprobs": (-2.125, -2.0, -2.375), "reward": 0.25,
        "advantage": -0.5,
    },
]  # fmt: skip
"""What the batch holds of its first two rows."""


def _trained_row(index: int) -> Any:
    row = recorded_rows(rollouts().rows([0, 1, 2]), _trained_batch())[index]
    return {name: row[name] for name in TRAINED[index]}
