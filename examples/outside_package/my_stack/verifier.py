"""A verifier: the nearer a number is to the right one, the more it earns."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-?\d{1,9}")


def near_number(completion: str, answer: str) -> float:
    """Return 1 for the right integer, less the further the completion's first integer is from it, and 0 for none.

    An answer that is no integer raises, which refrl counts as an error of the verifier and names with its row.
    """
    wanted = int(answer)
    found = _NUMBER.search(completion)
    return 0.0 if found is None else 1.0 / (1.0 + abs(int(found.group()) - wanted))
