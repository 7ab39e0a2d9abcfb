"""Worked examples of `generate` in the last releases before 5: places, caches, chunks, lengths, drafts, healed ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.caches import states_of
from seatrial.targets.transformers.worked.calls import batch, causal, encoding
from seatrial.targets.transformers.worked.continued import CONTINUED_ROWS
from seatrial.targets.transformers.worked.drafts import DRAFT_ROWS, LONG
from seatrial.targets.transformers.worked.helpers import HELPER_ROWS, LIMITS, lengths_by
from seatrial.targets.transformers.worked.scores import SCORE_ROWS, ids_of
from seatrial.targets.transformers.worked.settings import SETTING_ROWS
from seatrial.targets.transformers.worked.states import STATE_ROWS

PLACE, OLD = "transformers.generation.utils", ", before 5"


@dataclass(frozen=True)
class Older:
    """A call that only releases before 5 serve."""

    call: Callable[[Any], Any]

    def __call__(self, found: Any) -> Any:
        """Return what it gives.

        Raises:
            NotServed: the release is 5 or later.
        """
        if not before("transformers", "5")(None):
            raise NotServed("another row has what releases from 5 on give")
        return self.call(found)


def _places(mixin: Any) -> list[Any]:
    """Return the first places in a cache: of ids, embeddings, after a cache or a tuple, given, of a decoder."""
    cache = find_name("transformers", ["transformers:DynamicCache"])()
    cache.update(states_of(1, 3), states_of(1, 3), 0)
    tuples = ((states_of(1, 2), states_of(1, 2)),)
    found = []
    for encodes, given in (
        (False, {}), (False, {"inputs_embeds": torch.zeros(2, 7, 3)}), (False, {"past_key_values": cache}),
        (False, {"past_key_values": tuples}), (False, {"cache_position": torch.tensor([9])}),
        (True, {"inputs_embeds": torch.zeros(2, 7, 3)}), (True, {"decoder_inputs_embeds": torch.zeros(2, 4, 3)}),
        (False, {"past_key_values": cache, "inputs_embeds": torch.zeros(2, 4, 3)}), (False, {"past_key_values": None}),
    ):  # fmt: skip
        model = SimpleNamespace(config=SimpleNamespace(is_encoder_decoder=encodes))
        after = mixin._get_initial_cache_position(model, 5, torch.device("cpu"), dict(given))
        found.append(after["cache_position"].tolist())
    return found


def _sliced(mixin: Any) -> list[Any]:
    """Return the ids and embeddings that follow a cache."""
    ids, found = ids_of([5, 6, 7, 8]), []
    embeds = torch.arange(6.0).reshape(1, 6, 1)
    for given, states, places in (
        (ids, None, [3]), (ids, None, [2, 3]), (ids, None, [0, 1, 2, 3]), (ids, None, [5]), (ids, embeds, [6]),
        (ids[:, :0], embeds, [4, 5]), (ids[:, :2], None, [7, 8]),
    ):  # fmt: skip
        left, kept = mixin._cache_dependant_input_preparation(None, given, states, torch.tensor(places))
        found.append([None if left is None else left.flatten().tolist(), kept.tolist()])
    return found


def _next(mixin: Any) -> list[Any]:
    """Return arguments of the next step, with and without a cache, after one id and after two."""
    found = []

    class Outputs(dict[str, Any]):
        __getattr__ = dict.__getitem__

    for encodes, number, cached, outputs in (
        (False, 1, True, {"past_key_values": 1}), (False, 2, True, {"mems": 2}), (True, 1, True, {"cache_params": 3}),
        (False, 2, False, {}), (True, 1, False, {"state": 4, "past_key_values": 5}),
    ):  # fmt: skip
        given = {
            "attention_mask": ids_of([0, 1]), "token_type_ids": ids_of([4, 5]), "kept": 3, "use_cache": cached,
            "decoder_attention_mask": ids_of([1, 1]), "cache_position": torch.tensor([0, 1]),
        }  # fmt: skip
        after = mixin._update_model_kwargs_for_generation(None, Outputs(outputs), given, encodes, number)
        found.append(
            {name: one.tolist() if isinstance(one, torch.Tensor) else one for name, one in after.items()}
        )
    return found


def _caches(mixin: Any) -> list[Any]:
    """Return the caches that options make: their kinds, layers and sizes, and those of a next call."""
    config_class: Any = find_name("transformers", ["transformers:GenerationConfig"])
    modes: Any = find_name("transformers", ["transformers.generation.configuration_utils:GenerationMode"])
    found: list[Any] = []
    for model, options, mode, given in (
        (causal(), {}, "GREEDY_SEARCH", {}), (causal(), {"use_cache": False}, "GREEDY_SEARCH", {}),
        (causal(), {"cache_implementation": "static"}, "GREEDY_SEARCH", {}),
        (causal(), {"cache_implementation": "static"}, "ASSISTED_GENERATION", {}),
        (causal(), {"cache_implementation": "dynamic_full"}, "GREEDY_SEARCH", {}),
        (causal(), {"cache_implementation": "dynamic"}, "GREEDY_SEARCH", {}),
        (encoding(), {}, "GREEDY_SEARCH", {"encoder_outputs": (torch.zeros(2, 4, 3),)}),
        (encoding(), {"cache_implementation": "static"}, "GREEDY_SEARCH",
         {"encoder_outputs": (torch.zeros(2, 4, 3),)}),
        (causal(), {}, "GREEDY_SEARCH", {"past_key_values": ((states_of(1, 2), states_of(1, 2)),)}),
    ):  # fmt: skip
        config = config_class(**options)
        arguments = dict(given)
        model._prepare_cache_for_generation(config, arguments, modes[mode], 2, 9)
        cache: Any = arguments.get("past_key_values")
        both = [getattr(cache, f"{name}_attention_cache", None) for name in ("self", "cross")]
        parts = [cache] if both[0] is None else both
        found.append([
            type(cache).__name__,
            [[type(one).__name__, one.get_max_cache_shape(), len(getattr(one, "layers", []))] for one in parts if one],
        ])  # fmt: skip
        model.__dict__.pop("_cache", None)
    model = causal()
    first = model._get_cache("static", 2, 9, {})
    first.early_initialization(2, 1, 1, torch.float32, "cpu")
    for rows, size in ((2, 9), (2, 5), (3, 9), (2, 12)):
        first.layers[0].update(states_of(1, 2, 2), states_of(1, 2, 2), {"cache_position": torch.arange(2)})
        again = model._get_cache("static", rows, size, {})
        found.append([again is first, int(again.get_seq_length())])
        model._cache = first
    model.__dict__.pop("_cache", None)
    return found


def _chunks(mixin: Any) -> list[str]:
    """Return the sizes of chunks with which a prompt that is not padded gives other ids."""
    model, wrong = causal(), []
    given = {
        "input_ids": ids_of(LONG, LONG[::-1]),
        "do_sample": False,
        "max_new_tokens": 4,
        "eos_token_id": None,
    }
    due = model.generate(**given).tolist()
    for size in (1, 2, 5, 6, 50):
        found = model.generate(**given, prefill_chunk_size=size).tolist()
        wrong += [] if found == due else [f"{size}: {found}, {due} are due"]
    return wrong


def _limits(mixin: Any) -> list[list[int]]:
    """Return the lengths of rows by each limit: of a causal model, of its embeddings, and of a decoder."""
    alone, encodes, (ids, mask) = causal(), encoding(), batch()
    embeds = alone.get_input_embeddings()(ids).detach()
    found = []
    for limits in ({"max_new_tokens": 3}, {"max_length": 7}, {"max_length": 9, "max_new_tokens": 2}):
        own: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "attention_mask": mask, **limits}
        found.append([
            alone.generate(input_ids=ids, **own).shape[1], alone.generate(inputs_embeds=embeds, **own).shape[1],
            encodes.generate(input_ids=ids, **own).shape[1],
        ])  # fmt: skip
    return found


def _drawn(function: Any) -> list[Any]:
    """Return candidates that are kept with the next id, where the last one ends and where it does not."""
    found = []
    for drafts, sure, ends in (
        ([2, 3], [2, 3, 4], False), ([2, 3], [2, 3, 4], True), ([2, 3], [2, 5, 4], True), ([2, 3], [6, 3, 4], False),
    ):  # fmt: skip
        own, other = torch.full((1, 3, 8), -torch.inf), torch.full((1, 2, 8), -torch.inf)
        own[0, range(3), sure] = 0.0
        other[0, range(2), drafts] = 0.0
        kept, number = function(ids_of([1, *drafts]), other, 2, own, ends)
        found.append([kept.tolist(), int(number)])
    return found


def _often(function: Any) -> list[bool]:
    """Return whether ids are drawn as often as by the model, where candidates are drawn by another distribution."""
    model, draft = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    counts, number = torch.zeros(3), 2000
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for token in torch.multinomial(draft, number, replacement=True).tolist():
            own = model.log().expand(1, 2, 3).clone()
            kept, _ = function(ids_of([0, token]), draft.log().expand(1, 1, 3).clone(), 1, own, False)
            counts[int(kept[0, 0])] += 1
    errors = (counts - number * model).abs() / (number * model * (1 - model)).sqrt()
    return [bool(one < 5) for one in errors]


class _Endings:
    """A tokenizer of a few tokens, of which some begin like others; the last id of a row may be healed."""

    bos_token_id, pad_token_id = 2, 1
    tokens: Mapping[int, str] = {5: "a", 6: "ab", 7: "abc", 8: "x", 9: "y", 10: "xz", 1: "<pad>", 2: "<s>"}

    def get_vocab(self) -> dict[str, int]:
        return {token: place for place, token in self.tokens.items()}

    def batch_decode(self, ids: Any, **options: Any) -> list[str]:
        return [" ".join(str(one) for one in row) for row in ids.tolist()]

    def __call__(self, texts: Sequence[str], **options: Any) -> Any:
        return SimpleNamespace(input_ids=torch.tensor([[int(one) for one in text.split()] for text in texts]))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self.get_vocab().get(token)

    def decode(self, token: int) -> str:
        return self.tokens[token]


def _healed(mixin: Any) -> list[Any]:
    """Return rows after their ends are healed, and the biases with which each is drawn again."""
    seen: list[Any] = []

    def generate(ids: Any, generation_config: Any) -> Any:
        biases = generation_config.sequence_bias.items()
        seen.append([ids.tolist(), sorted([list(name), bias] for name, bias in biases)])
        return torch.cat([ids, torch.tensor([[7]])], dim=1)

    rows = ids_of([2, 8, 5], [1, 1, 5], [2, 9, 9], [2, 5, 6], [1, 1, 1])
    found = mixin.heal_tokens(SimpleNamespace(generate=generate), rows, _Endings())
    return [found.tolist(), seen]


def _copied(mixin: Any) -> list[Any]:
    """Return arguments of copies: tensors alone, but not places in a cache; states of an encoder too."""
    call = mixin._expand_inputs_for_generation
    output: Any = find_name("transformers", ["transformers.modeling_outputs:BaseModelOutput"])
    ids, more = call(
        2, False, ids_of([1], [2]), mask=ids_of([3], [4]), words=["a"], cache_position=torch.arange(2)
    )
    states = output(last_hidden_state=torch.tensor([[1.0], [2.0]]))
    _, encoded = call(3, True, None, encoder_outputs=states, none=None)
    return [
        ids.tolist(), more["mask"].tolist(), more["words"], more["cache_position"].tolist(), encoded["none"],
        encoded["encoder_outputs"]["last_hidden_state"].flatten().tolist(), call(1, False, ids_of([1]))[0].tolist(),
    ]  # fmt: skip


def _plain_copies(mixin: Any) -> list[str]:
    """Return where several answers of ids, or of embeddings, are not those of repeated prompts."""
    model, (ids, mask) = causal(), batch()
    options = {"do_sample": True, "max_new_tokens": 3, "eos_token_id": None, "top_k": 5}
    embeds = model.get_input_embeddings()(ids).detach()
    wrong = []

    def drawn(**given: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return model.generate(**given, **options)[:, -3:].tolist()

    due = drawn(input_ids=ids.repeat_interleave(2, 0), attention_mask=mask.repeat_interleave(2, 0))
    for name, given in (("ids", {"input_ids": ids}), ("embeddings", {"inputs_embeds": embeds})):
        found = drawn(**given, attention_mask=mask, num_return_sequences=2)
        wrong += [] if found == due else [f"{name}: {found}, {due} are due"]
    return wrong


AGAIN: Sequence[tuple[Sequence[Row], str]] = (
    (DRAFT_ROWS, "ids, scores and logits with candidates of a part"),
    (HELPER_ROWS, "ids that are drawn for sure with candidates"),
    (SETTING_ROWS, "files by name"),
    (STATE_ROWS, "a cache of what one gives"), (STATE_ROWS, "a static one that is cut"),
    (SCORE_ROWS, "probabilities of no speech before a prompt"),
    (CONTINUED_ROWS, "options after a cache that is filled, DynamicCache"),
)  # fmt: skip
"""Rows whose result was the same before 5, and not in the first releases from 5 on."""


def _row(name: str, what: str, call: Callable[[Any], Any], right: Any) -> Row:
    return Row("inputs", f"{PLACE}:{name}", f"{what}{OLD}", Older(call), right, since="4.57")


MIXIN = "GenerationMixin"
# Sources: the documentation of GenerationMixin.generate and of GenerationConfig; Leviathan et al. 2023 for drafts.
OLDER_CALL_ROWS: Sequence[Row] = (
    *(row._replace(subject="inputs", name=f"{name}{OLD}", call=Older(row.call), since="4.57", known=None)
      for rows, name in AGAIN for row in rows if row.name == name),
    _row(MIXIN, "the first places in a cache", _places,
         [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6], [3, 4], [2, 3, 4], [9], [0, 1, 2, 3, 4], [0, 1, 2, 3], [3], [0, 1,
          2, 3, 4]]),
    _row(MIXIN, "ids that follow a cache", _sliced,
         [[None, [[8]]], [None, [[7, 8]]], [None, [[5, 6, 7, 8]]], [None, [[8]]], [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
          [[8]]], [[4.0, 5.0], [[]]], [None, [[5, 6]]]]),
    _row(MIXIN, "arguments of a next step", _next,
         [{"attention_mask": [[0, 1, 1]], "token_type_ids": [[4, 5, 5]], "kept": 3, "use_cache": True,
          "decoder_attention_mask": [[1, 1]], "cache_position": [2], "past_key_values": 1}, {"attention_mask": [[0, 1,
          1]], "token_type_ids": [[4, 5, 5]], "kept": 3, "use_cache": True, "decoder_attention_mask": [[1, 1]],
          "cache_position": [3], "past_key_values": 2}, {"attention_mask": [[0, 1]], "token_type_ids": [[4, 5, 5]],
          "kept": 3, "use_cache": True, "decoder_attention_mask": [[1, 1, 1]], "cache_position": [2], "cache_params":
          3}, {"attention_mask": [[0, 1, 1]], "token_type_ids": [[4, 5, 5]], "kept": 3, "use_cache": False,
          "decoder_attention_mask": [[1, 1]], "cache_position": [0, 1, 2, 3]}, {"attention_mask": [[0, 1]],
          "token_type_ids": [[4, 5, 5]], "kept": 3, "use_cache": False, "decoder_attention_mask": [[1, 1, 1]],
          "past_key_values": 5, "cache_position": [0, 1, 2]}]),
    _row(MIXIN, "caches of options", _caches,
         [["DynamicCache", [["DynamicCache", -1, 2]]], ["NoneType", []], ["StaticCache", [["StaticCache", 9, 2]]],
          ["DynamicCache", []], ["DynamicCache", []], ["DynamicCache", [["DynamicCache", -1, 2]]],
          ["EncoderDecoderCache", [["DynamicCache", -1, 2], ["DynamicCache", -1, 2]]], ["EncoderDecoderCache",
          [["StaticCache", 9, 2], ["StaticCache", 4, 2]]], ["DynamicCache", [["DynamicCache", -1, 1]]], [True, 0],
          [True, 0], [False, 0], [False, 0]]),
    _row(MIXIN, "prompts in chunks", _chunks, []),
    _row(MIXIN, "lengths by limits", partial(lengths_by, [*LIMITS[:5], *LIMITS[6:]]),
         [[7, 0], [7, 0], [9, 0], [22, 0], [22, 6], [3, 2], [14, 0], [3, 1]]),
    _row(MIXIN, "lengths of rows", _limits, [[7, 3, 4], [7, 3, 7], [6, 2, 3]]),
    _row("_speculative_sampling", "candidates that are sure", _drawn,
         [[[[2, 3, 4]], 2], [[[2, 3]], 1], [[[2, 5]], 1], [[[6]], 0]]),
    _row("_speculative_sampling", "frequencies of ids", _often, [True] * 3),
    _row(MIXIN, "ends that are healed", _healed,
         [[[1, 8, 7], [1, 2, 7], [1, 9, 9], [1, 5, 7], [1, 1, 1]], [[[[1, 8]], [[[5], 11.0], [[6], 10.0], [[7],
          10.0]]], [[[1, 2]], [[[5], 11.0], [[6], 10.0], [[7], 10.0]]], [[[1, 5]], [[[6], 11.0], [[7], 10.0]]]]]),
    _row(MIXIN, "arguments of several copies", _copied,
         [[[1], [1], [2], [2]], [[3], [3], [4], [4]], ["a"], [0, 1], None, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0], [[1]]]),
    _row(MIXIN, "several answers", _plain_copies, []),
)  # fmt: skip
