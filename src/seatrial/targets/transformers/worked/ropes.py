"""Worked examples of rotary frequencies: every option of every kind, by layer type, in every written form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row, unlike

ORIGINAL = "original_max_position_embeddings"
SHARE = "partial_rotary_factor"
HEAD, LONGEST, BASE = 16, 256, 10000.0
FACTORS = {
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0],
}
Options = Mapping[str, Any]


def plain(width: int, base: float) -> list[float]:
    return [float(base) ** (-2 * place / width) for place in range(width // 2)]


def _yarn(options: Options, width: int, base: float, longest: int) -> tuple[list[float], float]:
    """Return frequencies between two bounds of rotations, and the factor of cosines (Peng et al. 2023, DeepSeek)."""
    original = options.get(ORIGINAL, longest)
    factor = options.get("factor") or longest / original

    def bound(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    low, high = bound(options.get("beta_fast") or 32), bound(options.get("beta_slow") or 1)
    if options.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high + 0.001 if low == high else high
    found = []
    for place, one in enumerate(plain(width, base)):
        share = min(max((place - low) / (high - low), 0.0), 1.0)
        found.append(one / factor * share + one * (1 - share))
    upper, lower = options.get("mscale"), options.get("mscale_all_dim")
    attention = options.get("attention_factor")
    if attention is None:
        attention = scale(upper) / scale(lower) if upper and lower else scale(1.0)
    return found, attention


def _longrope(
    options: Options, width: int, base: float, longest: int, length: int | None
) -> tuple[list[float], float]:
    original = options.get(ORIGINAL, longest)
    factor = options.get("factor") or longest / original
    factors = options["long_factor" if length and length > original else "short_factor"]
    attention = options.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return [one / by for one, by in zip(plain(width, base), factors, strict=True)], attention


def frequencies(
    options: Options, longest: int = LONGEST, length: int | None = None
) -> tuple[list[float], float]:
    """Return the frequencies of a kind with its options, and the factor of cosines and sines, in float64."""
    kind, base = options["rope_type"], options["rope_theta"]
    width = int(HEAD * options.get(SHARE, 1.0))
    if kind == "yarn":
        return _yarn(options, width, base, longest)
    if kind == "longrope":
        return _longrope(options, width, base, longest, length)
    if kind == "proportional":
        turned = int(options.get(SHARE, 1.0) * HEAD // 2)
        factor = options.get("factor", 1.0)
        return [one / factor if place < turned else 0.0 for place, one in enumerate(plain(HEAD, base))], 1.0
    if kind == "dynamic":
        growth = options["factor"] * max(length or longest, longest) / longest - (options["factor"] - 1)
        return plain(width, base * growth ** (width / (width - 2))), 1.0
    usual = plain(width, base)
    if kind == "llama3":
        low, high = options["low_freq_factor"], options["high_freq_factor"]
        turns = [options.get(ORIGINAL, longest) * one / (2 * math.pi) for one in usual]
        kept = [min(max((one - low) / (high - low), 0.0), 1.0) for one in turns]
        return [
            one * share + one / options["factor"] * (1 - share)
            for one, share in zip(usual, kept, strict=True)
        ], 1.0
    return [one / options.get("factor", 1.0) for one in usual], 1.0


YARN = {"rope_type": "yarn", "factor": 4.0, ORIGINAL: 64}
LONG = {"rope_type": "longrope", ORIGINAL: 64, **FACTORS}
HALVES = {name: factors[:4] for name, factors in FACTORS.items()}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64
}  # fmt: skip
KINDS: Mapping[str, Sequence[Options]] = {
    "linear": [{"rope_type": "linear", "factor": 3.0}, {"rope_type": "linear", "factor": 3.0, SHARE: 0.5}],
    "dynamic": [{"rope_type": "dynamic", "factor": 3.0}, {"rope_type": "dynamic", "factor": 3.0, SHARE: 0.5}],
    "yarn": [YARN, {**YARN, SHARE: 0.5}, {**YARN, "factor": 1.0}, {**YARN, "rope_theta": 500.0}],
    "yarn, bounds": [
        {**YARN, "beta_fast": 8, "beta_slow": 2},
        {**YARN, "beta_fast": 8, "beta_slow": 8},
        {**YARN, "beta_fast": 4},
        {**YARN, "beta_slow": 3},
    ],
    "yarn, bounds that are not whole numbers": [
        {**YARN, "truncate": False}, {**YARN, "truncate": False, "beta_fast": 5.0}, {**YARN, "truncate": True}
    ],
    "yarn, the factor of cosines": [
        {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4},
        {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        {**YARN, "mscale": 0.7},
        {**YARN, "mscale_all_dim": 0.4},
        {**YARN, "attention_factor": 0.9, "mscale": 0.7, "mscale_all_dim": 0.4},
    ],
    "yarn, a factor that is not given": [{**YARN, "factor": None}],
    "longrope": [LONG, {**LONG, "factor": 2.0}, {**LONG, **HALVES, SHARE: 0.5}, {**LONG, ORIGINAL: 256}],
    "longrope, the factor of cosines": [{**LONG, "attention_factor": 1.25}, {**LONG, "factor": 0.5}],
    "llama3": [LLAMA3, {**LLAMA3, SHARE: 0.5}, {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 3.0}],
    "proportional": [
        {"rope_type": "proportional", SHARE: 0.5},
        {"rope_type": "proportional", SHARE: 0.3, "factor": 2.0},
        {"rope_type": "proportional", SHARE: 1.0},
    ],
}  # fmt: skip
"""Options of each kind, in groups."""


def of_llama(options: Options, **more: Any) -> Any:
    """Return a Llama's configuration with rotary options, in the form of the release."""
    made: Any = find_name("transformers", ["transformers:LlamaConfig"])
    sizes = {
        "hidden_size": 4 * HEAD, "num_attention_heads": 4, "head_dim": HEAD, "max_position_embeddings": LONGEST
    }  # fmt: skip
    if hasattr(made(), "rope_parameters"):
        return made(**{**sizes, **more}, rope_parameters={"rope_theta": BASE, **options})
    old = {name: value for name, value in options.items() if name not in ("rope_theta", SHARE)}
    config = made(**{**sizes, **more}, rope_theta=options.get("rope_theta", BASE))
    config.rope_scaling = old
    if SHARE in options:
        config.partial_rotary_factor = options[SHARE]
    if options["rope_type"] == "longrope":  # it is read from the configuration alone there
        config.original_max_position_embeddings = options[ORIGINAL]
        if "factor" in options or options[ORIGINAL] == LONGEST:
            raise NotServed("the factor of this release is that of both lengths")
    return config


