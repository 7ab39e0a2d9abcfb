"""Plain rollouts, merged models and a plain trainer's loop, which the laws of `R31` accept."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.cases.token_forms import FORMS, Message
from seatrial.relations.contracts.trainer_flow import (
    FlowPlan,
    FlowRecord,
    FlowRow,
    answer_ids,
    logprob_of,
    prompt_ids,
    score_of,
    source_of,
    value_of,
)
from seatrial.relations.contracts.utilities import Continued
from seatrial.relations.laws.utilities import expert_load, padded_episodes, row_metrics

VALIDATED = (5, 8, 11)


def continued(
    form: str, special: Any, template: str, messages: Sequence[Message], steps: Sequence[Any]
) -> list[Continued]:
    """Return the text of the form before each answer; a token is a letter, and the mask has those of answers alone."""
    own, history, answered = FORMS[form], list(messages), ""
    found = [Continued(own.write(history, True), "", [], [])]
    for whole, text, following in steps:
        history += [{"role": "assistant", "content": text}, *following]
        answered += text if own.stop_is_next else whole
        mask = [1] * len(answered)
        found.append(
            Continued(own.write(history, True), answered, mask, [-1.0 - place for place in range(len(mask))])
        )
    return found


def trainer_loop(plan: FlowPlan) -> FlowRecord:
    """Return what a plain loop does; the checkpoint is the number of the last step."""
    record, note = FlowRecord(mini_batch=plan.prompts * plan.copies), Path(plan.folder) / "step"
    first = int(note.read_text(encoding="utf-8")) + 1 if plan.resumed else 1
    record.events.append(("sync", first - 1))
    for step in range(first, plan.steps + 1):
        epoch, place = divmod(step - 1, plan.steps_of_epoch)
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(plan.steps_of_epoch * plan.prompts, generator=generator).tolist()
        prompts = order[place * plan.prompts : (place + 1) * plan.prompts]
        rows = [row for prompt in prompts for row in _group(prompt, step, plan)]
        record.events.append(("generate", step))
        if step == plan.killed_at:
            break
        if plan.critic:
            record.events.append(("update critic", step))
        if step >= plan.warmup:
            record.trained[step] = rows
            record.events.append(("update", step))
            if plan.save_every and (step == plan.steps or step % plan.save_every == 0):
                note.write_text(str(step), encoding="utf-8")
                record.events.append(("save", step))
            record.events.append(("sync", step))
        scores = [sum(row.scores) for row in rows]
        record.logged[step] = {
            "critic/score/mean": sum(scores) / len(scores),
            "critic/score/max": max(scores),
            "response_length/mean": sum(len(row.answer_ids) for row in rows) / len(rows),
            "training/global_step": float(step),
            "global_seqlen/mean": sum(len(prompt_ids(row.prompt)) + len(row.answer_ids) for row in rows)
            / plan.ranks,
        }
        record.dumped[step] = [
            (" ".join(map(str, prompt_ids(row.prompt))), " ".join(map(str, row.answer_ids)), sum(row.scores))
            for row in rows
        ]
        if plan.validate_every and (step == plan.steps or step % plan.validate_every == 0):
            record.events.append(("validate", step))
            record.validated = [(prompt, source_of(prompt)) for prompt in VALIDATED]
            for source in ("even", "odd"):
                own = [
                    score_of(prompt, copy, step)
                    for prompt in VALIDATED
                    if source_of(prompt) == source
                    for copy in range(plan.validation_copies)
                ]
                name = f"val-core/{source}/reward/mean@{plan.validation_copies}"
                record.logged[step][name] = sum(own) / len(own)
    return record


def _group(prompt: int, step: int, plan: FlowPlan) -> list[FlowRow]:
    rows = []
    for copy in range(plan.copies):
        ids = answer_ids(prompt, copy, step)
        old, reference = [logprob_of(one) for one in ids], [logprob_of(one, reference=True) for one in ids]
        scores = [*[0.0] * (len(ids) - 1), score_of(prompt, copy, step)]
        rewards = [
            score - plan.kl_in_reward * (one - other)
            for score, one, other in zip(scores, old, reference, strict=True)
        ]
        kept = (ids, [1] * len(ids), old, reference, scores, rewards, [])
        rows.append(FlowRow(prompt, copy, step, f"{step} {prompt}", source_of(prompt), *kept))
    totals = torch.tensor([math.fsum(row.rewards) for row in rows], dtype=torch.float64)
    advantages = ((totals - totals.mean()) / (totals.std() + 1e-6)).tolist()
    return [
        row._replace(
            advantages=[advantage] * len(row.answer_ids),
            values=[value_of(one) for one in row.answer_ids],
            returns=[sum(row.rewards[place:]) for place in range(len(row.rewards))],
        )
        for row, advantage in zip(rows, advantages, strict=True)
    ]


ROLLOUTS: Mapping[str, Callable[..., Any]] = {
    "row metrics": row_metrics.row_metrics,
    "variance proxies": row_metrics.variance_proxies,
    "expert load": expert_load.load_of_batch,
    "expert load of steps": expert_load.load_of_steps,
    "number of experts": expert_load.number_of_experts,
    "columns of an episode": padded_episodes.columns_of,
    "batch of episodes": padded_episodes.batch_of,
    "continued forms": lambda: list(FORMS),
    "continued tokens": continued,
    "merged model": lambda kind, shape: (
        {"weights": torch.ones(2), "tensors": ["head"]},
        {"weights": torch.ones(2), "tensors": ["head"]},
    ),
    "trainer loop": trainer_loop,
    "trainer loop with a critic": trainer_loop,
    "trainer loop that writes rows": trainer_loop,
    "trainer loop that is killed": trainer_loop,
}


def _turned(plan: FlowPlan) -> FlowRecord:
    """Return a record whose rows have the scores of other rows."""
    record = trainer_loop(plan)
    for step, rows in record.trained.items():
        columns = zip(rows, rows[::-1], strict=True)
        record.trained[step] = [row._replace(scores=other.scores) for row, other in columns]
    return record


def _changed(name: str = "trainer loop", **change: Any) -> tuple[str, Callable[[FlowPlan], FlowRecord]]:
    def loop(plan: FlowPlan) -> FlowRecord:
        record = trainer_loop(plan)
        for field, value in change.items():
            setattr(record, field, value)
        return record

    return name, loop


def _from_the_beginning(plan: FlowPlan) -> FlowRecord:
    return trainer_loop(FlowPlan(steps=plan.steps, folder=plan.folder, save_every=plan.save_every))


def _more(name: str) -> tuple[str, Callable[..., Any]]:
    """Return a function that gives one metric too many."""

    def given(*arguments: Any) -> Any:
        found = ROLLOUTS[name](*arguments)
        return [{**one, "x": 0.0} for one in found] if isinstance(found, list) else {**found, "x": 0.0}

    return name, given


def _another_text(*arguments: Any) -> list[Continued]:
    return [one._replace(text=f"{one.text}\n") for one in continued(*arguments)]


OTHER_WEIGHTS = (
    "merged model",
    lambda kind, shape: ({"weights": torch.ones(2)}, {"weights": torch.zeros(2)}),
)
ROLLOUT_RELATIONS = (
    "R31.expert_load",
    "R31.padded",
    "R31.continuous",
    "R31.merged",
    "R31.flow",
)
ROLLOUT_FAULTS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "metrics of rows with an answer, of turns and of calls": _more("row metrics"),
    "proxies of the variance of the gradient": _more("variance proxies"),
    "the load of one batch": _more("expert load"),
    "the load of several steps": _more("expert load of steps"),
    "numbers of experts of models": ("number of experts", lambda config: 2),
    "an episode by itself": _more("columns of an episode"),
    "a batch of episodes": _more("batch of episodes"),
    **{f"turns one by one, {name}": ("continued tokens", _another_text) for name in FORMS},
    "weights": OTHER_WEIGHTS,
    "tensors of the file, a head that is the embedding": (
        "merged model",
        lambda kind, shape: ({"tensors": ["head"]}, {"tensors": ["head", "copy"]}),
    ),
    "weights, a head that is the embedding": OTHER_WEIGHTS,
    "weights, a head of values": OTHER_WEIGHTS,
    "weights and adapter": OTHER_WEIGHTS,
    "weights, two copies of the shards": OTHER_WEIGHTS,
    "rows of a step": ("trainer loop", _turned),
    "rows of a step with a critic": _changed("trainer loop with a critic", events=[]),
    "order of a step": _changed(events=[]),
    "rows that are written": _changed("trainer loop that writes rows", dumped={}),
    "metrics of the loop": _changed(logged={}),
    "validations of several answers": _changed(logged={}),
    "validations of prompts of one text": _changed(logged={}),
    "prompts after a resume": ("trainer loop", _from_the_beginning),
    "prompts after a run that was killed": ("trainer loop that is killed", _from_the_beginning),
    "prompts after a resume at the end of an epoch": ("trainer loop", _from_the_beginning),
}
