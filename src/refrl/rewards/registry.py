"""Every verifier by its name."""

from __future__ import annotations

from typing import Any

from refrl.config.registry import Registry

VERIFIERS: dict[str, Any] = {
    "exact_match": "refrl.rewards.verifiers:exact_match",
    "character_match": "refrl.rewards.verifiers:character_match",
    "byte_closeness": "refrl.rewards.verifiers:byte_closeness",
    "integer_match": "refrl.rewards.verifiers:integer_match",
    "math_equivalence": "refrl.rewards.math:math_equivalence",
    "multiple_choice": "refrl.rewards.text_rules:multiple_choice",
    "code_output": "refrl.rewards.code:code_output",
    "program_form": "refrl.rewards.code:program_form",
    "format_match": "refrl.rewards.text_rules:format_match",
}
"""The built-in verifiers by the name that `data.verifier` takes."""

VERIFIER_REGISTRY = Registry("verifier", "refrl.verifiers", VERIFIERS)
"""What `data.verifier` and `data.verifiers` may name: built in, of an installed package, or by import path."""
