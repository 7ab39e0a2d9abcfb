"""Worked examples of formulas, rates, options and other small functions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from seatrial.targets.trl.worked.rows import EXPERIMENTAL, UTILS, Row

SDFT, SDPO, IW_OPD = (f"trl.experimental.{name}" for name in ("sdft", "sdpo", "iw_opd"))
COSTS: dict[str, Any] = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "vocab_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "tie_word_embeddings": False,
}
"""Of a layer and a token at a length of 4: projections 256 + 128, scores 128, MLP 768; of the head 256."""
FORWARD = 2 * (256 + 128 + 128 + 768) + 256


def _chosen(select: Callable[..., Any], **options: Any) -> list[Any]:
    """Return log-probabilities and entropies of logits whose probabilities are 1/4 and 3/4, at a temperature of 2."""
    logits = 2 * torch.log(torch.tensor([[0.25, 0.75], [0.75, 0.25]]))
    found = select(logits.requires_grad_(), torch.tensor([0, 0]), temperature=2.0, **options)
    return [*(one.detach() for one in found), found[1].requires_grad]


def _variables(ensure: Callable[..., Any]) -> list[Any]:
    found: list[Any] = []
    given: Sequence[tuple[dict[str, str], dict[str, Any]]] = (
        ({"MASTER_ADDR": "here", "MASTER_PORT": "29"}, {}),
        ({"MASTER_PORT": "29"}, {"addr": "there", "port": 31}),
        ({"MASTER_PORT": "auto"}, {}),
    )
    for variables, options in given:
        with patch.dict(os.environ, variables):
            if "MASTER_ADDR" not in variables:
                os.environ.pop("MASTER_ADDR", None)
            ensure(**options)
            port = int(os.environ["MASTER_PORT"])
            found.append([os.environ["MASTER_ADDR"], port if port < 1024 else "free"])
    return found


class _Awaited:
    async def __call__(self) -> None: ...


class _Called:
    def __call__(self) -> None: ...


async def _coroutine() -> int:
    await asyncio.sleep(0)
    return 7


def _looped(start: Callable[..., Any]) -> list[Any]:
    from trl.trainer import utils

    thread, loop, ready = start(name="looped")
    ready.wait(10)
    found = asyncio.run_coroutine_threadsafe(_coroutine(), loop).result(10)
    utils.shutdown_event_loop_in_daemon(thread, loop)
    return [found, thread.is_alive()]


def _requests(build: Callable[..., Any]) -> Any:
    ids = torch.tensor([[0, 5, 6, 7, 0], [3, 4, 5, 6, 7]])
    mask, prompts = (ids != 0).long(), torch.tensor([[0, 1], [1, 1]])
    return build(ids, mask, prompts)


def _token_lists(*ids: int) -> dict[str, list[int]]:
    return {"prompt_input_ids": list(ids), "prompt_attention_mask": [1] * len(ids)}


def _answers(*ids: int) -> dict[str, list[int]]:
    return {"input_ids": list(ids), "attention_mask": [1] * len(ids)}


def _demonstrated(builder_class: Any) -> Any:
    template = "{prompt} WITH {privileged_context}"
    builder = builder_class(
        SimpleNamespace(args=SimpleNamespace(teacher_prompt_template=template, generate_from_teacher=True))
    )
    system = {"role": "system", "content": "s"}
    asked = [system, {"role": "user", "content": "p"}]
    shown = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    return builder.select_generation_prompts(["p", asked], ["c", shown])


def _peft_options(get: Callable[..., Any]) -> list[Any]:
    from trl import ModelConfig

    given = {"lora_r": 3, "lora_alpha": 5, "lora_dropout": 0.25, "lora_target_modules": ["q", "v"]}
    more = {"lora_modules_to_save": ["head"], "use_rslora": True, "use_dora": True}
    found = get(ModelConfig(use_peft=True, **given, **more))
    fields = ("r", "lora_alpha", "lora_dropout", "modules_to_save", "use_rslora", "use_dora", "bias")
    return [
        get(ModelConfig(use_peft=False)),
        [getattr(found, name) for name in fields],
        sorted(found.target_modules),
        str(getattr(found.task_type, "value", found.task_type)),
    ]


def _quantized(get: Callable[..., Any]) -> list[Any]:
    from trl import ModelConfig

    four = get(
        ModelConfig(load_in_4bit=True, dtype="bfloat16", bnb_4bit_quant_type="fp4", use_bnb_nested_quant=True)
    )
    eight = get(ModelConfig(load_in_8bit=True))
    return [
        get(ModelConfig()),
        [
            four.load_in_4bit,
            four.bnb_4bit_quant_type,
            four.bnb_4bit_use_double_quant,
            str(four.bnb_4bit_compute_dtype),
        ],
        [eight.load_in_8bit, eight.load_in_4bit],
    ]


LN = torch.log(torch.tensor([0.25, 0.75])).tolist()
ENTROPY = -(0.25 * LN[0] + 0.75 * LN[1])

FUNCTION_ROWS: Sequence[Row] = (
    *(
        Row(
            "rollouts",
            f"{place}:build_teacher_request_inputs",
            "padding on both sides, none",
            _requests,
            [[[5, 6, 7], [3, 4, 5, 6, 7]], [1, 2], [2, 3]],
        )
        for place in (f"{SDFT}.sdft_trainer", f"{SDPO}.sdpo_trainer", f"{IW_OPD}.iw_opd_trainer")
    ),
    Row(
        "texts",
        f"{SDFT}.sdft_trainer:DemonstrationTeacherContextBuilder",
        "a text, turns",
        _demonstrated,
        ["p WITH c", [{"role": "system", "content": "s"}, {"role": "user", "content": "p WITH x\ny"}]],
    ),
    Row(
        "formulas",
        f"{UTILS}:selective_log_softmax_and_entropy",
        "a temperature",
        _chosen,
        [LN, [ENTROPY, ENTROPY], True],
    ),
    Row(
        "formulas",
        f"{UTILS}:selective_log_softmax_and_entropy",
        "a masked row, no gradient of the entropy",
        partial(_chosen, row_mask=torch.tensor([1, 0]), entropy_requires_grad=False),
        [[LN[0], 0.0], [ENTROPY, 0.0], False],
    ),
    Row(
        "formulas",
        "trl.experimental.orpo.orpo_trainer:log1mexp",
        "near 0 and far from it",
        lambda function: function(torch.tensor([-1e-9, -0.6931471805599453, -40.0], dtype=torch.float64)),
        [-20.72326583744641, -0.6931471805599453, -4.248354255291589e-18],
    ),
    Row(
        "rates",
        f"{UTILS}:compute_flops_per_token",
        "a dense model",
        lambda flops: flops(SimpleNamespace(**COSTS), 4),
        3 * FORWARD,
        since="1.15",  # earlier ones count the rows of embeddings that are looked up
    ),
    Row(
        "rates",
        f"{UTILS}:adjusted_mfu",
        "half of the scores",
        lambda adjusted: adjusted(50.0, SimpleNamespace(**COSTS), 4),
        50.0 * (FORWARD - 2 * 64) / FORWARD,
        since="1.15",
    ),
    Row("rates", f"{UTILS}:compute_mfu", "two devices", lambda mfu: mfu(10, 1000.0, 2, 1e6), 0.5),
    Row(
        "rates",
        f"{UTILS}:get_peak_flops",
        "devices and types",
        lambda peak: [
            peak("NVIDIA H100 80GB HBM3", "bfloat16"),
            peak("NVIDIA A100-SXM4-80GB", "bfloat16"),
            peak("Unknown", "bfloat16"),
        ],
        [989e12, 312e12, None],
    ),
    Row(
        "calls",
        f"{UTILS}:get_callable_name",
        "a function, a part of one, an object",
        lambda name: [name(len), name(partial(partial(len))), name(_Called())],
        ["len", "len", "_Called"],
    ),
    Row(
        "calls",
        f"{UTILS}:is_async_callable",
        "functions and objects of both kinds",
        lambda is_one: [is_one(one) for one in (_coroutine, partial(_coroutine), _Awaited(), len, _Called())],
        [True, True, True, False, False],
    ),
    Row("calls", f"{UTILS}:identity", "a value", lambda same: same([1]), [1]),
    Row(
        "calls",
        f"{UTILS}:get_config_model_id",
        "a name, none",
        lambda name: [name(SimpleNamespace(_name_or_path="a/b")), name(SimpleNamespace())],
        ["a/b", ""],
    ),
    Row(
        "calls",
        f"{UTILS}:ensure_master_addr_port",
        "set before, given, chosen",
        _variables,
        [["here", 29], ["there", 31], ["localhost", "free"]],
    ),
    Row("wrappers", f"{UTILS}:start_event_loop_in_daemon", "a coroutine, the end", _looped, [7, False]),
    Row(
        "texts",
        f"{EXPERIMENTAL}:add_bos_token_if_needed",
        "none, one, an empty prompt",
        lambda add: add(1, 2, _token_lists(5, 6), 2, _token_lists(1, 5), 0, _token_lists()),
        [_token_lists(1, 5, 6), _token_lists(1, 5), _token_lists(1)],
    ),
    Row(
        "texts",
        f"{EXPERIMENTAL}:add_eos_token_if_needed",
        "none, one, an empty answer",
        lambda add: [*add(2, _answers(5), _answers(5, 2)), *add(2, _answers(), _answers(2, 5))],
        [_answers(5, 2), _answers(5, 2), _answers(2), _answers(2, 5, 2)],
    ),
    Row(
        "options",
        f"{UTILS}:get_peft_config",
        "none, every option",
        _peft_options,
        [None, [3, 5, 0.25, ["head"], True, True, "none"], ["q", "v"], "CAUSAL_LM"],
    ),
    Row(
        "options",
        f"{UTILS}:get_quantization_config",
        "none, 4 bits, 8 bits",
        _quantized,
        [None, [True, "fp4", True, "torch.bfloat16"], [True, False]],
    ),
)
