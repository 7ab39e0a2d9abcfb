"""Worked examples of `generate` for pairs of options: the answers are those of plain loops."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.generated_cases import (
    STOPPING,
    STRINGS,
    TABLES,
    Words,
    cases_of,
    plan_of,
)
from seatrial.targets.transformers.worked.plain_decoding import (
    START,
    VOCABULARY,
    Answer,
    Plan,
    beams_by,
    draws_of_call,
    model_of,
    refused,
    rows_by,
)
from seatrial.targets.transformers.worked.plain_rules import allowed_ids, of_caller

OTHERS: Mapping[str, Any] = {
    "max_new_tokens": 2, "max_length": 11, "min_new_tokens": 5, "min_length": 13, "eos_token_id": 14,
    "pad_token_id": 17, "temperature": 3.0, "top_k": 1, "top_p": 0.1, "repetition_penalty": 9.0, "num_beams": 4,
    "length_penalty": -5.0, "early_stopping": True, "no_repeat_ngram_size": 1, "suppress_tokens": [0],
    "sequence_bias": [[[3], 40.0]], "forced_eos_token_id": 3, "renormalize_logits": False, "do_sample": False,
}  # fmt: skip
"""Values that options have where those of the case replace them."""


def _inputs(case: Mapping[str, Any], plan: Plan, model: Any) -> tuple[dict[str, Any], int]:
    """Return the prompts of a call, and how many ids of the result are theirs."""
    rows = range(len(plan.prompts))
    ids = torch.tensor([plan.padded(row) for row in rows])
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(plan.prompts):
        mask[row, slice(0, len(prompt)) if plan.begins else slice(ids.shape[1] - len(prompt), None)] = 1
    inputs = case["inputs"]
    given: dict[str, Any] = {"attention_mask": mask}
    with torch.no_grad():
        if inputs in ("ids", "begun", "both"):
            given["input_ids"] = ids
        if inputs == "inputs":
            given["inputs"] = ids
        if inputs in ("embeddings", "both"):
            given["inputs_embeds"] = model.get_input_embeddings()(ids)
            if plan.begins and getattr(model.model.encoder.embed_tokens, "embed_scale", 1.0) != 1.0:
                raise NotServed("embeddings are scaled")
        if "encoded" in inputs:
            asked = {name: True for name in case["outputs"] if name in ("hidden_states", "attentions")}
            given["encoder_outputs"] = model.get_encoder()(
                input_ids=ids, attention_mask=mask, return_dict=True,
                **{f"output_{name}": True for name in asked},
            )  # fmt: skip
    if "begun" in inputs:
        given["decoder_input_ids"] = torch.tensor([list(one) for one in plan.begins])
    if case.get("cache") == "continued":
        held = ids.shape[1] - 1
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        with torch.no_grad():
            given["past_key_values"] = model(
                input_ids=ids[:, :held], attention_mask=mask[:, :held], position_ids=places[:, :held], use_cache=True,
                past_key_values=of_name("DynamicCache")(config=model.config),
            ).past_key_values  # fmt: skip
    if case.get("cache") == "own":
        given["past_key_values"] = of_name("DynamicCache")(config=model.config)
    return given, 0 if inputs == "embeddings" and not plan.begins else len(plan.first(0))


def _options(case: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the options of a call that its configuration may have."""
    first = len(plan.first(0))
    limits = {
        "max_new_tokens": {"max_new_tokens": plan.num_new}, "max_length": {"max_length": first + plan.num_new},
        "both": {"max_new_tokens": plan.num_new, "max_length": first + 2},
    }  # fmt: skip
    options = {"do_sample": False, **plan.options, **case["process"], **limits[case["limit"]]}
    cached = case.get("cache", {})
    options |= cached if isinstance(cached, Mapping) else {}
    for name in ("allowed", "caller", "negative"):
        options.pop(name, None)
    if plan.ends:
        options["eos_token_id"] = list(plan.ends) if len(plan.ends) > 1 else plan.ends[0]
    if plan.pad is not None:
        options["pad_token_id"] = plan.pad
    if plan.beams > 1:
        options |= {
            "num_beams": plan.beams,
            "length_penalty": plan.length_penalty,
            "early_stopping": plan.early_stopping,
        }
    if plan.copies > 1:
        options["num_return_sequences"] = plan.copies
    if plan.begins:
        options["decoder_start_token_id"] = START
    draft = case.get("draft")
    options |= draft if isinstance(draft, Mapping) else {}
    if case["outputs"]:
        options |= {"return_dict_in_generate": True, **{f"output_{name}": True for name in case["outputs"]}}
    if case.get("stop") == "strings":
        options["stop_strings"] = list(STRINGS)
    return options


