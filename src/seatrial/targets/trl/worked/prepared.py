"""What a trainer makes of the model, the reference, the tokenizer and the functions that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from seatrial.targets.common.tiny import END, tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.trl.named import code_has, parameters_of
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.given import adapted_model, lora_options
from seatrial.targets.trl.worked.limits import KINDS, made_rows, places
from seatrial.targets.trl.worked.rows import Row, by_trainer
from seatrial.targets.trl.worked.seen import made_trainer, or_refused, takes

LENGTHS = ((3, 5, 7), (6, 2, 4), (8, 9, 3), (2, 7, 8))
TRAINERS = ("SFT", "DPO", "KTO", "Reward")
TOLERANCE = 1e-4
BEFOREHAND: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "DPO": (
        {"ld_alpha": 0.4},
        {"loss_type": ["ipo"], "precompute_ref_batch_size": 3},
        {"max_length": 12},
        {"f_divergence_type": "js_divergence", "pad_to_multiple_of": 8},
    ),
    "KTO": (
        {"loss_type": "apo_zero_unpaired"},
        {"max_length": 12, "precompute_ref_batch_size": 3},
        {"desirable_weight": 1.7, "pad_to_multiple_of": 8},
    ),
}
"""Options with which references are computed beforehand."""
NEW = "<new>"
"""A token that a cloned template has and the tokenizer has not."""


def _rows(name: str) -> list[dict[str, Any]]:
    return made_rows(KINDS[name][KINDS[name].index("completions") if name == "SFT" else 0], LENGTHS)


def _adapters(name: str, kind: str) -> dict[str, Any]:
    """Return the model and the options of its adapter."""
    if kind == "an adapter that is given":
        return {"model": adapted_model(name)}
    return {"peft_config": lora_options(name)} if kind == "an adapter" else {}


ADAPTERS = ("no adapter", "an adapter", "an adapter that is given")


def _evaluated(name: str, options: Mapping[str, Any], kind: str) -> dict[str, float]:
    """Return the losses and rewards of an evaluation after some steps."""
    from datasets import Dataset

    rows = Dataset.from_list(_rows(name))
    own = {
        "max_steps": 3,
        "learning_rate": 0.1,
        "per_device_eval_batch_size": 4,
        "max_grad_norm": 1.0,
        **options,
    }
    model = tiny_model(tiny_tokenizer(), 1) if kind == ADAPTERS[0] else None
    arguments = {"eval_dataset": rows, "ref_model": model, **_adapters(name, kind)}
    trainer = made_trainer(name, rows, own, arguments=arguments)
    trainer.train()
    found = trainer.evaluate()
    return {key: found[key] for key in sorted(found) if key == "eval_loss" or "eval_rewards/" in key}


def _beforehand(name: str, options: Mapping[str, Any], kind: str, _: Any) -> list[str]:
    """Return what an evaluation logs otherwise where the reference is computed beforehand."""
    found = _evaluated(name, {**options, "precompute_ref_log_probs": True}, kind)
    alone = {key: value for key, value in options.items() if key != "precompute_ref_batch_size"}
    right = _evaluated(name, alone, kind)
    return [
        f"{key}: {found.get(key)}, and {value} where the reference is computed in each step"
        for key, value in right.items()
        if not abs(found.get(key, float("nan")) - value) < TOLERANCE * max(1.0, abs(value))
    ]


def _two_references(name: str, _: Any) -> bool:
    """Return whether another reference gives other values for a data set whose first ones were computed."""
    from datasets import Dataset

    rows = Dataset.from_list(_rows(name))
    found: list[float] = []
    for seed in (1, 2, 1):
        model = tiny_model(tiny_tokenizer(), seed)
        options = {"precompute_ref_log_probs": True}
        trainer = made_trainer(name, rows, options, arguments={"ref_model": model})
        trainer.train()
        found.append(trainer.state.log_history[0]["loss"])
    return bool(found[0] == found[2] != found[1])


def _padded(name: str, options: Mapping[str, Any], without: bool, _: Any) -> dict[str, Any]:
    """Return the token that pads batches, and whether tokenizer and model agree on it."""
    tokenizer = tiny_tokenizer(padding_side="right")
    if without:
        tokenizer.pad_token = None
    trainer = made_trainer(name, _rows(name), options, tokenizer=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    ids, mask = batch["input_ids"], batch["attention_mask"]
    own = trainer.processing_class
    config = trainer.model.config
    agree = [config.get_text_config().pad_token_id]
    if name != "Reward":
        agree.append(trainer.model.generation_config.pad_token_id)
    return {
        "pads with": sorted(own.convert_ids_to_tokens(sorted(set(ids[mask == 0].tolist())))),
        "tokenizer's": own.pad_token,
        "the model agrees": all(one == own.pad_token_id for one in agree),
    }


def _pads(token: str) -> dict[str, Any]:
    return {"pads with": [token], "tokenizer's": token, "the model agrees": True}


def _ended(name: str, _: Any) -> dict[str, Any]:
    """Return who agrees on an end token that is an option."""
    trainer = made_trainer(name, _rows(name), {"eos_token": END})
    own, model = trainer.processing_class, trainer.model
    end = own.convert_tokens_to_ids(END)
    found = {
        "tokenizer": own.eos_token_id == end,
        "model": model.config.get_text_config().eos_token_id == end,
    }
    if name != "Reward":
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        found["generation"] = end in ends
        found["the model's own end"] = own.convert_tokens_to_ids("<|im_end|>") in ends
    return found


def _folder(name: str) -> str:
    folder = new_folder()
    model = tiny_scorer(0) if name == "Reward" else tiny_model(tiny_tokenizer(), 0)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def _loaded(name: str, options: Mapping[str, Any], _: Any) -> list[list[str]]:
    """Return the type and the attention of the model of a folder, and those of its reference."""
    given = {"model_init_kwargs": dict(options)} if options else {}
    arguments: dict[str, Any] = {"model": _folder(name)}
    if "ref_model" in parameters_of(find_trainer(name)[0]):
        arguments["ref_model"] = None
    trainer = made_trainer(name, _rows(name), given, arguments=arguments)
    models = [trainer.model, getattr(trainer, "ref_model", None)]
    return [
        [str(next(one.parameters()).dtype).removeprefix("torch."), one.config._attn_implementation]
        for one in models
        if one is not None
    ]


def _one_score(_: Any) -> int:
    """Return how many values a model gives a row, of a folder of a language model."""
    trainer = made_trainer("Reward", _rows("Reward"), {}, arguments={"model": _folder("SFT")})
    return int(trainer.model.config.num_labels)


def _first_loss(name: str, kind: str, seed: int) -> float:
    """Return the loss of the first step with a reference that is given; a new adapter computes what its model does."""
    adapters = {"peft_config": lora_options(name, init_lora_weights=True)} if kind == ADAPTERS[1] else {}
    arguments = {"ref_model": tiny_model(tiny_tokenizer(), seed), **adapters}
    trainer = made_trainer(name, _rows(name), {}, arguments=arguments)
    trainer.train()
    return float(trainer.state.log_history[0]["loss"])


def _adapter_and_reference(name: str, _: Any) -> list[bool]:
    """Return whether a reference that is given with an adapter is the one that is used."""
    found, right, other = (
        _first_loss(name, ADAPTERS[1], 1),
        _first_loss(name, "", 1),
        _first_loss(name, "", 0),
    )
    return [abs(found - right) < TOLERANCE, abs(found - other) < TOLERANCE]


def _reference(name: str, _: Any) -> bool:
    """Return whether a reference that is given stays as it is."""
    model = tiny_model(tiny_tokenizer(), 1)
    trainer = made_trainer(name, _rows(name), {"learning_rate": 0.1}, arguments={"ref_model": model})
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trainer.train()
    return all(torch.equal(value, before[key]) for key, value in trainer.ref_model.state_dict().items())


def _cloned(name: str, adapted: bool, _: Any) -> dict[str, Any]:
    """Return what a template of a folder brings: its tokens, its end, and whether the new tokens train.

    The template's tokenizer has a new token, which ends each turn.
    """
    source = tiny_tokenizer()
    source.add_tokens([NEW], special_tokens=True)
    source.eos_token = NEW
    source.chat_template = source.chat_template.replace("<|im_end|>", NEW)
    folder = new_folder()
    source.save_pretrained(folder)
    rows = [
        {
            key: [{"role": "user" if key == "prompt" else "assistant", "content": value}]
            for key, value in row.items()
        }
        for row in _rows(name)
    ]
    head = "score" if name == "Reward" else "lm_head"
    adapters = {"peft_config": lora_options(name, modules_to_save=[head])} if adapted else {}
    options = {"chat_template_path": folder, "learning_rate": 0.1}
    trainer = made_trainer(name, rows, options, arguments=adapters)
    own, model = trainer.processing_class, trainer.model
    new = own.convert_tokens_to_ids(NEW)

    def embedded() -> Any:
        with torch.no_grad():
            return model.get_input_embeddings()(torch.tensor([new, new - 9])).clone()

    before = embedded()
    trainer.train()
    moved = (embedded() != before).any(-1).tolist()
    return {
        "template": own.chat_template == source.chat_template,
        "end": [own.eos_token, model.config.get_text_config().eos_token_id == new],
        "the new token trains": moved[0],
    }


def _summed(name: str, _: Any) -> bool:
    """Return whether a run has the loss of the function that it is given."""

    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        return 0 * outputs.logits.sum() + 7.5

    trainer = made_trainer(name, _rows(name), {}, arguments={"compute_loss_func": loss})
    trainer.train()
    return bool(abs(trainer.state.log_history[0]["loss"] - 7.5) < TOLERANCE)


def _stepped(name: str, _: Any) -> dict[str, Any]:
    """Return which optimizer of a class with options a run has."""
    given = (torch.optim.Adagrad, {"lr": 0.125, "eps": 0.25})
    trainer = made_trainer(name, _rows(name), {}, arguments={"optimizer_cls_and_kwargs": given})
    trainer.train()
    own = trainer.optimizer
    own = getattr(own, "optimizer", own)
    return {
        "class": type(own).__name__,
        **{key: own.param_groups[0]["initial_lr" if key == "lr" else key] for key in given[1]},
    }


def _streamed(name: str, _: Any) -> bool | None:
    """Return whether batches of a stream are dispatched by the first process, if the user says that they are."""
    from datasets import Dataset

    stream = Dataset.from_list(_rows(name)).to_iterable_dataset()
    options = {"accelerator_config": {"dispatch_batches": True}}
    trainer = made_trainer(name, stream, options)
    found: bool | None = trainer.args.accelerator_config.dispatch_batches
    return found


def _card(name: str, _: Any) -> dict[str, Any]:
    """Return what the card of a model says."""
    trainer = made_trainer(name, _rows(name), {})
    trainer.model.config._name_or_path = "someone/base"
    trainer.create_model_card(model_name="own-model", dataset_name="own-set", tags=["own-tag"])
    text = (Path(trainer.args.output_dir) / "README.md").read_text()
    data = yaml.safe_load(text.split("---")[1])
    paper = getattr(trainer, "_paper", None) or {}
    tags = set(data["tags"])
    return {
        "base": data.get("base_model"),
        "data": data.get("datasets"),
        "name": data.get("model_name"),
        "tags": {"own-tag", "trl", "generated_from_trainer"} <= tags and set(trainer._tag_names) <= tags,
        "text": all(one in text for one in ("own-model", "someone/base", "own-set", *paper.values())),
        "tags of the model": set(trainer._tag_names) <= set(trainer.model.model_tags or ()),
    }


CARD = {
    "base": "someone/base",
    "data": "own-set",
    "name": "own-model",
    "tags": True,
    "text": True,
    "tags of the model": True,
}
HALF = {"dtype": "bfloat16", "attn_implementation": "eager"}


def _rows_of(name: str) -> Iterator[Row]:
    def row(subject: str, what: str, call: Callable[..., Any], right: Any, since: str = "0") -> Row:
        return Row(subject, places(name), what, or_refused(call), right, since)

    has_reference = name in BEFOREHAND
    for options in BEFOREHAND.get(name, ()):
        for kind in ADAPTERS:
            what = f"computed beforehand, {dict(options)}, {kind}"
            yield row("validations", what, partial(_beforehand, name, options, kind), [])
    if has_reference:
        yield row(
            "states", "two references of one data set, beforehand", partial(_two_references, name), True
        )
        yield row("models", "a reference", partial(_reference, name), True)
        call = partial(_adapter_and_reference, name)
        yield row("models", "a reference that is given with an adapter", call, [True, False], "0.29")
    for what, without, pad in (
        ("the tokenizer's padding", False, "<pad>"),
        ("a tokenizer without padding", True, "<|im_end|>"),
    ):
        yield row("batches", what, partial(_padded, name, {}, without), _pads(pad), since="1.16")
    if takes(name, "pad_token"):
        yield row(
            "batches",
            "padding by an option",
            partial(_padded, name, {"pad_token": END}, False),
            _pads(END),
            "1.16",
        )
    if takes(name, "eos_token"):
        right: dict[str, Any] = {"tokenizer": True, "model": True}
        right |= {"generation": True, "the model's own end": True} if name != "Reward" else {}
        yield row("models", "an end by an option", partial(_ended, name), right, "1.16")
    twice = 2 if has_reference else 1
    yield row("models", "a folder", partial(_loaded, name, {}), [["float32", "sdpa"]] * twice, "1.0")
    yield row(
        "models", f"a folder, {HALF}", partial(_loaded, name, HALF), [["bfloat16", "eager"]] * twice, "1.0"
    )
    if name == "Reward":
        yield row("models", "a folder of a language model", _one_score, 1, "1.0")
    if takes(name, "chat_template_path"):
        right = {"template": True, "end": [NEW, True], "the new token trains": True}
        for adapted in (False, True):
            what = f"a template with a new token{', adapters' if adapted else ''}"
            yield row("wrappers", what, partial(_cloned, name, adapted), right, "1.0")
    arguments = parameters_of(find_trainer(name)[0])
    if "compute_loss_func" in arguments:
        yield row("calls", "a function of the loss", partial(_summed, name), True)
    if "optimizer_cls_and_kwargs" in arguments:
        right = {"class": "Adagrad", "lr": 0.125, "eps": 0.25}
        yield row("calls", "a class of optimizers and its options", partial(_stepped, name), right)
    if code_has("dispatch_batches = False", find_trainer(name)[0]):
        yield row("files", "a stream that is dispatched", partial(_streamed, name), False)
    yield row("offers", "the card of a model", partial(_card, name), CARD, "1.0")


PREPARED = by_trainer("prepared", TRAINERS, _rows_of)
