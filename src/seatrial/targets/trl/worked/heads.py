"""Worked examples of fused heads, of models that sample while they train, and of parsed answers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.worked_rows import unlike
from seatrial.targets.common.zoo import zoo_model
from seatrial.targets.trl.worked.rows import UTILS, Row

FIELDS = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
IDS = ((40, 41, 42, 43, 44, 45, 46), (50, 51, 52, 53, 54, 55, 56))
LABELS = ((-100, -100, 42, 43, -100, 45, 46), (-100, 51, -100, -100, -100, -100, 56))
"""Prompts and places within an answer that do not count, and rows of unequal numbers that do."""
TOLERANCE = 2e-4
SHAPES: Mapping[str, Mapping[str, float]] = {
    "plain logits": {},
    "capped logits": {"final_logit_softcapping": 1.5},
    "scaled logits": {"logit_scale": 0.3},
    "scaled and capped logits": {"logit_scale": 0.3, "final_logit_softcapping": 0.7},
    "divided logits": {"logits_scaling": 2.5},
}
"""Of the model's configuration."""


def _model(config: Mapping[str, Any]) -> Any:
    model = tiny_model(tiny_tokenizer(), 0)
    for name, value in config.items():
        setattr(model.config, name, value)
    return model.train()


def _logits(model: Any, config: Mapping[str, float], temperature: float) -> Tensor:
    """Return the logits [B, T, V] by the definition: scaled, then capped, then divided by the temperature."""
    hidden = model.base_model(input_ids=torch.tensor(IDS), use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden)
    logits = logits * config.get("logit_scale", 1.0) / config.get("logits_scaling", 1.0)
    if cap := config.get("final_logit_softcapping"):
        logits = cap * torch.tanh(logits / cap)
    return logits / temperature


def _due(model: Any, labels: Tensor, config: Mapping[str, float], temperature: float) -> dict[str, Tensor]:
    """Return the fields of labels [B, T - 1] that are shifted, zero where they do not count."""
    logits = _logits(model, config, temperature)[:, :-1]
    logprobs, counts = logits.log_softmax(-1), labels != -100
    chosen = labels.clamp(min=0)
    probabilities = logprobs.exp()
    found = {
        "log_probs": logprobs.gather(-1, chosen[..., None])[..., 0],
        "entropy": -(probabilities * logprobs).sum(-1),
        "log_sum_sq_probs": probabilities.square().sum(-1).log(),
        "mean_logits": logits.mean(-1),
        "is_top1": (logits.argmax(-1) == chosen).double(),
    }
    return {name: torch.where(counts, value, 0.0) for name, value in found.items()}


def _head(
    config: Mapping[str, float],
    add: Callable[..., Any],
    *,
    temperature: float = 1.0,
    num_items: int | None = None,
    shifted: bool = False,
    labels: Sequence[Sequence[int]] = LABELS,
) -> list[str]:
    """Return the fields, losses and gradients of a fused head that are not those of its definition in float64."""
    takes = signature(add).parameters
    if "outputs" not in takes:
        raise NotServed("the head has no outputs by name")
    plain, own = _model(config), _model(config)
    double = copy.deepcopy(plain).double()
    add(own, temperature=temperature, outputs=FIELDS)
    given = torch.tensor(labels)
    due = _due(double, given[:, 1:], config, temperature)
    counted = given[:, 1:] != -100
    loss = -due["log_probs"].sum() / (max(int(counted.sum()), 1) if num_items is None else num_items)
    named: dict[str, Any] = {"labels": given}
    if shifted:
        named = {"shift_labels": torch.cat([given[:, 1:], torch.full((2, 1), -100)], 1)}
    if num_items is not None:
        named["num_items_in_batch"] = num_items
    found = own(input_ids=torch.tensor(IDS), fused_lm_head=True, **named)
    wrong = []
    for name, value in due.items():
        got = getattr(found, name).double()[:, : value.shape[1]]
        wrong += unlike(got.detach().flatten().tolist(), value.detach().flatten().tolist(), name, TOLERANCE)
    wrong += unlike([float(found.loss.detach())], [float(loss.detach())], "loss", TOLERANCE)
    wrong += [] if found.label_mask[:, : counted.shape[1]].tolist() == counted.tolist() else ["label_mask"]
    total: Tensor = found.loss + found.entropy.sum()
    total.backward()  # type: ignore[no-untyped-call]
    (loss + due["entropy"].sum()).backward()  # type: ignore[no-untyped-call]
    for (name, value), other in zip(own.named_parameters(), double.parameters(), strict=True):
        right = other.grad if other.grad is not None else torch.zeros_like(other)
        grad = value.grad if value.grad is not None else torch.zeros_like(value)
        error, scale = (grad.double() - right).norm(), right.norm()
        if not float(error) <= 1e-3 * float(scale) + 1e-6:
            wrong.append(f"gradient of {name}: {float(error):.2g} off of {float(scale):.2g}")
    return wrong[:4]


