"""Worked examples of rotary options in files of earlier releases, heads turned in part, and rows of any places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.ropes import (
    BASE,
    FUNCTIONS,
    HEAD,
    LLAMA,
    LLAMA3,
    LONGEST,
    ORIGINAL,
    PLAIN,
    YARN,
    Options,
    frequencies,
    of_llama,
    plain,
)

OLD: Sequence[tuple[Options, Options]] = (
    ({"rope_theta": 500.0}, {**PLAIN, "rope_theta": 500.0}),
    ({}, {**PLAIN, "rope_theta": BASE}),
    (
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 3.0}},
        {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
    ),
    (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
        {"rope_type": "dynamic", "factor": 3.0, "rope_theta": BASE},
    ),
    ({"rope_theta": 700.0, "rope_scaling": LLAMA3}, {**LLAMA3, "rope_theta": 700.0}),
    (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        {"rope_type": "yarn", "factor": 4.0, "rope_theta": BASE, ORIGINAL: LONGEST},
    ),
)
"""Options as files of earlier releases have them, and what they mean."""


def _old_forms(config_class: Any) -> list[str]:
    """Return where options in the form of earlier releases are read otherwise, in a call, a dictionary and a file."""
    if not hasattr(config_class(), "rope_parameters"):
        raise NotServed("the form of this release is the earlier one")
    wrong = []
    sizes = {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "head_dim": HEAD,
        "max_position_embeddings": LONGEST,
    }
    for given, right in OLD:
        folder = new_folder()
        copies = [{**sizes, **{name: _copied(value) for name, value in given.items()}} for _ in range(3)]
        made = config_class(**copies[0])
        made.save_pretrained(folder)
        for what, config in (
            ("a call", made), ("a dictionary", config_class.from_dict(copies[1])),
            ("a file", config_class.from_pretrained(folder)),
        ):  # fmt: skip
            found = {name: value for name, value in config.rope_parameters.items() if name != "type"}
            if found != right:
                wrong.append(f"{what} of {dict(given)}: {found}")
    return wrong[:4]


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _old_layers(config_class: Any) -> list[Any]:
    """Return the bases of local and of other layers, of a configuration with the earlier names."""
    config = config_class(
        rope_theta=5000.0, rope_local_base_freq=77.0, rope_scaling={"rope_type": "linear", "factor": 8.0}
    )
    found = config.rope_parameters
    return [
        [found[name].get(one) for one in ("rope_type", "rope_theta", "factor")]
        for name in ("full_attention", "sliding_attention")
    ]


PARTLY: Mapping[str, tuple[str, Options]] = {
    "Phi": ("phi", {"partial_rotary_factor": 0.5}),
    "StableLm": ("stablelm", {"partial_rotary_factor": 0.25}),
    "GPTNeoX": ("gpt_neox", {"rotary_pct": 0.25, "rotary_emb_base": 500.0}),
    "Persimmon": ("persimmon", {"partial_rotary_factor": 0.5}),
    "Glm": ("glm", {"partial_rotary_factor": 0.5}),
    "Glm4": ("glm4", {"partial_rotary_factor": 0.5}),
    "Phi3": ("phi3", {"partial_rotary_factor": 0.5}),
}
"""Families that turn a part of each head, by the beginning of their classes' names."""


def _partly(kinds: Any) -> Iterator[str]:
    for prefix, (family, options) in PARTLY.items():
        place = f"transformers.models.{family}.modeling_{family}:{prefix}RotaryEmbedding"
        made: Any = find_name("transformers", [place])
        config_class: Any = find_name("transformers", [f"transformers:{prefix}Config"])
        config = config_class(
            hidden_size=64, num_attention_heads=4, num_key_value_heads=4, head_dim=HEAD, rope_theta=500.0,
            max_position_embeddings=LONGEST, **({} if prefix != "Phi3" else {ORIGINAL: LONGEST}), **options,
        )  # fmt: skip
        share = next(iter(options.values()))
        width = int(HEAD * share)
        cosines, _ = made(config)(torch.zeros(1, 9, 4), torch.arange(9)[None])
        right = torch.tensor(plain(width, 500.0)).double() * torch.arange(9)[:, None]
        right = torch.cat([right, right], dim=-1).cos()
        if cosines.shape[-1] != width or not torch.allclose(cosines[0].double(), right, atol=1e-5):
            yield f"{prefix}: {tuple(cosines.shape)}"


def _of_rows(made: Any) -> list[Any]:
    """Return whether rows with places of their own turn each by these, in narrow types too, and the types."""
    options = {**YARN, "attention_factor": 1.5}
    module = made(config=of_llama(options))
    right, factor = frequencies({"rope_theta": BASE, **options})
    places = torch.tensor([[0, 1, 2, 0], [7, 7, 250, 3]])
    angles = places[..., None].double() * torch.tensor(right).double()
    angles = torch.cat([angles, angles], dim=-1)
    found: list[Any] = []
    for kind, error in ((torch.float32, 1e-4), (torch.bfloat16, 8e-3)):
        cosines, sines = module(torch.zeros(2, 4, 4, dtype=kind), places)
        close = [
            bool((one.double() - due * factor).abs().max() <= error)
            for one, due in ((cosines, angles.cos()), (sines, angles.sin()))
        ]
        found.append([str(cosines.dtype), *close])
    return found


def _refused(config_class: Any) -> list[str]:
    """Return options that are refused: what is missing of each kind."""
    found: list[str] = []
    given: Sequence[dict[str, Any]] = (
        {"rope_type": "linear"}, {"rope_type": "dynamic"}, {"rope_type": "yarn"},
        {"rope_type": "longrope", "short_factor": [1.0] * 8}, {"rope_type": "llama3", "factor": 8.0},
    )  # fmt: skip
    for options in given:
        try:
            config_class(
                hidden_size=64, num_attention_heads=4, rope_parameters={"rope_theta": BASE, **options}
            )
        except Exception as error:  # noqa: BLE001  releases wrap the error of a missing option
            if "Missing required keys" in str(error):
                found.append(options["rope_type"])
    return found


ROPE_FORM_ROWS: Sequence[Row] = (
    Row("options", "transformers:LlamaConfig", "rotary options of earlier files", _old_forms, [], since="5"),
    Row(
        "options",
        "transformers:Gemma3TextConfig",
        "rotary options of earlier files, two bases",
        _old_layers,
        [["linear", 5000.0, 8.0], ["default", 77.0, None]],
        since="5",
    ),
    Row(
        "formulas",
        FUNCTIONS,
        "heads that are turned in part",
        lambda kinds: [*_partly(kinds)],
        [],
        since="4.57.6",
    ),
    Row(
        "formulas",
        LLAMA,
        "places of each row",
        _of_rows,
        [["torch.float32", True, True], ["torch.bfloat16", True, True]],
        since="4.56",
    ),
    Row(
        "options",
        "transformers:LlamaConfig",
        "rotary options that are missing",
        _refused,
        ["linear", "dynamic", "yarn", "longrope", "llama3"],
        since="5",
    ),
)
