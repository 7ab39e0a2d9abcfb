"""R16 of the whole run: what the sampler is given is the configured rendering of the step's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import RunCase, run_cases

SYSTEM = "Answer in one word."
TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEMPLATED = {"policy__tokenizer__chat_template": TEMPLATE, "policy__max_total_sequence_length": 160}


def _rows(record: RunRecord) -> list[tuple[str, RunRow]]:
    return [
        (f"step {step.step}, row {index}", row)
        for step in record.steps
        for index, row in enumerate(step.rows)
        if row.prompt is not None
    ]


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({(list(wrong) or ['none'])[0]})")


def _begins(stack: Any, case: RunCase) -> Measure | None:
    """A tokenizer's first token stands once, at the beginning, whatever the form of the prompts is."""
    rows = _rows(case.record(stack))
    if stack.bos_id is None or not rows:
        return None
    wrong = [
        f"{place}: {row.prompt_ids[:4]}"
        for place, row in rows
        if row.prompt_ids[:1] != (stack.bos_id,) or row.prompt_ids.count(stack.bos_id) != 1
    ]
    return _count(wrong, f"prompts that do not begin with the first token {stack.bos_id}, once")


def _holds_its_text(stack: Any, case: RunCase) -> Measure | None:
    rows = _rows(case.record(stack))
    wrong = [
        f"{place}: {stack.decode(row.prompt_ids)!r} for {row.prompt!r}"
        for place, row in rows
        if str(row.prompt) not in stack.decode(row.prompt_ids)
    ]
    return _count(wrong, "prompts whose text is not in their tokens") if rows else None


def _rendered(system: str | None) -> Any:
    """Return the measure of prompts under `TEMPLATE`, rendered here by hand."""

    def measure(stack: Any, case: RunCase) -> Measure | None:
        record = case.record(stack)
        rows = _rows(record)
        first = "" if stack.bos_id is None else stack.decode([stack.bos_id])
        wrong = []
        for place, row in rows:
            turns = [("system", system)] * (system is not None) + [("user", row.prompt)]
            end = stack.decode([stack.eos_id])
            right = first + "".join(f"<{role}>{text}{end}" for role, text in turns) + "<assistant>"
            if stack.decode(row.prompt_ids) != right:
                wrong.append(f"{place}: {stack.decode(row.prompt_ids)!r} for {right!r}")
        return _count(wrong, "prompts that are not rendered as configured") if rows else None

    return measure


def _law(name: str, measure: Any, suspects: str, options: dict[str, Any] | None = None) -> Law:
    chosen = {"grpo__max_num_steps": 1, **(options or {})}
    return Law(
        name=name, make=run_cases(tuple(chosen), **chosen), measure=measure, suspects=suspects, seeded=False
    )


RELATIONS = (
    Relation(
        id="R16.run",
        name="run-prompts-are-rendered",
        component="tokenized_run",
        statement="The tokens that a run samples from are its prompts under the configured template and system turn.",
        catalogue=("SB003", "SB018", "SB020", "SB030", "SB036"),
        cost="CPU, seconds",
        laws=(
            _law(
                "the first token", _begins, "special tokens left out, or added by template and tokenizer both"
            ),
            _law("the prompt's text", _holds_its_text, "a strip, a cut, another column"),
            _law(
                "a template",
                _rendered(None),
                "the tokenizer's own template in place of the configured one, the assistant's header left out",
                TEMPLATED,
            ),
            _law(
                "a template with a system turn",
                _rendered(SYSTEM),
                "a system prompt that no one passes on",
                {**TEMPLATED, "data__system_prompt": SYSTEM},
            ),
        ),
    ),
)
