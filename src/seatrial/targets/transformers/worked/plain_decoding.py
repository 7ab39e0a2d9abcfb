"""Decoding in plain loops over one row: whole forward passes without a cache, and options by their definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import between, since
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.plain_rules import Place, scored

VOCABULARY, PAD, START = 30, 1, 2
NONE = -1.0e9
"""The score of a beam that is not there."""
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
CAUSAL: Mapping[str, Any] = {
    **SIZES, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
ENCODING: Mapping[str, Any] = {
    **SIZES, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64,
    "pad_token_id": PAD, "decoder_start_token_id": START, "forced_eos_token_id": None, "dropout": 0.0,
}  # fmt: skip
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", CAUSAL),
    "Mistral with a window": ("MistralForCausalLM", {**CAUSAL, "sliding_window": 4}),
    "Bart": ("BartForConditionalGeneration", ENCODING),
}
"""A class and the options of its configuration, by the name of a kind."""


def refused(error: Exception) -> Exception:
    """Return an error as it is where the release takes all the calls of the tables, and elsewhere as a refusal."""
    known = between("transformers", "4.57", "5")(None) or since("transformers", "5.24")(None)
    return error if known else NotServed(f"refused: {error}")


@cache
def model_of(kind: str, attention: str = "eager") -> Any:
    """Return the tiny model of a kind, whose weights depend on their names alone; it has no special ids."""
    name, options = KINDS[kind]
    config: Any = of_name(f"{name.partition('For')[0]}Config")
    model = of_name(name)._from_config(config(**options), attn_implementation=attention).float().eval()
    draw_by_names_alone(model)
    with torch.no_grad():
        if kind == "Bart":
            model.model.shared.weight.mul_(2.0)
        else:
            model.lm_head.weight.mul_(2.0)
    made: Any = of_name("GenerationConfig")
    model.generation_config = made(decoder_start_token_id=START) if kind == "Bart" else made()
    return model


@lru_cache(maxsize=20_000)
def next_logits(kind: str, prompt: tuple[int, ...], new: tuple[int, ...]) -> Tensor:
    """Return the logits after a prompt and new ids, or behind an encoder after all ids of the decoder; (V,)."""
    given = (
        {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([new])}
        if kind == "Bart"
        else {"input_ids": torch.tensor([prompt + new])}
    )
    with torch.no_grad():
        logits: Tensor = model_of(kind)(**given, use_cache=False).logits[0, -1].double()
    return logits


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is decoded, of which prompts, and how."""

    kind: str
    prompts: Sequence[Sequence[int]]
    begins: Sequence[Sequence[int]] = ()
    """The first ids of the decoder behind an encoder."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of `plain_rules`, `do_sample`, `renormalize_logits`, `guidance_scale` and `negative` prompts."""
    ends: Sequence[int] = ()
    pad: int | None = None
    num_new: int = 6
    copies: int = 1
    beams: int = 1
    unseen: bool = False
    """Whether options do not see the ids of the prompt."""
    unread: bool = False
    """Whether options do not know the ids that the encoder reads."""
    stop: Callable[[Sequence[int], Sequence[int]], bool] | None = None
    """Takes the ids that are seen and the new ones."""
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    in_order: bool = True
    """Whether beams that are drawn end by their scores; else the first that are drawn do."""

    def padded(self, row: int) -> list[int]:
        """Return the ids of a prompt with those of padding."""
        widest, prompt = max(map(len, self.prompts)), list(self.prompts[row])
        pads = [PAD] * (widest - len(prompt))
        return [*prompt, *pads] if self.begins else [*pads, *prompt]

    def first(self, row: int) -> list[int]:
        """Return the ids before the new ones."""
        return list(self.begins[row]) if self.begins else self.padded(row)

    def place(self, row: int, new: Sequence[int]) -> Place:
        """Return where a row is."""
        first = self.first(row)
        return Place(
            seen=[*new] if self.unseen else [*first, *new], new=new, prompt=[] if self.unread else self.padded(row),
            length=len(first) + len(new), longest=len(first) + self.num_new, row=row, ends=self.ends,
        )  # fmt: skip

    def logits(self, row: int, new: Sequence[int]) -> Tensor:
        """Return the logits of the next id of a row."""
        after = (*self.begins[row], *new) if self.begins else (*new,)
        return next_logits(self.kind, tuple(self.prompts[row]), after)

    def scores(self, row: int, new: Sequence[int]) -> Tensor:
        """Return the scores of the next id of a row."""
        scores = self.logits(row, new)
        if self.beams > 1:
            scores = scores.log_softmax(-1)
        scale = self.options.get("guidance_scale")
        if scale is not None:
            scores = scores.log_softmax(-1)
            negative = self.options.get("negative", [one[-1:] for one in self.prompts])[row]
            other = next_logits(self.kind, tuple(negative), tuple(new)).log_softmax(-1)
            scores = scale * (scores - other) + other
        least = 1 if self.beams == 1 else max(len(self.ends), 1) + 1
        return scored(scores, self.place(row, new), self.options, least)

    def stops(self, row: int, new: Sequence[int]) -> bool:
        """Return whether nothing follows."""
        own = self.stop is not None and self.stop(self.place(row, new).seen, new)
        return new[-1] in self.ends or own or len(new) == self.num_new


