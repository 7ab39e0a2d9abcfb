"""FP30-FP36 and FP40: runs and suites that never gave the evidence, and passed all the same."""

from __future__ import annotations

from tests.false_passes.corpus import HISTORIES, Row

ROWS: tuple[Row, ...] = (
    Row(
        id="FP30",
        family=HISTORIES,
        evidence="a run that stops at step 1 of 2 with exit 0",
        check="any gate at the last step",
        others="gates are skipped, exit 0",
        right="Fail: reached step 1 of 2",
        met="NeMo RL test suites, 162 scripts at commit 7ea279a",
    ),
    Row(
        id="FP31",
        family=HISTORIES,
        evidence="a run next to files of an earlier run in the same place",
        check="a suite run again after its gate failed",
        others="exit 0 at once: the old metrics.json has reached the last step",
        right="each verdict is from its own run's evidence: Pass, Fail, Pass",
        met="NeMo RL tests/test_suites/llm/common.env, run at commit 7ea279a",
    ),
    Row(
        id="FP32",
        family=HISTORIES,
        evidence="nothing was collected",
        check="a session of tests, a plan of trials",
        others="pytest's 5 is turned into 0, with words of success",
        right="exit 5, and a reason",
        met="NeMo RL tests/run_unit.sh, run at commit 7ea279a",
    ),
    Row(
        id="FP33",
        family=HISTORIES,
        evidence="a job that never started, as when the scheduler cannot be reached",
        check="any",
        others="`All tests passed`, exit 0",
        right="Blocked, exit 3",
        met="NeMo RL tools that launch its test suites, run at commit 7ea279a",
    ),
    Row(
        id="FP34",
        family=HISTORIES,
        evidence="fewer GPUs than the test needs",
        check="any",
        others="skipped, exit 0",
        right="Blocked where it was requested, never Pass",
        met="NeMo RL tests/unit, distributed_test_runner",
    ),
    Row(
        id="FP35",
        family=HISTORIES,
        evidence="another checkout is imported, on the driver or only in the process that was launched",
        check="any",
        others="not looked at: the other code's run passes",
        right="Blocked: the origin of the module is named",
        met="harnesses of eight public projects; none records it",
    ),
    Row(
        id="FP40",
        family=HISTORIES,
        evidence="rewards without variance: zero advantage, zero gradient, at every step",
        check="exit status, finite losses",
        others="success",
        right="Fail where learning is asked for (level 6); not triggered where it is not (level 0)",
        met="verl RFC 7405",
    ),
)
