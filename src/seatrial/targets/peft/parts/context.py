"""Prompts of the tokens of given examples (CPT), and of several tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.adapter_parts import Use
from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.generated import generated
from seatrial.targets.peft.parts import tasks as all_tasks
from seatrial.targets.peft.parts.shared import drawn, greedy, logits_of, redraw, reloaded

IDS_BS = ((5, 9, 7, 30, 11), (8, 4, 21, 3, 6), (13, 3, 40, 17, 22))
CONTEXT = (7, 12, 9, 31, 7, 18, 9, 25)
KINDS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Of each token of the context, modulo 4: 1 and 3 are templates, 2 is an input and 0 an answer."""
OWN_KINDS = ((1, 2, 2, 3, 4), (1, 2, 3, 4, 4), (2, 2, 3, 4, 0))
"""Of the tokens of each row."""
VIRTUAL = 3


def _plain() -> Any:
    return base("linear", torch.float32).eval()


def _ids() -> Tensor:
    return torch.tensor(IDS_BS)


def _context(name: str, seed: int, **options: Any) -> Any:
    import peft

    config = find_name("peft", ["peft:CPTConfig"])
    made = config(
        task_type="CAUSAL_LM",
        cpt_token_ids=list(CONTEXT),
        cpt_mask=[1] * len(CONTEXT),
        cpt_tokens_type_mask=list(KINDS),
        **options,
    )
    model = peft.get_peft_model(_plain(), made, adapter_name=name)
    _draw(model, name, seed)
    return model.eval()


def _draw(model: Any, name: str, seed: int) -> None:
    with torch.no_grad():
        delta_VD = model.prompt_encoder[name].delta_embedding.weight
        delta_VD.copy_(drawn(seed, *delta_VD.shape, scale=0.1))
        delta_VD[1] = 0.0
        delta_VD[2] *= 1e-4  # within any bound


def _bounded(seed: int, of_inputs: float, of_templates: float, width: int) -> Tensor:
    """Return what is added to the context: no longer than a bound for its kind (Blau et al., 2024)."""
    delta_VD = drawn(seed, len(CONTEXT), width, scale=0.1)
    delta_VD[1] = 0.0
    delta_VD[2] *= 1e-4
    for place, kind in enumerate(KINDS):
        bound = {1: of_templates, 2: of_inputs, 3: of_templates}.get(kind % 4, 0.0) * math.sqrt(width / 2048)
        length = float(delta_VD[place].norm())
        if length > bound:
            delta_VD[place] *= bound / length
    return delta_VD


def _right(seed: int, own_kinds: Sequence[Sequence[int]] | None, **options: Any) -> tuple[Tensor, float]:
    """Return logits and loss: the weighted mean over answers, of which those further from the end count less."""
    plain = _plain()
    bounds = options.get("opt_projection_epsilon", 0.1), options.get("opt_projection_format_epsilon", 0.1)
    embed = plain.get_input_embeddings()
    ids_BS = _ids()
    with torch.no_grad():
        context_VD = embed(torch.tensor(CONTEXT))
        context_VD = context_VD + _bounded(seed, *bounds, width=context_VD.shape[1])
        embeds_BSD = torch.cat([context_VD.expand(len(ids_BS), -1, -1), embed(ids_BS)], dim=1)
        logits_BSV = plain(inputs_embeds=embeds_BSD, attention_mask=torch.ones(embeds_BSD.shape[:2])).logits
    losses = []
    for row, ids in enumerate(IDS_BS):
        kinds = [
            *KINDS,
            *(
                (max(KINDS) + kind if kind else 0)
                for kind in (own_kinds[row] if own_kinds else [4] * len(ids))
            ),
        ]
        labels = [*CONTEXT, *ids]
        answers = sorted({kind for kind in kinds[1:] if kind > 0 and kind % 4 == 0}, reverse=True)
        decay = (
            options.get("opt_loss_decay_factor", 1.0)
            if options.get("opt_weighted_loss_type") == "decay"
            else 1.0
        )
        for place in range(1, len(labels)):
            if kinds[place] > 0 and kinds[place] % 4 == 0:
                logprobs_V = logits_BSV[row, place - 1].double().log_softmax(-1)
                losses.append(-float(logprobs_V[labels[place]]) * decay ** answers.index(kinds[place]))
    return logits_BSV, sum(losses) / len(losses)


DECAY = {"opt_weighted_loss_type": "decay", "opt_loss_decay_factor": 0.5}
BOUNDS = {"opt_projection_epsilon": 0.7, "opt_projection_format_epsilon": 0.2}


