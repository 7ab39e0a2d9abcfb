"""Functions of a stack that equal their definitions, and those that laws check without one."""

import json
import random
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tests.unit.relations.defined_asynchronous import ASYNCHRONOUS
from tests.unit.relations.defined_parts import PARTS
from tests.unit.relations.defined_rollouts import ROLLOUTS

from seatrial.relations.contracts.utilities import Batch, Episode
from seatrial.relations.laws.utilities.adapter_steps import ADAPTER_STEP_FUNCTIONS
from seatrial.relations.laws.utilities.batches import RIGHT
from seatrial.relations.laws.utilities.calls import WRITTEN
from seatrial.relations.laws.utilities.encodings import ENCODING_FUNCTIONS
from seatrial.relations.laws.utilities.files import FILE_FUNCTIONS
from seatrial.relations.laws.utilities.gathered import GATHERED_FUNCTIONS
from seatrial.relations.laws.utilities.metrics import METRIC_FUNCTIONS, majority
from seatrial.relations.laws.utilities.packed_attention import PACKED_ATTENTION_FUNCTIONS
from seatrial.relations.laws.utilities.partitions import PARTITION_FUNCTIONS
from seatrial.relations.laws.utilities.row_scores import ROW_SCORE_FUNCTIONS
from seatrial.relations.laws.utilities.run_events import RUN_EVENT_FUNCTIONS
from seatrial.relations.laws.utilities.samplers import SAMPLER_FUNCTIONS
from seatrial.relations.laws.utilities.schemas import SCHEMA_FUNCTIONS
from seatrial.relations.laws.utilities.scores import SCORE_FUNCTIONS
from seatrial.relations.laws.utilities.sequences import SEQUENCE_FUNCTIONS
from seatrial.relations.laws.utilities.short_runs import SHORT_RUN_FUNCTIONS
from seatrial.relations.laws.utilities.statistics import STATISTIC_FUNCTIONS
from seatrial.relations.laws.utilities.step_parts import STEP_PART_FUNCTIONS
from seatrial.relations.laws.utilities.stops import STOP_FUNCTIONS
from seatrial.relations.laws.utilities.texts import TEXT_FUNCTIONS
from seatrial.relations.laws.utilities.training_parts import TRAINING_PART_FUNCTIONS
from seatrial.relations.laws.utilities.turns import requests_of_turns
from seatrial.relations.laws.utilities.visible import VISIBLE_FUNCTIONS
from seatrial.relations.laws.utilities.work import operations_of_a_layer


def balanced(lengths: Sequence[int], num_parts: int, equal: bool) -> list[list[int]]:
    """Return parts by size: the longest rows first, each to the smallest part that has room."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    for place, row in enumerate(order):
        open_parts = [part for part in parts if not equal or len(part) == place // num_parts]
        min(open_parts, key=lambda part: sum(lengths[one] for one in part)).append(row)
    return [sorted(part) for part in parts]


def greedy(lengths: Sequence[int], num_parts: int, equal: bool) -> list[list[int]]:
    """Return parts of rows in their order, each to the smallest part."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    for row in range(len(lengths)):
        min(parts, key=lambda part: (len(part) * equal, sum(lengths[one] for one in part))).append(row)
    return parts