def _configured(group: str, kinds: Any) -> Iterator[tuple[Options, Any]]:
    """Yield the options of a group with a configuration of each, where the release has one.

    Raises:
        NotServed: the release does not have the kind.
    """
    for options in KINDS[group]:
        kind = options["rope_type"]
        if kind not in kinds:
            raise NotServed(f"no rotary embeddings of the kind {kind}")
        try:
            config = of_llama(options)
        except NotServed:
            continue
        yield options, config


def _computed(group: str, kinds: Any) -> list[str]:
    """Return where frequencies of options are not those of the formula, at lengths around its bounds."""
    wrong = []
    for options, config in _configured(group, kinds):
        kind = options["rope_type"]
        lengths: Sequence[Any] = (None,)
        if kind in ("longrope", "dynamic"):
            lengths = (None, 40, 64, 65, 256, 257, 1000)
        for length in lengths:
            right = frequencies({"rope_theta": BASE, **options}, length=length)
            for given in (length, torch.tensor(length)) if length and kind == "dynamic" else (length,):
                found, attention = kinds[kind](config, torch.device("cpu"), seq_len=given)
                what = f"{dict(options)}, {given}"
                wrong += unlike(found.tolist(), right[0], what, 1e-5)
                wrong += unlike([attention], [right[1]], f"{what}, cosines", 1e-6)
    return wrong[:4]


DERIVED = ("linear", "llama3", "proportional")
"""Kinds that derive the width of a head that is None: the others end with a TypeError."""


def _with_other_widths(group: str, kinds: Any) -> list[str]:
    """Return where frequencies are not those of the formula: no width of a head is given, or a layer type is."""
    wrong = []
    for options, config in _configured(group, kinds):
        kind = options["rope_type"]
        if kind in DERIVED:
            config.head_dim = None
        layers: dict[str | None, Any] = {None: config}
        if hasattr(config, "rope_parameters") and "truncate" not in options:
            layers["full_attention"] = _layered(options, PLAIN)
        length = 300 if kind in ("longrope", "dynamic") else None
        right = frequencies({"rope_theta": BASE, **options}, length=length)
        for layer, one in layers.items():
            more: dict[str, str] = {} if layer is None else {"layer_type": layer}
            found, attention = kinds[kind](one, torch.device("cpu"), seq_len=length, **more)
            wrong += unlike(
                [*found.tolist(), attention], [*right[0], right[1]], f"{dict(options)}, {layer}", 1e-5
            )
    return wrong[:4]


