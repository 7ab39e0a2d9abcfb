"""FP41-FP44: golden comparisons that agree with what is broken; each also runs on our learned baselines."""

from __future__ import annotations

from tests.false_passes.corpus import Row

GOLDENS = "Learned baselines"

ROWS: tuple[Row, ...] = (
    Row(
        id="FP41",
        family=GOLDENS,
        evidence="ten repeats whose loss is NaN at every step, and a new run like them",
        check="comparison with a learned baseline",
        others="Pass: NaN minus NaN is not above the tolerance",
        right="the baseline is not recorded: Fail, and names the steps",
        met="as FP38, on a baseline of repeats",
    ),
    Row(
        id="FP42",
        family=GOLDENS,
        evidence="a new run whose last step of fifty is 1e9",
        check="comparison with a learned baseline",
        others="Pass: 1 % of the steps may differ",
        right="the worst of all steps is asked: Fail",
        met="as FP37, on a baseline of repeats",
    ),
    Row(
        id="FP43",
        family=GOLDENS,
        evidence="every step is off by less than the tolerance, always in one direction",
        check="the largest difference of a step is within its tolerance",
        others="Pass",
        right="the signed sum over all steps is asked as well: Fail",
        met="golden comparisons by np.allclose",
    ),
    Row(
        id="FP44",
        family=GOLDENS,
        evidence="two repeats and one new run that is 3 standard deviations worse",
        check="comparison with a learned baseline",
        others="Pass within a wide interval",
        right="Blocked: too few runs to decide, with the number that would suffice",
        met="thresholds from two or three runs",
    ),
)
