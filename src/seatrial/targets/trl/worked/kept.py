"""What a user gives a trainer is what it works with: token ids, collators, tokenizers, references and teachers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.tiny import CHAT_TEMPLATE, ordinary_ids, tiny_model, tiny_tokenizer
from seatrial.targets.common.trainers import CPU_OPTIONS, freeze_imports, new_folder
from seatrial.targets.trl.asynchronous_rollouts import PLACE as ASYNCHRONOUS
from seatrial.targets.trl.asynchronous_rollouts import asynchronous_module
from seatrial.targets.trl.compared.workers import without_servers
from seatrial.targets.trl.former import BEFOREHAND, LEAKS, REPLACED
from seatrial.targets.trl.named import code_has, parameters_of, sources
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.limits import KINDS, made_rows, places
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.seen import known_options, made_trainer, or_refused, seen_of, takes

LENGTHS = ((3, 5, 7), (6, 2, 4), (8, 9, 3), (2, 7, 8))
TOLERANCE = 1e-4
DIVERGENCES = ("GKD", "GOLD")
"""Trainers whose loss is the divergence of a student from a teacher."""
MASKS = (("completion_mask",), ("assistant_masks",), ("completion_mask", "assistant_masks"))
MASKED: Mapping[str, Any] = {"completion_only_loss": True, "remove_unused_columns": False}
BORDERS: Mapping[str, str] = {
    "SFT": "completions",
    "KTO": "labels",
    **dict.fromkeys(("DPO", "CPO", "ORPO"), "pairs"),
}
"""Trainers of prompts with answers, and their rows."""
NO_KERNELS = dict.fromkeys(
    ("rope", "cross_entropy", "fused_linear_cross_entropy", "rms_norm", "swiglu"),
    False,
)


def _rows_of_ids(number: int = 4) -> list[list[int]]:
    """Return the ids of examples, of which no two have one in common."""
    known = ordinary_ids(tiny_tokenizer())
    lengths = (5, 3, 6, 4)[:number]
    return [list(known[sum(lengths[:place]) :][:length]) for place, length in enumerate(lengths)]


def _tokenized(kind: str, options: Mapping[str, Any], _: Any) -> list[list[int]]:
    """Return the ids that train of rows that are tokenized and still have their text, which says something else."""
    given = _rows_of_ids()
    rows = [
        {**row, "input_ids": ids, "attention_mask": [1] * len(ids)}
        for row, ids in zip(made_rows(kind, LENGTHS), given, strict=True)
    ]
    return [list(one.ids) for one in seen_of("SFT", rows, options)]


def _masked(columns: Sequence[str], options: Mapping[str, Any], _: Any) -> list[str]:
    """Return the rows of token ids that train on other tokens than those that all of their masks have.

    Masks differ in their first and last places: the first half of a row is out of one, and the end out of another.
    """
    rows: list[dict[str, Any]] = []
    due = []
    for ids in _rows_of_ids():
        first = [int(place >= len(ids) // 2) for place in range(len(ids))]
        masks = dict(zip(columns, (first, [1] * (len(ids) - 1) + [0]), strict=False))
        rows.append({"input_ids": ids, **masks})
        due.append([one for one, *bits in zip(ids, *masks.values(), strict=True) if all(bits)])
    found = [list(one.trained) for one in seen_of("SFT", rows, options)]
    return [f"{one} trained" for one in sorted(found) if one not in due]


def _merging(word: str) -> Any:
    """Return a tokenizer that makes one token of the last letter of a prompt and the first one of an answer."""
    from tokenizers import models

    tokenizer = tiny_tokenizer(padding_side="right")
    merges = [(one, other) for one in word for other in word.upper()]
    vocabulary = {**tokenizer.get_vocab()}
    for one, other in merges:
        vocabulary[one + other] = len(vocabulary)
    tokenizer.backend_tokenizer.model = models.BPE(vocab=vocabulary, merges=merges)
    return tokenizer


def _compares_borders(name: str) -> bool:
    """Return whether a trainer looks for the end of the prompt in the tokens of the whole text.

    Releases without `common_prefix_length` warn of such tokens, or tokenize prompts and answers apart.
    """
    return name in ("CPO", "ORPO") or code_has("common_prefix_length", find_trainer(name)[0])


def _joined(name: str, kind: str, _: Any) -> list[str]:
    """Return rows that are not the tokens of their whole text, or train on part of their prompt alone.

    The token of both the prompt and the answer trains: what the answer begins with is known only with it. ORPO trains
    on prompts too.
    """
    tokenizer = _merging("ab")
    rows = [
        {
            key: value if key == "label" else f"{value}b" if key == "prompt" else f"A{value}"
            for key, value in row.items()
        }
        for row in made_rows(kind, LENGTHS)
    ]
    end = tokenizer.eos_token
    texts = {
        row["prompt"] + row[key] + end
        for row in rows
        for key in ("completion", "chosen", "rejected")
        if key in row
    }
    wholes = {text: list(tokenizer(text)["input_ids"]) for text in texts}
    found = seen_of(name, rows, {}, tokenizer=tokenizer)
    wrong = []
    for one in found:
        text = tokenizer.decode(one.ids)
        if list(one.ids) != wholes.get(text):
            wrong.append(f"{tokenizer.convert_ids_to_tokens(one.ids)}")
        elif name != "ORPO" and tokenizer.decode(one.trained) != text[text.index("bA") :]:
            wrong.append(f"{tokenizer.decode(one.trained)} is trained of {text}")
    return wrong if found else ["nothing is trained"]


def _collated(name: str, _: Any) -> str:
    """Return whether a run's batches come from the collator that it was given."""
    rows = made_rows(KINDS[name][0], LENGTHS)
    first = made_trainer(name, rows, {})
    default, options = first.data_collator, {"remove_unused_columns": first.args.remove_unused_columns}
    calls: list[int] = []

    def called(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(1)
        return type(default).__call__(self, *given, **named)

    if isinstance(default, type(called)):
        raise NotServed(f"the collator of {name}Trainer is a function")
    own = copy.copy(default)
    own.__class__ = type("Own", (type(default),), {"__call__": called})
    made_trainer(name, rows, options, arguments={"data_collator": own}).train()
    return "used" if calls else "replaced"


def _evaluated(name: str, precomputed: bool, reference: int | None) -> dict[str, float]:
    """Return the losses and rewards of an evaluation after some steps."""
    from datasets import Dataset

    rows = Dataset.from_list(made_rows(KINDS[name][0], LENGTHS))
    options = {
        "precompute_ref_log_probs": precomputed,
        "max_steps": 3,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "eval_strategy": "steps",
        "eval_steps": 3,
        "logging_steps": 1,
        "per_device_eval_batch_size": 4,
    }
    model = None if reference is None else tiny_model(tiny_tokenizer(), reference)
    trainer = made_trainer(name, rows, options, arguments={"eval_dataset": rows, "ref_model": model})
    trainer.train()
    (found,) = [one for one in trainer.state.log_history if "eval_loss" in one]
    return {key: found[key] for key in sorted(found) if key == "eval_loss" or "eval_rewards/" in key}


def _precomputed(name: str, reference: int | None, _: Any) -> list[str]:
    """Return what an evaluation logs otherwise with a reference whose log-probabilities are computed beforehand."""
    found = _evaluated(name, True, reference)
    right = _evaluated(name, False, reference or 0)
    return [
        f"{key}: {found.get(key)}, and {value} where the reference is computed in each step"
        for key, value in right.items()
        if not abs(found.get(key, float("nan")) - value) < TOLERANCE
    ]


def _logprobs(logits_SV: Tensor, ids_S: Tensor) -> Tensor:
    return logits_SV[:-1].log_softmax(-1).gather(-1, ids_S[1:, None])[:, 0]


def _packed(options: Mapping[str, Any], fast: bool, _: Any) -> list[str]:
    """Return examples whose log-probabilities in a batch are not those that they have alone.

    With `fast`, the model says that its attention is FlashAttention, which does not run here: it takes a mask of ones
    as none, and then each position of zero as the first one of a text.
    """
    examples = _rows_of_ids(3)
    strategies = known_options(find_trainer("SFT")[1])
    if options.get("packing") and strategies.get("packing_strategy", "wrapped") == "wrapped":
        raise NotServed("packs are filled to the brim, and no text is apart")
    model = tiny_model(tiny_tokenizer(padding_side="right"), 0)
    attention = model.config._attn_implementation
    if fast:
        model.config._attn_implementation = "flash_attention_2"
    rows = [{"input_ids": ids} for ids in examples]
    trainer = made_trainer("SFT", rows, options, arguments={"model": model})
    model.config._attn_implementation = attention
    if hasattr(trainer.data_collator, "return_position_ids"):
        trainer.data_collator.return_position_ids |= not fast
    batch = next(iter(trainer.get_train_dataloader()))
    if "position_ids" not in batch and not fast:
        raise NotServed("the batch has no positions")
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask", "position_ids") if key in batch}
    if fast and "attention_mask" in inputs and inputs["attention_mask"].all():
        del inputs["attention_mask"]
    ids, model = inputs["input_ids"].flatten().tolist(), trainer.model.eval()
    wrong = []
    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits.flatten(0, 1)
        for example in examples:
            if example[0] not in ids or ids[(at := ids.index(example[0])) :][: len(example)] != example:
                wrong.append(f"{example} is not in the batch")
                continue
            own = torch.tensor(example)
            alone = _logprobs(model(own[None], use_cache=False).logits[0], own)
            if not torch.allclose(_logprobs(logits[at : at + len(example)], own), alone, atol=TOLERANCE):
                wrong.append(f"{example} has other log-probabilities than alone")
    return wrong


def _divergence(name: str, fused: bool, _: Any) -> bool:
    """Return whether the loss is zero where the teacher is the student."""
    options: dict[str, Any] = {"logging_steps": 1, "max_steps": 1, "remove_unused_columns": False}
    if fused:
        own = sources([find_trainer(name)[0]])
        if find_spec("liger_kernel") is None or not any("liger" in source for source in own):
            raise NotServed(f"{name}Trainer of trl {release('trl')} has no loss of Liger here")
        options |= {"use_liger_kernel": True, "liger_kernel_config": NO_KERNELS}
    teacher = tiny_model(tiny_tokenizer(padding_side="right"), 0)
    with ExitStack() as stack:
        if fused:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        rows = made_rows("messages", LENGTHS)
        trainer = made_trainer(name, rows, options, arguments={"teacher_model": teacher})
        if fused:  # whose rows lose their messages in some releases
            with torch.no_grad():
                return (
                    abs(float(trainer.compute_loss(trainer.model, trainer.data_collator(rows)))) < TOLERANCE
                )
        trainer.train()
    return all(abs(one["loss"]) < TOLERANCE for one in trainer.state.log_history if "loss" in one)


def _asynchronous() -> Any:
    """Return the module of the asynchronous trainer, imported with stand-ins for packages that are not installed.

    Raises:
        Gone: the release does not have it.
    """
    try:
        return asynchronous_module("async_grpo_trainer")
    except ImportError as error:
        raise Gone(f"asynchronous GRPO of trl {release('trl')}: {error}") from error


def _of_worker(_: Any) -> str:
    """Return whose tokenizer the worker of asynchronous rollouts gets."""
    import transformers
    from datasets import Dataset

    freeze_imports()
    tokenizer = tiny_tokenizer()
    folder = new_folder()
    tiny_model(tokenizer, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    own: Any = transformers.AutoTokenizer.from_pretrained(folder)
    own.chat_template = CHAT_TEMPLATE + "{{ 'own' }}"
    module = _asynchronous()
    with ExitStack() as stack:
        stack.enter_context(without_servers(module.AsyncGRPOTrainer))
        worker = stack.enter_context(patch.object(module, "AsyncRolloutWorker"))
        for one in ("patch_chunked_lm_head", "WeightTransferClient", "VLLMClient"):
            if hasattr(module, one):
                stack.enter_context(patch.object(module, one))
        config_class = import_module(ASYNCHRONOUS).AsyncGRPOConfig
        known = known_options(config_class)
        options = {**CPU_OPTIONS, "num_generations": 2, "per_device_train_batch_size": 2}
        module.AsyncGRPOTrainer(
            model=folder,
            reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
            args=config_class(
                output_dir=folder, **{one: value for one, value in options.items() if one in known}
            ),
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "a"}]}] * 4),
            processing_class=own,
        )
        if worker.call_args is None:
            raise NotServed(f"the trainer of trl {release('trl')} makes no worker")
        given = [*worker.call_args.args, *worker.call_args.kwargs.values()]
    templates = [getattr(one, "chat_template", None) for one in given]
    return "the given one" if own.chat_template in templates else "another one"


