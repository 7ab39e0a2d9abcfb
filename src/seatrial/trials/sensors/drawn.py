"""What dynamic sampling did with each prompt that it drew (`drawn_data_step<N>.jsonl`), against the rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import verified_reward
from seatrial.trials.sensors.paths import by_step

EQUAL = 1e-9
"""Rewards this close are equal: a penalty on length is added to the verifier's, and taken off again."""
ROUNDING = 1e-6
"""By which a reward in the rows may differ from the recorded one: float32."""
HELD, FLAT, TRAINED, SURPLUS = "held", "zero variance", "trained", "surplus"
"""What becomes of a prompt; the last two are groups whose rewards differ."""
Drawn = Mapping[str, Any]


def drawn_by_step(evidence: RunEvidence) -> dict[int, list[Drawn]]:
    """Return the prompts that were drawn by step, in order; empty where the run does not record them.

    Raises:
        BlockedError: a file cannot be read.
    """
    found = {}
    for path in evidence.job.ledger_dir.glob("drawn_data_step*.jsonl"):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            found[int(path.stem.removeprefix("drawn_data_step"))] = [json.loads(line) for line in lines]
        except (OSError, ValueError) as error:
            raise BlockedError(f"{path} cannot be read: {error}") from error
    return dict(sorted(found.items()))


def wrongly_drawn(
    evidence: RunEvidence, steps: Mapping[int, Sequence[LedgerRow]], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the prompts that dynamic sampling drew, kept, dropped and left out.

    Raises:
        BlockedError: a file cannot be read.
    """
    if not options["grpo.use_dynamic_sampling"]:
        return
    found = drawn_by_step(evidence)
    for step, rows in steps.items() if found else ():
        drawn = found.get(step, [])
        of_step = (
            *_not_as_sampled(drawn, options),
            *_not_the_rows(drawn, rows),
            *_not_counted(evidence, step, drawn, options),
        )
        yield from (f"step {step}: {what}" for what in of_step)
    if evidence.job.first_step == 1:
        yield from uneven_draws([one for of in found.values() for one in of])


def uneven_draws(drawn: Sequence[Drawn]) -> Iterator[str]:
    """Yield that a prompt is drawn again before every other one of the run has been drawn as often."""
    counts = Counter(dict.fromkeys((one["prompt_id"] for one in drawn), 0))
    num_least = {0: len(counts)}  # prompts by how often they were drawn
    for one in drawn:
        count = counts[one["prompt_id"]]
        if count > min(number for number, of in num_least.items() if of):
            yield f"prompt {one['prompt_id']} is drawn again, in batch {one['batch']}, before others were drawn"
            return
        num_least[count] -= 1
        num_least[count + 1] = num_least.get(count + 1, 0) + 1
        counts[one["prompt_id"]] += 1


def _not_as_sampled(drawn: Sequence[Drawn], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield groups that are sampled or kept against what dynamic sampling does."""
    size, prompts = options["grpo.num_generations_per_prompt"], options["grpo.num_prompts_per_step"]
    least = math.ceil(prompts * options["grpo.batch_multiplier"])
    kept: set[int] = set()
    for batch, of_batch in groupby(drawn, lambda one: one["batch"]):
        sampled: set[int] = set()
        entries = list(of_batch)
        if len(entries) < least:
            yield f"batch {batch} drew {len(entries)} prompts, not {least}"
        for one in entries:
            what, number, rewards = (
                f"batch {batch} prompt {one['prompt_id']}",
                one["prompt_id"],
                one["rewards"],
            )
            if (one["fate"] == HELD) != (number in kept | sampled):
                yield f"{what} is {one['fate']}, and {'held' if number in kept | sampled else 'not held'} by then"
            if one["fate"] == HELD:
                continue
            sampled.add(number)
            if len(rewards) != size:
                yield f"{what} has {len(rewards)} completions, not {size}"
            elif (max(rewards) - min(rewards) <= EQUAL) != (one["fate"] == FLAT):
                yield f"{what} with the rewards {rewards} is {one['fate']}"
            if one["fate"] == SURPLUS and len(kept) < prompts:
                yield f"{what} is left out, and the step has {len(kept)} groups"
            if one["fate"] == TRAINED:
                kept.add(number)
    if len(kept) != prompts:
        yield f"{len(kept)} groups were kept, not {prompts}"


def _not_the_rows(drawn: Sequence[Drawn], rows: Sequence[LedgerRow]) -> Iterator[str]:
    """Yield that the step trains on other groups than those that were kept, or in another order."""
    kept = [(one["prompt_id"], value) for one in drawn if one["fate"] == TRAINED for value in one["rewards"]]
    trained = [(row.prompt_id, verified_reward(row)) for row in rows]
    for place, (left, right) in enumerate(zip(kept, trained, strict=False)):
        if left[0] != right[0] or not abs(left[1] - right[1]) <= ROUNDING:
            yield f"row {place} is {right[1]:g} for prompt {right[0]}, kept was {left[1]:g} for prompt {left[0]}"
            return
    if len(kept) != len(trained):
        yield f"{len(kept)} rows were kept, and {len(trained)} are trained on"


def _not_counted(
    evidence: RunEvidence, step: int, drawn: Sequence[Drawn], options: Mapping[str, Any]
) -> Iterator[str]:
    """Yield counters of dynamic sampling that are not those of what was drawn."""
    fates = Counter(one["fate"] for one in drawn)
    wanted = {
        "gen_batches": len({one["batch"] for one in drawn}),
        "dropped_groups": fates[FLAT],
        "discarded_valid_samples": fates[SURPLUS] * options["grpo.num_generations_per_prompt"],
    }
    for name, value in wanted.items():
        logged = by_step(evidence, f"train/dynamic_sampling_num_{name}").get(step, math.nan)
        if logged != value:
            yield f"train/dynamic_sampling_num_{name} is {logged:g}, what was drawn gives {value}"
