"""Each form of a preference loss equals the number that its paper's formula gives on made log-probabilities."""

import math
from collections.abc import Callable

import pytest
import torch

from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.oracles.preferences import FORMS, Completion, Pair, mixed_loss, pair_of

BETA, FLIP, TAU = 0.3, 0.2, 0.5
CHOSEN = ([-1.0, -2.0, -0.5], [-1.5, -1.0, -1.5])
REJECTED = ([-0.7, -3.0, -1.1, -0.2], [-0.9, -1.0, -2.0, -0.6])
"""Log-probabilities of the policy and of the reference."""
A, B = sum(CHOSEN[0]) - sum(CHOSEN[1]), sum(REJECTED[0]) - sum(REJECTED[1])
"""Log-ratios, 0.5 and -0.5."""


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def nll(x: float) -> float:
    return math.log(1 + math.exp(-x))


def completion(policy: list[float], reference: list[float], sharpness: float = -1.0) -> Completion:
    return Completion(
        policy_T=torch.tensor(policy, dtype=torch.float64),
        reference_T=torch.tensor(reference, dtype=torch.float64),
        sharpness_T=torch.full((len(policy),), sharpness, dtype=torch.float64),
    )


def pair(spec: ObjectiveSpec) -> Pair:
    return pair_of(completion(*CHOSEN), completion(*REJECTED), spec)


X = BETA * (A - B)
EXPECTED: dict[str, float] = {
    "sigmoid": nll(X),
    "conservative": (1 - FLIP) * nll(X) + FLIP * nll(-X),
    "hinge": 1 - X,
    "ipo": (A - B - 1 / (2 * BETA)) ** 2,
    "robust": ((1 - FLIP) * nll(X) - FLIP * nll(-X)) / (1 - 2 * FLIP),
    "exo_pair": sigmoid(X) * math.log(sigmoid(X) / (1 - FLIP)) + sigmoid(-X) * math.log(sigmoid(-X) / FLIP),
    "discopop": (1 - sigmoid(X / TAU)) * nll(X) + sigmoid(X / TAU) * math.exp(-X),
    "nca_pair": nll(BETA * A) + 0.5 * nll(-BETA * A) + 0.5 * nll(-BETA * B),
    "bco_pair": nll(BETA * A) + nll(-BETA * B),
    "apo_zero": 1 - sigmoid(BETA * A) + sigmoid(BETA * B),
    "apo_down": sigmoid(BETA * A) + 1 - sigmoid(BETA * (A - B)),
    "sppo_hard": (A - 0.5 / BETA) ** 2 + (B + 0.5 / BETA) ** 2,
    "aot": (1 - FLIP) * nll(X) + FLIP * nll(-X),
    "aot_unpaired": (1 - FLIP) * nll(X) + FLIP * nll(-X),
    "sft": 3.5 / 3,
}


def test_every_form_has_an_expected_number() -> None:
    assert set(EXPECTED) == set(FORMS)


@pytest.mark.parametrize(("form", "right"), EXPECTED.items())
def test_a_form_is_its_formula(form: str, right: float) -> None:
    spec = ObjectiveSpec(kind="dpo", beta=BETA, form=form, label_smoothing=FLIP, modulation=TAU)
    assert float(mixed_loss([pair(spec)], spec)) == pytest.approx(right, abs=1e-12)


DIVERGENCES: dict[str, Callable[[float], float]] = {
    "forward_kl": lambda u: -1 / u,
    "js": lambda u: math.log(2 * u / (1 + u)),
    "alpha": lambda u: (u ** (0.4 - 1) - 1) / (0.4 - 1),
}


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_divergence_replaces_the_log_ratio_by_its_derivative(divergence: str) -> None:
    spec = ObjectiveSpec(kind="dpo", beta=BETA, divergence=divergence, alpha=0.4)  # type: ignore[arg-type]
    score = DIVERGENCES[divergence]
    right = nll(BETA * (score(math.exp(A)) - score(math.exp(B))))
    assert float(mixed_loss([pair(spec)], spec)) == pytest.approx(right, abs=1e-12)


def test_tokens_beyond_the_shorter_completion_are_weighted() -> None:
    """The rejected completion has a fourth token, of log-ratio 0.4."""
    spec = ObjectiveSpec(kind="dpo", beta=BETA, tail_weight=0.25)
    assert float(pair(spec).margin(spec)) == pytest.approx(A - (B - 0.75 * 0.4), abs=1e-12)


def test_a_margin_per_token_divides_by_each_length() -> None:
    spec = ObjectiveSpec(kind="dpo", beta=BETA, per_token=True)
    assert float(pair(spec).margin(spec)) == pytest.approx(A / 3 - B / 4, abs=1e-12)


def test_pairs_are_weighted_by_both_completions() -> None:
    """exp(mean(log p - log sum p^2)), with log sum p^2 = -1 at each token."""
    spec = ObjectiveSpec(kind="dpo", beta=BETA, weights_pairs=True)
    weight = math.exp(-3.5 / 3 + 1) * math.exp(-5.0 / 4 + 1)
    assert float(mixed_loss([pair(spec)], spec)) == pytest.approx(weight * nll(X), abs=1e-12)


def test_forms_are_mixed_by_their_weights() -> None:
    spec = ObjectiveSpec(kind="dpo", beta=BETA, mixture=(("sigmoid", 0.8), ("sft", 0.5)))
    assert float(mixed_loss([pair(spec)], spec)) == pytest.approx(0.8 * nll(X) + 0.5 * 3.5 / 3, abs=1e-12)


def test_quantiles_are_matched_over_the_pairs() -> None:
    """Two pairs whose chosen log-ratios are 1 and 3, and rejected ones 2 and 0: 1 is matched with 0, 3 with 2."""
    spec = ObjectiveSpec(kind="dpo", beta=BETA, form="aot_unpaired")
    ratios = [(1.0, 2.0), (3.0, 0.0)]
    pairs = [pair_of(completion([a], [0.0]), completion([b], [0.0]), spec) for a, b in ratios]
    assert float(mixed_loss(pairs, spec)) == pytest.approx(nll(BETA), abs=1e-12)
    assert spec.of_mates
