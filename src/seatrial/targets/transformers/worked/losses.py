"""Worked examples of Transformers' losses: labels by place, by row and of spans, frames and boxes, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.common.worked_rows import Row, unlike

IGNORED = -100


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return numbers of a fixed generator, rounded so that no release of torch gives others."""
    count = math.prod(shape)
    found = [math.sin(12.9898 * (place + 1 + 31 * seed)) * 43.7585 for place in range(count)]
    return torch.tensor([scale * (2 * (one - math.floor(one)) - 1) for one in found]).view(*shape)


def nll(logits: Tensor, labels: Sequence[int], ignored: int, count: Any = None) -> float:
    """Return the negative log-likelihood of labels: by a count, or by the labels that are not ignored."""
    rows = torch.log_softmax(logits.double().reshape(len(labels), -1), dim=-1)
    kept = [(row, label) for row, label in zip(rows, labels, strict=True) if label != ignored]
    return sum(-float(row[label]) for row, label in kept) / float(len(kept) if count is None else count)


TOKEN_LABELS = ((3, 5, IGNORED, 1, 0), (IGNORED, IGNORED, 2, 4, 0))


def _by_token(loss: Any, shifts: bool) -> list[str]:
    """Return where a loss of tokens is another: by counts of each type, ignored labels, bfloat16, own shifts."""
    labels, wrong = torch.tensor(TOKEN_LABELS), []
    for kind, ignored, count in itertools.product(
        (torch.float32, torch.bfloat16), (IGNORED, 0), (None, 3, torch.tensor(11), torch.tensor(5.0))
    ):
        logits = numbers(2, 5, 6, scale=3.0).to(kind)
        given = labels.masked_fill(labels == IGNORED, ignored)
        own = [[*row[1:], ignored] if shifts else row for row in given.tolist()]
        more = {} if count is None else {"num_items_in_batch": count}
        named = {} if ignored == IGNORED else {"ignore_index": ignored}
        due = nll(logits, [one for row in own for one in row], ignored, count)
        what = f"{kind}, {ignored} ignored, count {count}"
        wrong += unlike(
            [float(loss(logits=logits, labels=given, vocab_size=6, **more, **named))], [due], what, 1e-5
        )
        if shifts:
            found = loss(
                logits=logits, labels=None, vocab_size=6, shift_labels=torch.tensor(own), **more, **named
            )
            wrong += unlike([float(found)], [due], f"{what}, shifted before", 1e-5)
    return wrong


def _token_classes(loss: Any) -> list[str]:
    """Return where a loss of classes of tokens is another."""
    wrong = []
    for kind, count in itertools.product((torch.float32, torch.bfloat16), (None, 9, torch.tensor(4))):
        logits, labels = numbers(2, 5, 6, scale=3.0).to(kind), torch.tensor(TOKEN_LABELS)
        more = {} if count is None else {"num_items_in_batch": count}
        found = loss(logits, labels, SimpleNamespace(num_labels=6), **more)
        due = nll(logits, labels.flatten().tolist(), IGNORED, count)
        wrong += unlike([float(found)], [due], f"{kind}, count {count}", 1e-5)
    return wrong