def _of_call(case: Mapping[str, Any], plan: Plan, first: int) -> dict[str, Any]:
    """Return what a call is given besides its configuration."""
    found: dict[str, Any] = {}
    if "allowed" in plan.options:
        found["prefix_allowed_tokens_fn"] = lambda row, ids: allowed_ids(row, ids.tolist(), VOCABULARY)
    if "caller" in plan.options:
        base: Any = of_name("LogitsProcessor")
        own = type("Own", (base,), {"__call__": lambda self, ids, scores: of_caller(scores, ids.shape[1])})
        found["logits_processor"] = of_name("LogitsProcessorList")([own()])
    if "negative" in plan.options:
        found["negative_prompt_ids"] = torch.tensor(plan.options["negative"])
    if case.get("stop") == "criterion":
        base = of_name("StoppingCriteria")
        own = type("Stops", (base,), {
            "__call__": lambda self, ids, scores, **more: (
                torch.isin(ids[:, -1], torch.tensor(STOPPING)) & torch.tensor(ids.shape[1] > first)
            ),
        })  # fmt: skip
        found["stopping_criteria"] = of_name("StoppingCriteriaList")([own()])
    if case.get("stop") == "strings":
        found["tokenizer"] = Words()
    if case.get("draft") in ("self", "other"):
        found["assistant_model"] = copy.deepcopy(model_of(case["kind"]))
        if case["draft"] == "other":
            with torch.no_grad():
                found["assistant_model"].lm_head.weight[:12] += 0.2
    return found