def _layered(options: Options, other: Options) -> Any:
    made: Any = find_name("transformers", ["transformers:Gemma3TextConfig"])
    if not hasattr(made(), "rope_parameters"):
        raise NotServed("layers of this release have no rotary options of their own")
    return made(
        hidden_size=4 * HEAD, num_attention_heads=4, num_key_value_heads=2, head_dim=HEAD, num_hidden_layers=2,
        intermediate_size=32, vocab_size=31, max_position_embeddings=LONGEST, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "full_attention": {"rope_theta": BASE, **options}, "sliding_attention": {"rope_theta": 77.0, **other}
        },
    )  # fmt: skip


PLAIN = {"rope_type": "default"}
IN_LAYERS = [group for group in KINDS if not group.startswith(("proportional", "yarn, bounds that"))]


def _of_layers(groups: Sequence[str], made: Any) -> list[str]:
    """Return where layers with rotary options of their own turn otherwise than by these."""
    wrong = []
    for options in [one for group in groups for one in KINDS[group] if SHARE not in one]:
        for of_full in (True, False):
            config = _layered(options, PLAIN) if of_full else _layered(PLAIN, options)
            module = made(config=config)
            for length in (40, 200, 300, 30):
                if length == 30 and options["rope_type"] == "dynamic":
                    continue  # releases differ in what they keep of longer rows, see R12.rotary
                states, places = torch.zeros(1, length, 4), torch.arange(length)[None]
                for name, own, base in (
                    ("full_attention", options if of_full else PLAIN, BASE),
                    ("sliding_attention", PLAIN if of_full else options, 77.0),
                ):
                    with torch.no_grad():
                        cosines, sines = module(states, places, name)
                    right, factor = frequencies({"rope_theta": base, **own}, length=length)
                    angles = torch.arange(length)[:, None].double() * torch.tensor(right).double()
                    angles = torch.cat([angles, angles], dim=-1)
                    for found, due in ((cosines[0], angles.cos()), (sines[0], angles.sin())):
                        if not (found.double() - due * factor).abs().max() <= 2e-4:
                            wrong.append(f"{name}, {dict(own)}, a row of {length}")
    return wrong[:4]


SINCE = {"yarn": "5.16", "longrope": "5.23"}
"""First releases in which a layer type may have a kind: earlier ones end with a KeyError or an UnboundLocalError."""
FUNCTIONS = "transformers.modeling_rope_utils:ROPE_INIT_FUNCTIONS"
LLAMA = "transformers.models.llama.modeling_llama:LlamaRotaryEmbedding"
GEMMA = "transformers.models.gemma3.modeling_gemma3:Gemma3RotaryEmbedding"
# Sources: the papers of `_yarn` and `relations.oracles.rotary`, and the documentation of RopeParameters.
ROPE_ROWS: Sequence[Row] = (
    *(
        Row(
            "formulas",
            FUNCTIONS,
            f"frequencies, {group}",
            partial(_computed, group),
            [],
            since="5" if group.endswith("not given") else "4.56",
        )
        for group in KINDS
    ),
    *(
        Row(
            "formulas",
            FUNCTIONS,
            f"frequencies by other widths, {group}",
            partial(_with_other_widths, group),
            [],
            since="4.57" if group.partition(",")[0] in ("linear", "llama3") else "5.24",
        )
        for group in KINDS
    ),
    *(
        Row(
            "formulas",
            GEMMA,
            f"layers of one kind, {group}",
            partial(_of_layers, [group]),
            [],
            since=SINCE.get(group.partition(",")[0], "5"),
        )
        for group in IN_LAYERS
    ),
    Row(
        "formulas",
        GEMMA,
        "layers of one kind, yarn with bounds that are not whole numbers",
        partial(_of_layers, ["yarn, bounds that are not whole numbers"]),
        [],
        since="5",
        known=KnownFailure(
            "truncate of a layer type is ignored",
            finding="Transformers: truncate of yarn in layer types",
        ),
    ),
)