class Answer(NamedTuple):
    """New ids of a row up to its end, and what they were chosen by."""

    row: int
    ids: list[int]
    scores: list[Tensor]
    """Of each id, (V,); none of beams."""
    total: float = 0.0


def number_of(step: int, row: int, draw: int) -> float:
    """Return a number in [0, 1) that a draw is made by."""
    return ((step * 37 + row * 61 + draw * 17 + 5) * 0.6180339887498949) % 1.0


def drawn(chances: Tensor, numbers: Iterable[float]) -> list[int]:
    """Return places that are drawn by numbers, without putting them back, from chances of shape (N,)."""
    left, found = chances.double().clone(), list[int]()
    for number in numbers:
        if float(left.sum()) <= 0:
            place = next(one for one in range(len(left)) if one not in found)
        else:
            place = int((left.cumsum(-1) > number * left.sum()).nonzero()[0])
        found.append(place)
        left[place] = 0
    return found


def draws_of_call() -> Callable[..., Tensor]:
    """Return a replacement of `torch.multinomial` for one call: its draws follow from steps and rows."""
    steps = list[int]()

    def multinomial(chances: Tensor, num_samples: int, *args: Any, **kwargs: Any) -> Tensor:
        steps.append(0)
        return torch.tensor([
            drawn(one, [number_of(len(steps) - 1, row, draw) for draw in range(num_samples)])
            for row, one in enumerate(chances)
        ])  # fmt: skip

    return multinomial


def rows_by(plan: Plan) -> list[Answer]:
    """Return the answers of greedy decoding, or of sampling by the numbers of draws."""
    found, copies = list[Answer](), plan.copies
    longest = plan.num_new
    for again in range(2):
        found = []
        for number in range(len(plan.prompts) * copies):
            row, new, scores = number // copies, list[int](), list[Tensor]()
            while len(new) < longest and (not new or not plan.stops(row, new) or again):
                scores.append(plan.scores(row, new))
                new.append(
                    drawn(scores[-1].softmax(-1), [number_of(len(new), number, 0)])[0]
                    if plan.options.get("do_sample")
                    else int(scores[-1].argmax())
                )
            found.append(Answer(row, new, scores))
        if plan.ends or plan.stop is None:
            break
        # Without an id of the end rows that have stopped continue until all have.
        longest = max(len(one.ids) for one in found)
    return found


def beams_by(plan: Plan) -> list[Answer]:
    """Return the answers of beam search, or of sampled beams; the best of a prompt first."""
    return [
        Answer(row, ids, [], total) for row in range(len(plan.prompts)) for total, ids in _beams_of(plan, row)
    ]


def _falling(one: tuple[float, list[int]]) -> float:
    return -one[0]


def _beams_of(plan: Plan, row: int) -> list[tuple[float, list[int]]]:
    running: list[tuple[float, list[int]]] = [(0.0, []), *[(NONE, list[int]())] * (plan.beams - 1)]
    done: list[tuple[float, list[int]]] = []
    num_candidates = max(2, 1 + len(plan.ends)) * plan.beams
    while True:
        scores = torch.cat([plan.scores(row, new) + score for score, new in running])
        step = len(running[0][1])
        if plan.options.get("do_sample"):
            places = drawn(scores.softmax(-1), [number_of(step, row, draw) for draw in range(num_candidates)])
        else:
            places = scores.argsort(descending=True)[:num_candidates].tolist()
        candidates = [
            (float(scores[place]), [*running[place // VOCABULARY][1], place % VOCABULARY]) for place in places
        ]
        if plan.in_order:
            candidates.sort(key=_falling)
        hits = [plan.stops(row, new) for _, new in candidates]
        full = len(done) == plan.beams
        if not (full and plan.early_stopping is True):
            done += [
                (score / len(new) ** plan.length_penalty, new)
                for (score, new), hit in list(zip(candidates, hits, strict=True))[: plan.beams]
                if hit
            ]
            done = sorted(done, key=_falling)[: plan.beams]
        going = [one for one, hit in zip(candidates, hits, strict=True) if not hit]
        full = len(done) == plan.beams
        if len(going) < plan.beams or (full and plan.early_stopping is True):
            break
        running = sorted(going, key=_falling)[: plan.beams]
        hopeful = plan.early_stopping == "never" and plan.length_penalty > 0
        length = plan.num_new if hopeful else len(running[0][1])
        if full and running[0][0] / length**plan.length_penalty <= done[-1][0]:
            break
    return done[: plan.copies]
