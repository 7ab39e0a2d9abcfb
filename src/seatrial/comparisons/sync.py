"""Compares the weights that an engine serves with the trained ones, tensor by tensor, by fingerprint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seatrial.evidence.weights import Checkpoint, Fingerprint
from seatrial.verdict import Outcome, Verdict

FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Fused layers of serving engines, and the layers that they stack, in order (vLLM, SGLang)."""
_SHOWN = 5


def compare_served(
    trained: Checkpoint, served: Mapping[str, Fingerprint], before: Checkpoint | None = None
) -> list[Verdict]:
    """Compare the served tensors with the trained ones.

    A tensor may be served in a narrower type: the trained one is cast to that type first.

    Args:
        trained: the policy's weights.
        served: fingerprints of the engine's tensors, under the same names or those of fused layers.
        before: weights of an earlier version: a tensor that still equals them is called stale.

    Returns:
        Two verdicts: whether both have the same tensors, and whether each tensor has the same bits.
    """
    parts = {name: parts_of(name, trained.names()) for name in served}
    used = {name for names in parts.values() for name in names}
    unknown = sorted(name for name, names in parts.items() if not names)
    # A head tied to the embedding is stored once, and may also be served under its own name.
    tied = [name for name in unknown if name == "lm_head.weight"]
    for name in tied:
        parts[name] = tuple(one for one in trained.names() if one.endswith("embed_tokens.weight"))
    unknown = [name for name in unknown if not parts[name]]
    missing = sorted(trained.names() - used - _tied_head(trained, served))
    known = {name: fingerprint for name, fingerprint in sorted(served.items()) if parts[name]}
    hidden = [name for name, fingerprint in known.items() if 0 in fingerprint.shape]
    seen = {name: fingerprint for name, fingerprint in known.items() if name not in hidden}
    wrong = {
        name: how
        for name, fingerprint in seen.items()
        if (how := _difference(trained, parts[name], fingerprint, before)) is not None
    }
    return [_names_verdict(missing, unknown, served), _bits_verdict(wrong, hidden, len(seen))]


def parts_of(name: str, known: frozenset[str]) -> tuple[str, ...]:
    """Return the trained tensors that a served one consists of; () if none is known."""
    if name in known:
        return (name,)
    for fused, layers in FUSED.items():
        if f".{fused}." in name:
            parts = tuple(name.replace(f".{fused}.", f".{layer}.") for layer in layers)
            return parts if known.issuperset(parts) else ()
    return ()


def _tied_head(trained: Checkpoint, served: Mapping[str, Fingerprint]) -> frozenset[str]:
    """Return the head if it is trained, and the engine serves the tied embedding instead of it."""
    embeddings = [name for name in served if name.endswith("embed_tokens.weight")]
    if "lm_head.weight" not in trained.names() or "lm_head.weight" in served or len(embeddings) != 1:
        return frozenset()
    head = trained.fingerprint(["lm_head.weight"], served[embeddings[0]].dtype)
    return frozenset({"lm_head.weight"}) if head == served[embeddings[0]] else frozenset()


def _difference(
    trained: Checkpoint, names: Sequence[str], served: Fingerprint, before: Checkpoint | None
) -> str | None:
    """Return how a served tensor differs from the trained ones; None if it does not."""
    expected = trained.fingerprint(names, served.dtype)
    if expected == served:
        return None
    transposed = len(names) == 1 and len(expected.shape) == 2
    if transposed and trained.fingerprint(names, served.dtype, is_transposed=True).digest == served.digest:
        return "transposed"
    is_known = before is not None and before.names().issuperset(names)
    if before is not None and is_known and before.fingerprint(names, served.dtype) == served:
        return "stale: equal to the earlier version"
    if expected.shape != served.shape:
        return f"shape {served.shape} in place of {expected.shape}"
    return f"other values, in {served.dtype}"


def _names_verdict(
    missing: Sequence[str], unknown: Sequence[str], served: Mapping[str, Fingerprint]
) -> Verdict:
    problems = []
    if missing:
        problems.append(f"{len(missing)} trained tensors are not served: {_few(missing)}")
    if unknown:
        problems.append(f"{len(unknown)} served tensors were not trained: {_few(unknown)}")
    if not served:
        problems.append("no tensor is served")
    return Verdict(
        name="both have the same tensors",
        outcome=Outcome.FAIL if problems else Outcome.PASS,
        reason="; ".join(problems) or f"{len(served)} tensors are served, all of them trained",
        value=float(len(missing) + len(unknown)),
        bound="== 0 tensors on one side only",
        num_samples=len(served),
    )


def _bits_verdict(wrong: Mapping[str, str], hidden: Sequence[str], num_compared: int) -> Verdict:
    if wrong:
        outcome, reason = Outcome.FAIL, _few([f"{name} ({how})" for name, how in wrong.items()])
    elif hidden:
        outcome = Outcome.BLOCKED
        reason = (
            f"the engine stores {len(hidden)} tensors in its own format and empty ones under their names: "
            f"{_few(hidden)}; compare log-probabilities, or serve on a device where it does not do so"
        )
    else:
        outcome = Outcome.PASS if num_compared else Outcome.FAIL
        reason = f"{num_compared} tensors compared" if num_compared else "nothing to compare"
    return Verdict(
        name="every served tensor equals the trained one bit by bit",
        outcome=outcome,
        reason=reason,
        value=float(len(wrong)),
        bound="== 0 tensors that differ",
        num_samples=num_compared,
    )


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
