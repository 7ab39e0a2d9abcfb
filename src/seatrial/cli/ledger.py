"""`seatrial ledger LOGS`: check a run's own rows against the laws of RL post-training."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from seatrial.cli.verdict_table import print_verdicts, verdicts_json
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.ledger.law import verdict_of
from seatrial.evidence.ledger.laws import LAWS
from seatrial.evidence.ledger.laws.advantages import FAMILIES, rules_of
from seatrial.evidence.ledger.laws.logprobs import AGREEMENT
from seatrial.evidence.ledger.laws.rewards import REWARDS
from seatrial.evidence.ledger.read import OWN_READERS, Ledger, read_ledger, recorded_precision
from seatrial.evidence.ledger.readers.base import ReadOptions
from seatrial.evidence.ledger.schema import AdvantageRule, LedgerFacts
from seatrial.files import write_text
from seatrial.verdict import Verdict, combine, exit_code

UNDETERMINED = "undetermined"
"""Estimator of a run whose logged rewards differ from those that advantages were computed from."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial ledger`."""
    stacks = ", ".join(reader.NAME for reader in OWN_READERS)
    parser.add_argument("logs", metavar="LOGS", type=Path, help=f"folder or file of a run's rows ({stacks})")
    parser.add_argument("--group-size", metavar="N", type=_positive, help="number of completions per prompt")
    parser.add_argument("--rows-per-step", metavar="N", type=_positive, help="number of rows per step")
    parser.add_argument("--num-steps", metavar="N", type=_positive, help="number of steps of the run")
    parser.add_argument(
        "--steps-per-batch",
        metavar="N",
        type=_positive,
        help="number of steps that train on one batch (default: 1)",
    )
    parser.add_argument(
        "--steps", metavar="FIRST:LAST", type=_range, default=(None, None), help="read only these steps"
    )
    parser.add_argument(
        "--estimator",
        choices=[*FAMILIES, UNDETERMINED],
        help="advantage estimator (default: any that explains all rows); undetermined if rewards are changed before it",
    )
    parser.add_argument("--temperature", metavar="T", type=_temperature, help="sampling temperature")
    parser.add_argument(
        "--precision",
        choices=sorted(AGREEMENT),
        help="precision of the trainer (default: as recorded by the run)",
    )
    parser.add_argument("--vocabulary-size", metavar="N", type=_positive, help="number of token ids")
    parser.add_argument(
        "--max-lag",
        metavar="N",
        type=_count,
        help="maximum number of steps that the sampler's weights may lag",
    )
    parser.add_argument(
        "--exact-lag",
        action="store_true",
        help="every row lags as far as --max-lag allows, except in the first steps",
    )
    parser.add_argument("--verifier", choices=sorted(REWARDS), help="reward rule, if rows do not name it")
    parser.add_argument(
        "--reward",
        metavar="COLUMN[=WEIGHT]",
        action="append",
        default=[],
        help="reward column of TRL's table and its weight (default: every numeric column, weight 1)",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="also write the verdicts to this file as JSON"
    )


def run(arguments: argparse.Namespace) -> int:
    """Judge the rows.

    Returns:
        0 Pass, 1 Fail, 5 if no law could be exercised.

    Raises:
        UsageError: an option is malformed.
        BlockedError: there are no rows, or they cannot be read.
    """
    first, last = arguments.steps
    options = ReadOptions(
        group_size=arguments.group_size,
        reward_weights=_weights(arguments.reward),
        first_step=first,
        last_step=last,
    )
    if arguments.exact_lag and arguments.max_lag is None:
        raise UsageError("--exact-lag needs the lag: give --max-lag N")
    path: Path = arguments.logs
    if not path.exists():
        raise BlockedError(f"{path} does not exist: give the folder of a run's rows")
    ledger = read_ledger(path, options)
    if not ledger.rows:
        known = "train_data_step<N>.jsonl, <N>.jsonl of verl, completions_<N>.parquet of TRL"
        raise BlockedError(f"{path} holds no rows of a run ({known}): nothing was judged")
    verdicts = judge(ledger, _facts(arguments, ledger))
    outcome = combine(verdicts)
    if arguments.json:
        facts = {"argv": sys.argv[1:], "stack": ledger.stack, "num_rows": len(ledger.rows)}
        write_text(arguments.json, verdicts_json(verdicts, **facts), option="--json")
    print(f"{len(ledger.rows)} rows of {ledger.stack} in {len(ledger.files)} files")
    print_verdicts(verdicts, outcome)
    return exit_code(outcome)


def judge(ledger: Ledger, facts: LedgerFacts) -> list[Verdict]:
    """Return the verdict of every law on a ledger."""
    return [verdict_of(name, law, ledger.rows, facts) for name, law in LAWS.items()]


def _facts(arguments: argparse.Namespace, ledger: Ledger) -> LedgerFacts:
    # TRL writes a batch of completions again at every step that trains on it, and does not log their number.
    steps_per_batch = arguments.steps_per_batch or (None if ledger.stack == "TRL" else 1)
    return LedgerFacts(
        stack=ledger.stack,
        num_steps=arguments.num_steps,
        num_rows_per_step=arguments.rows_per_step,
        group_size=arguments.group_size,
        steps_per_batch=steps_per_batch,
        precision=arguments.precision or recorded_precision(arguments.logs),
        temperature=arguments.temperature,
        vocabulary_size=arguments.vocabulary_size,
        verifier=arguments.verifier,
        advantage_rules=_rules(arguments.estimator),
        max_lag=arguments.max_lag,
        lag_is_exact=arguments.exact_lag,
    )


def _rules(estimator: str | None) -> tuple[AdvantageRule, ...] | None:
    if estimator is None:
        return None
    return () if estimator == UNDETERMINED else rules_of(estimator)


def _positive(word: str) -> int:
    value = int(word)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{word} is not at least 1")
    return value


def _count(word: str) -> int:
    value = int(word)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{word} is below 0")
    return value


def _range(word: str) -> tuple[int | None, int | None]:
    first, colon, last = word.partition(":")
    if not colon:
        return int(word), int(word)
    return (int(first) if first else None), (int(last) if last else None)


def _temperature(word: str) -> float:
    value = float(word)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{word} is not a temperature")
    return value


def _weights(words: Sequence[str]) -> dict[str, float] | None:
    """Read COLUMN=WEIGHT words.

    Raises:
        UsageError: a weight is no finite number.
    """
    weights = {}
    for word in words:
        column, sign, weight = word.partition("=")
        try:
            weights[column] = float(weight) if sign else 1.0
        except ValueError:
            weights[column] = math.nan
        if not column or not math.isfinite(weights[column]):
            raise UsageError(f"--reward {word}: write COLUMN or COLUMN=WEIGHT, such as --reward format=0.5")
    return weights or None
