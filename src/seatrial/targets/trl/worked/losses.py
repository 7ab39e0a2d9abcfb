"""The losses that GRPO and RLOO compute of a batch, compared with `surrogates`: values, gradients and the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.worked_rows import unlike
from seatrial.targets.trl.compared.folders import model_folder
from seatrial.targets.trl.named import code_has
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.limits import made_rows, places
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.seen import known_options, made_trainer, or_refused
from seatrial.targets.trl.worked.surrogates import (
    BIAS,
    DEFAULTS,
    DEFINITIONS,
    NUM_ITEMS,
    Line,
    lines_of,
    trained_of,
)

SAMPLED = ("GRPO", "RLOO")
TOLERANCE = 2e-4
NUM_PARTS, NUM_SLICES = 2, 4
"""Micro-batches of a step of training, and those that one generation is divided into."""


def _batch(name: str, lines: Sequence[Line], masked: Sequence[int]) -> dict[str, Any]:
    """Return the rows as the trainer's loss takes them, prompts padded before and completions after."""
    pad = tiny_tokenizer().pad_token_id
    asked, said = max(len(one.prompt) for one in lines), max(len(one.completion) for one in lines)

    def before(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
        return torch.tensor([[fill] * (asked - len(row)) + list(row) for row in rows])

    def after(rows: Sequence[Sequence[Any]], fill: Any) -> Tensor:
        return torch.tensor([list(row) + [fill] * (said - len(row)) for row in rows])

    ones = [[int(number not in masked)] * len(one.completion) for number, one in enumerate(lines)]
    made: dict[str, Any] = {
        "prompt_ids": before([one.prompt for one in lines], pad),
        "prompt_mask": before([[1] * len(one.prompt) for one in lines], 0),
        "completion_ids": after([one.completion for one in lines], pad),
        "completion_mask": after(ones, 0),
        "advantages": torch.tensor([one.advantage for one in lines]),
    }
    if name == "RLOO":
        return {**made, "old_logps": torch.tensor([sum(trained_of(one.old, one)) for one in lines])}
    made |= {
        "old_per_token_logps": after([one.old for one in lines], 0.0),
        "ref_per_token_logps": after([one.reference for one in lines], 0.0),
        "num_items_in_batch": torch.tensor(NUM_ITEMS),
    }
    if any(0 in one.trains and any(one.trains) for one in lines):
        made["tool_mask"] = after([one.trains for one in lines], 1)
    return made


def _judged(name: str, options: Mapping[str, Any], masked: Sequence[int], trains: bool, _: Any) -> list[str]:
    """Return where the loss of a batch, its gradients or its figures are not those of the definition."""
    forms = {key: options[key] for key in FORMS if key in options}
    given = {key: value for key, value in options.items() if key not in FORMS}
    trainer_class, config_class = find_trainer(name)
    known = known_options(config_class)
    _fits(trainer_class, options)
    trains |= not code_has(OF_EVALUATIONS, trainer_class)
    full = {**DEFAULTS, **{key: value for key, value in known.items() if key == BIAS}, **given}
    full["epsilon_high"] = given.get("epsilon_high", full["epsilon"])
    lines = lines_of(full["temperature"], masked, **forms)
    own = {key: full[key] for key in ("temperature", "max_completion_length")}
    slices = NUM_SLICES if _divides_items(name) else NUM_PARTS
    steps = {"gradient_accumulation_steps": NUM_PARTS, "steps_per_generation": slices}
    full["share"] = NUM_PARTS / slices if trains else 1.0
    more = {"model": _loaded()} if given.get("beta") else {}
    trainer = made_trainer(name, made_rows("prompts"), {"beta": 0.0, **own, **steps, **given}, arguments=more)
    is_part = trains and any(code_has(one, trainer_class, "trl") for one in OF_PARTS)
    parts = NUM_PARTS if is_part else 1
    trainer.current_gradient_accumulation_steps = NUM_PARTS
    model = trainer.model
    model.train(trains)
    loss = trainer.compute_loss(model, _batch(name, lines, masked))
    loss.backward()
    with torch.no_grad():
        trainer.compute_loss(model, _batch(name, lines, masked))  # the log has the mean of both
    trainer.log({})
    plain = tiny_model(tiny_tokenizer(), 0).double().eval()
    due = DEFINITIONS[name](full, lines, plain, parts)
    due.loss.backward()  # type: ignore[no-untyped-call]
    wrong = unlike([float(loss)], [float(due.loss)], "loss", TOLERANCE)
    slopes = {key: value.grad for key, value in plain.named_parameters() if value.grad is not None}
    for key, value in model.named_parameters():
        right = slopes[key]
        if value.grad is None or float((value.grad - right).norm()) > TOLERANCE * max(
            1e-3, float(right.norm())
        ):
            wrong.append(f"the gradient of {key}")
            break
    logged = {key.removeprefix("eval_"): value for key, value in trainer.state.log_history[-1].items()}
    for key, right in due.figures.items():
        if _is_logged(name, key):
            wrong += unlike([logged.get(key, math.nan)], [right], key, TOLERANCE)
    return wrong


def _fits(trainer_class: type, options: Mapping[str, Any]) -> None:
    """Check that a release has the parts of a case that are no options.

    Raises:
        NotServed: it does not.
    """
    if options.get("external") and not code_has('if "tool_mask" not in inputs', trainer_class):
        raise NotServed("all tokens of a completion are the model's own")
    is_plain = options.get("loss_type") == "luspo" and "importance_sampling_level" not in options
    if is_plain and not code_has("(per_token_loss * mask).sum(-1).mean()", trainer_class):
        raise NotServed("luspo is of ratios of sequences alone")


def _loaded() -> Any:
    """Return the model from the folder that the trainer loads its reference from."""
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    return auto_model.from_pretrained(model_folder(False))


def _divides_items(name: str) -> bool:
    """Return whether a divisor of the window's tokens is that of a step, which may be a part of the window."""
    return code_has("/ self.args.steps_per_generation", find_trainer(name)[0])


def _is_logged(name: str, key: str) -> bool:
    """Return whether the installed release has a figure by its present definition."""
    trainer_class = find_trainer(name)[0]
    if key.endswith(("low_min", "high_max")):
        own = "masked_seq_mean" if name == "GRPO" else "gather(is_low_clipped.float())"
        return code_has(own, trainer_class)
    return code_has(f'"{key}"', trainer_class)


OF_EVALUATIONS = 'if mode == "train" else 1.0'
"""Code that leaves the micro-batches of training out of an evaluation's loss."""
OF_PARTS = (
    "/ self.current_gradient_accumulation_steps",
    "normalizer = self.current_gradient_accumulation_steps",
)
"""Code that divides the loss of a micro-batch of training."""
FORMS = ("external", "negative")
"""In addition to options: whether some tokens are not the model's own, and whether no advantage is positive."""
CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
CASES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "GRPO": (
        *({"loss_type": one, "epsilon": 0.1, "epsilon_high": 0.3} for one in CLIPPED),
        *({"loss_type": one, "beta": 0.3, "external": True} for one in CLIPPED),
        *(
            {"loss_type": one, "importance_sampling_level": "sequence", "epsilon": 0.05}
            for one in ("grpo", "luspo", "dapo")
        ),
        {"loss_type": "grpo", "epsilon": 0.1, "negative": True},
        {"loss_type": "grpo", "delta": 1.25, "epsilon": 0.1, "external": True},
        {"loss_type": "cispo", "epsilon_high": 1.2, "beta": 0.3},
        {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0, "external": True},
        *(
            {
                "loss_type": "vespo",
                "vespo_k_pos": 1.0,
                "vespo_lambda_pos": first,
                "vespo_k_neg": 2.0,
                "vespo_lambda_neg": second,
                "external": True,
            }
            for first, second in ((2.0, 1.0), (0.0, 0.0))
        ),
        *({"loss_type": one, "off_policy_mask_threshold": 0.1, "external": True} for one in ("grpo", "dapo")),
        {"loss_type": "grpo", "top_entropy_quantile": 0.6, "beta": 0.3, "external": True},
        *({"loss_type": "dapo", "beta": 0.3, BIAS: corrects} for corrects in (True, False)),
        *({"loss_type": one, "entropy_coef": 0.3, "external": True} for one in ("grpo", "dapo")),
        {"loss_type": "dr_grpo", "entropy_coef": 0.3, "top_entropy_quantile": 0.6},
    ),
    "RLOO": (
        {"epsilon": 0.1, "epsilon_high": 0.3},
        {"epsilon": 0.1, "negative": True},
        {"epsilon": 0.3, "temperature": 1.4},
    ),
}
"""Options and `FORMS`, by trainer."""


def _rows_of(name: str) -> Iterator[Row]:
    for place, options in enumerate(CASES[name]):
        masked = (1,) if place % 2 else ()
        trains = place % 3 != 1
        what = f"{dict(options)}, {'training' if trains else 'evaluation'}"
        yield Row(
            "formulas", places(name), what, or_refused(partial(_judged, name, options, masked, trains)), []
        )


def _made(name: str) -> Sequence[Row]:
    """Return the rows of a trainer.

    Raises:
        Gone: the release does not have it, or its loss takes another batch.
    """
    trainer_class = find_trainer(name)[0]
    if name == "RLOO" and not code_has('"old_logps"', trainer_class):
        raise Gone("RLOO of this release has a loop of its own")
    if name == "GRPO" and not code_has('"old_per_token_logps"', trainer_class):
        raise Gone("GRPO of this release computes a batch's log-probabilities in its loss")
    return list(_rows_of(name))


LOSSES: Mapping[str, Callable[[], Sequence[Row]]] = {
    f"losses-{name.lower()}": partial(_made, name) for name in SAMPLED
}