def _configured(case: Mapping[str, Any], model: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a model and the arguments of a call that has the options where the case says."""
    made: Any = of_name("GenerationConfig")
    form, others = case["config"], {name: one for name, one in OTHERS.items() if name in options}
    model = copy.copy(model)
    if form == "object":
        return model, {"generation_config": made(**options)}
    if form == "file":
        folder = new_folder()
        made(**options).save_pretrained(folder)
        return model, {"generation_config": made.from_pretrained(folder)}
    if form == "model":
        model.generation_config = made(**options)
        return model, {}
    if form == "over object":
        return model, {"generation_config": made(**others), **options}
    if form == "over model":
        model.generation_config = made(**others)
    return model, options


def _called(case: Mapping[str, Any], plan: Plan) -> tuple[Any, int, list[list[int]]]:
    """Return the result of a call, how many ids of a row are the prompt's, and what a streamer got.

    Raises:
        NotServed: `generate` refuses the options with an error of its own.
    """
    own = _options(case, plan)
    missing = sorted({*own} - {*vars(of_name("GenerationConfig")())})
    if missing:
        raise NotServed(f"generation of this release has no {', '.join(missing)}")
    model = copy.copy(model_of(case["kind"], case["attention"]))
    given, first = _inputs(case, plan, model)
    model, options = _configured(case, model, own)
    # The modes of modules are those of the model that is kept: set, and set back.
    model.train(case["mode"] != "eval")
    # Ids after the first see no others where earlier releases compute activations again, and keep a cache.
    uncached = case.get("cache") == {"use_cache": False}
    checkpoints = case["mode"] == "checkpointing" and (uncached or not before("transformers", "5.24")(None))
    if checkpoints:
        model.gradient_checkpointing_enable()
    try:
        with warnings.catch_warnings(), patch.object(torch, "multinomial", draws_of_call()):
            warnings.simplefilter("ignore")
            found = model.generate(**given, **options, **_of_call(case, plan, first))
    except (ValueError, NotImplementedError) as error:
        raise refused(error) from error
    finally:
        if checkpoints:
            model.gradient_checkpointing_disable()
        model.eval()
    return found, first, []


def _due(plan: Plan, first: int, answers: Sequence[Answer]) -> list[list[int]]:
    """Return whole rows of a result, padded to the longest."""
    longest = max(len(one.ids) for one in answers)
    pad = plan.pad if plan.pad is not None else plan.ends[0] if plan.ends else -1
    return [
        [*(plan.first(one.row) if first else []), *one.ids, *[pad] * (longest - len(one.ids))]
        for one in answers
    ]


def _of_steps(found: Any, answers: Sequence[Answer], plan: Plan, name: str) -> list[str]:
    """Return where the scores or logits of ids are not those by definition."""
    wrong = []
    for number, answer in enumerate(answers):
        for step in range(len(answer.ids)):
            got = found[name][step][number].double()
            due = answer.scores[step] if name == "scores" else plan.logits(answer.row, answer.ids[:step])
            out = due < -1e30
            if not torch.equal(out, got < -1e30):
                wrong.append(f"{name} of row {number}, step {step}: other ids are left out")
            elif not torch.allclose(got[~out], due[~out], atol=2e-3):
                wrong.append(f"{name} of row {number}, step {step}: {got[~out][:3]}, {due[~out][:3]} are due")
    return wrong


def _states(found: Any, answers: Sequence[Answer], plan: Plan, model: Any) -> Iterator[str]:
    """Yield where the last states of a step are not those of its logits."""
    name = "decoder_hidden_states" if plan.begins else "hidden_states"
    longest = max(len(one.ids) for one in answers)
    if len(found[name]) != longest:
        yield f"states of {len(found[name])} steps, {longest} are due"
        return
    for number, answer in enumerate(answers):
        for step in range(len(answer.ids)):
            with torch.no_grad():
                got: Tensor = model.get_output_embeddings()(found[name][step][-1][number, -1]).double()
            due = plan.logits(answer.row, answer.ids[:step]) - (
                model.final_logits_bias[0].double() if plan.begins else 0
            )
            if not torch.allclose(got, due, atol=2e-3):
                yield f"states of row {number}, step {step} give other logits"


def _in_order(mixin: Any) -> bool:
    """Return whether beams that are drawn are sorted by their scores, as they are since 5.24."""
    if not before("transformers", "5.24")(None):
        return True
    return ".sort(" in inspect.getsource(mixin._get_top_k_continuations)


def _faults(case: Mapping[str, Any], mixin: Any) -> list[str]:
    """Return where a call does not give the answers of plain loops."""
    plan = replace(plan_of(case), in_order=_in_order(mixin))
    found, first, _ = _called(case, plan)
    answers = beams_by(plan) if plan.beams > 1 else rows_by(plan)
    due = _due(plan, first, answers)
    rows = (found.sequences if case["outputs"] else found).tolist()
    if rows != due:
        return [f"{rows}, {due} are due"]
    if not case["outputs"]:
        return []
    model, wrong = model_of(case["kind"]), list[str]()
    if plan.beams > 1:
        if "scores" in case["outputs"]:
            wrong += unlike(found.sequences_scores.tolist(), [one.total for one in answers], "scores", 1e-3)
            wrong += _transitions(found, answers, plan, model)
        return wrong
    for one in ("scores", "logits"):
        if one in case["outputs"]:
            wrong += _of_steps(found, answers, plan, one)
    if "hidden_states" in case["outputs"] and "draft" not in case:
        wrong += list(_states(found, answers, plan, model))[:2]
    return wrong[:4]


def _transitions(found: Any, answers: Sequence[Answer], plan: Plan, model: Any) -> list[str]:
    """Return where the scores of single ids do not add up to that of an answer."""
    single = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    sums = [float(row[: len(one.ids)].sum()) for row, one in zip(single, answers, strict=True)]
    due = [one.total * len(one.ids) ** plan.length_penalty for one in answers]
    return unlike(sums, due, "sums of scores", 1e-3)


IN_PARTS = KnownFailure(
    "chunks of a row that is padded have other places",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
)


STRINGS_PASSED = KnownFailure(
    "a string that ends before the last of several ids does not stop",
    finding="Transformers: strings that stop amid candidates",
)


def _known(case: Mapping[str, Any]) -> KnownFailure | None:
    if "prefill_chunk_size" in case.get("cache", {}):
        return IN_PARTS
    return STRINGS_PASSED if "draft" in case and case["stop"] == "strings" else None


def _since(case: Mapping[str, Any]) -> str:
    """Return the first release that gives what the options of a case document."""
    several = case.get("copies", 1) > 1
    if "allowed" in case["process"] and several and case.get("beams", 1) == 1:
        return "5.24"  # the rows of answers were those of other prompts
    if "encoder_repetition_penalty" in case["process"] and (several or case.get("beams", 1) > 1):
        return "5.19"  # the first rows alone were penalized
    encoder = any(one.startswith("encoder_") for one in case["process"])
    raises = (
        ("encoded" in case["inputs"] and encoder)
        or ("draft" in case and not case["ends"])
        or (case.get("draft") in ("self", "other") and case["least"])
        or (case["kind"] == "Bart" and case.get("stop") == "strings")
    )
    return "5.24" if raises else "4.50"


def _row(group: str, name: str, case: Mapping[str, Any]) -> Row:
    return Row(
        "combinations", "transformers.generation.utils:GenerationMixin", f"{group}: {name}",
        partial(_faults, case), [], since=_since(case),
        known=_known(case),
    )  # fmt: skip


GENERATED_ROWS: Sequence[Row] = [
    _row(group, name, case) for group, table in TABLES.items() for name, case in cases_of(table)
]
