"""Calls of `generate` for pairs of options, and what each decodes by its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.targets.transformers.worked.plain_decoding import (
    PAD,
    START,
    VOCABULARY,
    Plan,
)

# Each prompt has the id of padding among its own, so that options treat both alike.
PROMPTS: Sequence[Sequence[int]] = ((5, 9, PAD, 11, 4, 7), (7, PAD, 8, 7), (20, PAD))
NEGATIVE: Sequence[Sequence[int]] = ((6, 13, 8), (9, 22, 3), (17, 4, 4))
NUM_NEW = 6
STOPPING = (0, 7, 10, 15, 19, 26)
"""Ids after which a criterion of the caller ends a row."""
Factor = Mapping[str, Any]
PROCESSES: Factor = {
    "no process": {}, "a penalty": {"repetition_penalty": 1.7}, "no pair twice": {"no_repeat_ngram_size": 2},
    "no id twice": {"no_repeat_ngram_size": 1}, "bad words": {"bad_words_ids": [[4], [11, 23], [9, 8], [28], [0]]},
    "a bias": {"sequence_bias": [[[4], -3.0], [[21], 2.0], [[21, 6], 9.0], [[8, 7, 3], 9.0]]},
    "suppressed": {"suppress_tokens": [3, 8, 14, 21]}, "suppressed at first": {"begin_suppress_tokens": [*range(22)]},
    "a forced end": {"forced_eos_token_id": 9},
    "a decay": {"exponential_decay_length_penalty": (2, 1.4)},
    "a penalty of the prompt": {"encoder_repetition_penalty": 1.6},
    "no pair of the prompt": {"encoder_no_repeat_ngram_size": 2}, "no id of the prompt": {
        "encoder_no_repeat_ngram_size": 1}, "allowed ids": {"allowed": True}, "of the caller": {"caller": True},
    "invalid values": {"remove_invalid_values": True},
    "two penalties": {"repetition_penalty": 1.4, "sequence_bias": [[[21], 2.0]], "suppress_tokens": [8]},
}  # fmt: skip
GUIDED: Factor = {
    "not guided": {}, "guided": {"guidance_scale": 1.6},
    "guided by another": {"guidance_scale": 1.6, "negative": NEGATIVE}, "guided away": {"guidance_scale": 0.5},
}  # fmt: skip
WARPS: Factor = {
    "greedy": None, "sampled": {}, "cooled": {"temperature": 0.6}, "top k": {"top_k": 4}, "top p": {"top_p": 0.7},
    "min p": {"min_p": 0.2}, "typical": {"typical_p": 0.6}, "epsilon": {"epsilon_cutoff": 0.04},
    "eta": {"eta_cutoff": 0.2}, "top h": {"top_h": 0.5},
    "several": {"temperature": 1.6, "top_k": 9, "top_p": 0.8, "min_p": 0.05},
}  # fmt: skip
COMMON: Mapping[str, Factor] = {
    "rows": {"rows": (0, 1, 2), "one row": (1,), "two rows": (2, 0)},
    "limit": {"new ids": "max_new_tokens", "length": "max_length", "both limits": "both"},
    "least": {"no least": None, "least new": "min_new_tokens", "least length": "min_length"},
    "ends": {"no end": (), "ends": (4, 6, 9, 11, 16, 21, 25), "an end": (9,)},
    "pad": {"padding": PAD, "other padding": 25, "no padding": None},
    "process": PROCESSES,
    "normal": {"as they are": {}, "normalized": {"renormalize_logits": True}},
    "outputs": {"everything": ("scores", "logits", "hidden_states", "attentions"), "ids": (),
                "scores": ("scores",), "logits": ("logits",), "states": ("hidden_states",)},
    "config": {"arguments": "arguments", "an object": "object", "the model's": "model", "a file": "file",
               "over an object": "over object", "over the model's": "over model"},
    "mode": {"evaluating": "eval", "training": "train", "checkpointing": "checkpointing"},
    "attention": {"eager": "eager", "sdpa": "sdpa"},
}  # fmt: skip
CACHES: Factor = {
    "a cache": {}, "static": {"cache_implementation": "static"}, "no cache": {"use_cache": False},
    "its own cache": "own", "in parts": {"prefill_chunk_size": 2},
}  # fmt: skip
DECODED: Factor = {name: CACHES[name] for name in ("a cache", "static", "no cache")}
STOPS: Factor = {"no stop": None, "a criterion": "criterion", "strings": "strings"}
CAUSAL: Mapping[str, Factor] = {
    "kind": {"Llama": "Llama", "a window": "Mistral with a window"},
    "inputs": {"ids": "ids", "embeddings": "embeddings", "ids and embeddings": "both", "under another name": "inputs"},
}  # fmt: skip
ENCODING: Mapping[str, Factor] = {
    "kind": {"Bart": "Bart"},
    "inputs": {"ids": "ids", "embeddings": "embeddings", "encoded": "encoded", "begun": "begun",
               "encoded, begun": "encoded begun"},
}  # fmt: skip
ONE: Mapping[str, Factor] = {
    "warp": WARPS, "copies": {"one answer": 1, "two answers": 2, "three answers": 3}, "stop": STOPS,
}  # fmt: skip
BEAMS: Mapping[str, Factor] = {
    "warp": WARPS,
    "copies": ONE["copies"],
    "beams": {"two beams": 2, "three beams": 3},
    "penalty": {"length 1": 1.0, "length 0": 0.0, "length -1": -1.0, "length 2": 2.0},
    "early": {"not early": False, "early": True, "never early": "never"},
}  # fmt: skip
DRAFTS: Mapping[str, Factor] = {
    "draft": {"looked up": {"prompt_lookup_num_tokens": 2}, "looked up, pairs": {"prompt_lookup_num_tokens": 3,
              "max_matching_ngram_size": 2}, "drafts": "self", "other drafts": "other"},
    "stop": STOPS,
}  # fmt: skip
TABLES: Mapping[str, Mapping[str, Factor]] = {
    "rows": {**CAUSAL, **ONE, **COMMON, "cache": {**CACHES, "continued": "continued"}, "guided": GUIDED},
    "decoded rows": {**ENCODING, **ONE, **COMMON, "cache": DECODED,
                     "forced": {"not forced": {}, "a forced start": {"forced_bos_token_id": 7}}},
    "beams": {**CAUSAL, **BEAMS, **COMMON, "cache": CACHES},
    "decoded beams": {**ENCODING, **BEAMS, **COMMON, "cache": DECODED},
    "drafts": {**CAUSAL, **DRAFTS, **COMMON, "rows": {"one row": (1,), "first row": (0,)},
               "kind": {"Llama": "Llama"}, "inputs": {"ids": "ids"}},
}  # fmt: skip
"""Factors of each group of calls, each with its values by their names; the first ones are the plainest."""


def _allowed(table: Mapping[str, Factor], row: Mapping[str, int]) -> bool:
    """Return whether `generate` documents what the options do together."""
    chosen = {name: list(table[name].values())[index] for name, index in row.items()}
    sampled = chosen.get("warp") is not None
    several = chosen.get("copies", 1)
    beams = chosen.get("beams", 1)
    embedded = chosen["inputs"] in ("embeddings", "both") and chosen["kind"] != "Bart"
    guided = chosen.get("guided")
    return not (
        (beams == 1 and several > 1 and not sampled)
        or (beams > 1 and several > beams)
        or ("exponential_decay_length_penalty" in chosen["process"] and not chosen["ends"])
        or (embedded and chosen["cache"] in ("continued", {"use_cache": False}, {"prefill_chunk_size": 2}))
        or (chosen.get("cache") == "continued" and several > 1)
        or (guided and (embedded or (several > 1 and "negative" in guided)))
        or (chosen["mode"] == "checkpointing" and embedded)
        or (chosen["mode"] == "checkpointing" and chosen.get("cache", {}) not in ({}, {"use_cache": False}))
        or (chosen.get("stop") == "strings" and embedded)
        or (chosen["attention"] == "sdpa" and "attentions" in chosen["outputs"])
        or (chosen["least"] is not None and not chosen["ends"])
        # The tokenizer of strings is not given on with that of drafts.
        or (chosen.get("stop") == "strings" and chosen.get("draft") in ("self", "other"))
        or (chosen.get("forced") and "begin_suppress_tokens" in chosen["process"])
    )  # fmt: skip


def cases_of(table: Mapping[str, Factor]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the values of every factor, such that almost any two occur together, and their names.

    Of what is not allowed the factors that forbid it take their plainest value, one after the other.
    """
    names = {name: list(values) for name, values in table.items()}
    given: dict[str, dict[str, int]] = {}
    for row in pairwise({name: len(values) for name, values in table.items()}, lambda row: True):
        settled = [row] if _allowed(table, row) else list(_settled(table, row))
        given.update({names_of(one, names): one for one in settled})
    for what, row in given.items():
        yield what, {name: list(table[name].values())[index] for name, index in row.items()}


