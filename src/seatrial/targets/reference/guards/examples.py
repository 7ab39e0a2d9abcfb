"""The prompts and answers of a run of refrl held to the task or file, tokenizer and template that were given."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.models.chat import BYTE_CHAT_TEMPLATE
from refrl.tasks import Example
from refrl.training.observed import TunedStep
from refrl.training.session import Session
from seatrial.evidence.ledger.laws.rewards import answer_of
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import least, table
from seatrial.targets.reference.guards.files import as_text, column, distinct_rows, small_enough

FORMS = {
    "reverse": r"reverse [a-z]+=",
    "add": r"\d+\+\d+=",
    "count_letters": r"count [a-z] in [a-z]+=",
    "code_print": r"print (\d+)([-+*])(\d+):",
    "lookup": r"price [a-z]+:",
}
"""What prompts of a made task look like, by its name (docs of refrl's tasks)."""
LOOKED_AT = 256
"""Examples of each split that are looked at."""


class AsGiven:
    """Asks whether prompts, answers and their tokens are those that the configuration names."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig, guards: Guards) -> None:
        """Begin with nothing seen."""
        self._config, self._guards = config, guards
        self._targets: dict[int, str] = {}

    def started(self, session: Session) -> None:
        """Ask of the examples, and of how their prompts become tokens."""
        examples = [*session.train_examples[:LOOKED_AT], *session.validation[:LOOKED_AT]]
        self._hold_defaults()
        self._hold_examples(examples)
        self._hold_file(session)
        self._hold_ids(session)
        self._hold_prompts(session, examples[:LOOKED_AT])
        self._targets = {
            one.prompt_id: one.answer if one.solution is None else one.solution
            for one in (*session.train_examples, *session.validation)
        }

    def tuned(self, session: Session, step: TunedStep) -> None:
        """A step of fine-tuning has its rows, each a prompt with its answer."""
        rows, wanted = step.batch.num_rows, self._config.policy.train_global_batch_size
        wrong = f"step {step.step} has {rows} rows, configured are {wanted}"
        self._guards.hold("rows as configured", rows == wanted, wrong, number=rows)
        self.learned(session, step.batch, f"step {step.step}")

    def learned(self, session: Session, batch: Batch, where: str) -> None:
        """Rows of fine-tuning are a prompt, its whole answer and what ends it, all of which trains."""
        ends = {session.tokenizer.eos_token_id, *session.tokenizer.all_special_ids}
        wrong = ""
        for row, prompt_id in enumerate(batch.group_ids_B.tolist()):
            length = int(batch.completion_lens_B[row])
            ids = batch.completion_ids_BT[row, :length].tolist()
            text = session.tokenizer.decode(ids[:-1])
            target = self._targets.get(prompt_id)
            if target is None:
                wrong = wrong or f"row {row}: prompt {prompt_id} is none of the data's"
            elif text != target or ids[-1] not in ends:
                wrong = (
                    wrong or f"row {row}: learns {session.tokenizer.decode(ids)!r}, its answer is {target!r}"
                )
            elif not bool(batch.mask_BT[row, :length].all()) or bool(batch.mask_BT[row, length:].any()):
                wrong = wrong or f"row {row}: the mask is not that of its answer"
        self._guards.hold("answers as given", not wrong, f"{where}, {wrong}", number=batch.num_rows)

    def _hold_defaults(self) -> None:
        """An option that nobody sets has its documented default (`defaults.yaml`)."""
        documented, given = table("defaults"), least()
        other = [
            f"{name} is {given[name]}, documented is {value}"
            for name, value in documented.items()
            if name in given and given[name] != value
        ]
        self._guards.hold("documented defaults", not other, "; ".join(other[:3]), number=len(documented))

    def _hold_examples(self, examples: Sequence[Example]) -> None:
        """Answers are right, where the prompt's own words tell, and prompts are those of the task."""
        form = FORMS.get(self._config.data.task or "")
        wrong = ""
        for one in examples:
            right = answer_of(one.prompt) or _tests_of(one.prompt) if form else None
            if form and not re.fullmatch(form, one.prompt):
                wrong = wrong or f"{one.prompt!r} is no prompt of the task {self._config.data.task}"
            elif right is not None and one.answer != right:
                wrong = wrong or f"{one.prompt!r} has the answer {one.answer!r}, right is {right!r}"
        self._guards.hold("examples of the task", not wrong, wrong, number=len(examples) if form else 0)

    def _hold_file(self, session: Session) -> None:
        """Each prompt of a file has its own answer and solution; which prompts are there is `AsSeeded`'s to ask."""
        data = self._config.data
        paths = [path for path in (data.train_path, data.validation_path) if path is not None]
        if not paths or not all(map(small_enough, paths)):
            return
        files = [distinct_rows(path, data.prompt_key) or {} for path in paths]
        splits = (session.train_examples, session.validation)
        wrong, number = "", 0
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
                        wrong = wrong or f"{one.prompt!r} has the {what} {given!r}, in the file {right!r}"
        self._guards.hold("rows of the files", not wrong, wrong, number=number)

    def _hold_ids(self, session: Session) -> None:
        """Prompts that differ have different ids: rows of one id are one group."""
        prompt_of: dict[int, str] = {}
        examples = [*session.train_examples[:LOOKED_AT], *session.validation]
        shared = [
            one.prompt for one in examples if prompt_of.setdefault(one.prompt_id, one.prompt) != one.prompt
        ]
        wrong = f"{len(shared)} prompts have the id of another, such as {shared[0]!r}" if shared else ""
        self._guards.hold("ids of prompts", not wrong, wrong, number=len(examples))

    def _hold_prompts(self, session: Session, examples: Sequence[Example]) -> None:
        """Tokens of a prompt are those of the Hugging Face tokenizer, under the configured template."""
        tokenizer, template = session.tokenizer, self._config.policy.tokenizer.chat_template
        given = session.encoder.prompts([one.prompt for one in examples])
        begins = tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
        named = {"default": None, "byte": BYTE_CHAT_TEMPLATE}
        wrong = ""
        for one, ids in zip(examples, given, strict=True):
            if template is None:
                right = tokenizer(one.prompt).input_ids
                right = right[:-1] if len(right) > 1 and right[-1] == tokenizer.eos_token_id else right
            else:
                system = self._config.data.system_prompt
                turns = [{"role": "system", "content": system}] if system is not None else []
                text = tokenizer.apply_chat_template(
                    [*turns, {"role": "user", "content": one.prompt}],
                    chat_template=named.get(template, template),
                    add_generation_prompt=True,
                    tokenize=False,
                )
                right = tokenizer(text, add_special_tokens=False).input_ids
            twice = begins and list(ids).count(tokenizer.bos_token_id) != 1
            if list(ids) != list(right) or twice or (begins and ids[0] != tokenizer.bos_token_id):
                wrong = wrong or f"{one.prompt!r} becomes {tokenizer.decode(list(ids))!r}"
        self._guards.hold("prompts as the tokenizer has them", not wrong, wrong, number=len(examples))


def _tests_of(prompt: str) -> str | None:
    """Return the tests of a program that prints the value of an expression; None where a prompt asks for no program."""
    asked = re.fullmatch(FORMS["code_print"], prompt)
    if asked is None:
        return None
    left, right = int(asked[1]), int(asked[3])
    values = {"+": left + right, "-": left - right, "*": left * right}
    return json.dumps([{"stdin": "", "stdout": f"{values[asked[2]]}\n"}])
