"""R31.scores: processors of scores do what their definition says, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

SCORES = relation_of(
    "scores",
    "scores-are-their-definition",
    "Each processor of scores gives a row what its definition gives.",
)
NEVER = -math.inf
IDS, V = 7, 11
Row = list[float]
Options = Mapping[str, Any]


def only(scores: Row, kept: Iterable[int], fill: float = NEVER) -> Row:
    own = set(kept)
    return [score if token in own else fill for token, score in enumerate(scores)]


def _without(scores: Row, hidden: Iterable[int]) -> Row:
    return only(scores, set(range(len(scores))) - set(hidden))


def _probs(scores: Row) -> Row:
    top = max(scores)
    shares = [math.exp(score - top) for score in scores]
    return [share / sum(shares) for share in shares]


def _entropy(probs: Row) -> float:
    return -sum(prob * math.log(prob) for prob in probs if prob)


def _order(values: Row) -> list[int]:
    return sorted(range(len(values)), key=lambda token: -values[token])


def _until(order: Sequence[int], weights: Row, mass: float) -> list[int]:
    """Return the first tokens of an order whose weights reach a mass."""
    found: list[int] = []
    while len(found) < len(order) and sum(weights[token] for token in found) < mass:
        found.append(order[len(found)])
    return found


def _best(scores: Row, least: int) -> set[int]:
    return set(_order(scores)[:least])


def ends_of(options: Options) -> list[int]:
    """Return the end ids of options, which may be one."""
    end = options["eos_token_id"]
    return [end] if isinstance(end, int) else list(end)


def _penalised(scores: Row, seen: Iterable[int], penalty: float) -> Row:
    own = set(seen)
    return [
        (score * penalty if score < 0 else score / penalty) if token in own else score
        for token, score in enumerate(scores)
    ]


def _top_p(ids: Sequence[int], scores: Row, o: Options) -> Row:
    kept = _until(_order(scores), _probs(scores), o["top_p"])
    return only(scores, {*kept, *_best(scores, o.get("min_tokens_to_keep", 1))}, o.get("filter_value", NEVER))


def _top_k(ids: Sequence[int], scores: Row, o: Options) -> Row:
    number = min(max(o["top_k"], o.get("min_tokens_to_keep", 1)), len(scores))
    last = sorted(scores)[-number]
    return [score if score >= last else o.get("filter_value", NEVER) for score in scores]


def _least(scores: Row, floor: float, o: Options) -> Row:
    kept = {token for token, prob in enumerate(_probs(scores)) if prob >= floor}
    return only(scores, kept | _best(scores, o.get("min_tokens_to_keep", 1)))


def _typical(ids: Sequence[int], scores: Row, o: Options) -> Row:
    probs = _probs(scores)
    entropy = _entropy(probs)
    distance = [abs(-math.log(prob) - entropy) if prob else math.inf for prob in probs]
    order = sorted(range(len(scores)), key=lambda token: distance[token])
    kept = _until(order, probs, o["mass"])
    return only(scores, {*kept, *order[: o.get("min_tokens_to_keep", 1)]})


def _eta(ids: Sequence[int], scores: Row, o: Options) -> Row:
    entropy = _entropy(_probs(scores))
    return _least(scores, min(o["epsilon"], math.sqrt(o["epsilon"]) * math.exp(-entropy)), o)


def _top_h(ids: Sequence[int], scores: Row, o: Options) -> Row:
    probs = _probs(scores)
    limit, total = o["top_h"] * _entropy(probs), 0.0
    kept: list[int] = []
    for token in _order(scores):
        total -= probs[token] * math.log(probs[token]) if probs[token] else 0.0
        if kept and total > limit:
            break
        kept.append(token)
    return only(scores, kept)


def _followers(past: Sequence[int], ids: Sequence[int], n: int) -> set[int]:
    """Return the ids that follow in the past what the last n - 1 ids are."""
    last = list(ids[len(ids) - n + 1 :]) if n > 1 else []
    return {
        past[place + n - 1]
        for place in range(len(past) - n + 1)
        if list(past[place : place + n - 1]) == last and len(ids) >= n - 1
    }


def _biased(ids: Sequence[int], scores: Row, o: Options) -> Row:
    found = list(scores)
    for sequence, bias in o["sequence_bias"]:
        *before, token = sequence
        if not before or (len(before) <= len(ids) and list(ids[len(ids) - len(before) :]) == before):
            found[token] += bias
    return found


def _decayed(ids: Sequence[int], scores: Row, o: Options) -> Row:
    start, factor = o["exponential_decay_length_penalty"]
    over = len(ids) - start - o["input_ids_seq_length"]
    if over <= 0:
        return scores
    ends = ends_of(o)
    return [
        score + abs(score) * (factor**over - 1) if token in ends and math.isfinite(score) else score
        for token, score in enumerate(scores)
    ]


def _finite(ids: Sequence[int], scores: Row, o: Options) -> Row:
    top = torch.finfo(torch.float32).max
    return [0.0 if math.isnan(score) else max(-top, min(top, score)) for score in scores]


def _forced(ids: Sequence[int], scores: Row, tokens: Sequence[int], now: bool) -> Row:
    return [0.0 if token in tokens else NEVER for token in range(len(scores))] if now else scores


DEFINITIONS: Mapping[str, Callable[[Sequence[int], Row, Options], Row]] = {
    "MinLengthLogitsProcessor": lambda ids, s, o: _without(
        s, ends_of(o) if len(ids) < o["min_length"] else ()
    ),
    "MinNewTokensLengthLogitsProcessor": lambda ids, s, o: _without(
        s, ends_of(o) if len(ids) - o["prompt_length_to_skip"] < o["min_new_tokens"] else ()
    ),
    "TemperatureLogitsWarper": lambda ids, s, o: [score / o["temperature"] for score in s],
    "RepetitionPenaltyLogitsProcessor": lambda ids, s, o: _penalised(
        s, ids[o.get("prompt_ignore_length") or 0 :], o["penalty"]
    ),
    "EncoderRepetitionPenaltyLogitsProcessor": lambda ids, s, o: _penalised(
        s, o["encoder_input_ids"], 1 / o["penalty"]
    ),
    "TopPLogitsWarper": _top_p,
    "TopKLogitsWarper": _top_k,
    "TopHLogitsWarper": _top_h,
    "MinPLogitsWarper": lambda ids, s, o: _least(s, o["min_p"] * max(_probs(s)), o),
    "TypicalLogitsWarper": _typical,
    "EpsilonLogitsWarper": lambda ids, s, o: _least(s, o["epsilon"], o),
    "EtaLogitsWarper": _eta,
    "NoRepeatNGramLogitsProcessor": lambda ids, s, o: _without(s, _followers(ids, ids, o["ngram_size"])),
    "EncoderNoRepeatNGramLogitsProcessor": lambda ids, s, o: _without(
        s, _followers(o["encoder_input_ids"], ids, o["encoder_ngram_size"])
    ),
    "SequenceBiasLogitsProcessor": _biased,
    "NoBadWordsLogitsProcessor": lambda ids, s, o: _biased(
        ids, s, {"sequence_bias": [(one, NEVER) for one in o["bad_words_ids"] if one != [o["eos_token_id"]]]}
    ),
    "ForcedBOSTokenLogitsProcessor": lambda ids, s, o: _forced(ids, s, [o["bos_token_id"]], len(ids) == 1),
    "ForcedEOSTokenLogitsProcessor": lambda ids, s, o: _forced(
        ids, s, ends_of(o), len(ids) == o["max_length"] - 1
    ),
    "InfNanRemoveLogitsProcessor": _finite,
    "ExponentialDecayLengthPenalty": _decayed,
    "LogitNormalization": lambda ids, s, o: [math.log(one) if one else NEVER for one in _probs(s)],
    "SuppressTokensAtBeginLogitsProcessor": lambda ids, s, o: _without(
        s, o["begin_suppress_tokens"] if len(ids) == o["begin_index"] else ()
    ),
    "SuppressTokensLogitsProcessor": lambda ids, s, o: _without(s, o["suppress_tokens"]),
}
"""By the name of Transformers' class; a row's ids, its scores and the options of the class."""
TABLE: Sequence[tuple[str, Sequence[Options]]] = (
    (
        "MinLengthLogitsProcessor",
        [
            {"min_length": length, "eos_token_id": end}
            for length in (IDS - 1, IDS, IDS + 1)
            for end in (1, [1, 4])
        ],
    ),
    (
        "MinNewTokensLengthLogitsProcessor",
        [
            {"prompt_length_to_skip": IDS - 2, "min_new_tokens": new, "eos_token_id": [1, 2]}
            for new in (1, 2, 3)
        ],
    ),
    ("TemperatureLogitsWarper", [{"temperature": value} for value in (0.3, 1.0, 2.5)]),
    (
        "RepetitionPenaltyLogitsProcessor",
        [{"penalty": 1.7}, {"penalty": 0.6}, {"penalty": 1.7, "prompt_ignore_length": 4}],
    ),
    ("EncoderRepetitionPenaltyLogitsProcessor", [{"penalty": 1.7, "encoder_input_ids": [2, 5, 5, 9]}]),
    (
        "TopPLogitsWarper",
        [
            {"top_p": 0.5},
            {"top_p": 0.95},
            {"top_p": 0.1, "min_tokens_to_keep": 3},
            {"top_p": 0.4, "filter_value": -50.0},
            {"top_p": 0.01},
        ],
    ),
    (
        "TopKLogitsWarper",
        [
            {"top_k": 1},
            {"top_k": 4},
            {"top_k": 40},
            {"top_k": 2, "min_tokens_to_keep": 5, "filter_value": -9.0},
        ],
    ),
    ("TopHLogitsWarper", [{"top_h": value} for value in (0.2, 0.6, 0.9)]),
    ("MinPLogitsWarper", [{"min_p": 0.1}, {"min_p": 1.0}, {"min_p": 0.9, "min_tokens_to_keep": 4}]),
    ("TypicalLogitsWarper", [{"mass": 0.3}, {"mass": 0.9}, {"mass": 0.1, "min_tokens_to_keep": 3}]),
    (
        "EpsilonLogitsWarper",
        [{"epsilon": 0.05}, {"epsilon": 0.9}, {"epsilon": 0.9, "min_tokens_to_keep": 3}],
    ),
    ("EtaLogitsWarper", [{"epsilon": 0.05}, {"epsilon": 0.6}, {"epsilon": 0.9, "min_tokens_to_keep": 3}]),
    ("NoRepeatNGramLogitsProcessor", [{"ngram_size": size} for size in (1, 2, 3, IDS + 1)]),
    (
        "EncoderNoRepeatNGramLogitsProcessor",
        [{"encoder_ngram_size": size, "encoder_input_ids": [5, 3, 8, 3, 4, 5, 3, 2]} for size in (1, 2, 3)],
    ),
    (
        "SequenceBiasLogitsProcessor",
        [{"sequence_bias": [[[2], -3.0], [[3, 6], 4.0], [[5, 3, 7], 2.0], [[6, 7], 1.0], [[4] * 9, 5.0]]}],
    ),
    (
        "NoBadWordsLogitsProcessor",
        [{"bad_words_ids": [[2], [3, 6], [5, 3, 7], [1]], "eos_token_id": 1}],
    ),
    ("ForcedBOSTokenLogitsProcessor", [{"bos_token_id": 3}]),
    (
        "ForcedEOSTokenLogitsProcessor",
        [
            {"max_length": length, "eos_token_id": end}
            for length in (IDS, IDS + 1, IDS + 2)
            for end in (1, [1, 4])
        ],
    ),
    ("InfNanRemoveLogitsProcessor", [{}]),
    (
        "ExponentialDecayLengthPenalty",
        [
            {
                "exponential_decay_length_penalty": (start, 1.4),
                "eos_token_id": [1, 4],
                "input_ids_seq_length": 3,
            }
            for start in (1, 3, 4, 5)
        ],
    ),
    ("LogitNormalization", [{}]),
    (
        "SuppressTokensAtBeginLogitsProcessor",
        [{"begin_suppress_tokens": [3, 5], "begin_index": index} for index in (IDS - 1, IDS, IDS + 1)],
    ),
    ("SuppressTokensLogitsProcessor", [{"suppress_tokens": [0, 10]}]),
)


def _cases(names: Sequence[str]) -> Callable[[Numbers], Iterator[Arguments]]:
    """Return a function that yields, for each class, its options with ids and scores of rows."""

    def made(case: Numbers) -> Iterator[Arguments]:
        for name, table in TABLE:
            for options in table if name in names else ():
                generator = case.generator()
                ids = torch.randint(2, 9, (3, IDS), generator=generator)
                ids[0, :3], ids[0, -2:] = torch.tensor([5, 3, 7]), torch.tensor([5, 3])
                ids[1, 2:6] = torch.tensor([3, 6, 4, 3])
                ids[1, -1] = 3
                scores = 2 * torch.randn(3, V, generator=generator)
                scores[2, [0, 4]] = NEVER
                if name == "InfNanRemoveLogitsProcessor":
                    scores[0, 1], scores[1, 2] = math.nan, math.inf
                yield name, options, ids, scores
                if name in ("ForcedBOSTokenLogitsProcessor", "NoRepeatNGramLogitsProcessor"):
                    yield name, options, ids[:, :1], scores

    return made


def _whole_cases(case: Numbers) -> Iterator[Arguments]:
    """Yield sequences of which all ids but the last are those of a row."""
    ids = torch.tensor([[3, 6], [6, 3], [5, 5]])
    scores = torch.randn(3, V, generator=case.generator())
    yield "SequenceBiasLogitsProcessor", {"sequence_bias": [[[3, 6, 2], 4.0], [[6, 3, 5], -2.0]]}, ids, scores
    yield (
        "NoBadWordsLogitsProcessor",
        {"bad_words_ids": [[3, 6, 2], [5, 5, 8]], "eos_token_id": 1},
        ids,
        scores,
    )


def processed(name: str, options: Options, ids: Tensor, scores: Tensor) -> Tensor:
    """Return what a processor makes of the scores of each row."""
    rows = zip(ids.tolist(), scores.double().tolist(), strict=True)
    return torch.tensor([DEFINITIONS[name](own, row, options) for own, row in rows], dtype=torch.float64)


SCORE_FUNCTIONS: Sequence[Plain] = (
    *(
        Plain(
            name="processed scores",
            law=name.removesuffix("LogitsProcessor").removesuffix("LogitsWarper"),
            suspects="a bound off by one, an option that is ignored, ids of another row",
            cases=_cases((name,)),
            right=processed,
            bound=FLOAT32,
        )
        for name, _ in TABLE
    ),
    Plain(
        name="processed scores",
        law="sequences that begin with the row",
        suspects="a length that counts the id that is to come",
        cases=_whole_cases,
        right=processed,
        bound=FLOAT32,
    ),
)
add_laws(SCORES, SCORE_FUNCTIONS)