def _row_classes(loss: Any) -> list[str]:
    """Return where a loss of rows is another, or the kind of problem that follows from labels."""
    wrong = []

    def check(config: Any, logits: Tensor, labels: Tensor, due: float, kind: str, **more: Any) -> None:
        found = float(loss(labels, logits, config, **more))
        what = f"{kind}, {tuple(logits.shape)} logits, {labels.dtype}"
        wrong.extend(unlike([found], [due], what, 1e-5))
        wrong.extend([] if config.problem_type == kind else [f"{what}: taken for {config.problem_type}"])

    for size, said in itertools.product((1, 4), (True, False)):
        single = numbers(size, 3, scale=2.0)
        classes = torch.tensor([2, 0, 1, 2][:size])
        kind = "single_label_classification"
        for count in (None, 7):
            more = {} if count is None else {"num_items_in_batch": count}
            config = SimpleNamespace(num_labels=3, problem_type=kind if said else None)
            check(config, single, classes, nll(single, classes.tolist(), IGNORED, count), kind, **more)
        flags = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])[:size]
        logs = -(
            flags.double() * nn.functional.logsigmoid(single.double())
            + (1 - flags.double()) * nn.functional.logsigmoid(-single.double())
        )
        kind = "multi_label_classification"
        config = SimpleNamespace(num_labels=3, problem_type=kind if said else None)
        check(config, single, flags, float(logs.mean()), kind)
        for width in (1, 3) if said else (1,):
            given, right = numbers(size, width, seed=1), numbers(size, width, seed=2)
            config = SimpleNamespace(num_labels=width, problem_type="regression" if said else None)
            due = float(((given.double() - right.double()) ** 2).mean())
            check(config, given, right, due, "regression")
            if width == 1:
                config.problem_type = None
                check(config, given, right[:, 0], due, "regression")
    return wrong


def _spans(loss: Any) -> list[str]:
    """Return where a loss of spans is another: of two columns, and of places behind the end, which are left out."""
    first, last = numbers(3, 5, scale=2.0), numbers(3, 5, seed=3, scale=2.0)
    wrong = []
    for starts, ends in (((0, 4, 2), (1, 4, 3)), ((5, 0, 1), (9, 2, 4)), ((0, 1, 7), (3, 1, 8))):
        for column, count in itertools.product((False, True), (None, 4)):
            given = [torch.tensor(one)[:, None] if column else torch.tensor(one) for one in (starts, ends)]
            more = {} if count is None else {"num_items_in_batch": count}
            due = sum(
                nll(logits, [min(one, 5) for one in places], 5, count) / 2
                for logits, places in ((first, starts), (last, ends))
            )
            found = float(loss(first, last, *given, **more))
            wrong += unlike([found], [due], f"{starts} to {ends}, {column=}, count {count}", 1e-5)
    return wrong + [
        "a loss without ends" for _ in [0] if loss(first, last, torch.tensor([0, 0, 0]), None) is not None
    ]


def _segments(loss: Any) -> list[str]:
    """Return where a loss of pixels is another: logits of half the size, an ignored class, auxiliary logits."""
    logits, more = numbers(2, 3, 2, 2), numbers(2, 3, 4, 4, seed=4)
    labels = torch.tensor([[[place % 3 for place in range(row, row + 4)] for row in range(4)]] * 2)
    wrong = []
    for ignored, auxiliary, count in itertools.product((255, 2), (None, 0.4, 0.75), (None, 13)):
        masked = labels.clone()
        masked[0, 1, :3] = ignored
        named: dict[str, Any] = {} if ignored == 255 else {"ignore_index": ignored}
        named |= {} if count is None else {"num_items_in_batch": count}
        named |= {} if auxiliary is None else {"auxiliary_logits": more}
        named |= {"auxiliary_loss_weight": auxiliary} if auxiliary == 0.75 else {}
        due = nll(_doubled(logits), masked.flatten().tolist(), ignored, count)
        if auxiliary is not None:
            due += auxiliary * nll(more.movedim(1, -1), masked.flatten().tolist(), ignored, count)
        found = float(loss(logits, masked, **named))
        wrong += unlike([found], [due], f"{ignored} ignored, {auxiliary=}, count {count}", 1e-5)
    return wrong


def _doubled(logits: Tensor) -> Tensor:
    """Return logits at twice the height and width, by weights of a quarter and three quarters, classes last."""
    weights = torch.tensor([[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]], dtype=torch.float64)
    return torch.einsum("yh,xw,bchw->byxc", weights, weights, logits.double())


