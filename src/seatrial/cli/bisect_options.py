"""The options of `seatrial bisect`."""

from __future__ import annotations

import argparse
from pathlib import Path

from seatrial.bisect.launchers import NAMES
from seatrial.bisect.likelihood import EITHER, Noise, Worse

EXAMPLES = """examples (the command follows --; {logs} is a new folder for each run):
  seatrial bisect --good v1.0 --bad HEAD --metric 'mean(data["train/reward"], last(5))' -- python train.py '{logs}'
  seatrial bisect --good v1.0 --bad HEAD --check 'max(data["train/grad_norm"]) < 10' -- python train.py '{logs}'
  seatrial bisect --good v1.0 --bad HEAD -- bash tests/functional/sft.sh
  seatrial bisect --good v1.0 --bad HEAD --test tests/unit/test_loss.py::test_mask
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial bisect`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    what = parser.add_argument_group("the question")
    what.add_argument("--good", metavar="REF", help="commit that is good (default: $GOOD)")
    what.add_argument("--bad", metavar="REF", help="commit that is bad (default: $BAD)")
    what.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="EXPR",
        help="a run is good if this holds for its logs; may be repeated",
    )
    what.add_argument(
        "--metric",
        metavar="EXPR",
        help='search by this value from a run\'s logs, such as mean(data["train/reward"], last(5))',
    )
    what.add_argument("--test", metavar="NODEID", help="search by one pytest test")
    what.add_argument(
        "--logs",
        default="{logs}",
        metavar="PATH",
        help="where a run writes its log, in its tree (default: {logs}, a new folder for each run)",
    )
    what.add_argument(
        "--first-parent",
        action="store_true",
        help="follow only first parents: a merge counts as all its commits",
    )
    what.add_argument(
        "--paths",
        action="append",
        default=[],
        metavar="PATH",
        help="a run depends only on this path; commits that do not change it share results",
    )
    what.add_argument(
        "--prior-path",
        action="append",
        default=[],
        metavar="GLOB=FACTOR",
        help="commits that change GLOB are FACTOR times as likely to be the culprit",
    )
    run = parser.add_argument_group("the runs")
    run.add_argument(
        "--repo", type=Path, default=Path(), metavar="DIR", help="repository, never modified (default: here)"
    )
    run.add_argument(
        "--prepare",
        metavar="COMMAND",
        help="command that builds a commit's environment, run once in each new tree",
    )
    run.add_argument(
        "--script",
        metavar="PATH",
        help="test script that SED_CLAUSES edits (default: the last .sh file in the command)",
    )
    run.add_argument(
        "--carry",
        action="append",
        default=[],
        metavar="PATH",
        help="copy this file or folder from your checkout into every tree",
    )
    run.add_argument(
        "--launcher", choices=NAMES, default="local", help="how commands are started (default: local)"
    )
    run.add_argument(
        "--launch-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="for sbatch (--nodes=2), the container (image=, engine=, gpus=, mount=) or Ray (address=)",
    )
    run.add_argument("--poll", type=float, metavar="SECONDS", help="time between queries to a scheduler")
    run.add_argument("--jobs", type=int, metavar="N", help="number of parallel runs (default: 1)")
    run.add_argument(
        "--timeout",
        type=float,
        metavar="MINUTES",
        help="time limit of one run (default: a day)",
    )
    run.add_argument(
        "--on-timeout",
        choices=("skip", "fail"),
        default="skip",
        help="how a run that exceeds its limit counts (default: skip)",
    )
    run.add_argument(
        "--on-signal",
        choices=("blocked", "fail"),
        default="blocked",
        help="how a run killed by a signal counts (default: blocked)",
    )
    run.add_argument(
        "--no-obstacles",
        action="store_true",
        help="do not look for network, disk and device faults in the output of failed runs",
    )
    run.add_argument(
        "--retry-wait",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="wait before a blocked run is retried, doubled each time (default: 30)",
    )
    run.add_argument(
        "--trees", type=int, default=8, metavar="N", help="number of checkouts kept on disk (default: 8)"
    )
    search = parser.add_argument_group("the search")
    search.add_argument(
        "--noise",
        choices=[item.value for item in Noise],
        default=Noise.AUTO.value,
        help="none: the command is deterministic, one run per commit (default: auto)",
    )
    search.add_argument(
        "--budget", type=float, metavar="MINUTES", help="limit of the total running time of all runs"
    )
    search.add_argument("--max-runs", type=int, metavar="N", help="maximum number of runs (default: 400)")
    search.add_argument(
        "--credibility",
        type=float,
        metavar="P",
        help="probability at which an answer is given (default: 0.95)",
    )
    search.add_argument(
        "--metric-sd",
        type=float,
        metavar="SD",
        help="standard deviation of the metric over repeated runs, if known from a baseline; saves runs",
    )
    search.add_argument(
        "--baseline",
        nargs="+",
        action="extend",
        type=Path,
        default=[],
        metavar="LOG",
        help="logs of earlier healthy runs, to learn the noise of the metric from; saves runs",
    )
    search.add_argument(
        "--worse",
        choices=[*(item.value for item in Worse), EITHER],
        help="which values of the metric are worse, so that a change for the better is no culprit: saves runs "
        f"(default: what the vocabulary says of the series, such as lower for a reward; else {EITHER})",
    )
    search.add_argument(
        "--smallest-change",
        type=float,
        default=0.35,
        metavar="P",
        help="smallest change of the failure rate that counts as a culprit (default: 0.35)",
    )
    keep = parser.add_argument_group("the journal")
    keep.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="where bisects are kept (default: $BISECT_SAVE_DIR, or your state directory)",
    )
    keep.add_argument(
        "--resume", type=Path, metavar="JOURNAL", help="continue an interrupted bisect; needs nothing else"
    )
    keep.add_argument(
        "--replay",
        type=Path,
        metavar="LOG",
        help="start from a git bisect log or a journal (default: $BISECT_REPLAY_LOG)",
    )
    keep.add_argument(
        "--keep-state",
        action="store_true",
        help="keep trees and environments (default: when $BISECT_NO_RESET=1)",
    )
    simulate = parser.add_argument_group("simulation")
    simulate.add_argument(
        "--simulate",
        action="store_true",
        help="run no command: show cost and accuracy of the search under noise",
    )
    simulate.add_argument(
        "--commits",
        type=int,
        metavar="N",
        help="simulated commits (default: those between --good and --bad, else 128)",
    )
    simulate.add_argument("--rates", metavar="GOOD,BAD", help="simulated failure rates, such as 0.1,0.9")
    simulate.add_argument(
        "--shift", type=float, metavar="SD", help="simulated shift of a metric, in standard deviations"
    )
    simulate.add_argument(
        "--recorded",
        type=Path,
        metavar="JOURNAL",
        help="draw from the runs that a journal recorded at its ends",
    )
    simulate.add_argument("--trials", type=int, default=200, metavar="N", help="default: 200")
    simulate.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="-- COMMAND",
        help="exit status 0 good, 1-124, 126 and 127 bad, 125 skip; "
        "{logs} {checkpoints} {run} {tree} {commit} are filled in",
    )