def _unfused(add: Callable[..., Any]) -> list[bool]:
    """Return whether a forward without the head, and fields that are not requested, are those of the model."""
    plain, own = _model({}).eval(), _model({}).eval()
    add(own, temperature=0.5)
    ids, labels = torch.tensor(IDS), torch.tensor(LABELS)
    with torch.no_grad():
        due = plain(input_ids=ids, labels=labels, num_items_in_batch=11)
        found = own(input_ids=ids, labels=labels, num_items_in_batch=11)
        fused = own(input_ids=ids, labels=labels, fused_lm_head=True)
    return [
        torch.equal(found.logits, due.logits),
        torch.equal(found.loss, due.loss),
        fused.log_probs is not None,
        all(getattr(fused, name, None) is None for name in FIELDS[1:]),
    ]


def _of_experts(add: Callable[..., Any]) -> list[bool]:
    """Return whether the loss and the load-balancing loss of a model of experts are those of its own forward."""
    tokenizer = tiny_tokenizer()
    plain = zoo_model("experts", tokenizer, 0, router_aux_loss_coef=0.5).eval()
    own = copy.deepcopy(plain)
    add(own)
    mask = torch.tensor([[0, 0, *[1] * 5], [1] * 7])
    given = {"input_ids": torch.tensor(IDS), "attention_mask": mask, "labels": torch.tensor(LABELS)}
    with torch.no_grad():
        due = plain(**given, output_router_logits=True)
        found = own(**given, output_router_logits=True, fused_lm_head=True)
        without = own(**given, output_router_logits=False, fused_lm_head=True)
    return [
        torch.allclose(found.aux_loss, due.aux_loss, rtol=1e-4),
        torch.allclose(found.loss, due.loss, rtol=1e-4),
        without.aux_loss is None and not torch.allclose(without.loss, due.loss, rtol=1e-4),
    ]


def _in_float32(add: Callable[..., Any]) -> bool:
    """Return whether the head of a narrow model computes in float32 where that is requested."""
    model = _model({}).eval().to(torch.bfloat16)
    model.lm_head.to(torch.float32)
    add(model, cast_lm_head_to_fp32=True)
    ids = torch.tensor(IDS)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        found = model(input_ids=ids, labels=ids, fused_lm_head=True).log_probs
    logits = hidden.double()[:, :-1] @ model.lm_head.weight.double().T
    due = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return torch.allclose(found.double(), due, atol=1e-4)


def _way_of(model: Any) -> Any:
    """Return whether a model checkpoints, and in which way."""
    decoder = model.model.layers[0]
    function = getattr(decoder, "_gradient_checkpointing_func", None)
    own = getattr(function, "keywords", {}).get("use_reentrant") if function else None
    return [model.is_gradient_checkpointing, own if model.is_gradient_checkpointing else None]


def _sampling(unwrap: Callable[..., Any], *, is_on: bool) -> list[Any]:
    """Return how a model checkpoints while it samples and after it, if it does before."""
    from accelerate import Accelerator

    model = tiny_model(tiny_tokenizer(), 0)
    options = {"use_reentrant": True}
    if is_on:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    more = {"gradient_checkpointing_kwargs": options}
    if set(more) - set(signature(unwrap).parameters):
        raise NotServed("checkpointing is continued without its options")
    with unwrap(model, Accelerator(cpu=True), **more) as own:
        inside = [own is model, *_way_of(own)]
    return [inside, _way_of(model)]


def _moved(digest: Callable[..., str]) -> list[bool]:
    """Return whether a hash follows names: of equal tensors in another order, and of tensors that change places."""
    first = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    ordered = torch.nn.ModuleDict({"b": first["b"], "a": first["a"]})
    swapped = torch.nn.ModuleDict({"a": first["b"], "b": first["a"]})
    return [digest(one) == digest(first) for one in (ordered, swapped)]


def _kernels(supports: Callable[..., bool]) -> list[bool]:
    """Return which logits, indices and masks a kernel of a device that has one takes."""

    def made(*shape: int, dtype: Any = torch.float32, device: str = "cuda", last: int = 1) -> Any:
        return SimpleNamespace(
            shape=torch.Size(shape),
            ndim=len(shape),
            dtype=dtype,
            device=torch.device(device if device == "cpu" else f"{device}:0"),
            stride=lambda _: last,
        )

    logits, index = made(2, 3, 5), made(2, 3, dtype=torch.int64)
    return [
        supports(logits),
        supports(logits, index),
        supports(logits, index, made(2, 3, dtype=torch.bool)),
        supports(made(2, 3, 5, device="cpu")),
        supports(made(2, 3, 5, dtype=torch.float64)),
        supports(made(2, 3, 5, last=3)),
        supports(made(1, 2, 3, 5)),
        supports(logits, made(2, 3, 4, dtype=torch.int64)),
        supports(logits, made(2, 3, dtype=torch.int16)),
        supports(logits, made(2, 3, dtype=torch.int64, device="cpu")),
        supports(logits, index, made(2, 1, dtype=torch.bool)),
        supports(logits, index, made(2, 3)),
        supports(logits, None, made(2, 3, dtype=torch.bool)),
    ]


