"""Worked examples of what teachers of self-distillation see, of servers' answers, and of forms of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.trl.worked.rows import Row

DATA = "trl.data_utils"
SDPO, SDFT = "trl.experimental.sdpo", "trl.experimental.sdft"
ANSWERS = ("<think>x</think>ab", "c", "de", "f")
FEEDBACKS = (None, "no", " ", "yes")
REWARDS = (1.0, 0.2, 0.1, 0.3)
"""Of two groups of two answers; those of the first alone has one that succeeds."""


def _built(options: Mapping[str, Any], turns: bool, builder_class: Any) -> list[Any]:
    """Return the teacher's sequences by row, which rows count, and the figures."""
    tokenizer = tiny_tokenizer(padding_side="right")
    pad = tokenizer.pad_token_id

    def asked(prompts: Sequence[Any]) -> list[list[int]]:
        texts = [one if isinstance(one, str) else "".join(turn["content"] for turn in one) for one in prompts]
        return [tokenizer(one)["input_ids"] for one in texts]

    settings = {
        "reprompt_template": "{prompt}|{solution}|{feedback}",
        "solution_template": "S{successful_previous_attempt}",
        "feedback_template": "F{feedback_raw}",
        "max_reprompt_len": 100,
        "success_reward_threshold": 1.0,
        "dont_reprompt_on_self_success": False,
        "environment_feedback_only_without_solution": False,
        "use_successful_as_teacher": True,
        "include_environment_feedback": True,
        "remove_thinking_from_demonstration": False,
        **options,
    }
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(
            device="cpu",
            process_index=0,
            gather=lambda value: value,
            pad_across_processes=lambda value, **_: value,
        ),
        model=SimpleNamespace(training=True),
        num_generations=2,
        num_generations_eval=4,
        _tokenizer=tokenizer,
        processing_class=tokenizer,
        args=SimpleNamespace(**settings),
        _tokenize_prompts_untruncated=asked,
    )
    said = [tokenizer(one)["input_ids"] for one in ANSWERS]
    width = max(map(len, said))
    output = {
        "completion_ids": torch.tensor([row + [pad] * (width - len(row)) for row in said]),
        "completion_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in said]),
    }
    prompts: list[Any] = ["p", "p", "q", "q"]
    if turns:
        prompts = [[{"role": "system", "content": "s"}, {"role": "user", "content": one}] for one in prompts]
    builder = builder_class(trainer)
    found = builder.build(output, prompts, torch.tensor(REWARDS), list(FEEDBACKS))
    shown = [
        tokenizer.decode(ids[mask.bool()])
        for ids, mask in zip(found["teacher_input_ids"], found["teacher_attention_mask"], strict=True)
    ]
    own = {name.rpartition("/")[2]: round(value, 4) for name, value in builder.last_metrics.items()}
    return [shown, found["self_distillation_mask"].tolist(), own]


def _figures(groups: float, samples: float, available: float, used: float, asked: float) -> dict[str, float]:
    names = ("success_group", "success_sample", "feedback_available", "feedback_used", "reprompt_sample")
    values = (groups, samples, available, used, asked)
    return {f"{name}_fraction": value for name, value in zip(names, values, strict=True)}


FIRST = "<think>x</think>ab"
BUILT: Sequence[tuple[str, Mapping[str, Any], bool, list[Any]]] = (
    (
        "solutions and feedback",
        {},
        False,
        [
            [f"p|S{FIRST}|{FIRST}", f"p|S{FIRST}|Fnoc", "qde", "q||Fyesf"],
            [1.0, 1.0, 0.0, 1.0],
            _figures(0.5, 0.5, 0.5, 0.5, 0.75),
        ],
    ),
    (
        "turns, and solutions of others without their thoughts",
        {"dont_reprompt_on_self_success": True, "remove_thinking_from_demonstration": True},
        True,
        [
            [f"sp{FIRST}", "sp|Sab|Fnoc", "sqde", "sq||Fyesf"],
            [0.0, 1.0, 0.0, 1.0],
            _figures(0.5, 0.25, 0.5, 0.5, 0.5),
        ],
    ),
    (
        "feedback where there is no solution",
        {"environment_feedback_only_without_solution": True},
        False,
        [
            [f"p|S{FIRST}|{FIRST}", f"p|S{FIRST}|c", "qde", "q||Fyesf"],
            [1.0, 1.0, 0.0, 1.0],
            _figures(0.5, 0.5, 0.5, 0.25, 0.75),
        ],
    ),
    (
        "no feedback, a lower threshold, and the end of what is asked",
        {"include_environment_feedback": False, "success_reward_threshold": 0.3, "max_reprompt_len": 4},
        False,
        [
            [f">ab|{FIRST}", ">ab|c", "|Sf|de", "|Sf|f"],
            [1.0] * 4,
            _figures(1.0, 1.0, 0.5, 0.0, 1.0),
        ],
    ),
    (
        "feedback alone",
        {"use_successful_as_teacher": False},
        False,
        [
            [f"p{FIRST}", "p||Fnoc", "qde", "q||Fyesf"],
            [0.0, 1.0, 0.0, 1.0],
            _figures(0.5, 0.0, 0.5, 0.5, 0.5),
        ],
    ),
)


