"""The rules that come with seatrial, one module a family.

Figures marked `wild logs` were set by hand on half of 45 public runs (docs/evidence/rules.md says which,
and what the other half said).
"""

MODULES = (
    "values",
    "arithmetic",
    "gradient",
    "entropy",
    "kl",
    "ratio",
    "mismatch",
    "groups",
    "length",
    "reward",
    "schedule",
    "preference",
    "steps",
    "staleness",
    "performance",
    "baseline",
)
"""In the order in which they are judged and shown."""