def _frames(loss: Any) -> list[str]:
    """Return where a loss of frames is not that of the sum over all ways to lay labels into them."""
    logits, wrong = numbers(2, 4, 3, scale=2.0), []
    labels, lengths = torch.tensor([[1, 2], [2, IGNORED]]), torch.tensor([4, 3])
    losses: list[float] = []
    for row, (size, laid) in enumerate(((4, [1, 2]), (3, [2]))):
        logs = torch.log_softmax(logits[row].double(), dim=-1)
        ways = [
            sum(float(logs[frame, one]) for frame, one in enumerate(way))
            for way in itertools.product(range(3), repeat=size)
            if [one for one, _ in itertools.groupby(way) if one != 0] == laid
        ]
        losses.append(-math.log(sum(map(math.exp, ways))))
    mean = (losses[0] / 2 + losses[1]) / 2
    table = {"mean": [mean], "sum": [sum(losses)], "none": losses, None: [mean]}
    for kind, filled in itertools.product((torch.float32, torch.float16), (IGNORED, 0, -1)):
        given = labels.masked_fill(labels == IGNORED, filled)
        for reduction, due in table.items():
            more: dict[str, Any] = {} if reduction is None else {"reduction": reduction}
            more |= {"ignore_index": -1} if filled == -1 else {}
            found = loss(logits.to(kind), given, lengths, 0, **more)
            what = f"{kind}, {filled=}, {reduction=}"
            wrong += unlike(found.flatten().tolist(), due, what, 5e-3 if kind == torch.float16 else 1e-5)
    impossible = torch.tensor([[1, 1]])
    for zero in (True, False):
        found = loss(logits[:1, :2], impossible, torch.tensor([2]), 0, zero_infinity=zero)
        wrong += (
            []
            if float(found) == (0.0 if zero else math.inf)
            else [f"labels that do not fit, {zero=}: {found}"]
        )
    return wrong


def _durations(loss: Any) -> list[str]:
    """Return where a loss of tokens with durations is not that of the sum over all paths."""
    tokens, spans = numbers(2, 3, 3, 3, scale=2.0), numbers(2, 3, 3, 3, seed=5, scale=2.0)
    labels, widths, counts = torch.tensor([[0, 1], [1, 0]]), (3, 2), (2, 1)
    durations, wrong = [0, 1, 2], []

    def paths(row: int, frame: int, done: int, sigma: float) -> float:
        """Return the probability of all that is left, from a frame and a number of labels on."""
        if frame == widths[row]:
            return float(done == counts[row])
        logs = torch.log_softmax(tokens[row, frame, done].double(), dim=-1) - sigma
        long = torch.log_softmax(spans[row, frame, done].double(), dim=-1)
        found = 0.0
        for place, span in enumerate(durations):
            if frame + span > widths[row]:
                continue
            if span:
                found += math.exp(logs[2] + long[place]) * paths(row, frame + span, done, sigma)
            if done < counts[row] and (frame + span < widths[row]):
                own = math.exp(logs[int(labels[row, done])] + long[place])
                found += own * paths(row, frame + span, done + 1, sigma)
        return found

    for sigma in (0.0, 0.05):
        losses = [-math.log(paths(row, 0, 0, sigma)) for row in range(2)]
        table = {
            "mean": [(losses[0] / 2 + losses[1]) / 2], "mean_volume": [sum(losses) / 3],
                "mean_batch": [sum(losses) / 2],
            "sum": [sum(losses)], "none": losses,
        }  # fmt: skip
        for reduction, due in table.items():
            found = loss(
                tokens, spans, labels, torch.tensor(widths), torch.tensor(counts), 2, durations, sigma, reduction
            )  # fmt: skip
            wrong += unlike(found.flatten().tolist(), due, f"{sigma=}, {reduction}", 1e-4)
    return wrong