def _averaged(callback_class: Any) -> list[Any]:
    """Return what is wrong with the teacher's adapter after steps, and which adapter is active then."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    given = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(tiny_model(tiny_tokenizer(), 0), given)
    callback = callback_class(model, update_rate=0.25, sync_steps=2)
    callback.on_train_begin(None, None, None)
    due = {name: torch.zeros_like(value) for name, value in get_peft_model_state_dict(model).items()}
    wrong = []
    for step in range(1, 5):
        with torch.no_grad():
            for value in model.parameters():
                if value.requires_grad:
                    value.add_(0.1)
        own = get_peft_model_state_dict(model, adapter_name="default")
        if step % 2 == 0:
            due = {name: 0.75 * value + 0.25 * own[name] for name, value in due.items()}
        callback.on_step_end(None, SimpleNamespace(global_step=step), None)
        found = get_peft_model_state_dict(model, adapter_name="teacher")
        wrong += [
            f"{name}, step {step}" for name, value in due.items() if not torch.allclose(found[name], value)
        ]
    return [wrong, model.active_adapter]


def _converted(convert: Callable[..., Any]) -> list[Any]:
    def turns() -> list[dict[str, str]]:
        return [{"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}]

    return [
        convert({"conversations": turns(), "kept": 1}),
        convert({"messages": [{"role": "user", "content": "a"}]}),
        convert({"prompt": turns()[:1], "completion": turns()[1:]}),
    ]


ASKED = [{"role": "user", "content": "u"}]
SAID, OTHER = ([{"role": "assistant", "content": one}] for one in "ab")


def _taken_out(extract: Callable[..., Any]) -> list[Any]:
    """Return rows whose prompt is there, is there in another form, and is not there; and one that is no pair."""
    whole = {"chosen": [*ASKED, *SAID], "rejected": [*ASKED, *OTHER]}
    return [
        extract({"prompt": ASKED, "chosen": SAID, "rejected": OTHER}),
        extract({"prompt": "u", **whole}),
        extract(whole),
        extract({"prompt": "u", "completion": "a"}),
        extract({"prompt": "u", "chosen": "a", "rejected": "b"}),
    ]


def _refused(apply: Callable[..., Any]) -> list[str]:
    found = []
    for row in (
        {"chosen": SAID},
        {"prompt": ASKED, "chosen": SAID},
        {"prompt": [{"role": "system", "content": "s"}]},
    ):
        try:
            apply(row, tiny_tokenizer())
            found.append("taken")
        except (KeyError, ValueError):
            found.append("refused")
    return found


def _answered(parse: Callable[..., Any]) -> list[Any]:
    completions = {
        "tokens": ["token_id:5", "token_id:7"],
        "token_logprobs": [-2.0, -0.5],
        "top_logprobs": [{"token_id:3": -0.5, "token_id:5": -2.0, "token_id:9": -1.0}, None],
    }
    tops = [{"token": "token_id:4", "logprob": -0.25}]
    chat = {"content": [{"token": "token_id:6", "logprob": -3.0, "top_logprobs": tops}]}
    return [parse([completions]), parse([chat, completions])[1], parse([None])]


def _ranked(extract: Callable[..., Any]) -> list[Any]:
    def token(rank: int, logprob: float) -> Any:
        return SimpleNamespace(rank=rank, logprob=logprob)

    places = [{8: token(2, -1.5), 3: token(1, -0.25)}, {4: token(1, float("nan"))}]
    outputs = [SimpleNamespace(logprobs=places), SimpleNamespace(logprobs=places[:1])]
    return [*extract([SimpleNamespace(outputs=outputs)])]


TAKEN = {"prompt": ASKED, "chosen": SAID, "rejected": OTHER}
TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
CONTEXT_ROWS: Sequence[Row] = (
    *(
        Row(
            "rollouts",
            f"{SDPO}.sdpo_trainer:SuccessfulRolloutTeacherContextBuilder",
            what,
            partial(_built, options, turns),
            right,
        )
        for what, options, turns, right in BUILT
    ),
    *(
        Row(
            "steps",
            f"{place}.teacher_sync:PEFTAdapterEMACallback",
            "every second step",
            _averaged,
            [[], "default"],
        )
        for place in (SDPO, SDFT)
    ),
    Row(
        "chats",
        f"{DATA}:maybe_convert_to_chatml",
        "turns of another form in each column",
        _converted,
        [
            {"messages": TURNS, "kept": 1},
            {"messages": TURNS[:1]},
            {"prompt": TURNS[:1], "completion": TURNS[1:]},
        ],
    ),
    Row(
        "chats",
        f"{DATA}:maybe_extract_prompt",
        "prompts of each form",
        _taken_out,
        [
            TAKEN,
            TAKEN,
            TAKEN,
            {"prompt": "u", "completion": "a"},
            {"prompt": "u", "chosen": "a", "rejected": "b"},
        ],
    ),
    Row("chats", f"{DATA}:apply_chat_template", "rows of no form", _refused, ["refused"] * 3, since="0.24"),
    Row(
        "samplers",
        "trl.generation.vllm_client:parse_logprobs",
        "answers of both forms, none",
        _answered,
        [
            ([[[-0.5, -1.0, -2.0], [-0.5]]], [[[3, 9, 5], [7]]]),
            [[[4, 6]], [[3, 9, 5], [7]]],
            (None, None),
        ],
    ),
    Row(
        "samplers",
        "trl.generation.vllm_generation:extract_logprobs",
        "ranks, and one that is not known",
        _ranked,
        [[[[-0.25, -1.5], [None]], [[-0.25, -1.5]]], [[[3, 8], [4]], [[3, 8]]]],
    ),
)
