"""FP20-FP29: log files that other readers read in part, in the wrong order, or not at all, without a word."""

from __future__ import annotations

from tests.false_passes.corpus import Row

LOG_FILES = "Log files"
_DUMP = "NeMo RL tests/json_dump_tb_logs.py, run at commit 7ea279a"

ROWS: tuple[Row, ...] = (
    Row(
        id="FP20",
        family=LOG_FILES,
        evidence="a TensorBoard file cut in mid-record",
        check="`max(x) < 2`",
        others="49 of 100 steps, exit 0, no word",
        right="Blocked: truncated after step 49",
        met=_DUMP,
    ),
    Row(
        id="FP21",
        family=LOG_FILES,
        evidence="one flipped bit in the middle of a TensorBoard file",
        check="`max(x) < 2`",
        others="stops there, exit 0, no word",
        right="reads on behind it, says how much was lost, and is Blocked",
        met=_DUMP,
    ),
    Row(
        id="FP22",
        family=LOG_FILES,
        evidence="a zero-byte file, or garbage",
        check="`ratio_above(x, 1.05) < 0.02`",
        others="`{}`, exit 0",
        right="Blocked",
        met=_DUMP,
    ),
    Row(
        id="FP23",
        family=LOG_FILES,
        evidence="two files with overlapping steps, of which the older one was touched last",
        check="`max(x) < 2`",
        others="the older values win",
        right="order by the events' own time; conflicts are counted and shown",
        met=_DUMP,
    ),
    Row(
        id="FP24",
        family=LOG_FILES,
        evidence="run 1 reached step 12; run 2 resumed from 10 and redid 11",
        check='`data["x"]["12"] > 0`',
        others="step 12 of the abandoned run is judged",
        right="ghost steps are named and not gated on: Fail, step 12 was not reached",
        met=_DUMP,
    ),
    Row(
        id="FP25",
        family=LOG_FILES,
        evidence="20,000 points in one tag, one of them bad",
        check="`max(x) < 2`",
        others="a sample of 10,000 points is judged",
        right="all are read: Fail",
        met="torchtitan scripts/loss_compare.py: EventAccumulator's defaults",
    ),
    Row(
        id="FP26",
        family=LOG_FILES,
        evidence="scalars written as tensors, as TensorFlow 2 does",
        check="`max(x) < 2`",
        others="hidden",
        right="read",
        met=_DUMP,
    ),
    Row(
        id="FP27",
        family=LOG_FILES,
        evidence="memory by seconds since the start, in two attempts; the peak is in the first",
        check='`max(data["ray/node.0.gpu.0.mem_gb"]) < 75`',
        others="the second attempt overwrites the first: Pass",
        right="attempts are kept apart, all are seen: Fail",
        met=_DUMP,
    ),
    Row(
        id="FP28",
        family=LOG_FILES,
        evidence="JSON Lines whose writer drops a value that is NaN",
        check="`max(x) < 2`",
        others="a hole looks clean",
        right="missing steps are named; where the writer is known to drop NaN: Blocked",
        met="prime-rl FileMonitor",
    ),
    Row(
        id="FP29",
        family=LOG_FILES,
        evidence="lines of a log that do not have the form expected",
        check="`max(x) < 2`",
        others="dropped; the rest passes",
        right="counted by line number: Blocked",
        met="prime-rl tests/utils.py",
    ),
)
