"""R31.step_parts: rows of unequal lengths, rows that fill a batch, outputs of sessions and results of tools."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.metrics import T, step_batch, step_metrics
from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

STEP_PARTS = relation_of(
    "step_parts",
    "parts-of-a-step-are-their-definitions",
    "Rows of unequal lengths, rows that fill a batch, outputs of sessions and results of tools are as documented.",
)
Row = Mapping[str, Tensor]
"""Columns of one row, by name; the last dimension is the row's length."""


def uneven(operation: str, batches: Sequence[Sequence[Row]], argument: Any) -> list[list[Row]]:
    """Return the batches that an operation gives: all rows in one, parts of equal size, or rows at places."""
    rows = [row for batch in batches for row in batch]
    if operation == "join":
        return [rows]
    if operation == "divide":
        size = len(rows) // int(argument)
        return [rows[start : start + size] for start in range(0, len(rows), size)]
    return [[rows[place] for place in argument]]


def _uneven(case: Numbers) -> list[Arguments]:
    generator = case.generator()

    def rows(lengths: Sequence[int]) -> list[Row]:
        return [
            {
                "ids": torch.randint(0, 90, (length,), generator=generator),
                "positions": torch.randint(0, 90, (3, length), generator=generator),
                "score": torch.randn((), generator=generator),
            }
            for length in lengths
        ]

    return [
        ("join", [rows([4, 2]), rows([1, 5]), rows([3])], None),
        ("divide", [rows([4, 2, 1, 5])], 2),
        ("divide", [rows([2, 2, 2])], 3),
        ("select", [rows([4, 2, 1, 5])], [3, 0]),
        ("select", [rows([4, 2, 1])], [1, 1, 2]),
    ]