def _mapped(mapping: Any) -> list[str]:
    """Return which heads of models do not have the loss of their task."""
    due = {
        "ForCausalLM": "ForCausalLMLoss", "ForMaskedLM": "ForMaskedLMLoss",
            "ForQuestionAnswering": "ForQuestionAnsweringLoss",
        "ForSequenceClassification": "ForSequenceClassificationLoss",
            "ForImageClassification": "ForSequenceClassificationLoss",
        "ForVideoClassification": "ForSequenceClassificationLoss",
            "ForAudioClassification": "ForSequenceClassificationLoss",
        "ForTokenClassification": "ForTokenClassification", "ForConditionalGeneration": "ForCausalLMLoss",
        "ForSegmentation": "ForSegmentationLoss", "ForObjectDetection": "ForObjectDetectionLoss",
    }  # fmt: skip
    return [
        f"{name}: {mapping[name].__name__}" for name, loss in due.items() if mapping[name].__name__ != loss
    ]


def _own(model: Any) -> list[str]:
    """Return where a model's class does not choose its loss, or a loss that is given is not used."""
    import transformers

    small: dict[str, Any] = {
        "vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    }  # fmt: skip
    made: Any = transformers
    config = made.BertConfig(**small, num_labels=3)
    wrong = []
    for head, due in (
        ("BertForMaskedLM", "ForMaskedLMLoss"), ("BertForTokenClassification", "ForTokenClassification"),
        ("BertForQuestionAnswering", "ForQuestionAnsweringLoss"), ("BertLMHeadModel", "ForCausalLMLoss"),
        ("BertForSequenceClassification", "ForSequenceClassificationLoss"),
    ):  # fmt: skip
        found = getattr(transformers, head)(config).loss_function
        wrong += [] if found.__name__ == due else [f"{head}: {found.__name__}"]
    given = made.Qwen2ForCausalLM(made.Qwen2Config(**small, num_key_value_heads=2)).eval()
    ids = torch.tensor([[1, 2, 3, 4]])
    seen: list[dict[str, Any]] = []

    def own(**more: Any) -> Tensor:
        seen.append(more)
        return torch.tensor(7.5)

    given.loss_function = own
    found = given(input_ids=ids, labels=ids, num_items_in_batch=5)
    wrong += unlike([float(found.loss)], [7.5], "an own loss")
    if seen[0].get("num_items_in_batch") != 5 or seen[0]["labels"].tolist() != ids.tolist():
        wrong.append(f"an own loss is given {sorted(seen[0])}")
    return wrong


LOSSES = "transformers.loss.loss_utils"
# Sources: the documentation of each loss and of the heads, and the papers on CTC (Graves et al. 2006) and TDT.
LOSS_ROWS: Sequence[Row] = (
    Row("formulas", f"{LOSSES}:ForCausalLMLoss", "of next tokens", partial(_by_token, shifts=True), [], since="4.51"),
    Row("formulas", f"{LOSSES}:ForMaskedLMLoss", "of masked tokens", partial(_by_token, shifts=False), [],
        since="4.51"),
    Row("formulas", f"{LOSSES}:ForTokenClassification", "of classes of tokens", _token_classes, [], since="4.51"),
    Row("formulas", f"{LOSSES}:ForSequenceClassificationLoss", "of classes of rows", _row_classes, [], since="4.51"),
    Row("formulas", f"{LOSSES}:ForQuestionAnsweringLoss", "of spans", _spans, [], since="4.51"),
    Row("formulas", f"{LOSSES}:ForSemanticSegmentationLoss", "of pixels", _segments, [], since="5"),
    Row("formulas", "transformers.loss.loss_ctc:ForCTCLoss", "of frames", _frames, [], since="5"),
    Row("formulas", "transformers.loss.loss_tdt:tdt_loss", "of tokens with durations", _durations, [], since="5"),
    Row("formulas", f"{LOSSES}:LOSS_MAPPING", "of each task", _mapped, [], since="4.57"),
    Row("formulas", "transformers:PreTrainedModel", "losses by class, and one that is given", _own, [], since="4.53"),
)  # fmt: skip
