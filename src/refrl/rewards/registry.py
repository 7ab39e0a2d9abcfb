"""Every verifier by its name."""

from __future__ import annotations

from refrl.rewards.code import code_output
from refrl.rewards.math import math_equivalence
from refrl.rewards.text_rules import format_match, multiple_choice
from refrl.rewards.verifiers import Verifier, byte_closeness, character_match, exact_match, integer_match

VERIFIERS: dict[str, Verifier] = {
    "exact_match": exact_match,
    "character_match": character_match,
    "byte_closeness": byte_closeness,
    "integer_match": integer_match,
    "math_equivalence": math_equivalence,
    "multiple_choice": multiple_choice,
    "code_output": code_output,
    "format_match": format_match,
}
"""Every verifier by the name that `data.verifier` takes."""
