"""verl's request of a conversation with turns, `AsyncRolloutRequest`, as its rollouts with SGLang write it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from seatrial.relations.laws.utilities.turns import TEMPLATE
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.verl.estimators import UNUSED

SCHEMAS = "verl.workers.rollout.schemas"
LONG = 4000
CONTENT = "(message.content if message.content is string else message.content | map(attribute='text') | join)"
"""Of a message in the template: from 0.5 on a tool's answer is a list of pieces."""


class VerlRequests(KnowsFailures):
    """`AsyncRolloutRequest`: the tokens before each answer of the model, and those that train in the end."""

    thorough: ClassVar[bool] = True
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the header of an answer stays before a tool's answer (verl#2901)",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.5.1"),
        ).of("R31.turns/messages of a request, a tool first"),
    )

    def __init__(self) -> None:
        """Find the class.

        Raises:
            Gone: the release's class does not make the tokens of its messages by itself.
        """
        self._module = import_without(SCHEMAS, (*UNUSED, "openai"))
        if self._module.AsyncRolloutRequest.model_fields["response_ids"].is_required():
            raise Gone(f"AsyncRolloutRequest of verl {release('verl')} is made with its tokens")
        self.utilities: Mapping[str, Callable[..., Any]] = {"request of turns": self._request}

    def _request(
        self, prompt: Sequence[Mapping[str, str]], turns: Sequence[tuple[str, Any]], templated: bool
    ) -> dict[str, Any]:
        """Return texts of the prompt, of each question to the model, of all tokens and of those that train."""
        module, tokenizer = self._module, tiny_tokenizer(padding_side="left")
        tokenizer.chat_template = TEMPLATE.replace("message['content']", CONTENT)
        with contextlib.redirect_stdout(io.StringIO()):
            request = module.AsyncRolloutRequest(
                batch_data_id=0,
                request_id="made",
                state=module.AsyncRolloutRequestStateEnum.PENDING,
                messages=[dict(one) for one in prompt],
                reward_scores={},
                max_prompt_len=LONG,
                max_response_len=LONG,
                max_model_len=2 * LONG,
                use_inference_chat_template=templated,
                tokenization_sanity_check_mode="disable",
                processing_class=tokenizer,
            )
            asked = []
            for kind, content in turns:
                if kind == "assistant":
                    asked.append(tokenizer.decode(request.get_generation_prompt_ids(tokenizer)))
                    request.add_assistant_message(tokenizer, content)
                elif kind == "user":
                    request.add_user_message(tokenizer, content)
                else:
                    request.add_tool_response_messages(tokenizer, [self._answer(text) for text in content])
            request.finalize(tokenizer, {}, module.FinishReasonTypeEnum.STOP)
        ids, mask, prompt_ids, positions = (
            _flat(getattr(request, name)) for name in ("input_ids", "loss_mask", "prompt_ids", "position_ids")
        )
        return {
            "prompt": tokenizer.decode(prompt_ids),
            "asked": asked,
            "text": tokenizer.decode(ids),
            "trained": tokenizer.decode([token for token, on in zip(ids, mask, strict=True) if on]),
            "positions": positions == list(range(len(ids))),
        }

    def _answer(self, text: str) -> Any:
        made = getattr(self._module, "ToolResponse", None)
        return text if made is None else made(text=text)


def _flat(values: Any) -> list[int]:
    found: list[int] = torch.as_tensor(values).flatten().long().tolist()
    return found


ADAPTERS: dict[str, type[Any]] = {"requests-of-turns": VerlRequests}
