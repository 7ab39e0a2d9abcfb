"""Models, adapters and options that are given together: each acts, or the trainer refuses it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import Gone
from seatrial.targets.common.tiny import tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.trl.former import CACHES_DROPPED, UNMASKED
from seatrial.targets.trl.named import parameters_of
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.limits import KINDS, made_rows, places
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.seen import made_trainer, observed, or_refused, seen_of

UNREAD = KnownFailure(
    "completion_only_loss is taken for rows without completions, and all their tokens train",
    finding="TRL: completion_only_loss without completions",
).of("R34.worked/combinations::*{'completion_only_loss': True*")
LENGTHS = ((3, 5, 7), (6, 2, 4), (8, 9, 3), (2, 7, 8))
IDS = tuple(range(40, 52))
ANSWERS = (
    ("texts", "completion_only_loss"),
    ("messages", "completion_only_loss"),
    ("messages", "assistant_only_loss"),
    ("texts", "assistant_only_loss"),
    ("completions", "assistant_only_loss"),
)
"""Kinds of rows, and options that leave prompts out of the loss."""
LAYOUTS: Sequence[Mapping[str, Any]] = (
    {},
    {"packing": True, "max_length": 64},
    {"padding_free": True, "max_length": None},
)
SAME: Sequence[Mapping[str, Any]] = (
    {"activation_offloading": True},
    {"gradient_checkpointing": True},
    {"dataset_num_proc": 1},
)
"""Options that change no result."""
CHECKPOINTS: Sequence[Mapping[str, Any]] = (
    {"gradient_checkpointing": True},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
)
SELECTIVE: Sequence[Mapping[str, Any]] = (
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"selective": True}},
)
"""Ways to compute activations again."""
TRAINERS = ("SFT", "DPO", "KTO", "Reward", "CPO", "ORPO", "GRPO", "RLOO")


def _base(name: str) -> Any:
    return tiny_scorer(0) if name == "Reward" else tiny_model(tiny_tokenizer(), 0)


def lora_options(name: str, **options: Any) -> Any:
    """Return the configuration of an adapter of a trainer's model, which changes what the model computes."""
    from peft import LoraConfig

    task = "SEQ_CLS" if name == "Reward" else "CAUSAL_LM"
    given = {"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False, "task_type": task, **options}
    return LoraConfig(**given)


def adapted_model(name: str, **options: Any) -> Any:
    """Return a trainer's model with an adapter."""
    from peft import get_peft_model

    torch.manual_seed(3)
    return get_peft_model(_base(name), lora_options(name, **options))


def _computed(model: Any) -> Tensor:
    """Return what a model computes of fixed ids."""
    was_training = model.training
    with torch.no_grad():
        found: Tensor = model.eval()(input_ids=torch.tensor([IDS])).logits.double()
    model.train(was_training)
    return found


def _equal(first: Tensor, second: Tensor) -> bool:
    return bool(torch.allclose(first, second, atol=1e-5))


def _saved(name: str, trainer: Any) -> Any:
    """Return the model that a trainer saves, adapters on the model that they were made for."""
    from peft import PeftModel

    folder = new_folder()
    trainer.save_model(folder)
    if (Path(folder) / "adapter_config.json").exists():
        return PeftModel.from_pretrained(_base(name), folder)
    return type(_base(name)).from_pretrained(folder)


def _trained(name: str, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    rows = made_rows(KINDS[name][-1 if name == "SFT" else 0], LENGTHS)
    scored = {"reward_funcs": _lengths} if KINDS[name] == ("prompts",) else {}
    return made_trainer(name, rows, options, arguments={**scored, **arguments})


def _given_adapter(name: str, more: Callable[[], Mapping[str, Any]], _: Any) -> list[str]:
    """Return what is wrong with a run of a model that has an adapter, before and after it."""
    model = adapted_model(name)
    due = _computed(model)
    trainer = _trained(name, {"learning_rate": 0.1}, {"model": model, **_without_reference(name), **more()})
    wrong = [] if _equal(_computed(trainer.model), due) else ["another model is trained than the given one"]
    trainer.train()
    after = _computed(trainer.model)
    if _equal(after, due):
        wrong.append("nothing is trained")
    if not _equal(_computed(_saved(name, trainer)), after):
        wrong.append("the saved adapter on its own model computes something else")
    return wrong


def _without_reference(name: str) -> dict[str, Any]:
    takes = parameters_of(find_trainer(name)[0])
    return {"ref_model": None} if "ref_model" in takes else {}


def _second_adapter(name: str, _: Any) -> list[str]:
    """Return what a run changes in a model with two adapters, of which the second is active."""
    model = adapted_model(name)
    model.add_adapter("second", lora_options(name, r=3))
    model.set_adapter("second")
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    trainer = _trained(name, {"learning_rate": 0.1}, {"model": model, **_without_reference(name)})
    trainer.train()
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    wrong = sorted(key for key in changed if ".second." not in key)
    return [
        *wrong,
        *([] if any(".second." in key for key in changed) else ["the active adapter is not trained"]),
    ]


def _two_labels(_: Any) -> str:
    """Return whether a trainer of rewards takes a model that has two values for a row."""
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(tiny_scorer(0).config)
    config.num_labels = 2
    model_class: Any = AutoModelForSequenceClassification
    model = model_class.from_config(config)
    trainer = None
    try:
        trainer = _trained("Reward", {}, {"model": model})
        trainer.train()
    except (ValueError, RuntimeError, IndexError):
        return "refused"
    return "taken"


def _formatted(options: Mapping[str, Any], _: Any) -> list[str]:
    """Return texts that train although they are prompts', where rows have a function that joins both."""
    tokenizer = tiny_tokenizer()

    def joined(row: Mapping[str, Any]) -> Any:
        one = isinstance(row["prompt"], str)
        texts = [
            asked + said
            for asked, said in zip(
                *([row[key]] if one else row[key] for key in ("prompt", "completion")), strict=True
            )
        ]
        return texts[0] if one else texts

    found = seen_of("SFT", made_rows("completions"), options, arguments={"formatting_func": joined})
    return [text for one in found if any(map(str.islower, text := tokenizer.decode(one.trained)))]


def _of_answers(kind: str, options: Mapping[str, Any], _: Any) -> list[str]:
    """Return texts that train although they are prompts'."""
    tokenizer = tiny_tokenizer()
    trained = [tokenizer.decode(one.trained) for one in seen_of("SFT", made_rows(kind), options)]
    return [text for text in trained if any(map(str.islower, text.replace("<|im_end|>", "")))]


def _ended(name: str, end_of_model: str, _: Any) -> list[str]:
    """Return completions that train on padding, or after the tokenizer's end token, where the model has another end."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, 0)
    own = int(tokenizer.convert_tokens_to_ids(end_of_model))
    model.config.eos_token_id = model.generation_config.eos_token_id = own
    kept = {tokenizer.eos_token_id, own, *tokenizer.convert_tokens_to_ids(list("abcd"))}
    options = {
        "generation_kwargs": {"suppress_tokens": [one for one in range(len(tokenizer)) if one not in kept]},
        "max_completion_length": 24,
    }
    trainer = _trained(name, options, {"model": model, "reward_funcs": _lengths})
    with observed(trainer.model) as found:
        trainer.train()
    wrong = [
        tokenizer.decode(one.trained)
        for one in found
        if tokenizer.pad_token_id in one.trained or tokenizer.eos_token_id in one.trained[:-1]
    ]
    return wrong if found else ["nothing is trained"]


def _lengths(completions: Sequence[Any], **_: Any) -> list[float]:
    return [float(len(str(one))) + 0.1 * number for number, one in enumerate(completions)]


def _weights_after(name: str, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> Tensor:
    trainer = _trained(name, {"learning_rate": 0.1, "max_steps": 2, **options}, arguments)
    trainer.train()
    return torch.cat([value.detach().flatten().double() for value in trainer.model.parameters()])


def _neutral(name: str, options: Mapping[str, Any], adapts: bool, _: Any) -> bool:
    """Return whether a run is the same with options that change no result, of the model or of new adapters."""

    def adapters() -> dict[str, Any]:
        return {**_without_reference(name), "peft_config": lora_options(name)} if adapts else {}

    return _equal(_weights_after(name, {}, adapters()), _weights_after(name, options, adapters()))


def _rows_of(name: str) -> Iterator[Row]:
    def row(subject: str, what: str, call: Callable[..., Any], right: Any = (), since: str = "0") -> Row:
        return Row(subject, places(name), what, or_refused(call), [] if right == () else right, since)

    takes = parameters_of(find_trainer(name)[0])
    both = {"peft_config": lora_options(name, target_modules=["v_proj"])}
    yield row("models", "an adapter that is given", partial(_given_adapter, name, dict))
    if "peft_config" in takes:
        yield row(
            "models",
            "an adapter that is given, and options of another one",
            partial(_given_adapter, name, lambda: both),
            since="0.29",  # earlier ones merge the first one
        )
    yield row("models", "two adapters, the second active", partial(_second_adapter, name))
    for same in (*SAME, *(SELECTIVE if name == "SFT" else ())):
        yield row("steps", f"{same}", partial(_neutral, name, same, False), True)
    for same in CHECKPOINTS if "peft_config" in takes else ():
        yield row("steps", f"{same}, adapters", partial(_neutral, name, same, True), True)
    if name == "Reward":
        yield row("edges", "a model of two labels", _two_labels, "refused", since="0.29")
    if name == "SFT":
        yield row(
            "texts",
            "a function that joins texts, and completions alone",
            partial(_formatted, {"completion_only_loss": True}),
        )
        for (kind, option), more in product(ANSWERS, LAYOUTS):
            options = {option: True, **more}
            subject = "combinations" if option == "completion_only_loss" else "texts"
            yield row(subject, f"{kind}, {options}", partial(_of_answers, kind, options))
    if name in ("GRPO", "RLOO"):
        for end in ("<eos>", "a"):
            yield row("samplers", f"a model with the end {end}", partial(_ended, name, end))


def _made(name: str) -> Sequence[Row]:
    """Return the rows of a trainer.

    Raises:
        Gone: the release does not have it, or PEFT is missing.
    """
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise Gone("PEFT is not installed") from error
    return list(_rows_of(name))


GIVEN: Mapping[str, Callable[[], Sequence[Row]]] = {
    f"given-{name.lower()}": partial(_made, name) for name in TRAINERS
}
FAILURES: Mapping[str, Sequence[KnownFailure]] = {
    "given-sft": (UNREAD, UNMASKED),
    "given-grpo": (CACHES_DROPPED,),
}
