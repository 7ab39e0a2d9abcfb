"""What one step of a trainer sees: the sequences that its policy computes with gradients, and the tokens that train.

A token trains if the gradient of the last hidden state at the position before it is not zero. Of a model that scores
sequences, the token at the position itself does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.tiny import tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.trainers import CPU_OPTIONS, freeze_imports, new_folder
from seatrial.targets.trl.compared.rows import rewards_of
from seatrial.targets.trl.named import parameters_of
from seatrial.targets.trl.preferences import find_trainer, given_tokenizer


class Seen(NamedTuple):
    """A sequence that the policy computed with gradients, without its padding."""

    ids: tuple[int, ...]
    trained: tuple[int, ...]


OPTIONS: Mapping[str, Any] = {
    **CPU_OPTIONS,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "optim": "sgd",
    "num_generations": 2,
    "max_completion_length": 8,
    "max_new_tokens": 8,
    "lmbda": 0.0,
    "logging_strategy": "steps",
    "shuffle_dataset": False,
}
"""One step of four rows; those that a release does not know are left out."""
OWN_OPTIONS: Mapping[str, Mapping[str, Any]] = {"RLOO": {"beta": 0.0}}
"""Options of one trainer: RLOO's default loads a reference from the folder of the model, which has none here."""


def known_options(config_class: Any) -> dict[str, Any]:
    """Return the options of a configuration class with their defaults."""
    return {item.name: item.default for item in fields(config_class)}


def made_trainer(
    name: str,
    rows: Any,
    options: Mapping[str, Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
) -> Any:
    """Return a trainer of a tiny model.

    Args:
        name: of its class, without `Trainer`.
        rows: a list of rows, or a data set.
        options: of its configuration; one that the release does not have is refused.
        arguments: of the trainer, in place of those made here.
        tokenizer: the one of `tiny` if it is None.

    Raises:
        Gone: the release has no such trainer.
        NotServed: the release does not have an option or an argument.
    """
    import transformers
    from datasets import Dataset

    freeze_imports()
    transformers.set_seed(7)
    trainer_class, config_class = find_trainer(name)
    known, takes = known_options(config_class), parameters_of(trainer_class)
    if missing := sorted(set(options) - set(known)):
        raise NotServed(f"{config_class.__name__} has no {', '.join(missing)}")
    if missing := sorted(set(arguments or {}) - set(takes)):
        raise NotServed(f"{trainer_class.__name__} takes no {', '.join(missing)}")
    own = {one: value for one, value in {**OPTIONS, **OWN_OPTIONS.get(name, {})}.items() if one in known}
    args = config_class(output_dir=new_folder(), **{**own, **options})
    tokenizer = tokenizer or tiny_tokenizer(padding_side="right")
    given: dict[str, Any] = {
        "model": tiny_scorer(0) if name == "Reward" else tiny_model(tokenizer, 0),
        "args": args,
        "train_dataset": Dataset.from_list(rows) if isinstance(rows, list) else rows,
        **given_tokenizer(trainer_class, tokenizer),
    }
    more: Mapping[str, Callable[[], Any]] = {
        "ref_model": lambda: tiny_model(tokenizer, 1),
        "teacher_model": lambda: tiny_model(tokenizer, 2),
        "reward_funcs": lambda: rewards_of,
    }
    given |= {one: make() for one, make in more.items() if one in takes and one not in (arguments or {})}
    return trainer_class(**{**given, **(arguments or {})})


def decoder_of(model: Any) -> Any:
    """Return the module whose output the head is applied to."""
    return next(one for one in model.modules() if type(one).__name__ == "Qwen2Model")


@contextmanager
def observed(model: Any) -> Iterator[list[Seen]]:
    """Observe what a model computes with gradients; the list is filled when the context ends."""
    found: list[Seen] = []
    calls: list[tuple[Tensor, Tensor, list[Tensor]]] = []

    def keep(module: Any, given: tuple[Any, ...], named: Mapping[str, Any], output: Any) -> None:
        hidden = output[0]
        if not (torch.is_grad_enabled() and hidden.requires_grad):
            return
        ids = named.get("input_ids", given[0] if given else None)
        mask = named.get("attention_mask")
        if ids is None:
            return
        if mask is None or mask.shape != ids.shape:
            mask = torch.ones_like(ids)
        gradients: list[Tensor] = []
        calls.append((ids.detach().clone(), mask.detach().clone(), gradients))
        hidden.register_hook(lambda value: gradients.append(value.detach().clone()))

    handle = decoder_of(model).register_forward_hook(keep, with_kwargs=True)
    shift = 0 if "SequenceClassification" in str(type(model)) else 1
    try:
        yield found
    finally:
        handle.remove()
        for ids_BS, mask_BS, gradients in calls:
            if not gradients:
                continue
            used_BS = sum(gradients).abs().sum(-1) > 0  # type: ignore[union-attr]
            for ids_S, mask_S, used_S in zip(ids_BS, mask_BS.bool(), used_BS, strict=True):
                places = [at + shift for at in used_S.nonzero().flatten().tolist()]
                trained = tuple(int(ids_S[at]) for at in places if at < len(ids_S) and mask_S[at])
                found.append(Seen(tuple(ids_S[mask_S].tolist()), trained))


def seen_of(name: str, rows: Any, options: Mapping[str, Any], **more: Any) -> list[Seen]:
    """Train one step and return what it saw; see `made_trainer`."""
    trainer = made_trainer(name, rows, options, **more)
    with observed(trainer.model) as found:
        trainer.train()
    return sorted(found)


def or_refused(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is not served where the stack raises: an error is no silent mistake."""

    def called(*given: Any) -> Any:
        try:
            return call(*given)
        except NotServed:
            raise
        except (Exception, SystemExit) as error:
            raise NotServed(f"refused: {error_line(error)[:200]}") from error

    return called


def takes(name: str, option: str) -> bool:
    """Return whether the configuration of a trainer of the installed release has an option."""
    return option in known_options(find_trainer(name)[1])
