"""Worked examples of verl's losses: each with its metrics, in each aggregation, by its definition for a token."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.tools import raised

CORE = "verl.trainer.ppo.core_algos:"
Numbers = Sequence[Sequence[float]]
MASK = numpy.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
RATIO = numpy.array([[1.5, 0.5, 1.1], [0.6, 9.0, 9.0], [9.0, 9.0, 9.0], [5.0, 0.95, 9.0]])
NEW = numpy.log([[0.6, 0.2, 0.55], [0.3, 0.9, 0.9], [0.9, 0.9, 0.9], [0.5, 0.38, 0.9]])
OLD = NEW - numpy.log(RATIO)
ADVANTAGES = numpy.array([[1.0, 1.0, -1.0], [-2.0, 7.0, 7.0], [7.0, 7.0, 7.0], [-0.5, 0.25, 7.0]])
WEIGHTS = numpy.array([[2.0, 0.5, 1.0], [1.5, 9.0, 9.0], [9.0, 9.0, 9.0], [0.25, 1.0, 9.0]])
GLOBAL = {"dp_size": 2, "batch_num_tokens": 10, "global_batch_size": 6, "loss_scale_factor": 4}
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
SUM = ("token-sum",)
"""From 0.9 on."""
CLIPS = {"clip_ratio": 0.9, "clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": 4.0}


def aggregated(losses: Any, mode: str, facts: Mapping[str, Any]) -> float:
    """Return the mean or sum of losses of tokens by its definition; the share of a rank is times their number."""
    rows = (losses * MASK).sum(1)
    kept = MASK.sum(1) > 0
    ranks, scale = facts.get("dp_size", 1), facts.get("loss_scale_factor") or MASK.shape[1]
    num_rows = facts.get("global_batch_size") or kept.sum()
    if mode == "token-mean":
        return float(rows.sum() / (facts.get("batch_num_tokens") or MASK.sum()) * ranks)
    if mode == "token-sum":
        return float(rows.sum() * ranks)
    if mode == "seq-mean-token-mean":
        rows = rows / numpy.maximum(MASK.sum(1), 1)
    return float(rows[kept].sum() / num_rows * ranks / (scale if mode.endswith("norm") else 1))


def _tensor(numbers: Any) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def _of_modes(modes: Sequence[str]) -> Callable[[Any], Any]:
    """Return a call that gives losses of each mode, alone and as the share of one of two ranks, and refusals."""

    def call(aggregate: Callable[..., Any]) -> dict[str, Any]:
        losses, mask = _tensor(ADVANTAGES), _tensor(MASK)
        found = {
            mode: [float(aggregate(losses, mask, mode)), float(aggregate(losses, mask, mode, **GLOBAL))]
            for mode in modes
        }
        refused = [raised(aggregate, losses, mask, mode, dp_size=2) for mode in (*modes, "none")]
        return {**found, "refused": refused}

    return call


def _of_modes_right(modes: Sequence[str]) -> dict[str, Any]:
    found = {mode: [aggregated(ADVANTAGES, mode, {}), aggregated(ADVANTAGES, mode, GLOBAL)] for mode in modes}
    refused = ["nothing" if mode == "token-sum" else "ValueError" for mode in (*modes, "none")]
    return {**found, "refused": refused}


def options_of(**changed: Any) -> Any:
    """Return an `ActorConfig`, with options of the policy loss under `policy_loss`."""
    kinds = {
        name: find_name("verl", [f"verl.workers.config:{name}"])
        for name in ("ActorConfig", "PolicyLossConfig")
    }
    own = changed.pop("policy_loss", {})
    given = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1, **CLIPS, **changed}
    return kinds["ActorConfig"](
        policy_loss=kinds["PolicyLossConfig"](**own), global_batch_info=dict(GLOBAL), **given
    )


def _masked(values: Any) -> float:
    return float((values * MASK).sum() / MASK.sum())


def _clipped(ratio: Any, low: float = 0.2, high: float = 0.3) -> Any:
    return numpy.clip(ratio, 1 - low, 1 + high)


_PLAIN, _CUT = -ADVANTAGES * RATIO, -ADVANTAGES * _clipped(RATIO)
_WORSE = numpy.maximum(_PLAIN, _CUT)
_FLOOR = -ADVANTAGES * 4.0
_VANILLA = numpy.where(ADVANTAGES < 0, numpy.minimum(_FLOOR, _WORSE), _WORSE)
_KL = _masked(-numpy.log(RATIO))
_LENGTHS = numpy.maximum(MASK.sum(1, keepdims=True), 1)
_OF_ROWS = numpy.exp((numpy.log(RATIO) * MASK).sum(1, keepdims=True) / _LENGTHS) * numpy.ones_like(RATIO)
_SEQ_PLAIN, _SEQ_CUT = -ADVANTAGES * _OF_ROWS, -ADVANTAGES * _clipped(_OF_ROWS)
_TAU = numpy.where(ADVANTAGES > 0, 2.0, 3.0)
_MOVED = numpy.exp(NEW) - numpy.exp(OLD)
_WITHIN = numpy.where(ADVANTAGES > 0, _MOVED <= 0.3, _MOVED >= -0.2)
_SMALL = {"clip_ratio_low": 0.02, "clip_ratio_high": 0.05}
_OLD_P, _NEW_P = numpy.exp(OLD), numpy.exp(NEW)
_BINARY = _OLD_P * (OLD - NEW) + (1 - _OLD_P) * numpy.log((1 - _OLD_P + 1e-8) / (1 - _NEW_P + 1e-8))
_NEAR = numpy.where(
    ADVANTAGES > 0,
    (_BINARY <= 0.05) | (_NEW_P <= _OLD_P),
    (_BINARY <= 0.02) | (_NEW_P >= _OLD_P),
)
_LIMITED = numpy.minimum(RATIO, 4.0)
Expected = tuple[str, Mapping[str, Any], Any, Mapping[str, float]]
# Name, options, losses of tokens, and metrics.
LOSSES: Sequence[Expected] = (
    (
        "vanilla",
        {},
        _VANILLA,
        {
            "actor/pg_clipfrac": _masked(_CUT > _PLAIN),
            "actor/ppo_kl": _KL,
            "actor/pg_clipfrac_lower": _masked((_WORSE > _FLOOR) * (ADVANTAGES < 0)),
        },
    ),
    (
        "gspo",
        {},
        numpy.maximum(_SEQ_PLAIN, _SEQ_CUT),
        {
            "actor/pg_clipfrac": _masked(_SEQ_CUT > _SEQ_PLAIN),
            "actor/ppo_kl": _KL,
            "actor/pg_clipfrac_lower": 0.0,
        },
    ),
    ("gpg", {}, -NEW * ADVANTAGES, {}),
    (
        "cispo",
        {},
        -_clipped(RATIO) * ADVANTAGES * NEW,
        {
            "actor/pg_clipfrac": _masked(_clipped(RATIO) != RATIO),
            "actor/ppo_kl": _KL,
            "actor/pg_clipfrac_lower": 0.0,
        },
    ),
    (
        "dro",
        {"policy_loss": {"dro_beta": 0.3}},
        -(NEW * ADVANTAGES - 0.15 * numpy.log(RATIO) ** 2),
        {"actor/ppo_kl": _KL},
    ),
    (
        "dppo_tv",
        {},
        -ADVANTAGES * _LIMITED * NEW * _WITHIN,
        {
            "actor/pg_clipfrac": _masked(1 - _WITHIN),
            "actor/ppo_kl": _KL,
            "actor/pg_clipfrac_lower": _masked((RATIO > 4.0) * _WITHIN),
        },
    ),
    (
        "dppo_kl",
        _SMALL,
        -ADVANTAGES * _LIMITED * NEW * _NEAR,
        {
            "actor/pg_clipfrac": _masked(1 - _NEAR),
            "actor/ppo_kl": _KL,
            "actor/pg_clipfrac_lower": _masked((RATIO > 4.0) * _NEAR),
        },
    ),
)


LATER: Mapping[str, str] = {"gspo": "0.9.1", "dro": "0.9"}
"""Losses that are newer, or read their mode since then."""


def _loss(name: str, options: Mapping[str, Any], modes: Sequence[str]) -> Callable[[Any], Any]:
    """Return a call that gives losses without weights and with them in each mode, and the metrics of a loss."""

    def call(of: Any) -> dict[str, Any]:
        compute, config = of(name), options_of(**options)
        found: dict[str, Any] = {}
        for mode in modes:
            given = [_tensor(one) for one in (OLD, NEW, ADVANTAGES)]
            arguments = {"loss_agg_mode": mode, "config": config}
            losses = [
                compute(*given, _tensor(MASK), rollout_is_weights=weights, **arguments)
                for weights in (None, _tensor(WEIGHTS))
            ]
            found[mode] = [round(float(loss), 6) for loss, _ in losses]
        found["metrics"] = {key: round(float(value), 6) for key, value in losses[0][1].items()}
        return found

    return call


def _right(losses: Any, metrics: Mapping[str, float], modes: Sequence[str]) -> dict[str, Any]:
    return {
        **{
            mode: [round(aggregated(one, mode, GLOBAL), 6) for one in (losses, losses * WEIGHTS)]
            for mode in modes
        },
        "metrics": {name: round(value, 6) for name, value in metrics.items()},
    }


def _sapo(of: Any) -> Any:
    return _loss("sapo", {"tau_pos": 2.0, "tau_neg": 3.0}, ["seq-mean-token-mean"])(of)


_GATED = -ADVANTAGES * 4 / _TAU / (1 + numpy.exp(-_TAU * (RATIO - 1)))
_BOUND = numpy.clip(numpy.log(RATIO), -0.2, 0.3)
_SIGN = numpy.sign(ADVANTAGES)
_MEAN_LOG = ((_SIGN * numpy.minimum(_SIGN * numpy.log(RATIO), _SIGN * _BOUND)) * MASK).sum(1) / _LENGTHS[:, 0]
_GEOMETRIC = -(ADVANTAGES * MASK).sum(1) / _LENGTHS[:, 0] * numpy.exp(_MEAN_LOG)
_GEOMETRIC_WEIGHT = numpy.exp((numpy.log(WEIGHTS) * MASK).sum(1) / _LENGTHS[:, 0])


def _geometric(of: Any) -> list[float]:
    """Return the mean over all rows of losses with the geometric mean of ratios, and the shares of clipped tokens."""
    given = [_tensor(one) for one in (OLD, NEW, ADVANTAGES, MASK)]
    plain, metrics = of("geo_mean")(*given, config=options_of())
    weighted, _ = of("geo_mean")(*given, config=options_of(), rollout_is_weights=_tensor(WEIGHTS))
    shares = [metrics[f"actor/pg_clipfrac{end}"] for end in ("", "_lower")]
    return [round(float(one), 5) for one in (plain, weighted, *shares, metrics["actor/ppo_kl"])]


_OUTSIDE = numpy.log(RATIO) != _BOUND
GEOMETRIC = [
    round(float(one), 5)
    for one in (
        _GEOMETRIC.mean(),
        (_GEOMETRIC * _GEOMETRIC_WEIGHT).mean(),
        _masked(_OUTSIDE * (ADVANTAGES > 0)),
        _masked(_OUTSIDE * (ADVANTAGES < 0)),
        _KL,
    )
]


def _covariances(of: Any) -> list[float]:
    """Return losses of the two methods by covariance if they choose one token: the one with the largest."""
    given = [_tensor(one) for one in (OLD, NEW, ADVANTAGES, MASK)]
    kl = options_of(policy_loss={"kl_cov_ratio": 0.17, "ppo_kl_coef": 2.0})
    clip = options_of(policy_loss={"clip_cov_ratio": 0.17, "clip_cov_lb": 0.3, "clip_cov_ub": 5.0})
    one, its_metrics = of("kl_cov")(*given, loss_agg_mode="token-mean", config=kl)
    other, other_metrics = of("clip_cov")(*given, loss_agg_mode="token-mean", config=clip)
    names = ("actor/ppo_kl", "actor/pg_clipfrac")
    found = [float(one), its_metrics[names[0]], float(other), *(other_metrics[name] for name in names)]
    return [round(number, 5) for number in found]


_KEPT = MASK > 0
_COVARIANCE = (ADVANTAGES - ADVANTAGES[_KEPT].mean()) * (NEW - NEW[_KEPT].mean())
_LARGEST = numpy.where(_KEPT, _COVARIANCE, -numpy.inf)
_KL_CHOSEN = _LARGEST.max() == _LARGEST
_FREE = numpy.where(_CUT > _PLAIN, -numpy.inf, _LARGEST)
_CLIP_CHOSEN = (_FREE > 0.3) & (_FREE < 5.0)
COVARIANCES = [
    round(float(one), 5)
    for one in (
        aggregated(_PLAIN + _KL_CHOSEN * 2.0 * abs(numpy.log(RATIO)), "token-mean", GLOBAL),
        _masked(abs(numpy.log(RATIO))),
        aggregated(_WORSE * ~_CLIP_CHOSEN, "token-mean", GLOBAL),
        _KL,
        _masked(_CLIP_CHOSEN),
    )
]


def _penalties(penalty: Callable[..., Any]) -> dict[str, Any]:
    """Return values and gradients of each estimator of the KL divergence, with far probabilities."""
    found = {}
    for name in ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k1+", "k3+", "abs+", "k2+"):
        own = _tensor([-0.5, -1.0, -40.0]).requires_grad_()
        value = penalty(own, _tensor([-1.0, -0.75, -1.0]), name)
        slope = torch.autograd.grad(value.sum(), own)[0]
        found[name] = [[round(x, 5) for x in one.tolist()] for one in (value.detach(), slope)]
    return {**found, "refused": [raised(penalty, own, own, name) for name in ("full", "none")]}


_GAPS = (0.5, -0.25, -39.0)  # of log-probabilities: own less reference
_K3 = [round(math.exp(-gap) + gap - 1, 5) for gap in _GAPS[:2]] + [10.0]
_K3_SLOPE = [round(1 - math.exp(-gap), 5) for gap in _GAPS[:2]] + [0.0]
_K2 = [[0.125, 0.03125, 760.5], list(_GAPS)]
PENALTIES: Mapping[str, Any] = {
    "kl": [list(_GAPS), [1.0] * 3],
    "k1": [list(_GAPS), [1.0] * 3],
    "abs": [[0.5, 0.25, 39.0], [1.0, -1.0, -1.0]],
    "mse": _K2,
    "k2": _K2,
    "low_var_kl": [_K3, _K3_SLOPE],
    "k3": [_K3, _K3_SLOPE],
    "k1+": [list(_GAPS), list(_GAPS)],
    "k3+": [_K3, list(_GAPS)],
    "abs+": [[0.5, 0.25, 39.0], list(_GAPS)],
    "k2+": _K2,
    "refused": ["NotImplementedError"] * 2,
}


def _values(compute: Callable[..., Any]) -> list[Any]:
    """Return losses of values in each mode; changes of more than 0.2 are cut, and the larger loss counts."""
    predicted, old = ADVANTAGES / 4, ADVANTAGES / 4 - numpy.log(RATIO)
    found = [
        compute(_tensor(predicted), _tensor(NEW), _tensor(old), _tensor(MASK), 0.2, mode, **facts)
        for mode in MODES
        for facts in ({}, GLOBAL)
    ]
    return [[round(float(one), 6) for one in pair] for pair in found]


_CHANGE = numpy.clip(numpy.log(RATIO), -0.2, 0.2) - numpy.log(RATIO) + ADVANTAGES / 4
_ERRORS = (ADVANTAGES / 4 - NEW) ** 2, (_CHANGE - NEW) ** 2
VALUES = [
    [
        round(0.5 * aggregated(numpy.maximum(*_ERRORS), mode, facts), 6),
        round(_masked(_ERRORS[1] > _ERRORS[0]), 6),
    ]
    for mode in MODES
    for facts in ({}, GLOBAL)
]


ROWS: Sequence[Row] = (
    *(
        Row(
            "formulas",
            f"{CORE}agg_loss",
            f"{what}, alone and of a rank",
            _of_modes(modes),
            _of_modes_right(modes),
            since,
        )
        for what, modes, since in (("modes", MODES, "0.7.1"), ("sums", SUM, "0.9"))
    ),
    *(
        Row(
            "formulas",
            f"{CORE}get_policy_loss_fn",
            f"{name}, {what}",
            _loss(name, options, modes),
            _right(losses, metrics, modes),
            since=LATER.get(name, since),
        )
        for name, options, losses, metrics in LOSSES
        for what, modes, since in (("in each mode", MODES, "0.7.1"), ("as a sum", SUM, "0.9"))
    ),
    Row(
        "formulas",
        f"{CORE}get_policy_loss_fn",
        "sapo",
        _sapo,
        _right(
            _GATED,
            {"actor/pg_clipfrac": 0.0, "actor/ppo_kl": _KL, "actor/pg_clipfrac_lower": 0.0},
            ["seq-mean-token-mean"],
        ),
        since="0.7",
    ),
    Row("formulas", f"{CORE}get_policy_loss_fn", "geo_mean", _geometric, GEOMETRIC, since="0.7"),
    Row(
        "formulas", f"{CORE}get_policy_loss_fn", "kl_cov and clip_cov", _covariances, COVARIANCES, since="0.7"
    ),
    Row("formulas", f"{CORE}kl_penalty", "estimators and gradients", _penalties, PENALTIES, since="0.8"),
    Row("formulas", f"{CORE}compute_value_loss", "modes", _values, VALUES, since="0.4"),
)
