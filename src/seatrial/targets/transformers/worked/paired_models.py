"""Models, rows and losses of runs of Transformers' trainer that are computed again in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, NUM_ROWS = 16, 8, 7
LENGTHS = (3, 6, 2, 5, 4, 7, 2, 5, 3)
SMOOTHING = 0.2


class Case(NamedTuple):
    """A run: its name, what it is made of, and its options."""

    name: str
    own: Mapping[str, Any]
    options: Mapping[str, Any]


@dataclass
class Seen:
    """What was seen of a run."""

    batches: list[dict[str, Tensor]] = field(default_factory=list)
    """Micro-batches, in order."""
    noises: list[Tensor] = field(default_factory=list)
    """What is added to embeddings."""
    evaluated: list[dict[str, Tensor]] = field(default_factory=list)
    """Batches of evaluations, in order."""
    counts: list[int] = field(default_factory=list)
    """Numbers of labels that a loss is given."""
    events: list[str] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)
    """Micro-batches at the end of each call of `train`."""
    handles: list[Any] = field(default_factory=list)


def text_rows(number: int = NUM_ROWS, first: int = 0) -> list[dict[str, Any]]:
    """Return rows of ids that begin with the number of the row; the first label, and some others, do not count."""
    rows = []
    for row in range(first, first + number):
        length = LENGTHS[row % len(LENGTHS)]
        ids = [3 + row % 12] + [
            1 + (row * 5 + place * place + place) % (VOCABULARY - 1) for place in range(1, length)
        ]
        labels = [-100] + [-100 if length > 3 and place == 2 else (3 * one + row) % VOCABULARY
                           for place, one in enumerate(ids[1:], 1)]  # fmt: skip
        rows.append({"input_ids": ids, "labels": labels, "length": length})
    return rows


def padded(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return a batch, padded at the right."""
    width = max(len(row["input_ids"]) for row in rows)

    def column(name: str, fill: int) -> Tensor:
        return torch.tensor([list(row[name]) + [fill] * (width - len(row[name])) for row in rows])

    ones = [{"mask": [1] * len(row["input_ids"])} for row in rows]
    mask = torch.tensor([one["mask"] + [0] * (width - len(one["mask"])) for one in ones])
    batch = {"input_ids": column("input_ids", 0), "attention_mask": mask}
    return {**batch, "labels": column("labels", -100)} if "labels" in rows[0] else batch


class Words(nn.Module):
    """Scores of each token by it and the one before it; its loss is a mean of the labels that count."""

    main_input_name = "input_ids"

    def __init__(self, tied: bool = False) -> None:
        """Make the layers; the head may share the weight of the embeddings."""
        super().__init__()
        self.config = SimpleNamespace(problem_type=None)
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.scale = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        if tied:
            self.head.weight = self.words.weight

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings."""
        return self.words

    def scores(self, input_ids: Tensor) -> Tensor:
        """Return logits of each token."""
        words_BTD = self.words(input_ids)
        before_BTD = torch.cat([torch.zeros_like(words_BTD[:, :1]), words_BTD[:, :-1]], dim=1)
        found: Tensor = self.head(self.scale(words_BTD + 0.5 * before_BTD))
        return found

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return logits, and the mean loss of labels."""
        logits_BTV = self.scores(input_ids)
        if labels is None:
            return {"logits": logits_BTV}
        return {"loss": summed(logits_BTV, labels) / labels.ne(-100).sum(), "logits": logits_BTV}


class Counted(Words):
    """Divides the sum of the losses by the number of labels that it is given."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """Return logits, and the loss."""
        logits_BTV = self.scores(input_ids)
        if labels is None:
            return {"logits": logits_BTV}
        number = kwargs.get("num_items_in_batch")
        number = labels.ne(-100).sum() if number is None else number
        return {"loss": summed(logits_BTV, labels) / number, "logits": logits_BTV}


def summed(logits_BTV: Tensor, labels_BT: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the sum of the losses of labels that count, each smoothed by the mean of all tokens."""
    logprobs_BTV = logits_BTV.log_softmax(-1)
    right_BT = logprobs_BTV.gather(-1, labels_BT.clamp(min=0)[..., None])[..., 0]
    losses_BT = -(1 - smoothing) * right_BT - smoothing * logprobs_BTV.mean(-1)
    return (losses_BT * labels_BT.ne(-100)).sum()


def make_model(kind: str, weights: str = "all", seed: int = 0) -> Any:
    """Return a model: "aligned", "counted", "causal" or "adapted"; its weights "all", "frozen" in part or "tied"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind in ("aligned", "counted"):
            model: Any = (Words if kind == "aligned" else Counted)(weights == "tied")
            if weights == "frozen":
                model.scale.weight.requires_grad_(False)
                model.head.bias.requires_grad_(False)
            return model
        import transformers

        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=weights == "tied", pad_token_id=0,
            bos_token_id=1, eos_token_id=2, initializer_range=0.3,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        if kind == "adapted":
            from peft import LoraConfig, get_peft_model

            wanted: Any = LoraConfig(
                r=2, lora_alpha=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False
            )
            return get_peft_model(model, wanted)
        if weights == "frozen":
            model.lm_head.weight.requires_grad_(False)
            model.model.layers[0].input_layernorm.weight.requires_grad_(False)
        return model


def shifts(kind: str) -> bool:
    """Return whether labels are those of the next token."""
    return kind in ("causal", "adapted")


def takes_counts(kind: str) -> bool:
    """Return whether a model's loss is divided by the number of labels that it is given."""
    return kind != "aligned"