def _rows_of(name: str) -> Iterator[Row]:
    def row(subject: str, what: str, call: Callable[..., Any], right: Any) -> Row:
        return Row(subject, places(name), what, or_refused(call), right)

    if name == "AsyncGRPO":
        yield Row(
            "samplers",
            f"{ASYNCHRONOUS}:AsyncGRPOConfig",
            "a tokenizer with a template of its own",
            or_refused(_of_worker),
            "the given one",
        )
        return
    if name in DIVERGENCES:
        for fused in (False, True):
            what = f"the student as its teacher{', with Liger' if fused else ''}"
            yield row("steps", what, partial(_divergence, name, fused), True)
    if name in KINDS and "data_collator" in parameters_of(find_trainer(name)[0]):
        yield row("batches", "a collator that is given", partial(_collated, name), "used")
    if name in KINDS and takes(name, "precompute_ref_log_probs"):
        for what, reference in {"no reference": None, "a reference": 1}.items():
            yield row(
                "validations", f"computed beforehand, {what}", partial(_precomputed, name, reference), []
            )
    if name in BORDERS and _compares_borders(name):
        yield row("texts", "a token of prompt and answer", partial(_joined, name, BORDERS[name]), [])
    if name == "SFT":
        known = [one for one in MASKS if "assistant_masks" not in one or takes(name, "assistant_only_loss")]
        for columns, more in product(known, ({}, {"dataset_kwargs": {"skip_prepare_dataset": True}})):
            call = partial(_masked, columns, {**more, **MASKED})
            yield row("texts", f"{' and '.join(columns)}, {more}", call, [])
        for kind in KINDS[name]:
            yield row("texts", f"{kind} with ids", partial(_tokenized, kind, {}), sorted(_rows_of_ids()))
        flat: dict[str, Any] = {"padding_free": True, "max_length": None}
        yield row("combinations", f"{flat}", partial(_packed, flat, False), [])
        packs: list[dict[str, Any]] = [{"packing": True, "max_length": length} for length in (24, 12)]
        for options in (flat, *packs, *({**one, "packing_strategy": "bfd_split"} for one in packs)):
            yield row("batches", f"{options}, FlashAttention", partial(_packed, options, True), [])


def _made(name: str) -> Sequence[Row]:
    """Return the rows of a trainer.

    Raises:
        Gone: the release does not have it, or nothing that is tried here.
    """
    if name == "AsyncGRPO":
        _asynchronous()
    if rows := list(_rows_of(name)):
        return rows
    raise Gone(f"{name}Trainer of trl {release('trl')} is given nothing that is tried here")


KEPT: Mapping[str, Callable[[], Sequence[Row]]] = {
    f"kept-{name.lower()}": partial(_made, name) for name in (*KINDS, "GOLD", "AsyncGRPO")
}
FAILURES: Mapping[str, Sequence[KnownFailure]] = {
    "kept-sft": (LEAKS,),
    "kept-gkd": (REPLACED,),
    "kept-dpo": (BEFOREHAND,),
    "kept-kto": (replace(BEFOREHAND, releases=before("trl", "1.1")),),
}
