"""The laws of `generate`: a plain model obeys, and each planted fault of an option is seen by the law about it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from seatrial.relations.contracts.own_generation import Generated
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(RELATION,) = select(["R26.generate"])
V = 40


class PlainGenerator:
    """The logits of an id depend on the id before it; a fault is of one option."""

    prompts: Sequence[Sequence[int]] = ((5, 16, 7), (15, 33))
    end_id = 1
    generates_text = True

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.table_VV = 3 * torch.randn(V, V, generator=torch.Generator().manual_seed(0))
        self.table_VV[:, :3] = -20.0

    def generated(
        self,
        options: Mapping[str, Any],
        *,
        places: Sequence[int] = (0,),
        seed: int = 0,
        defaults: Mapping[str, Any] | None = None,
        as_config: bool = False,
    ) -> Generated:
        given = (
            {**options, **(defaults or {})}
            if self.fault == "own options win"
            else {**(defaults or {}), **options}
        )
        if self.fault == "own options are ignored" and defaults:
            given = dict(options)
        if self.fault == "a configuration is ignored" and as_config:
            given = {"max_new_tokens": options["max_new_tokens"]}
        if self.fault in given:
            del given[self.fault]
        torch.manual_seed(0 if self.fault == "one seed" else seed)
        rows = []
        for place in places:
            for _ in range(given.get("num_return_sequences", 1)):
                prompt = list(self.prompts[place])
                cached = given.get("num_beams", 1) > 1 and given.get("use_cache", True)
                if self.fault == "beams keep their place" and cached:
                    prompt[-1] = 8
                if self.fault == "a row sees the batch" and len(places) > 1:
                    prompt[-1] = 8
                rows.append(self._row(prompt, given))
        return Generated(rows, 1)

    def _row(self, prompt: list[int], given: Mapping[str, Any]) -> list[int]:
        ends = given.get("eos_token_id", self.end_id)
        ends = ends if isinstance(ends, list) else [ends]
        found: list[int] = []
        while len(found) < given["max_new_tokens"]:
            logits_V = self.table_VV[(prompt + found)[-1]].clone()
            banned = [*given.get("suppress_tokens", ()), *(one[0] for one in given.get("bad_words_ids", ()))]
            banned += [one[0][0] for one in given.get("sequence_bias", ())]
            banned += given.get("begin_suppress_tokens", ()) if not found else ()
            banned += prompt + found if "no_repeat_ngram_size" in given else ()
            banned += ends if len(found) < given.get("min_new_tokens", 0) else ()
            logits_V[banned] = -torch.inf
            found.append(self._drawn(logits_V, given))
            if found[-1] in ends:
                break
        return found

    def _drawn(self, logits_V: torch.Tensor, given: Mapping[str, Any]) -> int:
        probs_V = (logits_V / given.get("temperature", 1.0)).softmax(0)
        least = float(probs_V.max()) * given.get("min_p", 0.0)
        least = max(least, min(given.get("epsilon_cutoff", 0.0), float(probs_V.max())))
        order = probs_V.argsort(descending=True)
        before_V = probs_V[order].cumsum(0) - probs_V[order]
        least = max(least, float(probs_V[order[before_V < given.get("top_p", 2.0)]].min()))
        if given.get("top_k"):
            least = max(least, float(probs_V.sort().values[-given["top_k"]]))
        if not given.get("do_sample"):
            return int(probs_V.argmax())
        return int(torch.multinomial(probs_V * (probs_V >= least), 1))


FAULTS = {
    "beams keep their place": "beams without a cache",
    "top_k": "one candidate by top_k",
    "top_p": "one candidate by top_p",
    "min_p": "one candidate by min_p",
    "epsilon_cutoff": "one candidate by epsilon_cutoff",
    "temperature": "a temperature near zero",
    "do_sample": "temperature acts",
    "one seed": "seeds",
    "own options are ignored": "options of the model's own",
    "own options win": "the caller's options over the model's",
    "a configuration is ignored": "options in a GenerationConfig",
    "eos_token_id": "ends",
    "suppress_tokens": "suppress_tokens",
    "bad_words_ids": "bad_words_ids",
    "sequence_bias": "sequence_bias",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "min_new_tokens": "min_new_tokens",
    "a row sees the batch": "rows of a batch",
    "num_return_sequences": "several of a prompt",
}


def test_a_plain_model_obeys() -> None:
    """No law fails."""
    verdict = run_relation(RELATION, PlainGenerator(), seeds=(0,))
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_breaks_the_law_about_it(fault: str) -> None:
    """An option that is left out is seen by the law of its name."""
    verdict = run_relation(RELATION, PlainGenerator(fault), seeds=(0,), shrink_seconds=0)
    assert verdict.outcome is Outcome.FAIL
    assert FAULTS[fault] in verdict.details["laws_broken"]
