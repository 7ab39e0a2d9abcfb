"""A stack's small functions as one writes them with torch, each with faults that people make."""

import copy
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    """Return log-probabilities of one id a row, in float32 inside."""
    return logits.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0].to(logits.dtype)


def several(logits: Tensor, ids: Tensor) -> Tensor:
    """Return log-probabilities of several ids a row."""
    return logits.float().log_softmax(-1).gather(-1, ids)


def entropy(logits: Tensor) -> Tensor:
    """Return entropies, in float32 inside."""
    return torch.distributions.Categorical(logits=logits.float()).entropy().to(logits.dtype)


def deviation(values: Tensor, dims: Any) -> Tensor:
    """Return deviations without NaN through sums."""
    dims = tuple(range(values.dim())) if dims is None else dims
    there = ~values.isnan()
    count = there.sum(dims, keepdim=True)
    mean = values.nansum(dims, keepdim=True) / count
    squares = torch.where(there, values - mean, 0.0).square().sum(dims)
    count = count.squeeze(dims)
    return torch.where(count > 1, (squares / (count - 1)).sqrt(), math.nan)


def minimum(values: Tensor) -> Tensor:
    """Return the smallest value that is not NaN."""
    left = values[~values.isnan()]
    return left.sort().values[0] if len(left) else torch.tensor(math.nan)


