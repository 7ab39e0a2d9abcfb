"""Text of a small training stack, commit by commit: REINFORCE over a table of logits, in plain Python.

The layout is that of a real one: a loop, token log-probabilities, a reward, a recipe, a logger that writes
`metrics.json`. One commit plants `log-probability shift by one` from the catalogue: the gradient of token t goes
to the logits of position t - 1. Nothing crashes and the loss looks alike; only the reward stops rising.
"""

from __future__ import annotations

LOGPROBS = '''\
"""Log-probabilities of sampled tokens and their gradient."""
import math


def softmax(row):
    top = max(row)
    weights = [math.exp(value - top) for value in row]
    total = sum(weights)
    return [weight / total for weight in weights]


def logprob_gradient(logits, position, token):
    """Return the row that the token's log-probability depends on, and its gradient."""
    row = position{shift}
    probs = softmax(logits[row])
    return row, [(1.0 if index == token else 0.0) - prob for index, prob in enumerate(probs)]
'''

TRAIN = '''\
"""Train a table policy to spell its position; writes metrics.json."""
import json
import math
import os
import random
import sys

from logprobs import logprob_gradient, softmax

LENGTH, VOCABULARY, BATCH, STEPS, RATE = 6, 5, 16, 30, 0.6


def main(folder, seed):
    rng = random.Random(seed)
    logits = [[0.0] * VOCABULARY for _ in range(LENGTH)]
    rewards, losses = {{}}, {{}}
    for step in range(1, STEPS + 1):
        batch = [[rng.choices(range(VOCABULARY), softmax(row))[0] for row in logits] for _ in range(BATCH)]
        scores = [[float(token == position % VOCABULARY) for position, token in enumerate(one)] for one in batch]
        means = [sum(column) / BATCH for column in zip(*scores)]
        loss = 0.0
        for tokens, score in zip(batch, scores):
            for position, token in enumerate(tokens):
                advantage = score[position] - means[position]
                row, gradient = logprob_gradient(logits, position, token)
                loss -= advantage * math.log(softmax(logits[row])[token]) / BATCH
                for index, value in enumerate(gradient):
                    logits[row][index] += RATE * advantage * value / math.sqrt(BATCH)
        rewards[step] = sum(means) / LENGTH
        losses[step] = loss
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "metrics.json"), "w") as stream:
        json.dump({{"train/reward": rewards, "train/loss": losses}}, stream)


if __name__ == "__main__":
    main(sys.argv[1], {seed})
{comment}'''

FIXED_SEED, RUN_SEED = "1234", 'os.environ["SEATRIAL_RUN_NUMBER"]'
METRIC = 'mean(data["train/reward"], -6, -1)'


def files_of(number: int, culprit: int, seed: str) -> dict[str, str]:
    """Return the files of commit `number`; from `culprit` on the log-probabilities are shifted."""
    files: dict[str, str] = {
        "logprobs.py": LOGPROBS.format(shift=" - 1" if number >= culprit else ""),
        "train.py": TRAIN.format(seed=seed, comment=f"# revision {number // 3}\n" if number % 3 else ""),
        "recipes/grpo.yaml": f"grpo:\n  max_num_steps: 30\n  note: {number}\n",
    }
    if number % 4 == 0:
        files["docs/guide.md"] = f"# Guide, edition {number}\n"
    return files
