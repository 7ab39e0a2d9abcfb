"""Answers held-out prompts with an exported model, greedily, and writes their rewards as rows of a validation.

python -m seatrial.targets.command.answering --model DIR --prompts FILE --output FILE --step N --verifier NAME
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from seatrial.targets.common.rewards import SCORES

MAX_NEW_TOKENS = 8


def answer(model_dir: Path, prompts: list[str], *, chat: bool) -> list[str]:
    """Return the greedy completion of each prompt, by transformers' own model and `generate`.

    Args:
        model_dir: Hugging Face folder.
        prompts: texts.
        chat: whether each is put into the chat template, as a user's message.
    """
    import torch
    import transformers

    auto_model: Any = transformers.AutoModelForCausalLM
    auto_tokenizer: Any = transformers.AutoTokenizer
    model = auto_model.from_pretrained(model_dir).eval()
    tokenizer = auto_tokenizer.from_pretrained(model_dir, padding_side="left")
    if chat:
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            for prompt in prompts
        ]
    asked = tokenizer(prompts, return_tensors="pt", padding=True)
    with torch.no_grad():
        ids_BS = model.generate(
            input_ids=asked["input_ids"],
            attention_mask=asked["attention_mask"],
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=tokenizer.pad_token_id,
        )
    completions: list[str] = tokenizer.batch_decode(
        ids_BS[:, asked["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return completions


def main() -> None:
    """Answer, score and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--model", "--prompts", "--output"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--verifier", choices=sorted(SCORES), required=True)
    parser.add_argument("--chat", action="store_true")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.prompts.read_text(encoding="utf-8").splitlines()]
    completions = answer(given.model, [row["prompt"] for row in rows], chat=given.chat)
    score = SCORES[given.verifier]
    lines = [
        {
            "step": given.step,
            "index": place,
            "prompt_id": place,
            "reward": score(completion, row["answer"]),
        }
        for place, (row, completion) in enumerate(zip(rows, completions, strict=True))
    ]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