def odds_loss(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Return the loss of ORPO."""
    logits = [value - torch.log(-torch.expm1(value)) for value in (chosen, rejected)]
    return -beta * torch.nn.functional.logsigmoid(logits[0] - logits[1])


def pad(rows: Sequence[Tensor], value: int, side: str, multiple: int | None) -> Tensor:
    """Return one tensor of tensors, by slices."""
    shape = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    shape[0] = -(-shape[0] // (multiple or 1)) * (multiple or 1)
    made = torch.full((len(rows), *shape), value)
    for one, row in zip(made, rows, strict=True):
        start = shape[0] - len(row) if side == "left" else 0
        one[(slice(start, start + len(row)), *(slice(size) for size in row.shape[1:]))] = row
    return made


def pad_to_length(tensor: Tensor, length: int, value: int, dim: int) -> Tensor:
    """Return a tensor padded at its end."""
    if tensor.shape[dim] >= length:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = length - shape[dim]
    return torch.cat([tensor, torch.full(shape, value)], dim)


def flush_left(mask: Tensor, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with the shown values first, by a stable sort."""
    order = mask.argsort(dim=1, descending=True, stable=True)
    longest = int(mask.sum(1).max())
    return mask.gather(1, order)[:, :longest], tensor.gather(1, order)[:, :longest]


def flush_right(mask: Tensor, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with the shown values last."""
    order = mask.argsort(dim=1, stable=True)
    longest = int(mask.sum(1).max())
    return mask.gather(1, order)[:, -longest:], tensor.gather(1, order)[:, -longest:]


def split(columns: Mapping[str, Any], parts: int) -> list[dict[str, Any]]:
    """Return parts of all columns."""
    size = len(columns["texts"]) // parts
    return [
        {name: None if one is None else one[at * size : (at + 1) * size] for name, one in columns.items()}
        for at in range(parts)
    ]


def shuffle(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return all columns in one random order."""
    order = torch.randperm(len(columns["texts"])).tolist()
    return {
        name: one if one is None else one[order] if isinstance(one, Tensor) else [one[at] for at in order]
        for name, one in columns.items()
    }


def score_of_answers(ids: Tensor, pad: int, context: int) -> Tensor:
    """Return the sum of each id times its position among those that are no padding."""
    shown = ids != pad
    return (ids * shown.cumsum(1) * shown).sum(1).float()


def first_true(bools: Tensor) -> Tensor:
    """Return the place of the first True by the counts before it."""
    return (bools.cumsum(-1) == 0).sum(-1)


def cut_after_stop(ids: Tensor, stops: Sequence[int], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids and mask up to the first stop."""
    is_stop = torch.isin(ids, torch.tensor(list(stops)))
    mask = (is_stop.cumsum(1) - is_stop.long() == 0).long()
    return torch.where(mask.bool(), ids, pad_id), mask


def repeated_order(
    num_rows: int, copies: int, batch: int, repeats: int, shuffles: bool, seed: int, epochs: int
) -> list[list[int]]:
    """Return orders, with one random stream for all epochs."""
    stream, orders = random.Random(seed), []
    for _ in range(epochs):
        rows = list(range(num_rows))
        if shuffles:
            stream.shuffle(rows)
        orders.append(list(_repeated(rows, copies, batch, repeats)))
    return orders


def _repeated(rows: Sequence[Any], copies: int, batch: int, repeats: int) -> Iterator[Any]:
    for start in range(0, len(rows) - batch + 1, batch):
        for _ in range(repeats):
            for row in rows[start : start + batch]:
                yield from [row] * copies


def repeated_stream(records: Sequence[Any], copies: int, batch: int, repeats: int) -> list[Any]:
    """Return copies of records in the order."""
    return [copy.deepcopy(one) for one in _repeated(records, copies, batch, repeats)]


def unpair(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return two records of each."""
    return [
        {
            **{k: v for k, v in one.items() if k not in ("chosen", "rejected")},
            "completion": one[key],
            "label": label,
        }
        for one in records
        for key, label in (("chosen", True), ("rejected", False))
    ]


def extract_prompt(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    """Return what both begin with, and the rests."""
    length = 0
    while length < min(len(chosen), len(rejected)) and chosen[length] == rejected[length]:
        length += 1
    if length and chosen[length - 1] == " ":
        length -= 1
    return chosen[:length], chosen[length:], rejected[length:]


def cut_records(columns: Mapping[str, Any], length: int) -> dict[str, Any]:
    """Return columns with lists cut."""
    return {name: [v[:length] if isinstance(v, list) else v for v in one] for name, one in columns.items()}


def without_none(value: Any) -> Any:
    """Return nested entries without None."""
    if isinstance(value, list):
        return [without_none(one) for one in value]
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return value


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of ids that both begin with."""
    return len(extract_prompt(list(one), list(other))[0])


def messages_with_images(
    messages: Sequence[Mapping[str, Any]], images: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return messages of blocks."""
    first = next(place for place, one in enumerate(messages) if one["role"] == "user")
    return [
        {
            "role": one["role"],
            "content": [
                *({"type": "image", "image": image} for image in (images if place == first else [])),
                {"type": "text", "text": one["content"]},
            ],
        }
        for place, one in enumerate(messages)
    ]


def think_format(texts: Sequence[str]) -> list[float]:
    """Return 1.0 for texts that begin with one block."""
    return [float(bool(re.fullmatch(r"(?s)<think>(?!.*<think>).*</think>.*", text))) for text in texts]


def overlong(lengths: Sequence[int], longest: int, cache: int) -> list[float]:
    """Return punishments by clipping."""
    soft = [-max(0.0, length - (longest - cache)) / max(cache, 1) for length in lengths]
    return [-1.0 if length > longest else value for length, value in zip(lengths, soft, strict=True)]


def repetition(rows: Sequence[Sequence[int]], n: int, largest: float) -> list[float]:
    """Return penalties."""
    made = []
    for row in rows:
        grams = list(zip(*(row[place:] for place in range(n)), strict=False))
        made.append(largest * (len(grams) - len(set(grams))) / max(len(grams), 1))
    return made


def apply_template(record: Mapping[str, Any], template: str, tools: Sequence[str]) -> dict[str, Any]:
    """Return a record's texts, of the template that the laws give."""
    import jinja2

    def text(turns: Sequence[Any], opens: bool = False) -> str:
        return jinja2.Template(template).render(
            messages=turns,
            tools=[{"function": {"name": name}} for name in tools],
            add_generation_prompt=opens,
            **record.get("chat_template_kwargs", {}),
        )

    if "messages" in record:
        return {"text": text(record["messages"])}
    if "prompt" not in record:
        return {name: text(record[name]) for name in ("chosen", "rejected")}
    last = record["prompt"][-1]
    begin = text(record["prompt"], opens=last["role"] != "assistant")
    if last["role"] == "assistant":  # what is sampled continues its content
        begin = begin[: begin.rindex(last["content"]) + len(last["content"])]
    made = {"prompt": begin, **({"label": record["label"]} if "label" in record else {})}
    for name in ("completion", "chosen", "rejected"):
        if name in record:
            made[name] = text([*record["prompt"], *record[name]]).removeprefix(begin)
    return made


def to_messages(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose turns have roles and contents."""
    names = {"from": "role", "value": "content"}
    return {
        "messages" if column == "conversations" else column: (
            [{names.get(key, key): text for key, text in turn.items()} for turn in value]
            if isinstance(value, list)
            else value
        )
        for column, value in record.items()
    }


def is_conversational(record: Mapping[str, Any]) -> bool:
    """Return whether any column of turns has a role."""
    columns = ("prompt", "chosen", "rejected", "completion", "messages")
    return any(isinstance(record.get(name), list) and "role" in record[name][0] for name in columns)


def own_prompt(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pair with its own prompt, or with that of its conversations."""
    if "chosen" not in record or type(record.get("prompt")) is type(record["chosen"]):
        return dict(record)
    prompt, chosen, rejected = extract_prompt(record["chosen"], record["rejected"])
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def mixture(
    sets: Sequence[Sequence[Mapping[str, Any]]],
    columns: Sequence[str] | None,
    shares: Sequence[float] | None,
    test: float | None,
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of several data sets."""
    if shares:
        sizes = [one / sum(shares) for one in shares]
        total = min(len(rows) / size for rows, size in zip(sets, sizes, strict=True))
        sets = [rows[: round(size * total)] for rows, size in zip(sets, sizes, strict=True)]
    rows = [{k: v for k, v in row.items() if not columns or k in columns} for one in sets for row in one]
    held = round(len(rows) * (test or 0))
    return {"train": rows[held:], "test": rows[:held]} if test else {"train": rows}


def parse_options(file: Mapping[str, Any], line: Sequence[str]) -> dict[str, Any]:
    """Return options, the command line's before the file's."""
    made = {"rate": 0.5, "count": 3, "word": "none", "flag": False, "names": ["x"], **file}
    kinds: dict[str, Callable[[str], Any]] = {"rate": float, "count": int, "flag": lambda one: one == "true"}
    for group in " ".join(line).split("--")[1:]:
        name, *words = group.split()
        made[name] = words if name == "names" else kinds.get(name, str)(words[0])
    return made


def averaged_weights(steps: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return BEMA's weights by differences."""
    start = int(options["update_after"])
    first, drift, made = steps[start], torch.zeros_like(steps[0]), steps[0]
    for step in range(start + 1, len(steps)):
        if (step - start) % int(options["update_freq"]) == 0:
            age = options["lag"] + options["multiplier"] * step
            beta = max(age ** -options["ema_power"], options["min_ema_multiplier"])
            drift = drift + beta * (steps[step] - first - drift)
            made = first + drift + age ** -options["bias_power"] * (steps[step] - first)
    return made


def averaged_reference(steps: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Return the weights of the last update of a reference."""
    first, every = options["ref_model_update_after"], options["ref_model_update_freq"]
    last = max(step for step in range(1, len(steps)) if step >= first and (step - first) % every == 0)
    return averaged_weights(steps[: last + 1], options)


def cosine(
    correct: Sequence[bool | None],
    lengths: Sequence[int],
    longest: int,
    wrong: tuple[float, float],
    right: tuple[float, float],
) -> list[float | None]:
    """Return rewards on half a wave between the bounds."""
    made: list[float | None] = []
    for verdict, length in zip(correct, lengths, strict=True):
        short, long = right[::-1] if verdict else wrong
        angle = math.pi * min(length, longest) / longest
        made.append(None if verdict is None else (short + long) / 2 + (short - long) / 2 * math.cos(angle))
    return made


PLAIN: Mapping[str, Callable[..., Any]] = {
    "logprobs": logprobs,
    "logprobs of several": several,
    "entropy": entropy,
    "deviation": deviation,
    "minimum": minimum,
    "maximum": lambda values: -minimum(-values),
    "odds loss": odds_loss,
    "pad": pad,
    "pad to length": pad_to_length,
    "flush left": flush_left,
    "flush right": flush_right,
    "split": split,
    "shuffle": shuffle,
    "first true": first_true,
    "score of answers": score_of_answers,
    "cut after stop": cut_after_stop,
    "repeated order": repeated_order,
    "repeated stream": repeated_stream,
    "unpair": unpair,
    "extract prompt": extract_prompt,
    "cut records": cut_records,
    "without None": without_none,
    "common prefix": common_prefix,
    "messages with images": messages_with_images,
    "think format": think_format,
    "overlong": overlong,
    "repetition": repetition,
    "apply template": apply_template,
    "to messages": to_messages,
    "is conversational": is_conversational,
    "own prompt": own_prompt,
    "mixture": mixture,
    "parse options": parse_options,
    "averaged weights": averaged_weights,
    "averaged reference": averaged_reference,
    "cosine": cosine,
}


class Plain:
    """All functions, some of them replaced."""

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        """Keep them; names have underscores for spaces."""
        self.utilities = {**PLAIN, **{name.replace("_", " "): one for name, one in replaced.items()}}