def restored(values: Sequence[Tensor], parts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return values, which come in the order of the parts, at the places that the parts name."""
    places = [place for part in parts for place in part]
    return [values[places.index(place)] for place in range(len(values))]


def _parts(case: Numbers) -> list[Arguments]:
    generator = case.generator()
    parts = [[3, 0], [4], [2, 1]]
    return [
        ([torch.randn(length, generator=generator) for length in lengths], parts)
        for lengths in ([3, 1, 2, 5, 4], [2, 2, 2, 2, 2])
    ]


def without_padding(values: Tensor, lengths: Sequence[int]) -> tuple[list[list[float]], list[list[int]]]:
    """Return each row of padded values without its padding, and the mask of rows of these lengths."""
    width = max(lengths)
    rows = [row[:length].tolist() for row, length in zip(values, lengths, strict=True)]
    return rows, [[1] * length + [0] * (width - length) for length in lengths]


FILLED = (2, 128)
"""Tokens of a row that fills a batch: those of a release. All but the last are the prompt."""


def filler(sample: Mapping[str, Any], end: int, length: int) -> dict[str, Any]:
    """Return a row of end ids that no loss, reward or metric sees, with the columns of a row that trains."""
    answer = torch.full((1,), end)
    found = {
        **sample,
        "prompts": torch.full((length - 1,), end),
        "responses": answer,
        "input_ids": torch.full((length,), end),
        "attention_mask": torch.ones(length, dtype=torch.long),
        "response_mask": torch.zeros(1, dtype=torch.long),
        "loss_mask": torch.zeros(1, dtype=torch.long),
        "rm_scores": torch.zeros(1),
        "rollout_log_probs": torch.zeros(1),
        "num_turns": 0,
        "position_ids": torch.arange(length).expand(*sample["position_ids"].shape[:-1], length),
    }
    if "multi_modal_inputs" in sample:
        found["multi_modal_inputs"] = {}
    for name, value in (("routed_experts", 0), ("teacher_ids", end), ("teacher_logprobs", 0)):
        if name in sample:
            shape = (length, *sample[name].shape[1:])
            found[name] = torch.full(shape, value, dtype=sample[name].dtype)
    return found


def _samples(case: Numbers, *, teacher: bool = False) -> list[Arguments]:
    generator = case.generator()
    sample = {
        "prompts": torch.tensor([5, 6, 7]),
        "responses": torch.tensor([8, 9]),
        "input_ids": torch.tensor([5, 6, 7, 8, 9]),
        "attention_mask": torch.ones(5, dtype=torch.long),
        "response_mask": torch.ones(2, dtype=torch.long),
        "loss_mask": torch.ones(2, dtype=torch.long),
        "rm_scores": torch.randn(2, generator=generator),
        "rollout_log_probs": torch.randn(2, generator=generator),
        "position_ids": torch.arange(5),
        "num_turns": 4,
        "uid": "prompt 1",
    }
    more = {
        "position_ids": torch.arange(5).expand(3, 5),
        "routed_experts": torch.randint(1, 8, (5, 2, 3), generator=generator),
        "multi_modal_inputs": {"pixel_values": torch.randn(2, 3, generator=generator)},
    }
    taught = {
        "teacher_ids": torch.randint(1, 90, (5, 4), generator=generator),
        "teacher_logprobs": torch.randn(5, 4, generator=generator),
    }
    rows = [({**sample, **taught}, 3)] if teacher else [(sample, 2), ({**sample, **more}, 3)]
    return [(*row, length) for row in rows for length in FILLED]


class Output(NamedTuple):
    """An output of a session, of which a prompt has several; the last one by `place` is the session's answer."""

    prompt: str
    session: int
    place: int
    rewards: tuple[float, ...]
    mask: tuple[int, ...]


def advantages_of_sessions(outputs: Sequence[Output]) -> list[list[float]]:
    """Return GRPO's advantages: those of the last outputs by prompt, and for each output its session's."""
    last: dict[tuple[str, int], Output] = {}
    for one in outputs:
        key = (one.prompt, one.session)
        if key not in last or one.place > last[key].place:
            last[key] = one
    totals = {key: math.fsum(one.rewards) for key, one in last.items()}
    found = []
    for one in outputs:
        group = torch.tensor([value for (prompt, _), value in totals.items() if prompt == one.prompt])
        group = group.double()
        mean, deviation = (float(group.mean()), float(group.std())) if len(group) > 1 else (0.0, 1.0)
        advantage = (totals[one.prompt, one.session] - mean) / (deviation + 1e-6)
        found.append([advantage * shown for shown in one.mask])
    return found


def _outputs(case: Numbers) -> list[Arguments]:
    """Return sessions of one to three outputs, out of order, whose first answer token a tool wrote in one."""
    generator = case.generator()
    rows = []
    sizes = {("a", 0): 2, ("a", 1): 1, ("a", 2): 3, ("b_1", 0): 2, ("b_1", 1): 2, ("c", 0): 1}
    for (prompt, session), count in sizes.items():
        for place in range(count):
            mask = (0, 1, 1, 0) if place else (1, 1, 1, 0)
            rewards = (0.0, 0.0, float(torch.randn((), generator=generator)), 0.0)
            rows.append(Output(prompt, session, place, rewards, mask))
    order = range(len(rows)) if case.tidy else torch.randperm(len(rows), generator=generator).tolist()
    return [([rows[place] for place in order],)]


RETURNED: Sequence[tuple[Any, tuple[str, float, dict[str, Any]]]] = (
    ("sunny", ("sunny", 0.0, {})),
    (17, ("17", 0.0, {})),
    ({"degrees": 7, "where": "Zürich"}, ('{"degrees": 7, "where": "Zürich"}', 0.0, {})),
    (("sunny",), ("sunny", 0.0, {})),
    (("sunny", 0.5), ("sunny", 0.5, {})),
    (("sunny", None), ("sunny", 0.0, {})),
    (({"degrees": 7}, 1, {"calls": 2}), ('{"degrees": 7}', 1.0, {"calls": 2})),
    ((3.5, -0.25, None), ("3.5", -0.25, {})),
)
"""What a tool's function returns, and the text, reward and metrics that it means."""


def returned(value: Any) -> tuple[str, float, dict[str, Any]]:
    """Return the text, reward and metrics of what a tool's function returns."""
    return next(due for given, due in RETURNED if json.dumps(given) == json.dumps(value))


TARGETS: Sequence[tuple[Mapping[str, Any], str, bool]] = (
    ({"target_modules": ["q_proj"]}, "layers.0.q_proj", True),
    ({"target_modules": ["q_proj"]}, "q_proj", True),
    ({"target_modules": ["q_proj"]}, "layers.0.my_q_proj", False),
    ({"target_modules": ["q_proj"]}, "layers.0.q_proj.bias", False),
    ({"target_modules": r".*\.q_proj"}, "layers.0.q_proj", True),
    ({"target_modules": r"q_proj"}, "layers.0.q_proj", False),
    ({"target_modules": ["q_proj"], "layers_to_transform": [1]}, "model.layers.1.q_proj", True),
    ({"target_modules": ["q_proj"], "layers_to_transform": [1]}, "model.layers.11.q_proj", False),
    ({"target_modules": ["q_proj"], "layers_to_transform": 0}, "model.layers.0.q_proj", True),
    ({"target_modules": ["q_proj"], "layers_to_transform": 0}, "model.layers.1.q_proj", False),
    (
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": ["blocks"]},
        "model.blocks.1.q_proj",
        True,
    ),
    (
        {"target_modules": ["q_proj"], "layers_to_transform": [1], "layers_pattern": "blocks"},
        "model.layers.1.q_proj",
        False,
    ),
    ({"target_modules": ["q_proj"], "exclude_modules": ["q_proj"]}, "layers.0.q_proj", False),
    ({"target_modules": ["q_proj"], "exclude_modules": ["0.q_proj"]}, "layers.10.q_proj", True),
    ({"target_modules": ["q_proj"], "exclude_modules": r".*\.0\..*"}, "layers.0.q_proj", False),
    ({"target_modules": ["q_proj"], "exclude_modules": r"0\..*"}, "layers.0.q_proj", True),
)
"""Options of an adapter, the name of a module, and whether PEFT adapts it."""


def adapted(options: Mapping[str, Any], name: str) -> bool:
    """Return whether an adapter's options name a module."""
    return next(due for given, own, due in TARGETS if (given, own) == (options, name))


def joined_images(rows: Sequence[Mapping[str, Tensor] | None], places: Sequence[int] | None) -> Any:
    """Return each column of the rows that have it, one row after another, padded at the end with zeros."""
    chosen = [rows[place] for place in (range(len(rows)) if places is None else places)]
    found: dict[str, list[Tensor]] = {}
    for row in chosen:
        for name, value in (row or {}).items():
            found.setdefault(name, []).append(value)
    joined = {}
    for name, values in found.items():
        width = max(value.shape[-1] for value in values)
        padded = [torch.nn.functional.pad(value, (0, width - value.shape[-1])) for value in values]
        joined[name] = torch.cat(padded)
    return joined


def _images(case: Numbers) -> list[Arguments]:
    generator = case.generator()

    def row(patches: int, frames: int) -> Mapping[str, Tensor]:
        return {
            "pixel_values": torch.randn(patches, 4, generator=generator),
            "input_features": torch.randn(1, 3, frames, generator=generator),
        }

    rows = [row(2, 5), None, row(3, 2), {"pixel_values": torch.randn(1, 4, generator=generator)}]
    return [(rows, None), (rows, [2, 0]), (rows[:1], None)]


def _no_answers(case: Numbers) -> list[Arguments]:
    batch = step_batch(case)
    nothing = torch.zeros(len(batch["responses"]), T, dtype=torch.long)
    shown = torch.cat([batch["attention_mask"][:, :-T], nothing], 1)
    return [
        ({**batch, "attention_mask": shown, "response_mask": nothing}, critic) for critic in (True, False)
    ]


ROLES: Sequence[tuple[Mapping[str, Any], tuple[bool, bool, bool]]] = (
    ({"estimator": "gae"}, (False, True, False)),
    ({"estimator": "grpo"}, (False, False, False)),
    ({"estimator": "grpo", "critic": True}, (False, True, False)),
    ({"estimator": "gae", "critic": False}, (False, False, False)),
    ({"estimator": "grpo", "use_kl_in_reward": True}, (True, False, False)),
    ({"estimator": "grpo", "use_kl_in_reward": False, "use_kl_loss": True}, (True, False, False)),
    ({"estimator": "gae", "reward_model": True}, (False, True, True)),
)
"""Options of a run, and whether it needs a reference policy, a critic and a reward model."""


def roles(options: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Return whether a run needs a reference policy, a critic and a reward model."""
    return next(due for given, due in ROLES if given == options)


STEP_PART_FUNCTIONS = (
    Plain(
        name="uneven rows",
        law="rows of unequal lengths",
        suspects="rows of another part, positions of several axes divided along the wrong one",
        cases=_uneven,
        right=uneven,
    ),
    Plain(
        name="restored rows",
        law="rows of unequal lengths in their order again",
        suspects="the order itself in place of its inverse",
        cases=_parts,
        right=restored,
    ),
    Plain(
        name="rows without padding",
        law="padded rows without padding",
        suspects="one token more or less, lengths of other rows",
        cases=lambda case: [
            (torch.arange(18.0).view(3, 6), lengths) for lengths in ([6, 1, 3], [2, 4, 4], [6, 6, 6])
        ],
        right=without_padding,
    ),
    Plain(
        name="row that fills",
        law="a row that fills a batch",
        suspects="a row that trains, the reward or the experts of the row that it is made of",
        cases=_samples,
        right=filler,
    ),
    Plain(
        name="row that fills",
        law="a row that fills a batch of distillation",
        suspects="what the teacher says of the row that it is made of",
        cases=lambda case: _samples(case, teacher=True),
        right=filler,
    ),
    Plain(
        name="advantages of sessions",
        law="advantages of sessions with several outputs",
        suspects="the first output for the last one, groups of outputs in place of sessions",
        cases=_outputs,
        right=advantages_of_sessions,
        bound=1e-4,
    ),
    Plain(
        name="returned by a tool",
        law="what tools return",
        suspects="a reward of 0 or None, metrics lost, text that is not JSON",
        cases=lambda case: [(given,) for given, _ in RETURNED],
        right=returned,
    ),
    Plain(
        name="adapted modules",
        law="modules that an adapter names",
        suspects="a part of a name, another layer, excluded modules",
        cases=lambda case: [(options, name) for options, name, _ in TARGETS],
        right=adapted,
    ),
    Plain(
        name="roles of options",
        law="models that a run needs",
        suspects="a default that is on, a critic without GAE, an option that is overruled",
        cases=lambda case: [(options,) for options, _ in ROLES],
        right=roles,
    ),
    Plain(
        name="joined images",
        law="images of several rows",
        suspects="padding in front, rows in another order, a row without images",
        cases=_images,
        right=joined_images,
    ),
    Plain(
        name="step metrics without answers",
        law="metrics of a step in which nothing was answered",
        suspects="a mean of 0 for no answer",
        cases=_no_answers,
        right=step_metrics,
        bound=32 * FLOAT32,
    ),
)
add_laws(STEP_PARTS, STEP_PART_FUNCTIONS)
