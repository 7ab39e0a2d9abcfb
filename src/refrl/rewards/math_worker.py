"""Compares mathematical answers, one JSON line in and one out; run as a process by `refrl.rewards.math`.

Symbolic simplification may take for ever or all memory: only a process can be ended from outside.
"""

from __future__ import annotations

import json
import resource
import sys

MEMORY_BYTES = 4 * 2**30


def judge(completion: str, answer: str) -> dict[str, object]:
    """Return {"equal": bool}, or {"error": why the answer cannot be held against}."""
    from math_verify import parse, verify

    wanted = parse(f"${answer}$", parsing_timeout=None) or parse(answer, parsing_timeout=None)
    if not wanted:
        return {"error": f"the answer {answer[:80]!r} is no mathematical expression"}
    given = parse(completion, parsing_timeout=None)
    try:
        return {"equal": bool(given) and verify(wanted, given, timeout_seconds=None, raise_on_error=True)}
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError, MemoryError) as error:
        return {"error": f"{type(error).__name__} while comparing: {str(error)[:200]}"}


def main() -> None:
    """Serve until standard input ends."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    judge("1", "1")  # imports; the first comparison is not the slow one
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(judge(request["completion"], request["answer"])), flush=True)


if __name__ == "__main__":
    main()