def by_tokens(
    lengths: Sequence[int], limit: int, least: int | None, divisor: int | None, balance: bool, group: int
) -> list[list[int]]:
    """Return as few micro-batches as fit."""
    sums = [sum(lengths[start : start + group]) for start in range(0, len(lengths), group)]
    number = max(-(-sum(sums) // limit), least or 1)
    while True:
        parts = balanced(sums, number, False)
        fits = all(sum(sums[one] for one in part) <= limit for part in parts)
        if number % (divisor or 1) == 0 and fits:
            return [[group * one + row for one in part for row in range(group)] for part in parts]
        number += 1


def of_groups(lengths: Sequence[int], groups: Sequence[Any], num_parts: int) -> list[list[int]]:
    """Return parts of whole groups."""
    names = list(dict.fromkeys(groups))
    sums = [sum(n for n, one in zip(lengths, groups, strict=True) if one == name) for name in names]
    parts = balanced(sums, num_parts, True)
    return [[row for row, one in enumerate(groups) if names.index(one) in part] for part in parts]


def validation(sources: Any, prompts: Any, scores: Any, answers: Any, most: Any = majority) -> dict[str, Any]:
    """Return metrics of scores by drawing."""
    rows = list(zip(sources, prompts, scores, answers, strict=True))
    rng, found = random.Random(0), {}  # type: ignore[var-annotated]
    for source in dict.fromkeys(sources):
        means: dict[str, list[float]] = {}
        for prompt in dict.fromkeys(one for own, one, *_ in rows if own == source):
            votes = [(vote, score) for own, one, score, vote in rows if (own, one) == (source, prompt)]
            values = torch.tensor([score for _, score in votes], dtype=torch.float64)
            means.setdefault(f"mean@{len(votes)}", []).append(float(values.mean()))
            means.setdefault(f"std@{len(votes)}", []).append(float(values.std(unbiased=False)))
            for size in dict.fromkeys((2, len(votes))):
                drawn = [rng.choices(votes, k=size) for _ in range(1000)]
                for name, reduce in (("best", max), ("worst", min)):
                    own = [reduce(score for _, score in one) for one in drawn]
                    means.setdefault(f"{name}@{size}/mean", []).append(sum(own) / 1000)
                    means.setdefault(f"{name}@{size}/std", []).append(statistics.pstdev(own))
                own = [most(one) for one in drawn]
                means.setdefault(f"maj@{size}/mean", []).append(sum(own) / 1000)
                means.setdefault(f"maj@{size}/std", []).append(statistics.pstdev(own))
        found[source] = {name: sum(values) / len(values) for name, values in means.items()}
    return found


def operate(operation: str, batches: Sequence[Batch], *arguments: Any) -> list[Batch]:
    """Return what an operation gives; columns that differ are refused."""
    if operation == "union":
        one, other = batches
        for mine, theirs in zip(one, other, strict=True):
            for name in set(mine) & set(theirs):
                equal = mine[name] == theirs[name]
                if not (equal.all() if isinstance(equal, torch.Tensor) else equal):
                    raise ValueError(f"another {name}")
    return RIGHT[operation](batches, *arguments)


def read_calls(
    form: str, text: str, types: Mapping[str, Mapping[str, str]]
) -> tuple[str, list[tuple[str, str]]]:
    """Return the text before calls, and the calls, of any format."""
    begins = {
        "seed": "<seed:tool_call>",
        "minimax": "<minimax:tool_call>",
        "deepseek_v4": "<｜DSML｜tool_calls>",
        "kimi": "<|tool_calls_section_begin|>",
        "gpt-oss": "<|start|>assistant<|channel|>",
        "gemma4": "<|tool_call>",
    }
    ends = {"gpt-oss": "<|call|>", "gemma4": "<tool_call|>"}
    begin = begins.get(form, "<tool_call>")
    end = ends.get(form, begin.replace("begin", "end") if form == "kimi" else begin.replace("<", "</"))
    if end not in text or begin not in text:
        return text, []
    before, *parts = text.split(begin)
    found = []
    for part in parts:
        body = part[: part.index(end)]
        if form == "kimi":
            found.append(
                ("weather", json.loads(body.split("argument_begin|>")[1].split("<|tool_call_end")[0]))
            )
            continue
        if form == "gpt-oss":
            found.append(("weather", json.loads(body.split("<|message|>")[1])))
            continue
        if form == "gemma4":
            texts = body.removeprefix("call:weather").split('<|"|>')
            texts[::2] = [re.sub(r"(\w+):", r'"\1":', one) for one in texts[::2]]
            texts[1::2] = [json.dumps(one) for one in texts[1::2]]
            found.append(("weather", json.loads("".join(texts))))
            continue
        if form == "hermes":
            call = json.loads(body)
            found.append((call["name"], call["arguments"]))
            continue
        heads = {
            "glm": r"^(\w+)\n",
            "minimax": r'<invoke name="(.*?)">',
            "deepseek_v4": r'invoke name="(.*?)">',
        }
        pairs = {
            "deepseek_v4": r'parameter name="(.*?)" string="(?:true|false)">(.*?)</｜DSML｜parameter>',
            "glm": r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>",
            "minimax": r'<parameter name="(.*?)">(.*?)</parameter>',
        }
        name = re.findall(heads.get(form, r"<function=(.*?)>"), body)[0]
        words = re.findall(pairs.get(form, r"(?s)<parameter=(.*?)>\n(.*?)\n</parameter>"), body, re.DOTALL)
        kinds = types[name]
        found.append(
            (name, {key: word if kinds[key] == "string" else json.loads(word) for key, word in words})
        )
    return before, [(name, json.dumps(arguments)) for name, arguments in found]


def episode(
    answers: Sequence[str], tool_text: str, sampling: Mapping[str, Any], options: Mapping[str, Any]
) -> Episode:
    """Return an episode whose ids are characters; an end token is 0."""
    prompt, longest = list(map(ord, "What is the weather?")), options.get("response_length", 10**6)
    response: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    found: dict[str, list[Any]] = {"requests": [], "sampled": [], "sampled_logprobs": [], "called": []}
    turns, user, written = 0, 0, ""
    while True:
        found["requests"].append(prompt + response)
        ids = [*map(ord, answers[turns]), 0] if answers[turns] else []
        found["sampled"].append(ids)
        found["sampled_logprobs"].append([-0.5 - turns - place for place in range(len(ids))])
        response, mask = response + ids, mask + [1] * len(ids)
        logprobs += found["sampled_logprobs"][-1]
        written += f"{answers[turns]}<|im_end|>"
        calls, turns = re.findall(r'"city": "(\w+)"', answers[turns]), turns + 1
        limits = ((options.get("max_assistant_turns"), turns), (options.get("max_user_turns"), user))
        if not calls or len(mask) >= longest or any(limit and done >= limit for limit, done in limits):
            break
        called = calls[: options.get("max_parallel_calls", 1)]
        found["called"] += called
        size, side = options.get("max_tool_response_length", 99), options.get("tool_response_truncate_side")
        cut = {"left": tool_text[-size:], "right": tool_text[:size]}.get(
            str(side), tool_text[: size // 2] + "..." + tool_text[-size // 2 :]
        )
        shown = list(map(ord, (cut if len(tool_text) > size else tool_text) * len(called)))
        if options.get("format") == "gpt-oss":
            head = "<|start|>functions.weather to=assistant<|channel|>commentary<|message|>"
            shown = list(map(ord, f"{head}{tool_text}<|end|><|start|>assistant"))
        response, mask = response + shown, mask + [0] * len(shown)
        written += f"\n<|im_start|>tool\n{tool_text}<|im_end|>\n<|im_start|>assistant\n"
        logprobs, user = logprobs + [0.0] * len(shown), user + 1
    return Episode(
        prompt_ids=prompt,
        response_ids=response[:longest],
        mask=mask[:longest],
        logprobs=logprobs[:longest],
        num_turns=turns + user + 1,
        rewards=[0.5] * len(found["called"]),
        text=written if options.get("templated") else "".join(map(chr, response)),
        created=[{"place": "north"}] * len(found["called"]),
        experts=list(range(len(found["requests"][-1]) + len(found["sampled"][-1]))),
        sampling=[sampling] * turns,
        **found,
    )


def conversations(
    answers: Sequence[str], replies: Sequence[str], tool_text: str
) -> list[list[dict[str, str]]]:
    """Return the turns before each reply."""
    turns, found, given = [{"role": "user", "content": "What is the weather?"}], [], iter(replies)
    for answer in answers:
        turns.append({"role": "assistant", "content": answer})
        calls = re.findall(r'"city"', answer)
        turns += [{"role": "tool", "content": tool_text} for _ in calls]
        if not calls:
            found.append(list(turns))
            turns.append({"role": "user", "content": next(given)})
    return found


def rebalanced(
    lengths: Sequence[int], size: int, processes: int, parts: int, options: Mapping[str, Any]
) -> list[list[list[int]]]:
    """Return micro-batches of equal numbers of rows, those with the longest rows first."""
    order = list(range(len(lengths)))
    if options["shuffle"]:
        seed = options["seed"] + options["epoch"]
        order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    found: list[list[list[int]]] = [[] for _ in range(processes)]
    groups = processes * parts
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        if len(rows) < size and options["drop_last"]:
            break
        rows = sorted([*rows, *order[: max(0, groups - len(rows))]], key=lambda row: -lengths[row])
        cut = [rows[len(rows) * one // groups : len(rows) * (one + 1) // groups] for one in range(groups)]
        costs = [len(own) * (1 + 0.001 * lengths[own[0]]) * lengths[own[0]] for own in cut]
        cut = [cut[one] for one in sorted(range(groups), key=lambda one: -costs[one])]
        for place, own in enumerate(cut):
            found[place % processes].append(own)
    return found


FUNCTIONS = (
    *FILE_FUNCTIONS,
    *STATISTIC_FUNCTIONS,
    *SEQUENCE_FUNCTIONS,
    *PARTITION_FUNCTIONS,
    *METRIC_FUNCTIONS,
    *ENCODING_FUNCTIONS,
    *SCHEMA_FUNCTIONS,
    *SCORE_FUNCTIONS,
    *ROW_SCORE_FUNCTIONS,
    *STEP_PART_FUNCTIONS,
    *STOP_FUNCTIONS,
    *TEXT_FUNCTIONS,
    *VISIBLE_FUNCTIONS,
    *TRAINING_PART_FUNCTIONS,
    *GATHERED_FUNCTIONS,
    *SAMPLER_FUNCTIONS,
    *SHORT_RUN_FUNCTIONS,
    *PACKED_ATTENTION_FUNCTIONS,
    *ADAPTER_STEP_FUNCTIONS,
    *RUN_EVENT_FUNCTIONS,
)
DEFINED: Mapping[str, Callable[..., Any]] = {
    **{one.name: one.right for one in FUNCTIONS},
    **ROLLOUTS,
    **PARTS,
    **ASYNCHRONOUS,
    "balanced parts": balanced,
    "greedy parts": greedy,
    "micro-batches by tokens": by_tokens,
    "parts of groups": of_groups,
    "validation metrics": validation,
    "batch operation": operate,
    "rebalanced batches": rebalanced,
    "generated predictions": lambda options, batch: ({"ids": [[1, 2]]}, {"ids": [[1, 2]]}),
    "call formats": lambda: list(WRITTEN),
    "tool calls": read_calls,
    "agent episode": episode,
    "agent episode as gpt-oss writes it": episode,
    "arguments of tools": lambda answers, text, facts: [facts] * sum('"city"' in one for one in answers),
    "score of a tool": lambda right, answer: float(answer == right),
    "arguments of interactions": lambda answers, replies, facts: ([facts], [facts] * len(replies)),
    "messages of an interaction": conversations,
    "request of turns": requests_of_turns,
    "estimated work": lambda kind, sizes, lengths: (
        sizes["num_hidden_layers"] * operations_of_a_layer(kind, sizes, lengths)
    ),
    "experts of episodes": episode,
}


class Defined:
    """All functions, one of them replaced."""

    def __init__(self, name: str = "", faulty: Callable[..., Any] | None = None) -> None:
        """Keep them."""
        self.utilities = {**DEFINED, **({name: faulty} if faulty else {})}
