"""verl's builders of tokens that continue from turn to turn, by family of models; see `contracts.utilities`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seatrial.relations.contracts.utilities import Continued
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_tokenizer

FAMILIES: Mapping[str, str] = {
    "default": "default",
    "qwen": "qwen",
    "minimax": "minimax",
    "glm": "glm47",
    "deepseek": "deepseek",
}
"""Names of the release by those of `cases.token_forms`."""


class VerlContinuedTokens:
    """`create_continuous_token_builder`: prompts, answers and messages that follow, merged as its agent loop does."""

    def __init__(self) -> None:
        """Find the functions."""
        wiring = "verl.utils.tokenizer.continuous_token_wiring"
        self._create = find_name("verl", [f"{wiring}:create_continuous_token_builder"])
        self._families = find_name("verl", [f"{wiring}:list_continuous_token_builder_families"])
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "continued forms": lambda: [form for form, name in FAMILIES.items() if name in self._families()],
            "continued tokens": self._continued,
        }

    def _continued(
        self,
        form: str,
        special: Sequence[str],
        template: str,
        messages: Sequence[Mapping[str, str]],
        steps: Sequence[tuple[str, str, Sequence[Mapping[str, str]]]],
    ) -> list[Continued]:
        """Return what the rollout has before each answer."""
        tokenizer = tiny_tokenizer()
        tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
        tokenizer.chat_template = template
        builder = self._create(tokenizer, model_family=FAMILIES[form])
        history = [dict(message) for message in messages]
        ids = list(builder.build_initial_tokens(history))
        mask: list[int] = []
        logprobs: list[float] = []
        found = [self._read(tokenizer, ids, mask, logprobs)]
        for number, (answer, text, following) in enumerate(steps, 1):
            own = tokenizer(answer, add_special_tokens=False)["input_ids"]
            merged = builder.merge_assistant_tokens(ids, own)
            given = [-number - 0.001 * (place + 1) for place in range(len(own))]
            mask, logprobs = builder.align_response_metadata(merged, mask, logprobs, assistant_logprobs=given)
            history.append({"role": "assistant", "content": text})
            updated = [*history, *[dict(message) for message in following]]
            merge = getattr(builder, "merge_context_tokens", None) or builder.merge_non_assistant_tokens
            merged = merge(history, updated, merged.token_ids)
            mask, logprobs = builder.align_response_metadata(merged, mask, logprobs)
            ids, history = list(merged.token_ids), updated
            found.append(self._read(tokenizer, ids, mask, logprobs))
        return found

    @staticmethod
    def _read(
        tokenizer: Any, ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float]
    ) -> Continued:
        response = ids[len(ids) - len(mask) :]
        answered = [token for token, on in zip(response, mask, strict=True) if on]
        return Continued(tokenizer.decode(ids), tokenizer.decode(answered), list(mask), list(logprobs))


ADAPTERS: dict[str, type[Any]] = {"continued-tokens": VerlContinuedTokens}
