"""What TRL's trainers do with arguments, data sets and figures that a user gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl.named import parameters_of, sources
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.evaluated import differing, figures
from seatrial.targets.trl.worked.limits import KINDS, made_rows, places
from seatrial.targets.trl.worked.rows import Row, by_trainer
from seatrial.targets.trl.worked.seen import made_trainer, or_refused, seen_of

LENGTHS = ((3, 5, 7), (6, 2, 4), (8, 9, 3), (2, 7, 8))
OTHERS = ((9, 4, 2), (1, 8, 5), (4, 3, 6), (7, 6, 9))
SAMPLED = ("GRPO", "RLOO")
"""Trainers whose rewards may log, and whose sampler repeats prompts."""
EVALUATED_WITH: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "SFT": (
        {"packing": True, "max_length": 24},
        {"packing": True, "eval_packing": False, "max_length": 24},
        {"eval_packing": True, "max_length": 24},
        {"max_length": 12},
    ),
    **dict.fromkeys(("DPO", "KTO"), ({"precompute_ref_log_probs": True}, {"max_length": 12})),
    "Reward": ({"max_length": 40},),
}
"""Options that prepare the rows of an evaluation."""
NUM_PROMPTS = 13
ORDER: Mapping[str, Any] = {
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "steps_per_generation": 3,
    "num_iterations": 2,
}
"""Six prompts at a time, each twice, served in six batches: the last prompt of thirteen is left out."""
WRITING = (
    "{% if tools is defined and tools is not none or documents is defined and documents is not none %}"
    "{{ '^' }}{% endif %}"
)
ABSENT: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = (
    ("a template that writes about tools, and none", {}, {}),
    ("a template that writes about tools, and rows with an empty list", {"tools": []}, {}),
    (
        "a template that writes about tools, and rows with no options of their own",
        {"chat_template_kwargs": {}},
        {},
    ),
    ("a template that writes about tools, and an empty list", {}, {"tools": []}),
)
"""Ways to have no tools: columns of rows, and arguments of a trainer."""


def _given(name: str, _: Any) -> dict[str, bool]:
    """Return which of the arguments of a trainer it uses."""
    import transformers

    parameter = torch.nn.Parameter(torch.zeros(1))

    class Own(torch.optim.SGD):
        """Counts its steps."""

        calls = 0

        def step(self, closure: Any = None) -> Any:
            Own.calls += 1
            return super().step(closure)

    counted = {"steps": 0}

    class Counter(transformers.TrainerCallback):
        """Counts the ends of steps."""

        def on_step_end(self, *given: Any, **named: Any) -> None:
            counted["steps"] += 1

    optimizer = Own([parameter], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    arguments = {"optimizers": (optimizer, scheduler), "callbacks": [Counter()]}
    if missing := sorted(set(arguments) - set(parameters_of(find_trainer(name)[0]))):
        raise NotServed(f"{name}Trainer takes no {', '.join(missing)}")
    trainer = made_trainer(name, made_rows(KINDS[name][0], LENGTHS), {"max_steps": 2}, arguments=arguments)
    trainer.train()
    return {
        "optimizer": Own.calls == 2,
        "scheduler": scheduler.last_epoch == 2,
        "callback": counted["steps"] == 2,
    }


def _figures(trainer: Any, prefix: str, *given: Any) -> dict[str, float]:
    """Return what an evaluation of a seed gives under a prefix, without times."""
    import transformers

    transformers.set_seed(3)
    return figures(trainer.evaluate(*given), prefix)


def _evaluated(name: str, in_parts: bool, more: Mapping[str, Any], _: Any) -> list[str]:
    """Return figures of a data set, one of several or given to `evaluate`, that it does not have on its own."""
    from datasets import Dataset

    kind = KINDS[name][-1 if name == "SFT" else 0]
    own, other = (Dataset.from_list(made_rows(kind, lengths)) for lengths in (LENGTHS, OTHERS))

    def made(held_out: Any) -> Any:
        options = {"per_device_eval_batch_size": 4, **more}
        return made_trainer(name, own, options, arguments={"eval_dataset": held_out})

    due, first = _figures(made(other), "eval_"), _figures(trainer := made(own), "eval_")
    if due == first:
        raise NotServed("an evaluation shows nothing of its rows")
    if in_parts:
        found = _figures(made({"own": own, "other": other}), "eval_other_")
    else:
        found = _figures(trainer, "eval_", other)
    # Of several data sets, some figures have a shared name.
    return differing(found, due, found if in_parts else due)


def _logged(name: str, _: Any) -> dict[str, Any]:
    """Return the figures of a reward that logs a number at each step, and whether the time of steps is there."""
    if not any("log_metric" in one for one in sources([find_trainer(name)[0]])):
        raise NotServed("rewards log nothing")
    calls: list[int] = []

    def reward(completions: Sequence[Any], log_metric: Callable[..., Any], **more: Any) -> list[float]:
        calls.append(1)
        log_metric("own", float(len(calls)))
        log_metric("own", float(len(calls)) + 1)
        if len(calls) == 2:
            log_metric("once", 7.0)
        return [float(number) for number, _ in enumerate(completions)]

    options = {"max_steps": 3, "logging_steps": 1}
    trainer = made_trainer(name, made_rows("prompts", LENGTHS), options, arguments={"reward_funcs": reward})
    trainer.train()
    rows = [one for one in trainer.state.log_history if "loss" in one]
    return {
        "own": [one.get("own") for one in rows],
        "once": [one.get("once") for one in rows],
        "time": all(one.get("step_time", 1.0) > 0 for one in rows),
    }


def _served(name: str, seed: int, evaluates: bool) -> list[list[str]]:
    """Return the prompts of each batch of an epoch."""
    from datasets import Dataset

    rows = made_rows("prompts", [(3 + number, 1, 1) for number in range(NUM_PROMPTS)])
    options = {**ORDER, "seed": seed, "shuffle_dataset": True, "per_device_eval_batch_size": 4}
    held_out = {"eval_dataset": Dataset.from_list(rows)} if evaluates else {}
    trainer = made_trainer(name, rows, options, arguments=held_out)
    torch.manual_seed(11)  # which decides nothing
    batches = trainer.get_eval_dataloader() if evaluates else trainer.get_train_dataloader()
    return [[str(one["prompt"]) for one in batch] for batch in batches]


def _ordered(name: str, _: Any) -> list[str]:
    """Return what is wrong with the prompts of an epoch, by the figure in the code of GRPO's sampler."""
    batches, wrong = _served(name, 1, False), []
    copies, uses = ORDER["num_generations"], ORDER["steps_per_generation"] * ORDER["num_iterations"]
    size = ORDER["per_device_train_batch_size"] * ORDER["steps_per_generation"]
    if [len(one) for one in batches] != [size] * (2 * uses):
        wrong.append(f"batches of {[len(one) for one in batches]}, {2 * uses} of {size} are due")
    if any(one[::copies] != one[1::copies] for one in batches):
        wrong.append("the completions of a prompt are apart")
    if any(len(set(one)) * copies != len(one) for one in batches):
        wrong.append("a prompt is twice in a batch")
    changes = [first != second for first, second in pairwise(batches)]
    if any(changes[place] != ((place + 1) % uses == 0) for place in range(len(changes))):
        wrong.append(f"a batch is not served {uses} times in a row")
    if len({prompt for one in batches for prompt in one}) != size // copies * 2:
        wrong.append("prompts are served again")
    return wrong