def _settled(table: Mapping[str, Factor], row: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield an allowed row, with factors at their first values from the first factor on, and one from the last on."""
    for order in (list(row), list(row)[::-1]):
        found = dict(row)
        plain = [name for name in order if _allowed(table, {**found, name: 0})]
        if plain:
            yield {**found, plain[0]: 0}
            continue
        for name in order:
            found[name] = 0
            if _allowed(table, found):
                yield found
                break


class Words:
    """A tokenizer whose ids are letters and pairs of letters."""

    words: Sequence[str] = [
        *"abcdef",
        *(f"{chr(103 + one // 5)}{chr(103 + one % 5)}" for one in range(VOCABULARY - 6)),
    ]

    def get_vocab(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [self.words.index(letter) for letter in text]}

    def _convert_id_to_token(self, place: int) -> str:
        return self.words[place]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)

    def text(self, ids: Sequence[int]) -> str:
        return "".join(self.words[one] for one in ids)


STRINGS = ("kjkj", "khi", "ijg", "iij", "kg", "jij", "gki")
"""Some are whole words, and others the end of one word and the begin of the next."""


def _stop_of(kind: str | None) -> Callable[[Sequence[int], Sequence[int]], bool] | None:
    if kind == "criterion":
        return lambda seen, new: new[-1] in STOPPING
    if kind == "strings":
        words = Words()
        return lambda seen, new: any(
            one in words.text(seen) and words.text(seen).rfind(one) + len(one) > len(words.text(seen[:-1]))
            for one in STRINGS
        )
    return None


def plan_of(case: Mapping[str, Any]) -> Plan:
    """Return what a case decodes by its definition."""
    encodes = case["kind"] == "Bart"
    prompts = [PROMPTS[one] for one in case["rows"]]
    embedded = case["inputs"] in ("embeddings", "both")
    begins = (
        [[START, 5 + one] if "begun" in case["inputs"] else [START] for one in case["rows"]]
        if encodes
        else []
    )
    first = len(begins[0]) if encodes else max(map(len, prompts))
    options = {**case["process"], **case["normal"], **case.get("forced", {}), **case.get("guided", {})}
    if "negative" in options:
        options["negative"] = [NEGATIVE[one] for one in case["rows"]]
    if case.get("warp") is not None:
        options.update(case["warp"], do_sample=True)
    if case["least"]:
        options[case["least"]] = 3 + (first if case["least"] == "min_length" else 0)
    unread = embedded or "encoded" in case["inputs"]
    if unread:
        options = {name: one for name, one in options.items() if not name.startswith("encoder_")}
    return Plan(
        kind=case["kind"], prompts=prompts, begins=begins, options=options, ends=case["ends"], pad=case["pad"],
        num_new=NUM_NEW, copies=case.get("copies", 1), beams=case.get("beams", 1),
        unseen=case["inputs"] == "embeddings" and not encodes, unread=unread, stop=_stop_of(case.get("stop")),
        length_penalty=case.get("penalty", 1.0), early_stopping=case.get("early", False),
    )  # fmt: skip