def context(seed: int) -> Sequence[Use]:
    """Return uses of CPT."""

    def loss(kinds: Sequence[Sequence[int]] | None, options: dict[str, Any]) -> tuple[Any, Any]:
        model = _context("default", seed, **options)
        found = []
        given = {} if kinds is None else {"input_type_mask": torch.tensor(kinds)}
        with torch.no_grad():
            for _ in range(2):
                made = model(input_ids=_ids(), attention_mask=torch.ones_like(_ids()), labels=_ids(), **given)
                found += [made.logits, float(made.loss)]
        logits_BSV, right = _right(seed, kinds, **options)
        return found, [logits_BSV, right, logits_BSV, right]

    def trains() -> tuple[Any, Any]:
        model = _context("default", seed, **BOUNDS).train()
        model(input_ids=_ids(), attention_mask=torch.ones_like(_ids()), labels=_ids()).loss.backward()
        names = [
            name.rpartition("prompt_encoder.default.")[2]
            for name, value in model.named_parameters()
            if value.grad is not None
        ]
        gradient_VD = model.prompt_encoder["default"].delta_embedding.weight.grad
        moved = [bool(row.any()) for row in gradient_VD]
        return [names, moved], [["delta_embedding.weight"], [kind % 4 != 0 for kind in KINDS]]

    def loaded() -> tuple[Any, Any]:
        model = _context("default", seed, **BOUNDS)
        right = logits_of(model, _ids())
        return logits_of(reloaded(model, _plain()), _ids()), right

    ways: list[tuple[str, Sequence[Sequence[int]] | None, dict[str, Any]]] = [
        ("a loss", None, {}),
        ("a loss of rows with kinds", OWN_KINDS, {}),
        ("a loss that decays", None, dict(DECAY)),
        ("a loss that decays, of rows with kinds", OWN_KINDS, dict(DECAY)),
        ("a factor without its type", None, {"opt_loss_decay_factor": 0.5}),
        ("bounds", None, dict(BOUNDS)),
    ]
    uses: list[Use] = [
        (what, lambda kinds=kinds, options=options: loss(kinds, options))  # type: ignore[misc]
        for what, kinds, options in ways
    ]
    return [*uses, ("what trains", trains), ("saved and loaded", loaded)]


def second_context(seed: int) -> Sequence[Use]:
    """Return uses of CPT after the first one, and of a second adapter."""

    def kept() -> tuple[Any, Any]:
        model = _context("default", seed)
        given = torch.tensor(OWN_KINDS)
        model(input_ids=_ids(), attention_mask=torch.ones_like(_ids()), labels=_ids(), input_type_mask=given)
        return given, torch.tensor(OWN_KINDS)

    def other_name() -> tuple[Any, Any]:
        model = _context("default", seed)
        config = _context("default", seed, **DECAY).peft_config["default"]
        model.add_adapter("second", config)
        _draw(model, "second", seed + 1)
        model.set_adapter("second")
        with torch.no_grad():
            made = model(input_ids=_ids(), attention_mask=torch.ones_like(_ids()), labels=_ids())
        logits_BSV, right = _right(seed + 1, None, **DECAY)
        return [made.logits, float(made.loss)], [logits_BSV, right]

    return [
        ("kinds of tokens that the caller keeps", kept),
        ("a second adapter of other options", other_name),
    ]


def _several(name: str, seed: int, **options: Any) -> Any:
    import peft

    config = peft.MultitaskPromptTuningConfig(
        task_type=all_tasks.BASES[name][0], num_virtual_tokens=VIRTUAL, num_tasks=3, num_ranks=2, **options
    )
    model = peft.get_peft_model(all_tasks.base(name, seed), config)
    if not options:
        redraw(model, "prompt_encoder", seed + 7)
    return model.eval()


def _prompts(model: Any, tasks_B: Tensor) -> Tensor:
    """Return the prompt of each row: a shared one times that of its task (Wang et al., 2023, equation 2)."""
    (encoder,) = model.prompt_encoder.values()
    own = [encoder.prefix_task_cols[task] @ encoder.prefix_task_rows[task] for task in tasks_B]
    made: Tensor = torch.stack(own) * encoder.embedding.weight
    return made.detach()