def _seeded(name: str, evaluates: bool, _: Any) -> list[bool]:
    """Return whether an order follows the seed, and only it."""
    first, again, other = (_served(name, seed, evaluates) for seed in (1, 1, 2))
    return [first == again, first == other]


def _turns(name: str, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return rows of conversations with these columns."""
    kind = next((one for one in ("messages", "pairs", "labels", "prompts") if one in KINDS[name]), "")
    return [
        {
            key: [{"role": "user" if key == "prompt" else "assistant", "content": value}]
            if isinstance(value, str)
            else value
            for key, value in row.items()
        }
        | {**columns}
        for row in made_rows(kind, LENGTHS)
    ]


def _unasked(name: str, columns: Mapping[str, Any], arguments: Mapping[str, Any], _: Any) -> list[str]:
    """Return sequences that name tools or documents, by a template that does wherever it is given any, also none."""
    tokenizer = tiny_tokenizer(padding_side="right")
    tokenizer.chat_template = WRITING + tokenizer.chat_template
    found = seen_of(name, _turns(name, columns), {}, tokenizer=tokenizer, arguments=arguments)
    texts = [tokenizer.decode(one.ids) for one in found]
    return [one for one in texts if one.startswith("^")] if texts else ["nothing is trained"]


def _rows_of(name: str) -> Iterator[Row]:
    def row(subject: str, what: str, call: Callable[..., Any], right: Any) -> Row:
        return Row(subject, places(name), what, or_refused(call), right)

    used = dict.fromkeys(("optimizer", "scheduler", "callback"), True)
    yield row("calls", "an optimizer, a scheduler and a callback", partial(_given, name), used)
    for in_parts, what in (
        (True, "a data set of several"),
        (False, "a data set that is given to `evaluate`"),
    ):
        if in_parts and name in (*SAMPLED, "OnlineDPO"):
            continue  # what the second data set is answered depends on the draws for the first
        for more in ({}, *EVALUATED_WITH.get(name, ())):
            said = f"{what}, {dict(more)}" if more else what
            yield row("validations", said, partial(_evaluated, name, in_parts, more), [])
    for what, columns, arguments in ABSENT:
        if set(arguments) <= set(parameters_of(find_trainer(name)[0])):
            subject = "edges" if "tools" in columns else "chats"
            yield row(subject, what, partial(_unasked, name, columns, arguments), [])
    if name not in SAMPLED:
        return
    logged = {"own": [1.5, 2.5, 3.5], "once": [None, 7.0, None], "time": True}
    yield row("metrics", "a reward that logs", partial(_logged, name), logged)
    yield row("batches", "the order of prompts", partial(_ordered, name), [])
    for evaluates in (False, True):
        what = f"the seed of the order, {'evaluation' if evaluates else 'training'}"
        yield row("batches", what, partial(_seeded, name, evaluates), [True, False])


PASSED = by_trainer("passed", KINDS, _rows_of)
NO_TOOLS = KnownFailure(
    "an empty list of tools in a row is given to the template, which may write about tools for it",
    finding="TRL: rows with an empty list of tools",
).of("R34.worked/edges::* and rows with an empty list")
FAILURES: Mapping[str, Sequence[KnownFailure]] = {
    f"passed-{name}": (NO_TOOLS,) for name in ("sft", "dpo", "kto", "reward")
}
