"""R16.run, R14.run: prompts are rendered as configured, and each epoch serves every training prompt once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import RunCase, run, run_cases

SYSTEM = "Answer in one word."
TEMPLATED = {
    "grpo__max_num_steps": 1,
    "policy__tokenizer__chat_template": "{{ bos_token }}{% for turn in messages %}<{{ turn['role'] }}>"
    "{{ turn['content'] }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    "policy__max_total_sequence_length": 160,
}

RENDERED = Relation(
    id="R16.run",
    name="run-prompts-are-rendered",
    component="tokenized_run",
    statement="The tokens that a run samples from are its prompts under the configured template and system turn.",
    catalogue="SB003 SB018 SB020 SB030 SB036",
    cost="CPU, seconds",
    cases=run_cases(grpo__max_num_steps=1),
    seeded=False,
)
SCHEDULE = Relation(
    id="R14.run",
    name="run-prompts-follow-the-schedule",
    component="run",
    statement="The prompts of a run's steps are permutations of the training prompts, one an epoch, none left out.",
    catalogue="SB108 SB112 SB277 SB285 SB288 SB297 SB302 SB306 SB384 SB395",
    cost="CPU, seconds",
    cases=run_cases(
        data__num_train=7,
        data__shuffle=True,
        grpo__num_prompts_per_step=3,
        grpo__num_generations_per_prompt=2,
        grpo__max_num_steps=5,
        policy__train_global_batch_size=6,
        policy__generation__max_new_tokens=1,
    ),
    seeded=False,
)


def _rows_with_text(record: RunRecord) -> list[tuple[str, RunRow]]:
    return [(place, row) for place, _, row in record.rows() if row.prompt is not None]


@RENDERED.law("the first token", "special tokens left out, or added by template and tokenizer both")
def prompts_begin_with_the_first_token(stack: Any, case: RunCase) -> Measure | None:
    """Check that a tokenizer's first token is there once, at the beginning, for every form of prompts."""
    rows = _rows_with_text(case.record(stack))
    if stack.bos_id is None or not rows:
        return None
    wrong = [
        f"{place}: {row.prompt_ids[:4]}"
        for place, row in rows
        if row.prompt_ids[:1] != (stack.bos_id,) or row.prompt_ids.count(stack.bos_id) != 1
    ]
    return Measure.count(wrong, f"prompts that do not begin with the first token {stack.bos_id}, once")


@RENDERED.law("the prompt's text", "a strip, a cut, another column")
def tokens_contain_the_text(stack: Any, case: RunCase) -> Measure | None:
    """Check that the decoded prompt contains the text of the data."""
    rows = _rows_with_text(case.record(stack))
    wrong = [
        f"{place}: {stack.decode(row.prompt_ids)!r} for {row.prompt!r}"
        for place, row in rows
        if str(row.prompt) not in stack.decode(row.prompt_ids)
    ]
    return Measure.count(wrong, "prompts whose text is not in their tokens") if rows else None


@RENDERED.law(
    "a template",
    "the tokenizer's own template in place of the configured one, the assistant's header left out",
    cases=run_cases(**TEMPLATED),
    system=None,
)
@RENDERED.law(
    "a template with a system turn",
    "a system prompt that is not passed on",
    cases=run_cases(**TEMPLATED, data__system_prompt=SYSTEM),
    system=SYSTEM,
)
def prompts_are_rendered(stack: Any, case: RunCase, system: str | None) -> Measure | None:
    """Compare the decoded prompts with the configured template, rendered here by hand."""
    rows = _rows_with_text(case.record(stack))
    first = "" if stack.bos_id is None else stack.decode([stack.bos_id])
    end = stack.decode([stack.eos_id])
    wrong = []
    for place, row in rows:
        turns = [("system", system)] * (system is not None) + [("user", row.prompt)]
        right = first + "".join(f"<{role}>{text}{end}" for role, text in turns) + "<assistant>"
        if stack.decode(row.prompt_ids) != right:
            wrong.append(f"{place}: {stack.decode(row.prompt_ids)!r} for {right!r}")
    return Measure.count(wrong, "prompts that are not rendered as configured") if rows else None


def _served(record: RunRecord) -> list[int]:
    return [prompt for step in record.steps for prompt in step.prompts_served]


@SCHEDULE.law(
    "every epoch is a permutation",
    "the rest of an epoch dropped, sampling with replacement, an iterator that restarts each step",
)
def epochs_are_permutations(stack: Any, case: RunCase) -> Measure:
    """Check that every epoch serves each training prompt once, the last ones of an epoch included."""
    record = case.record(stack)
    size, served = len(record.train_prompts), _served(record)
    wrong = []
    if size != record.options["data.num_train"]:
        wrong.append(f"{size} training prompts for data.num_train={record.options['data.num_train']}")
    for start in range(0, len(served), size):
        epoch = Counter(served[start : start + size])
        extra = [prompt for prompt, count in epoch.items() if count > 1 or prompt not in record.train_prompts]
        missing = set(record.train_prompts) - set(epoch) if start + size <= len(served) else set()
        if extra or missing:
            wrong.append(f"epoch {start // size + 1}: {extra} too often or unknown, {sorted(missing)} never")
    if len(served) <= size:
        wrong.append("the run is shorter than an epoch")
    return Measure.count(wrong, "epochs that are no permutation of the training prompts")


@SCHEDULE.law("order follows seed and option", "a fixed order, one permutation for all epochs")
def order_follows_seed_and_option(stack: Any, case: RunCase) -> Measure:
    """Check that shuffled epochs and seeds have different orders, and that epochs without shuffling have one."""
    record = case.record(stack)
    size, shuffled = len(record.train_prompts), _served(record)
    plain = _served(case.record(stack, data__shuffle=False))
    wrong = []
    if shuffled[:size] == shuffled[size : 2 * size]:
        wrong.append("two shuffled epochs in one order")
    if shuffled == _served(run(stack, case.options, case.seed + 1)):
        wrong.append("another seed in the same order")
    if plain[:size] != plain[size : 2 * size]:
        wrong.append("two epochs that are not shuffled in two orders")
    return Measure.count(wrong, "orders that do not follow data.shuffle and the seed")