def several_tasks(seed: int) -> Sequence[Use]:
    """Return uses of prompts of several tasks."""
    tasks_B = torch.tensor([2, 0, 1])

    def outputs(name: str, again: bool) -> tuple[Any, Any]:
        model, plain = _several(name, seed), all_tasks.base(name, seed)
        ids_BS = _ids()
        given = {"input_ids": ids_BS, "attention_mask": torch.ones_like(ids_BS), **_labels(name)}
        with torch.no_grad():
            right = plain(**_front(given, name, _prompts(model, tasks_B), plain))
            found = [model(**given, task_ids=tasks_B) for _ in range(1 + again)][-1]
        return [found.logits, found.loss], [right.logits, right.loss]

    def loaded() -> tuple[Any, Any]:
        model = _several("causal model", seed)
        right = logits_of(model, _ids(), task_ids=tasks_B)
        return logits_of(
            reloaded(model, all_tasks.base("causal model", seed)), _ids(), task_ids=tasks_B
        ), right

    def begins(how: str) -> tuple[Any, Any]:
        source = _several("causal model", seed)
        (encoder,) = source.prompt_encoder.values()
        tensors = {
            "prompt_embeddings": encoder.embedding.weight.detach().clone(),
            "prefix_task_cols": encoder.prefix_task_cols.detach().clone(),
            "prefix_task_rows": encoder.prefix_task_rows.detach().clone(),
        }
        path = str(Path(new_folder()) / "source.bin")
        torch.save(tensors, path)
        import peft

        config = peft.MultitaskPromptTuningConfig(
            task_type="CAUSAL_LM", num_virtual_tokens=VIRTUAL, num_tasks=1, num_ranks=2,
            prompt_tuning_init=how, prompt_tuning_init_state_dict_path=path, prompt_tuning_init_task=1,
        )  # fmt: skip
        model = peft.get_peft_model(all_tasks.base("causal model", seed), config)
        (found,) = model.prompt_encoder.values()
        right = {
            "AVERAGE_SOURCE_TASKS": lambda one: one.mean(0, keepdim=True),
            "EXACT_SOURCE_TASK": lambda one: one[1:2],
        }
        shared = [found.embedding.weight], [tensors["prompt_embeddings"]]
        if how not in right:
            return shared
        rest = "prefix_task_cols", "prefix_task_rows"
        return (
            [*shared[0], *(getattr(found, name) for name in rest)],
            [*shared[1], *(right[how](tensors[name]) for name in rest)],
        )

    uses: list[Use] = [
        (f"{name}{', a second pass' * again}", lambda name=name, again=again: outputs(name, again))  # type: ignore[misc]
        for name in ("causal model", "texts classified", "texts classified by a decoder")
        for again in (False, True)
    ]
    starts: list[Use] = [
        (f"a start of {how}", lambda how=how: begins(how))  # type: ignore[misc]
        for how in ("AVERAGE_SOURCE_TASKS", "EXACT_SOURCE_TASK", "ONLY_SOURCE_SHARED")
    ]
    return [*uses, *starts, ("saved and loaded", loaded)]


def generated_after(seed: int) -> Sequence[Use]:
    """Return generations of both types."""

    def context() -> tuple[Any, Any]:
        model, ids_BS = _context("default", seed), _ids()
        logits_BNV, _ = generated(model, ids_BS, torch.ones_like(ids_BS), 3)
        return logits_BNV, greedy(model, ids_BS, 3)

    def several() -> tuple[Any, Any]:
        model, ids_BS, tasks_B = _several("causal model", seed), _ids(), torch.tensor([2, 0, 1])
        logits_BNV, _ = generated(model, ids_BS, torch.ones_like(ids_BS), 3, task_ids=tasks_B)
        return logits_BNV, greedy(model, ids_BS, 3, task_ids=tasks_B)

    return [("tokens of a context", context), ("prompts of several tasks", several)]


def _labels(name: str) -> dict[str, Tensor]:
    return {"labels": _ids() if name == "causal model" else torch.tensor([2, 0, 1])}


def _front(inputs: dict[str, Tensor], name: str, prompts_BVD: Tensor, plain: Any) -> dict[str, Tensor]:
    made = dict(inputs)
    embeds_BSD = plain.get_input_embeddings()(made.pop("input_ids"))
    made["inputs_embeds"] = torch.cat([prompts_BVD, embeds_BSD], dim=1)
    made["attention_mask"] = torch.nn.functional.pad(made["attention_mask"], (VIRTUAL, 0), value=1)
    if name == "causal model":
        made["labels"] = torch.nn.functional.pad(made["labels"], (VIRTUAL, 0), value=-100)
    return made
