"""Made data sets of a trainer's run, and how the rows of a batch are recognised in it.

Texts are lowercase letters. Each example has a marker, a capital or a digit, at the start of its prompt and of its
completions, which no other example has and truncation does not remove; sampled completions are recognised by their
ids.
"""

from __future__ import annotations

import copy
import json
import string
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.oracles.objectives import kept_tokens
from seatrial.targets.trl import made_templates as made
from seatrial.targets.trl import tools
from seatrial.targets.trl.scorer import Scorer
from seatrial.targets.trl.setup import Setup

MARKERS = string.ascii_uppercase + string.digits
NUM_TRAIN, NUM_HELD_OUT, NUM_UNANSWERED = 12, 4, 2
NUM_ALL = NUM_TRAIN + NUM_HELD_OUT + NUM_UNANSWERED
LONGEST_PROMPT, LONGEST_COMPLETION = 9, 11
SHORTEST_SAMPLED = 4
LETTERS_OF_LONG, SECOND_END = 38, "<eos>"


class MadeRows:
    """The examples or prompts of a setup."""

    def __init__(self, setup: Setup, tokenizer: Any) -> None:
        """Make them; the same setup gives the same ones."""
        self.setup, self._tokenizer = setup, tokenizer
        self.pad_id, self.eos_id = int(tokenizer.pad_token_id), int(tokenizer.eos_token_id)
        self.second_end_id = int(tokenizer.convert_tokens_to_ids(SECOND_END))
        self._letters = [int(i) for i in tokenizer.convert_tokens_to_ids(list(string.ascii_lowercase))]
        marks = [int(i) for i in tokenizer.convert_tokens_to_ids(list(MARKERS))]
        self._numbers = {mark: number for number, mark in enumerate(marks[:NUM_ALL])}
        self._texts = [self._text_of(number) for number in range(NUM_ALL)]
        self.examples = [self._example(texts, number) for number, texts in enumerate(self._texts)]
        self.held_out = self.examples[NUM_TRAIN : NUM_TRAIN + NUM_HELD_OUT]

    @cached_property
    def scorer(self) -> Scorer:
        """The reward model."""
        return Scorer()

    @cached_property
    def sequences(self) -> Sequence[tuple[int, ...]]:
        """The sequences of all examples, truncated as declared."""
        spec = self.setup.objective
        assert isinstance(spec, ObjectiveSpec)
        return [
            tuple(kept_tokens(one.prompt_ids, ids, spec)[0].tolist())
            for one in self.examples
            for ids in (one.completion_ids, one.rejected_ids)
            if ids is not None
        ]

    def tokenizer(self) -> Any:
        """Return a tokenizer for the trainer, with the template that the setup does not give by an option."""
        tokenizer = copy.deepcopy(self._tokenizer)
        if self.setup.form == "bracketed" and "chat_template_path" not in self.setup.options:
            tokenizer.chat_template = made.BRACKETED
        own = {"opened": made.OPENED, "own": made.OWN, "called": made.CALLED}.get(self.setup.form)
        tokenizer.chat_template = own or tokenizer.chat_template
        if self.setup.begins:
            made.begin_texts(tokenizer)
        if self.setup.tools:
            tools.prepare(tokenizer)
        # Prompts that are cut keep their end, as TRL loads tokenizers.
        tokenizer.truncation_side = "left" if self.setup.prompt_limit else tokenizer.truncation_side
        return tokenizer

    def template_file(self, folder: str) -> str:
        """Write the template for the option `chat_template_path` and return its path."""
        path = Path(folder) / "template.jinja"
        path.write_text(made.BRACKETED, encoding="utf-8")
        return str(path)

    def _text_of(self, number: int) -> dict[str, str]:
        """Return prompt, completion and rejected completion of unequal lengths, without an end token."""
        rng = np.random.default_rng([7, number])

        def text(shortest: int, longest: int) -> str:
            length = int(rng.integers(shortest, longest + 1))
            letters = rng.choice(list(string.ascii_lowercase), size=length)
            return MARKERS[number] + "".join(map(str, letters))

        longest = (2 if self.setup.is_long else 1) * LONGEST_COMPLETION - 2
        made = {
            "prompt": text(1, LONGEST_PROMPT - 1),
            "completion": text(0, longest),
            "rejected": text(0, longest),
        }
        if self.setup.prompt_limit:
            made["prompt"] = made["prompt"][::-1]  # what is kept has the marker
        if number % 4 == 0:
            made["completion"] = MARKERS[number]
        if made["rejected"] == made["completion"]:
            made["rejected"] += "a"  # no tie, whose accuracy is a matter of rounding
        if number >= NUM_TRAIN + NUM_HELD_OUT:
            made["prompt"] = text(LETTERS_OF_LONG, LETTERS_OF_LONG)
        elif self.setup.edges != "none":
            made |= self._edge(number, text(LETTERS_OF_LONG, LETTERS_OF_LONG), made["completion"])
        return made

    def _edge(self, number: int, long: str, completion: str) -> dict[str, str]:
        """Return what replaces the texts of a row at an edge."""
        edges: list[dict[str, str]] = [
            {},
            {"rejected": completion},
            {"completion": long, "rejected": MARKERS[number]},
            {"prompt": ""} if self.setup.edges == "all" else {},
        ]
        return edges[number % 4]

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _example(self, texts: Mapping[str, str], number: int) -> Example:
        """Return the ids that training should see."""
        end = self.setup.end
        prompt, said, other = self._prompt(texts["prompt"], number), texts["completion"], texts["rejected"]
        if self.setup.form == "own" and _shouts(number):
            said, other = f"~{said}", f"~{other}"
        if self.setup.form == "opened":
            # What both answers begin with is the prompt's.
            said, other = ("!" * (len(text) % 2) + text for text in (said, other))
            if said[0] == other[0] == "!":
                prompt, said, other = prompt + "!", said[1:], other[1:]
        answers = slice(self.setup.answer_limit or None)
        return Example(
            prompt_ids=(self._ids(made.BEGIN * self._begins_texts) + self._ids(prompt))[
                -self.setup.prompt_limit :
            ],
            completion_ids=self._ids(said + end)[answers],
            rejected_ids=self._ids(other + end)[answers] if self.setup.data == "pairs" else None,
            desirable=number % 3 != 1 if self.setup.data == "labels" else None,
            answered=tuple(
                one for text, one in made.answered(prompt, self.setup.form, number) for _ in self._ids(text)
            ),
            margin=_margin(number) if self.setup.margins else 0.0,
        )

    @property
    def _begins_texts(self) -> bool:
        """Whether the tokenizer adds a token to a prompt; to what a template writes it adds none."""
        return self.setup.begins and self.setup.form == "text"

    def _prompt(self, text: str, number: int) -> str:
        """Return the prompt of a row as the template writes it."""
        form = self.setup.form
        if form == "own":
            return f"{'(probe)' * self._has_tools(number)}[{'^' * _shouts(number)}{text}]"
        if form == "called":
            has_tools = self._has_tools(number) and not self.setup.samples
            return f"{'(probe)' * has_tools}[{text}]{made.text_of_a_call(number)}[{made.FOUND}]"
        if form == "text":
            return text
        if form == "bracketed":
            return f"[{text}]" + ("!" if self.setup.options.get("chat_template_kwargs") else "")
        if form == "opened":
            return f"[{text}]"
        if self.setup.tools:
            return f"[{text}{self._observation(number)}]<"
        turns = [*self._before(), ("user", text)]
        return "".join(f"<|im_start|>{role}\n{said}<|im_end|>" for role, said in turns) + (
            "<|im_start|>assistant\n"
        )

    def _observation(self, number: int) -> str:
        has_one = self.setup.tools == "environments" and tools.environment_of(number) == "counting"
        return tools.observation(number) if has_one else ""

    def _before(self) -> list[tuple[str, str]]:
        """Return the turns before the user's last one: their role and text."""
        system = [("system", "be brief")] if "system" in self.setup.form else []
        return [*system, *(made.EARLIER if self.setup.form == "several turns" else ())]

    def data(self, num_examples: int) -> list[dict[str, Any]]:
        """Return the training split as the trainer takes it."""
        unanswered = range(NUM_TRAIN + NUM_HELD_OUT, NUM_ALL) if self.setup.unanswered else ()
        return [self._row(number) | self._columns(number) for number in (*unanswered, *range(num_examples))]

    def held_out_data(self) -> list[dict[str, Any]]:
        """Return the held-out split."""
        numbers = range(NUM_TRAIN, NUM_TRAIN + NUM_HELD_OUT)
        return [self._row(number) | self._columns(number) for number in numbers]

    def _columns(self, number: int) -> dict[str, Any]:
        """Return columns of a row in addition to its texts."""
        if self.setup.tools == "environments":
            return {"place": number, "environment": tools.environment_of(number)}
        if self.setup.samples:
            return {"place": number}
        if self.setup.margins:
            return {"margin": _margin(number)}
        if self.setup.form == "called":
            return {"tools": json.dumps([made.PROBE]) if self._has_tools(number) else None}
        if self.setup.form != "own":
            return {}
        own: dict[str, Any] = {"chat_template_kwargs": {"shouts": _shouts(number)}}
        if self.setup.gives_tools:
            own["tools"] = [made.PROBE] if self._has_tools(number) else None
        return own

    def _has_tools(self, number: int) -> bool:
        return self.setup.gives_tools and number % 2 == 0

    def _row(self, number: int) -> dict[str, Any]:
        texts, data = self._texts[number], self.setup.data
        prompt, completion, rejected = (texts[key] for key in ("prompt", "completion", "rejected"))
        if self.setup.form == "text":
            end = self.setup.end if self.setup.spells_end else ""
            whole: dict[str, Any] = {
                "prompt": prompt,
                "completion": completion + end,
                "rejected": rejected + end,
            }
        else:
            before = [{"role": role, "content": said} for role, said in self._before()]
            whole = {
                "prompt": [
                    *before,
                    {"role": "user", "content": prompt},
                    *(made.turns_of_a_call(number) if self.setup.form == "called" else ()),
                ],
                "completion": [{"role": "assistant", "content": completion}],
                "rejected": [{"role": "assistant", "content": rejected}],
            }
        asked, said, other = whole["prompt"], whole["completion"], whole["rejected"]
        if data == "prompts":
            return {"prompt": asked}
        if self.setup.formats:
            return {"asked": asked, "said": said}
        if data == "whole":
            decoy = {"text": "a text of no example"}
            return decoy | {self.setup.options.get("dataset_text_field", "text"): asked + said}
        if data == "ids":
            one = self.examples[number]
            labels = [-100] * len(one.prompt_ids) + list(one.completion_ids)
            return {"input_ids": [*one.prompt_ids, *one.completion_ids], "labels": labels}
        if data == "messages":
            return {"messages": [*asked, *said]}
        if data == "pairs":
            if self.setup.joins_prompt:
                return {"chosen": asked + said, "rejected": asked + other}
            return {"prompt": asked, "chosen": said, "rejected": other}
        if data == "labels":
            return {"prompt": asked, "completion": said, "label": number % 3 != 1}
        return {"prompt": asked, "completion": said}

    def numbers_of(self, inputs: Any, rollouts: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the numbers of a batch's rows: of examples, or of those among the sampled completions."""
        if not isinstance(inputs, Mapping):
            return []
        if self.setup.samples:
            return self._sampled_numbers(inputs, rollouts) if "completion_ids" in inputs else []
        parts = [inputs[name] for name in inputs if is_ids(name) and not name.upper().startswith("KL")]
        rows = zip(*(part for part in parts if len(part) == len(parts[0])), strict=True)
        ids = [int(token) for row in rows for part in row for token in part.flatten().tolist()]
        return list(dict.fromkeys(self._numbers[token] for token in ids if token in self._numbers))

    def _sampled_numbers(self, inputs: Mapping[str, Any], rollouts: Sequence[Mapping[str, Any]]) -> list[int]:
        found = []
        for prompt, shown, given in zip(
            inputs["prompt_ids"], inputs["prompt_mask"].bool(), inputs["completion_ids"], strict=True
        ):
            prompt_ids, ids = tuple(prompt[shown].tolist()), given.tolist()
            found += [
                number
                for number, one in reversed(list(enumerate(rollouts)))
                if one["prompt_ids"] == prompt_ids
                and tuple(ids[: len(one["ids"])]) == tuple(one["ids"])
                and all(token == self.pad_id for token in ids[len(one["ids"]) :])
            ][:1]
        return found

    def completion(
        self, prompt_ids: Sequence[int], step: int, number: int, is_training: bool
    ) -> tuple[tuple[int, ...], bool]:
        """Return a made completion, and whether it ends; every third one reaches the limit of the length."""
        rng = np.random.default_rng([int(is_training), step, number, *prompt_ids])
        limit = self.setup.max_completion_length
        if self.setup.truncates and number % 3 == 2:
            return tuple(int(token) for token in rng.choice(self._letters, size=limit)), False
        length = int(rng.integers(SHORTEST_SAMPLED, limit))
        end = self.second_end_id if self.setup.second_end and number % 2 else self.eos_id
        return (*(int(token) for token in rng.choice(self._letters, size=length - 1)), end), True

    def script(
        self, prompt_ids: Sequence[int], step: int, number: int, is_training: bool
    ) -> tuple[tools.Turn, ...]:
        """Return the turns of a made completion that calls tools."""
        rng = np.random.default_rng([int(is_training), step, number, *prompt_ids])
        kind: str = self.setup.tools
        if kind == "environments":
            kind = tools.environment_of(self.number_of(prompt_ids))
        return tools.script(rng, string.ascii_lowercase, number, kind)

    def ids_of(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text without special tokens of its own."""
        return self._ids(text)

    def number_of(self, prompt_ids: Sequence[int]) -> int:
        """Return the number of the example with this prompt.

        Raises:
            ValueError: it is no row's.
        """
        found = next((self._numbers[token] for token in prompt_ids if token in self._numbers), None)
        if found is None:
            raise ValueError(f"a prompt of no row: {list(prompt_ids)} has none of the rows' first tokens")
        return found

    def rewards_of(self, text: str, prompt_ids: Sequence[int]) -> tuple[float | None, ...]:
        """Return what each reward function gives the contents of a completion's messages."""
        place = self.number_of(prompt_ids)
        return tuple(self._reward(text, which, place) for which in range(self.setup.num_rewards))

    def rewards(self, ids: Sequence[int], prompt_ids: Sequence[int]) -> tuple[float | None, ...]:
        """Return what each reward function gives a completion."""
        if self.setup.reward_model:
            end = "" if self.setup.form == "text" else self.setup.end
            return (self.scorer.score([*prompt_ids, *self._ids(self.text(ids) + end)]),)
        return self.rewards_of(self.text(ids), prompt_ids)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _reward(self, text: str, which: int, place: float) -> float | None:
        """Return a reward, to which the column `place` of the prompt's row adds."""
        if which == 1:
            return len(text) / 8 + place / 16
        value = sum(map(ord, text)) % 23 / 11 - 0.4 + place / 32
        return None if self.setup.unscored and sum(map(ord, text)) % 4 == 0 else value

    def reward_functions(self) -> list[Any]:
        """Return the reward functions that the trainer calls: `reward0`, `reward1` ...

        They are given prompts, completions, their ids and the columns of their rows. What does not belong to the same
        row makes a reward far too large.
        """
        if self.setup.reward_model == "given":
            return [self.scorer.model]
        if self.setup.reward_model:
            return [self.scorer.folder(self.tokenizer())]

        def function(which: int) -> Callable[..., Any]:
            def reward(
                prompts: Sequence[Any],
                completions: Sequence[Any],
                place: Sequence[int],
                completion_ids: Sequence[Sequence[int]] | None = None,
                **_: Any,
            ) -> list[float | None]:
                texts = [one if isinstance(one, str) else tools.text_of(one) for one in completions]
                asked = [one if isinstance(one, str) else str(one) for one in prompts]
                # Of several turns, the ids hold the template's words too.
                own = texts if self.setup.tools else [self.text(ids) for ids in completion_ids or ()]
                wrong = [
                    100.0 * ((MARKERS[number] not in prompt) + (text != said))
                    for prompt, number, text, said in zip(asked, place, texts, own or texts, strict=True)
                ]
                return [
                    self._reward(text, which, number + more)
                    for text, number, more in zip(texts, place, wrong, strict=True)
                ]

            async def awaited(*args: Any, **given: Any) -> list[float | None]:
                return reward(*args, **given)

            found = awaited if self.setup.awaits_rewards and which == 0 else reward
            found.__name__ = f"reward{which}"
            return found

        return [function(which) for which in range(self.setup.num_rewards)]


def is_ids(name: str) -> bool:
    """Return whether an entry of a batch has ids: `input_ids`, `chosen_input_ids`, `input_ids_chosen`."""
    return name.endswith("input_ids") or name.startswith("input_ids_")


def _shouts(number: int) -> bool:
    """Return whether a row's own option of the template is on."""
    return number % 3 == 0


def _margin(number: int) -> float:
    return number % 5 / 2
