"""Which causal families of Transformers the laws judge, and which not: the page docs/evidence/architectures.md.

It is made from the tables alone, and needs no Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.targets.transformers.family_table import FAMILIES, Family
from seatrial.targets.transformers.routing_table import ROUTINGS

UNSUITED: Mapping[str, str] = {
    "blt": "its embeddings of hashes are not small",
    "cpmant": "it puts a prompt of its own before each row, and masks by ids",
    "dots3_note": "its text alone is judged, as dots3_note_text",
    "gemma3n": "its images need timm, and its text is judged as gemma3n_text",
    **dict.fromkeys(("gemma4", "gemma4_unified"), "its text alone is judged"),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "it reads the cache of another model"),
    "git": "its loss leaves out places of images, which rows of ids do not have",
    **dict.fromkeys(("inkling2_loop_text", "inkling2_text"), "its embeddings of n-grams are not small"),
    **dict.fromkeys(("musicgen", "musicgen_melody"), "a place has several codes"),
    "phi4_multimodal": "its parts for images and sounds are not small",
    "prophetnet": "it predicts several ids that follow a place",
    "reformer": "its rows have lengths that are a multiple of a chunk's",
    "xlnet": "places see those after them",
    "xlstm": "it raises errors when it trains, resizes its embeddings or continues from a cache",
}
"""By family that a release has and the laws do not judge: why."""
INTRODUCTION = """# Causal families of Transformers

The families of causal language models that `seatrial relations --target transformers --thorough` judges with a tiny
model, by `R5.family`, `R5.calls`, `R5.cached` and `R5.files`, and what each does not serve. A law that a family's
model does not have, such as one of experts, is reported as not exercised and is not listed here.
"""


def page(generated: str) -> str:
    """Return the page.

    Args:
        generated: the sentence that says how the page is made.
    """
    lines = [INTRODUCTION + generated, "", "## Judged", ""]
    lines += [
        "| family | every run | experts defined | not served | known to fail |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(name, row) for name, row in sorted(FAMILIES.items())]
    lines += ["", "## Not judged", "", "| family | why |", "|---|---|"]
    lines += [f"| {name} | {why} |" for name, why in sorted(UNSUITED.items())]
    return "\n".join(lines) + "\n"


def _row(name: str, row: Family) -> str:
    reasons: dict[str, list[str]] = {}
    for form, why in row.not_served.items():
        reasons.setdefault(why, []).append(form)
    excluded = "; ".join(f"{', '.join(forms)}: {why}" for why, forms in reasons.items())
    broken = "; ".join(dict.fromkeys(one.finding.removeprefix("Transformers: ") for one in row.known))
    marks = ["yes" if one else "" for one in (row.quick, name in ROUTINGS)]
    return f"| {name} | {marks[0]} | {marks[1]} | {excluded} | {broken} |"
