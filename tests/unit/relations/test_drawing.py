"""R26.drawn: a sampler that follows its settings holds, and each that does not breaks its law."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.drawing import NEUTRAL, Draw, DrawingCase, Drawn
from seatrial.relations.engine import run_relation
from seatrial.relations.laws.generation.drawing import TAILS
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(DRAWN,) = select(["R26.drawn"])
V, END, PAD = 24, 1, 0
PROMPTS = ((5, 6), (7, 8, 9, 10))


class Sampler:
    """Samples from logits of the last id, with a fault."""

    drawing_defaults: Mapping[str, float] = {
        name: 0.9 if name == "temperature" else value for name, value in NEUTRAL.items() if name != "top_p"
    }
    drawn_prompts = frozenset(PROMPTS)

    def __init__(self, fault: str = "") -> None:
        """Keep what is wrong."""
        self.fault = fault
        if fault == "the model's own where there is no option":
            self.drawing_defaults = {"temperature": 0.9}
        self.table = 4 * torch.randn(V, V, generator=torch.Generator().manual_seed(0))

    def _settings(self, case: DrawingCase) -> dict[str, float]:
        given = {**NEUTRAL, **self.drawing_defaults, **case.options}
        if self.fault == "the model's own where there is no option":
            given |= {name: value for name, value in case.own.items() if name in TAILS}
        if self.fault == "the model's own where the default is given":
            own = {name: value for name, value in case.own.items() if given.get(name) == NEUTRAL.get(name)}
            given |= {name: value for name, value in own.items() if name in NEUTRAL}
        if self.fault == "top_k is not passed on":
            given["top_k"] = 0
        if self.fault == "another default":
            given["top_k"] = case.options.get("top_k", 5)
        if self.fault == "temperature twice":
            given["temperature"] **= 2
        return given

    def _scores(self, logits_V: Tensor, ids: tuple[int, ...], settings: Mapping[str, float]) -> Tensor:
        """Return log-probabilities, with sets of tokens in place of thresholds."""
        scores = logits_V.clone()
        for token in set(ids):
            power = -1 if scores[token] > 0 else 1
            scores[token] *= settings["repetition_penalty"] ** power
        scores = scores / settings["temperature"]
        order = scores.argsort(descending=True).tolist()
        kept = order[: int(settings["top_k"]) or V]
        probs = scores[kept].softmax(0)
        count = int((probs.cumsum(0) - probs < settings["top_p"]).sum())
        kept, probs = kept[:count], probs[:count]
        kept = [
            token
            for token, one in zip(kept, probs.tolist(), strict=True)
            if one >= settings["min_p"] * probs[0]
        ]
        made = torch.full((V,), -torch.inf)
        made[kept] = scores[kept]
        return made

    def draw(self, case: DrawingCase) -> Drawn:
        """Return two completions of each prompt."""
        settings, generator = self._settings(case), torch.Generator().manual_seed(case.seed)
        limit = (
            int(case.own.get("max_new_tokens", case.max_new_tokens))
            if self.fault == "own limit"
            else case.max_new_tokens
        )
        draws, prompts, completions, ended = [], [], [], []
        for prompt in (one for one in PROMPTS for _ in range(2)):
            fill = 4 - len(prompt)
            ids, mask = (PAD,) * fill + prompt, (0,) * fill + (1,) * len(prompt)
            if self.fault == "padded after the prompt":
                ids, mask = prompt + (PAD,) * fill, (1,) * len(prompt) + (0,) * fill
            prompts.append((ids, mask if self.fault != "a prompt cut" else (0, 0, 0, 1)))
            if self.fault == "one completion for all":
                generator.manual_seed(case.seed)
            said: list[int] = []
            while len(said) < limit and END not in said:
                logits = self.table[(*prompt, *said)[-1]]
                scores = self._scores(logits, (*ids, *said), settings)
                draws.append(Draw(ids=(*ids, *said), logits_V=logits, scores_V=scores))
                said.append(int(torch.multinomial(scores.softmax(0), 1, generator=generator)))
            completions.append(tuple(said))
            ended.append(said[-1] == END)
        return Drawn(
            draws=tuple(draws), prompts=tuple(prompts), completions=tuple(completions), ended=tuple(ended)
        )


def test_a_right_sampler_holds() -> None:
    """On three seeds, every law."""
    verdict = run_relation(DRAWN, Sampler(), seeds=[0, 1, 2])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in DRAWN.laws}


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        (
            "the model's own where the default is given",
            [
                "at the defaults, a model with settings of its own",
                "with a temperature alone, a model with settings of its own",
            ],
        ),
        (
            "top_k is not passed on",
            ["with all options", "with all options, a model with settings of its own"],
        ),
        (
            "the model's own where there is no option",
            ["at the defaults, a model that cuts the tails of its distributions"],
        ),
        ("another default", ["at the defaults"]),
        ("temperature twice", ["with all options", "at the defaults"]),
        ("padded after the prompt", ["prompts"]),
        ("a prompt cut", ["prompts"]),
        ("own limit", ["lengths"]),
        ("one completion for all", ["completions of a prompt"]),
    ],
)
def test_a_wrong_sampler_breaks_its_laws(fault: str, laws: list[str]) -> None:
    """Those of what is wrong."""
    verdict = run_relation(DRAWN, Sampler(fault), seeds=[0, 1, 2], shrink_seconds=0)
    assert verdict.outcome is Outcome.FAIL
    assert set(laws) <= set(verdict.details["laws_broken"])
