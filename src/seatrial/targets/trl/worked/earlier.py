"""Worked examples of PPO, XPO, Nash-MD, MiniLLM and replayed rollouts that earlier releases have."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.trl.worked.rows import UTILS, Row

PPO = "trl.experimental.ppo.ppo_trainer"
VALUES = torch.tensor([[1.0, 2.0, 9.0], [4.0, 9.0, 9.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 0], [1, 0, 0]])
"""Of VALUES 1, 2 and 4 count: their mean is 7 / 3, and their variance 14 / 9."""
MEAN, VARIANCE = 7 / 3, 14 / 9
PAD, STOP = 0, 2


def _core(name: str) -> str:
    return f"{PPO}:{name} trl.core:{name}"


def _utils(name: str) -> str:
    return f"{PPO}:{name} {UTILS}:{name} trl.experimental.utils:{name}"


def _whitened(whiten: Callable[..., Tensor]) -> list[list[float]]:
    found = [whiten(VALUES, MASK, shift_mean=one)[MASK.bool()].tolist() for one in (True, False)]
    return [[round(value, 5) for value in row] for row in found]


def _whitened_due() -> list[list[float]]:
    deviation = math.sqrt(1.5 * VARIANCE)
    found = [(one - MEAN) / deviation for one in (1, 2, 4)]
    return [[round(one, 5) for one in found], [round(one + MEAN, 5) for one in found]]


def _accelerator() -> Any:
    return SimpleNamespace(
        use_distributed=False, is_main_process=True, device="cpu", reduce=lambda value, *_, **__: value
    )


def _moments(moments_class: Any) -> list[Any]:
    """Return what two updates give, the moments of all five values, and those that are read from a file."""
    own = moments_class(_accelerator())
    first = own.update(torch.tensor([1.0, 3.0]))
    second = own.update(torch.tensor([2.0, 6.0, 8.0]))
    found = [[*first], [*second], [own.mean, own.std, own.var, own.count]]
    if hasattr(own, "save_to_json"):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "moments.json")
            own.save_to_json(path)
            read = moments_class.load_from_json(_accelerator(), path)
        found.append([read.mean, read.std, read.var, read.count])
    return [[round(float(one), 4) for one in row] for row in found]


def _statistics(statistics: Callable[..., Any]) -> list[float]:
    return [round(float(one), 6) for one in statistics(_accelerator(), VALUES * MASK, MASK)]


def _accuracy(compute: Callable[..., Any]) -> list[float]:
    pairs = np.array([[1.0, 2.0], [3.0, 1.0], [5.0, 5.0], [2.0, 0.0]])
    tokens = np.zeros((2, 3, 2))
    tokens[0, :, 1], tokens[1, :2, 0] = 1.0, 1.0
    labels = np.array([[-100, 1, 0], [0, 1, -100]])
    return [compute((pairs, np.zeros(4)))["accuracy"], compute((tokens, labels))["accuracy"]]


def _tracked(tracker_class: Any) -> list[list[float]]:
    """Return the advantages of two batches; a prompt with fewer than three rewards has those of its batch."""
    tracker = tracker_class(4, 3)
    found = [
        tracker.update(["a", "b", "a"], np.array([1.0, 2.0, 3.0])),
        tracker.update(["a", "b", "b"], np.array([5.0, 0.0, 7.0])),
    ]
    return [[round(float(one), 3) for one in row] for row in found]


def _tracked_due() -> list[list[float]]:
    def apart(values: Sequence[float], own: Sequence[float]) -> list[float]:
        mean = sum(own) / len(own)
        deviation = math.sqrt(sum((one - mean) ** 2 for one in own) / len(own))
        return [(one - mean) / deviation for one in values]

    rows = [apart([1, 2, 3], [1, 2, 3]), [*apart([5], [1, 3, 5]), *apart([0, 7], [2, 0, 7])]]
    return [[round(one, 3) for one in row] for row in rows]


def _batch() -> tuple[Any, Tensor, Tensor]:
    """Return a model, its prompts with padding before and after, and an attention mask."""
    model = tiny_model(tiny_tokenizer(), 0).eval()
    pad = int(tiny_tokenizer().pad_token_id)
    rows = torch.tensor([[pad, pad, 41, 42], [44, 45, 46, 47], [pad, 48, 49, 50]])
    return model, rows, rows != pad


def _sampled(count: int, sample: Callable[..., Any]) -> list[str]:
    """Return the rows whose answers are not those that greedy decoding gives of each prompt alone, or their scores."""
    import transformers

    model, rows, mask = _batch()
    pad = int(tiny_tokenizer().pad_token_id)
    config_class: Any = transformers.GenerationConfig
    config = config_class(max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=pad)
    given = (count, pad, config) if count else (pad, config)
    found, scores = sample(model, rows, *given)
    wrong = []
    for number, (row, own) in enumerate(zip(rows, mask, strict=True)):
        ids = row[own].tolist()
        with torch.no_grad():
            for place in range(3):
                logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
                if not torch.allclose(logits[: scores.shape[-1]], scores[number, place], atol=1e-3):
                    wrong.append(f"scores of token {place} of row {number}")
                ids.append(int(scores[number, place].argmax()))
        if found[number].tolist() != [*row.tolist(), *ids[-3:]]:
            wrong.append(f"{found[number].tolist()}")
    return wrong


def _forwarded(forward: Callable[..., Any]) -> list[str]:
    """Return the rows whose logits are not those of their tokens alone."""
    model, rows, mask = _batch()
    wrong = []
    with torch.no_grad():
        found = forward(model, rows, int(tiny_tokenizer().pad_token_id)).logits
        for number, (row, own) in enumerate(zip(rows, mask, strict=True)):
            due = model(input_ids=row[own][None]).logits[0]
            if not torch.allclose(found[number][own], due, atol=1e-4):
                wrong.append(f"row {number}")
    return wrong


def _pair_losses(loss_type: str, trainer_class: Any) -> list[float]:
    """Return the losses of XPO: log-probabilities of the policy's answers and of the reference's, by both models."""
    own, of_other, other, of_own = (
        torch.tensor(one, dtype=torch.float64)
        for one in (
            [[-1.0, -2.0], [-0.5, 0.0]],
            [[-3.0, -1.0], [-2.0, -2.0]],
            [[-2.0, -1.5], [-1.0, -1.0]],
            [[-2.5, -2.0], [-1.0, 0.0]],
        )
    )
    trainer = object.__new__(trainer_class)
    with (
        patch.object(trainer_class, "beta", 0.5, create=True),
        patch.object(trainer_class, "alpha", 0.1, create=True),
    ):
        trainer.args = SimpleNamespace(loss_type=loss_type)
        found = trainer._compute_losses(own, of_other, other, of_own, torch.tensor([True, False]))
    return [round(float(one), 5) for part in found for one in part.flatten()]


def _pair_losses_due(loss_type: str) -> list[float]:
    ratios = (((-3.0) - (-4.5)) - ((-4.0) - (-3.5)), ((-4.0) - (-2.0)) - ((-0.5) - (-1.0)))
    pairs = [
        math.log1p(math.exp(-0.5 * one)) if loss_type == "sigmoid" else (one - 1 / (2 * 0.5)) ** 2
        for one in ratios
    ]
    more = [0.1 * -4.0, 0.1 * -4.0]
    return [round(one, 5) for one in (sum(pairs + more) / 2, *pairs, *more)]


def _mixed(wrapper_class: Any) -> list[float]:
    """Return the log-probabilities of a mixture of two models with logits of their own."""

    def model(*values: float) -> Any:
        return lambda *_, **__: SimpleNamespace(logits=torch.log(torch.tensor([values], dtype=torch.float64)))

    wrapper = object.__new__(wrapper_class)
    wrapper.model, wrapper.ref_model, wrapper.mixture_coef = model(0.2, 0.8), model(0.6, 0.4), 0.25
    return [round(float(one), 6) for one in wrapper_class.forward(wrapper).logits[0].exp()]


def _mixed_due() -> list[float]:
    raw = [first**0.75 * second**0.25 for first, second in ((0.2, 0.6), (0.8, 0.4))]
    return [round(one / sum(raw), 6) for one in raw]


def _gains(gamma: float, by_length: bool, trainer_class: Any) -> list[float]:
    """Return what MiniLLM gives the tokens of a row, whose last one is padding."""
    trainer = SimpleNamespace(gamma=gamma, length_normalization=by_length)
    student, teacher = (
        torch.tensor([one], dtype=torch.float64) for one in ([-1.0, -2.0, -9.0], [-0.5, -3.0, -1.0])
    )
    found = trainer_class._compute_advantage(trainer, student, teacher, torch.tensor([[1, 1, 0]]))
    return [round(float(one), 3) for one in found[0, :2]]


def _divergence(reduction: str, trainer_class: Any) -> float:
    student, teacher = (
        torch.tensor([[one, [0.5, 0.5]]], dtype=torch.float64).log() for one in ([0.25, 0.75], [0.5, 0.5])
    )
    mask = torch.tensor([[True, False]])
    found = trainer_class._single_step_decomposition_loss(None, student, teacher, mask, reduction)
    return float(found)


KL = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)


def _kept(buffer_class: Any) -> list[Any]:
    """Return the scores of a buffer of two rows that is given five, and one that only has a row to give."""
    buffer = buffer_class(2)
    nothing = buffer.sample(1)
    rows = [{"n": torch.tensor(place)} for place in range(5)]
    buffer.add([0.1, 0.5], rows[:2])
    buffer.add([0.05, 0.9, 0.3], rows[2:])
    only = buffer_class(4)
    only.add([0.4], rows[:1])
    names = [int(one["n"]) for one in only.sample(3)]
    return [nothing, sorted(one[0] for one in buffer.heap), names]


MINILLM = "trl.experimental.minillm.minillm_trainer:MiniLLMTrainer trl.experimental.minillm:MiniLLMTrainer"
XPO = "trl.experimental.xpo:XPOTrainer trl:XPOTrainer"
MIXTURES = " ".join(
    f"{place}:GeometricMixtureWrapper"
    for place in ("trl.experimental.nash_md.nash_md_trainer", "trl.models.modeling_base")
)

EARLIER_ROWS: Sequence[Row] = (
    Row(
        "formulas",
        _core("masked_mean"),
        "all, by row",
        lambda mean: [float(mean(VALUES, MASK)), mean(VALUES, MASK, axis=1).tolist()],
        [MEAN, [1.5, 4.0]],
    ),
    Row(
        "formulas",
        _core("masked_var"),
        "of a sample, of all",
        lambda var: [float(var(VALUES, MASK)), float(var(VALUES, MASK, unbiased=False))],
        [1.5 * VARIANCE, VARIANCE],
    ),
    Row("formulas", _core("masked_whiten"), "around 0, around the mean", _whitened, _whitened_due()),
    Row(
        "texts",
        _utils("truncate_response"),
        "a stop within, at the end, none, two",
        lambda cut: cut(
            STOP, PAD, torch.tensor([[5, 2, 6, 7], [5, 6, 7, 2], [5, 6, 7, 8], [2, 2, 5, 5]])
        ).tolist(),
        [[5, 2, 0, 0], [5, 6, 7, 2], [5, 6, 7, 8], [2, 0, 0, 0]],
    ),
    Row("counts", _utils("exact_div"), "whole numbers", lambda divide: divide(12, 4), 3),
    Row(
        "formulas",
        f"{UTILS}:RunningMoments trl.experimental.bco.bco_trainer:RunningMoments",
        "two updates",
        _moments,
        [[2.0, 1.4142], [5.3333, 3.0551], *[[4.0, 2.9155, 6.8, 5.0]] * 2],
    ),
    Row(
        "formulas",
        f"{UTILS}:get_global_statistics trl.experimental.bco.bco_trainer:get_global_statistics",
        "with a mask",
        _statistics,
        [round(MEAN, 6), round(VARIANCE, 6), 3.0],
    ),
    Row(
        "metrics",
        f"{UTILS}:compute_accuracy trl.experimental.prm.prm_trainer:compute_accuracy",
        "pairs of which one is equal, tokens",
        _accuracy,
        [2 / 3, 0.5],
        since="0.17",
    ),
    Row("formulas", f"{UTILS}:PerPromptStatTracker", "prompts with few rewards", _tracked, _tracked_due()),
    Row("samplers", _utils("generate"), "padding before prompts", partial(_sampled, 0), []),
    *(
        Row("samplers", _utils("batch_generation"), f"{count} rows at a time", partial(_sampled, count), [])
        for count in (2, 3)
    ),
    Row("steps", _utils("forward"), "padding before prompts", _forwarded, []),
    *(
        Row(
            "formulas",
            XPO,
            one,
            partial(_pair_losses, one),
            _pair_losses_due(one),
        )
        for one in ("sigmoid", "ipo")
    ),
    Row("formulas", MIXTURES, "unequal shares", _mixed, _mixed_due()),
    Row("formulas", MINILLM, "sums that are discounted", partial(_gains, 0.5, False), [0.0, -0.5]),
    Row("formulas", MINILLM, "means that are discounted", partial(_gains, 0.5, True), [0.0, -1.0]),
    Row("formulas", MINILLM, "no sum", partial(_gains, 0.0, True), [0.5, -1.0]),
    *(
        Row("formulas", MINILLM, f"a divergence, {one}", partial(_divergence, one), KL / parts)
        for one, parts in (("batchmean", 1), ("sum", 1), ("mean", 2))
    ),
    Row(
        "rollouts",
        "trl.experimental.grpo_with_replay_buffer.grpo_with_replay_buffer_trainer:ReplayBuffer",
        "more rows than places",
        _kept,
        [None, [0.5, 0.9], [0, 0, 0]],
    ),
)