def losses_of(
    kind: str, loss: str, logits_BTV: Tensor, labels_BT: Tensor, number: int | None = None
) -> Tensor:
    """Return the loss of a micro-batch: a mean, or a sum divided by a number of labels."""
    if shifts(kind):
        logits_BTV, labels_BT = logits_BTV[:, :-1], labels_BT[:, 1:]
    number = int(labels_BT.ne(-100).sum()) if number is None else number
    found = summed(logits_BTV, labels_BT, SMOOTHING if loss == "smoothed" else 0.0) / number
    return found * 0.5 if loss in ("function", "overridden") else found


def count_of(kind: str, labels_BT: Tensor) -> int:
    """Return how many labels count."""
    return int((labels_BT[:, 1:] if shifts(kind) else labels_BT).ne(-100).sum())


class Again:
    """A model in float64 and the weights that an optimizer moves."""

    def __init__(self, model: Any) -> None:
        """Copy a model."""
        self.model = copy.deepcopy(model).double().train()
        self.noise: Tensor | None = None
        embeddings = (
            self.model.get_input_embeddings()
            if not hasattr(self.model, "base_model") or not hasattr(self.model, "peft_config")
            else self.model.base_model.model.get_input_embeddings()
        )
        embeddings.register_forward_hook(self._add_noise)
        norms = {id(value) for module in self.model.modules() if "Norm" in type(module).__name__
                 for value in module.parameters(recurse=False)}  # fmt: skip
        named = [(name, value) for name, value in self.model.named_parameters() if value.requires_grad]
        self.weights = [value for _, value in named]
        self.decaying = [
            value for name, value in named if id(value) not in norms and not name.endswith("bias")
        ]
        self.others = [value for name, value in named if id(value) in norms or name.endswith("bias")]

    def _add_noise(self, module: Any, given: Any, found: Tensor) -> Tensor:
        return found if self.noise is None else found + self.noise.double()

    def logits(self, batch: Mapping[str, Tensor], noise: Tensor | None = None) -> Tensor:
        """Return the scores of a batch."""
        self.noise = noise
        found = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        self.noise = None
        logits: Tensor = found["logits"]
        return logits

    def norm(self) -> float:
        """Return the norm of all gradients."""
        return math.sqrt(sum(float((one.grad**2).sum()) for one in self.weights if one.grad is not None))


class FactoredMoments(torch.optim.Optimizer):
    """Adafactor with a given rate and no first moment (Shazeer and Stern 2018, algorithms 4 to 6)."""

    def __init__(self, groups: Any, lr: float) -> None:
        """Take groups with a `weight_decay` of their own."""
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update each weight."""
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                state["step"] = state.get("step", 0) + 1
                beta = 1 - state["step"] ** -0.8
                square = value.grad**2 + 1e-30
                if value.dim() > 1:
                    row = beta * state.get("row", 0.0) + (1 - beta) * square.mean(-1)
                    column = beta * state.get("column", 0.0) + (1 - beta) * square.mean(-2)
                    state["row"], state["column"] = row, column
                    second = row[..., None] * column[..., None, :] / row.mean(-1)[..., None, None]
                else:
                    second = state["all"] = beta * state.get("all", 0.0) + (1 - beta) * square
                update = value.grad / second.sqrt()
                update /= max(1.0, float((update**2).mean().sqrt()))
                value -= group["lr"] * group["weight_decay"] * value
                value -= group["lr"] * update


def make_optimizer(again: Again, name: str, options: Mapping[str, Any], rate: float) -> torch.optim.Optimizer:
    """Return a named optimizer of a model in float64; weights of norms and biases do not decay."""
    decay = options.get("weight_decay", 0.0)
    groups = [
        {"params": again.decaying, "weight_decay": decay},
        {"params": again.others, "weight_decay": 0.0},
    ]
    groups = [one for one in groups if one["params"]]
    betas = (options.get("adam_beta1", 0.9), options.get("adam_beta2", 0.999))
    text = dict(one.split("=") for one in options.get("optim_args", "").replace(" ", "").split(",") if one)
    own = {
        key: value == "True" if value in ("True", "False") else float(value) for key, value in text.items()
    }
    if name.startswith("adamw"):
        return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=options.get("adam_epsilon", 1e-8))
    if name == "adafactor":
        return FactoredMoments(groups, rate)
    kinds: Mapping[str, Any] = {
        "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop
    }  # fmt: skip
    made: torch.optim.Optimizer = kinds[name](groups, lr=rate, **own)
    return made