class _Parser:
    """A tokenizer that finds an answer written as JSON, as the library's parser does by its template."""

    eos_token = "END"

    def parse_response(self, ids: Any, **_: Any) -> Any:
        return json.loads(ids)

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "plain"


def _parsed(parse: Callable[..., Any]) -> list[Any]:
    calls: list[Any] = [
        [{"type": "function", "function": {"name": "t", "arguments": {"a": 1}}}],
        [{"type": "function", "function": {"name": "t"}}],
        [{"name": "t", "arguments": None}],
        [{"type": "function", "function": {"arguments": {}}}],
        [{"type": "function", "function": "t"}],
        [{"arguments": {}}],
        ["t"],
        "t",
    ]
    answers = [
        {"role": "assistant", "content": "aEND"},
        {"role": "assistant", "content": None},
        None,
        *({"role": "assistant", "content": "a", "tool_calls": one} for one in calls),
    ]
    return [parse(_Parser(), json.dumps(one)) for one in answers]


class _Recorder(_Parser):
    """Keeps what its parser is given in addition to the ids."""

    def __init__(self, **own: Any) -> None:
        self.given: list[Any] = []
        vars(self).update(own)

    def parse_response(self, ids: Any, **named: Any) -> Any:
        self.given.append(named)
        return {"content": "a"}


def _given_to_parsers(parse: Callable[..., Any]) -> list[Any]:
    """Return what parsers of both kinds are given with a prompt and tools, without what their library does not take."""
    takes = [
        name
        for name, first in (("prefix", "5.13"), ("tools", "5.15"))
        if Version(release("transformers")) >= Version(first)
    ]
    made = (
        _Recorder(response_template={"a": 1}, response_schema=None),
        _Recorder(response_template=None, response_schema={"a": 1}),
    )
    for one in made:
        parse(one, [3], prefix=[1, 2], tools=["t"])
        parse(one, [3])
    first, second = made
    due = {name: {"prefix": [1, 2], "tools": ["t"]}[name] for name in takes}
    return [first.given == [due, {}], second.given == [{}, {}]]


PLAIN = {"role": "assistant", "content": "plain"}


def _called(*calls: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "a", "tool_calls": [*calls]}


HEAD = f"{UTILS}:add_fused_lm_head"
HEAD_ROWS: Sequence[Row] = (
    *(Row("formulas", HEAD, name, partial(_head, config), []) for name, config in SHAPES.items()),
    Row(
        "formulas",
        HEAD,
        "capped logits at a temperature, a divisor that is given",
        partial(_head, SHAPES["scaled and capped logits"], temperature=0.4, num_items=11),
        [],
    ),
    Row("formulas", HEAD, "labels that are shifted", partial(_head, {}, temperature=2.0, shifted=True), []),
    Row("formulas", HEAD, "no label that counts", partial(_head, {}, labels=[[-100] * 7] * 2), []),
    Row("formulas", HEAD, "a forward without it", _unfused, [True] * 4),
    Row("formulas", HEAD, "experts", _of_experts, [True] * 3),
    Row("formulas", HEAD, "a narrow model, the head in float32", _in_float32, True),
    Row(
        "models",
        "trl.models.utils:unwrap_model_for_generation trl.models:unwrap_model_for_generation",
        "checkpointing in a way that is given",
        partial(_sampling, is_on=True),
        [[True, False, None], [True, True]],
    ),
    Row(
        "models",
        "trl.models.utils:unwrap_model_for_generation trl.models:unwrap_model_for_generation",
        "no checkpointing",
        partial(_sampling, is_on=False),
        [[True, False, None], [False, None]],
    ),
    Row(
        "models",
        f"{UTILS}:hash_module",
        "tensors in another order, and changed places",
        _moved,
        [True, False],
    ),
    Row(
        "formulas",
        f"{UTILS}:_supports_trl_loss_kernel",
        "types, shapes, strides and devices",
        _kernels,
        [True] * 3 + [False] * 10,
    ),
    Row(
        "chats",
        "trl.chat_template_utils:parse_response",
        "answers, calls with and without arguments, and what is no call",
        _parsed,
        [
            {"role": "assistant", "content": "a"},
            {"role": "assistant", "content": ""},
            PLAIN,
            _called({"type": "function", "function": {"name": "t", "arguments": {"a": 1}}}),
            _called({"type": "function", "function": {"name": "t", "arguments": {}}}),
            _called({"name": "t", "arguments": {}}),
            *[PLAIN] * 5,
        ],
        since="1.16",
    ),
    Row(
        "chats",
        "trl.chat_template_utils:parse_response",
        "the prompt and tools, by a parser of each kind",
        _given_to_parsers,
        [True, True],
        since="1.16",
    ),
)
