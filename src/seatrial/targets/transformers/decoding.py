"""Transformers' `generate` on a tiny Llama, by its options; see `contracts.decoding`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.decoding import Decoded, DecodingPlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, since
from seatrial.targets.common.target import find_name
from seatrial.targets.transformers.families import ADAPTERS as FAMILIES
from seatrial.targets.transformers.families import END, PAD, VOCABULARY


class Generates(KnowsFailures):
    """`generate` with prompts padded on the left."""

    known_failures = (
        KnownFailure(
            "an id more than the limit, where the last candidates from the prompt are all right",
            finding="Transformers: candidates from the prompt at the limit",
            releases=before("transformers", "5.14"),
        ).of("R26.decoding/greedy ids, candidates from the prompt"),
        KnownFailure(
            "chunks of a row that is padded have other places",
            finding="Transformers: small functions of older releases",
            releases=before("transformers", "5"),
        ).of("R26.decoding/greedy ids, a prompt in chunks"),
        KnownFailure(
            "rows whose beams end are padded with the end id where that of padding is 0",
            finding="Transformers: padding of beams that end",
            releases=since("transformers", "4.50"),
        ).of("R26.decoding/padding after beams that end"),
    )
    vocab_size, end_id, pad_id = VOCABULARY, END, PAD

    def __init__(self) -> None:
        """Find the model's classes."""
        self._family = FAMILIES["family-llama"]()

    @cached_property
    def _known_options(self) -> Mapping[str, Any]:
        config: Any = find_name("transformers", ["transformers:GenerationConfig"])
        known: Mapping[str, Any] = vars(config())
        return known

    def next_logits(self, ids: Sequence[int]) -> Tensor:
        with torch.no_grad():
            logits: Tensor = self._family.model()(
                input_ids=torch.tensor([list(ids)]), use_cache=False
            ).logits[0]
        return logits

    @cached_property
    def _another(self) -> Any:
        """A model of which some candidates are right."""
        model = copy.deepcopy(self._family.model())
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            head = model.get_output_embeddings().weight
            head.add_(0.3 * head.std() * torch.randn(head.shape, generator=generator))
        return model

    def _of_call(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options that are given to `generate` alone, as it takes them."""
        found: dict[str, Any] = {}
        if "assistant_model" in options:
            found["assistant_model"] = self._another
        if "negative_prompt_ids" in options:
            found["negative_prompt_ids"] = torch.tensor(options["negative_prompt_ids"])
        return found

    def decoded(self, plan: DecodingPlan) -> list[Decoded]:
        of_call = self._of_call(plan.options)
        missing = sorted(({*plan.options} | {*plan.defaults}) - {*self._known_options, *of_call})
        if missing:
            raise NotServed(f"generation of this release has no {', '.join(missing)}")
        model = self._family.model()
        if plan.defaults:
            model = copy.deepcopy(model)
            for name, value in plan.defaults.items():
                setattr(model.generation_config, name, value)
        P = max(map(len, plan.prompts))
        given = {"input_ids": torch.tensor([[PAD] * (P - len(one)) + list(one) for one in plan.prompts])}
        if plan.embedded:
            given = {"inputs_embeds": model.get_input_embeddings()(given.pop("input_ids")).detach()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            found = model.generate(
                **given,
                attention_mask=torch.tensor([[0] * (P - len(one)) + [1] * len(one) for one in plan.prompts]),
                max_new_tokens=plan.num_new,
                pad_token_id=PAD,
                eos_token_id=END if plan.ends else None,
                return_dict_in_generate=True,
                output_scores=True,
                output_logits=True,
                **{**plan.options, **of_call},
            )
        # From embeddings the new ids alone are returned.
        return list(self._completions(model, plan, found, 0 if plan.embedded else P))

    def _completions(self, model: Any, plan: DecodingPlan, found: Any, first: int) -> Iterator[Decoded]:
        several = len(found.sequences) // len(plan.prompts)
        beams = "num_beams" in plan.options
        transitions_BT = model.compute_transition_scores(
            found.sequences, found.scores, getattr(found, "beam_indices", None), normalize_logits=not beams
        )
        for number, (ids, transitions) in enumerate(zip(found.sequences, transitions_BT, strict=True)):
            yield Decoded(
                prompt_ids=plan.prompts[number // several],
                ids=tuple(ids[first:].tolist()),
                logits=[] if beams else [step[number] for step in found.logits],
                scores=[] if beams else [step[number] for step in found.scores],
                transitions=tuple(transitions.tolist()),
                total=float(found.sequences_scores[number]) if beams else None,
            )


ADAPTERS: dict[str, type[Any]] = {"generation": Generates}
