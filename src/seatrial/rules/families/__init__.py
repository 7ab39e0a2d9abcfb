"""The rules that come with seatrial, one module a family; `validation` belongs to the family `reward`.

Figures marked `wild logs` were hand-set with half of 45 public runs (docs/evidence/rules.md lists them, and the
results on the other half).
"""

MODULES = (
    "values",
    "arithmetic",
    "loss",
    "gradient",
    "entropy",
    "kl",
    "ratio",
    "mismatch",
    "groups",
    "length",
    "reward",
    "validation",
    "schedule",
    "preference",
    "steps",
    "staleness",
    "performance",
    "baseline",
)
"""In the order in which they are judged and shown."""
