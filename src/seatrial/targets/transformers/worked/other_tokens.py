"""Worked examples of candidates of an assistant with another tokenizer: overlaps, windows, translated ids."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.calls import VOCABULARY, causal
from seatrial.targets.transformers.worked.drafts import LONG, another, greedy_ids
from seatrial.targets.transformers.worked.scores import ids_of

PLACE = "transformers.generation.candidate_generator"


class Letters:
    """A tokenizer whose longest tokens are taken first; its sign of a blank may be another."""

    def __init__(self, *tokens: str, blank: str = " ", begins: bool = False) -> None:
        self.tokens, self.blank, self.begins = list(tokens), blank, begins

    def get_vocab(self) -> dict[str, int]:
        return {token: place for place, token in enumerate(self.tokens)}

    def __call__(
        self, text: Any, add_special_tokens: bool = True, return_tensors: str = "", **more: Any
    ) -> Any:
        texts = [text] if isinstance(text, str) else text
        rows = []
        for one in texts:
            left, row = one.replace(" ", self.blank), [0] if self.begins and add_special_tokens else []
            while left:
                known = [token for token in self.tokens if left.startswith(token)]
                token = max(known, key=len, default="")
                row += [self.tokens.index(token)] if token else []
                left = left[len(token) or 1 :]
            rows.append(row)
        if return_tensors:
            return {"input_ids": torch.tensor(rows)}
        return {"input_ids": rows[0] if isinstance(text, str) else rows}

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.tokens[one] for one in ids]

    def batch_decode(self, ids: Any, **options: Any) -> list[str]:
        return ["".join(self.tokens[one] for one in row).replace(self.blank, " ") for row in ids.tolist()]

    decode = batch_decode


def _overlaps(made: Any) -> list[Any]:
    """Return how many ids of a prompt are replaced, which new ones there are, and which replace."""
    found: list[Any] = []
    for prompt, longer in (
        ([1, 2, 3], [1, 2, 3, 4, 5]), ([1, 2, 3], [2, 3, 4]), ([1, 2, 3], [1, 2, 7, 8, 9]), ([1, 2, 3], [7, 8]),
        ([1, 2, 1, 2], [1, 2, 1, 2, 9]), ([4, 4, 5], [4, 5, 6]), ([1, 2, 3, 4], [2, 3, 9]), ([1, 2], [1, 2]),
        ([9, 1, 2, 3, 8], [1, 2, 3, 5, 6]),
    ):  # fmt: skip
        parts = made._get_tokens_diag(ids_of(prompt), ids_of(longer))
        found.append([one if one is None or isinstance(one, int) else one.tolist() for one in parts])
    return found


def _longest(made: Any) -> list[Any]:
    found = []
    for rows in (
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        [[1, 0], [1, 0], [0, 1]],
        [[0, 1, 1], [0, 0, 1]],
        [[0, 0], [1, 0]],
    ):
        place, length = made._get_longest_diag_index(torch.tensor(rows))
        found.append([[int(one) for one in place], int(length)])
    return found


TARGET: Sequence[str] = ("a", "b", "_", "c", "_a", "d")
ASSISTANT: Sequence[str] = ("c", "#", "x", "#a", "b", "a#")


def _translator(made: Any, model: Any = None, prunes: bool = False) -> Any:
    return made(Letters(*TARGET, blank="_"), Letters(*ASSISTANT, blank="#"), 8, model, prunes)


def _translated(made: Any) -> list[Any]:
    """Return which ids are which of the other tokenizer, whose blank is another sign, and ids and scores by them."""
    one = _translator(made)
    scores = torch.arange(12.0).reshape(2, 6)
    candidates = ids_of([2, 2, 0, 3, 4])
    return [
        one._assistant_to_target_input_ids.tolist(), dict(sorted(one.target_to_assistant_input_ids.items())),
        one._get_suppress_input_ids().tolist(), [len(one.logits_processors), one.assistant_prune_lm_head],
        one.get_target_ids(ids_of([2, 2]), ids_of([5, 5, 5]), candidates).tolist(),
        one.get_target_ids(candidates, ids_of([5, 5, 5]), candidates).tolist(),
        one.get_target_logits(scores).clamp(min=-1).tolist(),
        one.logits_processors(ids_of([1], [1]), scores).clamp(min=-1).tolist(),
    ]  # fmt: skip


def _model() -> Any:
    """Return an assistant of an embedding and a head, whose numbers are those of its ids."""
    parts: dict[str, Any] = {"in": nn.Embedding(6, 2), "out": nn.Linear(2, 6, bias=False)}
    with torch.no_grad():
        for one in parts.values():
            one.weight.copy_(torch.arange(6.0)[:, None].expand(6, 2))
    return SimpleNamespace(
        device=torch.device("cpu"),
        get_input_embeddings=lambda: parts["in"],
        get_output_embeddings=lambda: parts["out"],
        set_input_embeddings=lambda value: parts.update({"in": value}),
        set_output_embeddings=lambda value: parts.update({"out": value}),
        parts=parts,
    )


def _pruned(made: Any) -> list[Any]:
    """Return scores, ids and embeddings of an assistant whose head has the common ids alone."""
    model = _model()
    one = _translator(made, model, True)
    inside, out = model.parts["in"], model.parts["out"]
    found: list[Any] = [one.assistant_overlap_token_ids.tolist(), one.logits_processors]
    with torch.no_grad():
        found.append(out(torch.ones(1, 2)).tolist())
        found.append([inside(ids_of([4, 3])).tolist(), inside(ids_of([2])).tolist()])
        one.unmap_input_ids()
        found.append(inside(ids_of([2])).tolist())
    found.append(one.get_target_ids(ids_of([2]), ids_of([5]), ids_of([2, 0, 1, 2])).tolist())
    whole = made(Letters(*TARGET, blank="_"), Letters("a", "b"), 6, _model(), True)
    return [*found, [len(whole._get_suppress_input_ids()), whole.logits_processors]]


def _known(made: Any) -> list[bool]:
    """Return whether the translator of two tokenizers is the same again, and another of others."""
    pairs = [Letters(*TARGET, blank="_"), Letters(*ASSISTANT, blank="#"), Letters("a", "b")]
    first = made.get_translator(pairs[0], pairs[1], 8)
    return [
        made.get_translator(pairs[0], pairs[1], 8) is first, made.get_translator(pairs[0], pairs[2], 8) is first,
        made.get_translator(pairs[1], pairs[0], 8) is first, first.target_vocab_size == 8,
    ]  # fmt: skip


def _generator(made: Any, **state: Any) -> Any:
    own = made.__new__(made)
    own.target_tokenizer = Letters("a", "b", "c", "ab", "bc", "d")
    own.assistant_tokenizer = Letters("a", "b", "c", "d", "cd")
    own.target_lookbehind, own.assistant_lookbehind = 3, 2
    own.prev_target_ids_len, own.prev_assistant_ids = None, None
    own.generation_config, own.main_model_max_length = SimpleNamespace(max_length=6), 6
    own.__dict__.update(state)
    return own


def _windows(made: Any) -> list[Any]:
    """Return ids for the assistant, and how many of its cache are wrong: first, and after ids of before."""
    found = []
    for state, ids in (
        ({}, [3, 2]), ({"prev_target_ids_len": 2, "prev_assistant_ids": ids_of([0, 1, 2])}, [3, 2, 5]),
        ({"prev_target_ids_len": 4, "prev_assistant_ids": ids_of([0, 1, 2, 3, 0])}, [3, 2, 5, 0, 1]),
        ({"prev_target_ids_len": 4, "prev_assistant_ids": ids_of([0, 1, 2, 0, 0])}, [3, 2, 0, 1, 1]),
        ({"prev_target_ids_len": 4, "prev_assistant_ids": ids_of([0, 0, 0, 0, 0])}, [1, 2, 1, 2, 1]),
    ):  # fmt: skip
        own = _generator(made, **state)
        got, wrong = own._prepare_assistant_input_ids(ids_of(ids))
        found.append([got.tolist(), wrong, own.prev_target_ids_len])
    return found


def _processed(made: Any) -> list[Any]:
    """Return the ids of candidates: after the last ids of the prompt, cut to the largest length."""
    found = []
    for before, sequence, ids in (
        ([0, 1, 2], [0, 1, 2, 3, 0], [3, 2]), ([0, 1, 2], [0, 1, 2, 3, 0, 1, 2, 3], [3, 2]),
        ([0, 1], [0, 1, 3, 3], [5, 2]), ([0, 1, 2], [0, 1, 2], [0, 4]),
    ):  # fmt: skip
        own = _generator(made, prev_assistant_ids=ids_of(before))
        found.append(own._process_assistant_outputs(ids_of(ids), ids_of(sequence)).tolist())
    return found


def _converted(made: Any) -> list[Any]:
    own = _generator(made)
    one, other = own.target_tokenizer, own.assistant_tokenizer
    return [
        own.convert_source_tokens_to_target_tokens(ids_of([3, 2], [4, 0]), one, other).tolist(),
        own.convert_source_tokens_to_target_tokens(ids_of([0, 1, 4]), other, one).tolist(),
    ]


def _generated(mixin: Any) -> list[str]:
    """Return where ids with an assistant of another tokenizer are not those without: the largest, and a sure draw."""
    model, wrong = causal(), []
    names = [chr(0x4E00 + number) for number in range(VOCABULARY)]
    own, other = Letters(*names), Letters(*names[::-1])
    apart = Letters(*names[::2], *map(chr, range(0x3041, 0x3041 + VOCABULARY // 2)))
    due = [*LONG, *greedy_ids(model, LONG, 6)]
    for what, tokens, options in (
        ("the largest, another order", other, {"do_sample": False}),
        ("a sure draw, half the ids", apart, {"do_sample": True, "top_k": 1}),
    ):  # fmt: skip
        assistant = copy.deepcopy(another())
        assistant.config.vocab_size = VOCABULARY + 1  # models of one size are refused
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = model.generate(
                ids_of(LONG), max_new_tokens=6, eos_token_id=[VOCABULARY], tokenizer=own, assistant_tokenizer=tokens,
                assistant_model=assistant, **options,
            )[0].tolist()  # fmt: skip
        wrong += [] if found == due else [f"{what}: {found}, {due} are due"]
    return wrong


def _row(name: str, what: str, call: Callable[[Any], Any], right: Any, place: str = PLACE) -> Row:
    return Row("samplers", f"{place}:{name}", what, call, right, since="4.57")


OTHERS = "AssistedCandidateGeneratorDifferentTokenizers"
# Sources: the documentation of each class; Timor et al. 2025 for vocabularies that are translated.
OTHER_TOKEN_ROWS: Sequence[Row] = (
    _row(OTHERS, "overlaps of ids", _overlaps,
         [[0, [[4, 5]], [[]]], [0, [[4]], [[]]], [1, [[8, 9]], [[7]]], [None, None, None], [0, [[9]], [[]]], [0,
          [[6]], [[]]], [1, [[]], [[9]]], [0, [[]], [[]]], [1, [[6]], [[5]]]]),
    _row(OTHERS, "the longest overlap", _longest,
         [[[0, 0], 3], [[1, 0], 2], [[0, 1], 2], [[1, 0], 1]]),
    _row(OTHERS, "ids of another tokenizer", _converted,
         [[[0, 1, 2], [1, 2, 0]], [[3, 2, 5]]]),
    _row(OTHERS, "ids for the assistant", _windows,
         [[[[0, 1, 2]], 0, 2], [[[0, 1, 4]], 0, 3], [[[0, 1, 2, 3, 0, 1]], 0, 4], [[[0, 1, 2, 0, 1, 1]], 1, 4], [[[0,
          0, 0, 0, 0, 2, 1, 2, 1]], 0, 4]]),
    _row(OTHERS, "ids of the assistant", _processed,
         [[[3, 2, 4, 5, 0]], [[3, 2, 5]], [[5, 2]], [[0, 4]]]),
    _row("AssistantToTargetTranslator", "ids and scores that are translated", _translated,
         [[3, 2, -1, 4, 1, -1], {1: 4, 2: 1, 3: 0, 4: 3}, [2, 5], [1, False], [[5, 5, 5, 3, 4, 1]], [[5, 5, 5]],
          [[-1.0, 4.0, 1.0, 0.0, 3.0, -1.0, -1.0, -1.0], [-1.0, 10.0, 7.0, 6.0, 9.0, -1.0, -1.0, -1.0]], [[0.0, 1.0,
          -1.0, 3.0, 4.0, -1.0], [6.0, 7.0, -1.0, 9.0, 10.0, -1.0]]]),
    _row("AssistantToTargetTranslator", "a head of the common ids", _pruned,
         [[0, 1, 3, 4], None, [[0.0, 2.0, 6.0, 8.0]], [[[[4.0, 4.0], [3.0, 3.0]]], [[[3.0, 3.0]]]], [[[2.0, 2.0]]],
          [[5, 3, 2, 4]], [0, None]]),
    _row("AssistantVocabTranslatorCache", "translators that are kept", _known, [True, False, False, True]),
    _row("GenerationMixin", "ids with an assistant of another tokenizer", _generated, [],
         "transformers.generation.utils"),
)  # fmt: skip
