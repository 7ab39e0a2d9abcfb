"""Checks the prompts and answers of a run of refrl against its task or file, tokenizer and template."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from refrl.algorithms.batching import Batch
from refrl.models.chat import BYTE_CHAT_TEMPLATE
from refrl.tasks import Example
from refrl.training.session import Session, TunedStep
from seatrial.evidence.ledger.laws.rewards import answer_of
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import least, table
from seatrial.targets.reference.guards.base import RunConfig, check
from seatrial.targets.reference.guards.files import as_text, column, distinct_rows, small_enough

FORMS = {
    "reverse": r"reverse [a-z]*=",
    "add": r"\d+\+\d+=",
    "count_letters": r"count [a-z] in [a-z]+=",
    "code_print": r"print (\d+)([-+*])(\d+):",
    "lookup": r"price [a-z]*:",  # of the empty word too, where task_args.min_length is 0
}
"""Forms of the prompts of a generated task, by its name."""
NUM_CHECKED = 256
"""Examples of each split that are checked."""


class ExampleGuard:
    """Checks that prompts, answers and their tokens are those that the configuration names."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin without examples."""
        self._config, self._guards = config, guards
        self._targets: dict[int, str] = {}

    def started(self, session: Session) -> None:
        """Check the examples, and how their prompts become tokens."""
        examples = [*session.train_examples[:NUM_CHECKED], *session.validation[:NUM_CHECKED]]
        self._check_defaults()
        self._check_examples(examples)
        self._check_file(session)
        self._check_ids(session)
        self._check_prompts(session, examples[:NUM_CHECKED])
        self._targets = {
            one.prompt_id: one.answer if one.solution is None else one.solution
            for one in (*session.train_examples, *session.validation)
        }

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Check the number of rows of a step of fine-tuning, and each row."""
        rows, wanted = step.batch.num_rows, self._config.policy.train_global_batch_size
        wrong = "" if rows == wanted else f"step {step.step} has {rows} rows, configured are {wanted}"
        check(self._guards, "rows as configured", wrong, number=rows)
        self.check_answers(session, step.batch, f"step {step.step}")

    def check_answers(self, session: Session, batch: Batch, where: str) -> None:
        """Check that a row is a prompt, its whole answer and an end token, and that all of the answer trains."""
        ends = {session.tokenizer.eos_token_id, *session.tokenizer.all_special_ids}
        wrong = []
        for row, prompt_id in enumerate(batch.group_ids_B.tolist()):
            length = int(batch.completion_lens_B[row])
            ids = batch.completion_ids_BT[row, :length].tolist()
            target = self._targets.get(prompt_id)
            if target is None:
                wrong.append(f"row {row}: prompt {prompt_id} is none of the data's")
            elif session.tokenizer.decode(ids[:-1]) != target or ids[-1] not in ends:
                wrong.append(f"row {row}: learns {session.tokenizer.decode(ids)!r}, its answer is {target!r}")
            elif not bool(batch.mask_BT[row, :length].all()) or bool(batch.mask_BT[row, length:].any()):
                wrong.append(f"row {row}: the mask is not that of its answer")
        check(self._guards, "answers as given", wrong[:1], where=f"{where}, ", number=batch.num_rows)

    def _check_defaults(self) -> None:
        """An option that is not set has its documented default (`tables/defaults.yaml`)."""
        documented, given = table("defaults"), least()
        other = [
            f"{name} is {given[name]}, documented is {value}"
            for name, value in documented.items()
            if name in given and given[name] != value
        ]
        check(self._guards, "documented defaults", "; ".join(other[:3]), number=len(documented))

    def _check_examples(self, examples: Sequence[Example]) -> None:
        """Prompts have the form of the task, and answers are right where the prompt itself determines them."""
        form, wrong = FORMS.get(self._config.data.task or ""), []
        for one in examples if form else ():
            right = answer_of(one.prompt) or _tests_of(one.prompt)
            if not re.fullmatch(form or "", one.prompt):
                wrong.append(f"{one.prompt!r} is no prompt of the task {self._config.data.task}")
            elif right is not None and one.answer != right:
                wrong.append(f"{one.prompt!r} has the answer {one.answer!r}, right is {right!r}")
        check(self._guards, "examples of the task", wrong[:1], number=len(examples) if form else 0)

    def _check_file(self, session: Session) -> None:
        """Each prompt of a file has its own answer and solution; `seeds` checks which prompts are there."""
        data = self._config.data
        paths = [path for path in (data.train_path, data.validation_path) if path is not None]
        if not paths or not all(map(small_enough, paths)):
            return
        files = [distinct_rows(path, data.prompt_key) or {} for path in paths]
        splits = (session.train_examples, session.validation)
        wrong, number = [], 0
        for examples, rows in zip(splits, files if len(files) == 2 else files * 2, strict=True):
            for one in examples:
                row = rows.get(one.prompt, {})
                for what, key, given in (
                    ("answer", data.answer_key, one.answer),
                    ("solution", data.solution_key, one.target),
                ):
                    right = as_text(column(row, key)) if key and row else None
                    number += right is not None
                    if right is not None and right != given:
                        wrong.append(f"{one.prompt!r} has the {what} {given!r}, in the file {right!r}")
        check(self._guards, "rows of the files", wrong[:1], number=number)

    def _check_ids(self, session: Session) -> None:
        """Prompts that differ have different ids: rows of one id are one group."""
        prompt_of: dict[int, str] = {}
        examples = [*session.train_examples[:NUM_CHECKED], *session.validation]
        shared = [
            one.prompt for one in examples if prompt_of.setdefault(one.prompt_id, one.prompt) != one.prompt
        ]
        wrong = f"{len(shared)} prompts have the id of another, such as {shared[0]!r}" if shared else ""
        check(self._guards, "ids of prompts", wrong, number=len(examples))

    def _check_prompts(self, session: Session, examples: Sequence[Example]) -> None:
        """Tokens of a prompt are those of the Hugging Face tokenizer, under the configured template."""
        tokenizer = session.tokenizer
        given = session.encoder.prompts([one.prompt for one in examples])
        first = tokenizer.bos_token_id
        begins = tokenizer("a").input_ids[:1] == [first]
        wrong = []
        has_template = (
            self._config.policy.tokenizer.chat_template is not None
        )  # which may leave the first token out
        for one, ids in zip(examples, given, strict=True):
            twice = begins and list(ids).count(first) > 1
            missing = begins and not has_template and ids[0] != first
            if list(ids) != self._encoded(tokenizer, one.prompt) or twice or missing:
                wrong.append(f"{one.prompt!r} becomes {tokenizer.decode(list(ids))!r}")
        check(self._guards, "prompts as the tokenizer has them", wrong[:1], number=len(examples))

    def _encoded(self, tokenizer: Any, prompt: str) -> list[int]:
        """Return the ids of a prompt, plain or rendered by the configured template."""
        template, system = self._config.policy.tokenizer.chat_template, self._config.data.system_prompt
        if template is None:
            ids = list(tokenizer(prompt).input_ids)
            return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids
        turns = [{"role": "system", "content": system}] if system is not None else []
        text = tokenizer.apply_chat_template(
            [*turns, {"role": "user", "content": prompt}],
            chat_template={"default": None, "byte": BYTE_CHAT_TEMPLATE}.get(template, template),
            add_generation_prompt=True,
            tokenize=False,
        )
        return list(tokenizer(text, add_special_tokens=False).input_ids)


def _tests_of(prompt: str) -> str | None:
    """Return the tests of a program that prints the value of an expression; None for a prompt of another task."""
    found = re.fullmatch(FORMS["code_print"], prompt)
    if found is None:
        return None
    left, right = int(found[1]), int(found[3])
    values = {"+": left + right, "-": left - right, "*": left * right}
    return json.dumps([{"stdin": "", "stdout": f"{values[found[2]]}\n"}])
