"""Worked examples of Transformers' `Seq2SeqTrainer`: what generation is given, and predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.trainers import CPU_OPTIONS, freeze_imports, new_folder
from seatrial.targets.common.worked_rows import Row

PAD, WIDTH = 7, 6
"""The padding of the model's configuration, and its longest answer."""


class Answering(nn.Module):
    """Answers of two ids: the row's number, and the next; notes what generation is given."""

    main_input_name = "input_ids"

    def __init__(self, pad: int | None = PAD) -> None:
        """Have a weight and the configurations that trainers look for."""
        import transformers

        super().__init__()
        made: Any = transformers.GenerationConfig
        self.weight, self.seen = nn.Parameter(torch.ones(())), list[dict[str, Any]]()
        self.config: Any = SimpleNamespace(
            pad_token_id=pad, to_dict=dict, to_json_string=str, is_encoder_decoder=True
        )
        self.generation_config = made(max_length=WIDTH)

    def generate(self, **more: Any) -> Tensor:
        """Return the answers."""
        self.seen.append(
            {
                name: value
                for name, value in more.items()
                if name not in ("synced_gpus", "input_ids", "attention_mask")
            }
        )
        return torch.stack([more["input_ids"][:, 0], more["input_ids"][:, 0] + 1], dim=1)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, decoder_input_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the loss of labels, their mean, and logits."""
        found = {"logits": input_ids.float() * self.weight}
        return found if labels is None else {"loss": labels.float().mean() * self.weight, **found}


def _rows(labelled: bool = True, width: int = 3, decoder: int = 0) -> list[dict[str, Any]]:
    return [
        {"input_ids": [row, 9]}
        | ({"labels": [row] * width} if labelled else {})
        | ({"decoder_input_ids": [0] * decoder} if decoder else {})
        for row in (1, 2, 3)
    ]


def _trainer(trainer_class: Any, model: Any = None, **options: Any) -> Any:
    import transformers

    freeze_imports()
    made: Any = transformers.Seq2SeqTrainingArguments
    tokenizer, metrics = options.pop("processing_class", None), options.pop("metrics", None)
    args = made(
        output_dir=new_folder(),
        **{**CPU_OPTIONS, "predict_with_generate": True, "per_device_eval_batch_size": 2, **options},
    )
    return trainer_class(
        model=model or Answering(), args=args, processing_class=tokenizer, compute_metrics=metrics,
        eval_dataset=_rows(),
    )  # fmt: skip


CALLS: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]] = (
    ({}, {}, {}),
    ({"generation_max_length": 9}, {}, {"max_length": 9}),
    ({"generation_num_beams": 3}, {}, {"num_beams": 3}),
    (
        {"generation_max_length": 9, "generation_num_beams": 3},
        {"max_length": 5},
        {"max_length": 5, "num_beams": 3},
    ),
    (
        {"generation_max_length": 9, "generation_num_beams": 3},
        {"num_beams": 2},
        {"max_length": 9, "num_beams": 2},
    ),
    ({"generation_max_length": 9}, {"max_new_tokens": 4}, {"max_new_tokens": 4}),
    ({"generation_max_length": 9}, {"max_length": None}, {"max_length": 9}),
    ({}, {"num_beams": None, "max_length": None}, {}),
    ({}, {"do_sample": True, "top_k": 3}, {"do_sample": True, "top_k": 3}),
)
"""Options of a run, arguments of a call, and what generation is given."""


def _called(trainer_class: Any) -> list[str]:
    """Return where generation is given other limits and beams than the call's, or else the run's; nothing stays."""
    wrong = []
    for options, given, due in CALLS:
        model = Answering()
        trainer = _trainer(trainer_class, model, metrics=lambda found: {}, **options)
        for kind in ("predict", "evaluate"):
            model.seen.clear()
            getattr(trainer, kind)(_rows(False), **given)
            if model.seen != [due] * 2:
                wrong.append(f"{kind} of {dict(options)} with {dict(given)}: {model.seen}")
        model.seen.clear()
        trainer.predict(_rows(False))
        again = {name.removeprefix("generation_"): value for name, value in options.items()}
        if model.seen != [again] * 2:
            wrong.append(f"after {dict(given)}: {model.seen}")
    return wrong


def _answered(trainer_class: Any) -> list[Any]:
    """Return answers and labels that are padded to the longest answer, of labels of each width, and of none."""
    found = []
    for width in (2, 3, WIDTH):
        one = _trainer(trainer_class).predict(_rows(width=width))
        found.append([one.predictions.tolist(), one.label_ids.tolist()])
    none = _trainer(trainer_class).predict(_rows(False))
    return [*found, [none.predictions.tolist(), none.label_ids, "test_loss" in none.metrics]]


def _whole(row: int) -> list[int]:
    return [row, row + 1, *[PAD] * (WIDTH - 2)]


ANSWERS = [_whole(row) for row in (1, 2, 3)]
ANSWERED = [
    [ANSWERS, [[row] * width + [PAD] * (WIDTH - width) for row in (1, 2, 3)]] for width in (2, 3, WIDTH)
]


def _padding(trainer_class: Any) -> list[Any]:
    """Return the padding of answers by tokenizer: its pad, else its end, else the model's, else none."""
    found: list[Any] = []
    for tokenizer in (
        SimpleNamespace(pad_token_id=5, eos_token_id=6),
        SimpleNamespace(pad_token_id=None, eos_token_id=6),
        None,
    ):
        trainer = _trainer(trainer_class)
        trainer.processing_class = tokenizer
        found.append(trainer._pad_tensors_to_max_len(torch.tensor([[1, 2]]), 4).tolist())
    trainer = _trainer(trainer_class, Answering(None))
    try:
        trainer._pad_tensors_to_max_len(torch.tensor([[1, 2]]), 4)
    except ValueError:
        found.append("refused")
    return found


def _decoders(trainer_class: Any) -> list[list[str]]:
    """Return what generation is given of a decoder's inputs: none that are as wide as labels, which they come from."""
    found = []
    for decoder in (0, 3, 2):
        model = Answering()
        _trainer(trainer_class, model, per_device_eval_batch_size=4).predict(_rows(decoder=decoder))
        found.append(sorted(model.seen[0]))
    return found


def _plain(trainer_class: Any) -> list[Any]:
    """Return predictions of runs that do not generate, or whose loss alone is wanted."""
    found: list[Any] = []
    for options in ({"predict_with_generate": False}, {"prediction_loss_only": True}):
        model = Answering()
        one = _trainer(trainer_class, model, **options).predict(_rows())
        predictions = None if one.predictions is None else one.predictions.tolist()
        found.append([predictions, len(model.seen)])
    return found


def _losses(sizes: Sequence[int], trainer_class: Any) -> list[float]:
    """Return losses of predictions and evaluations in batches of each size: the mean of all rows."""
    found = []
    for size in sizes:
        for generates in (True, False):
            trainer = _trainer(
                trainer_class, per_device_eval_batch_size=size, predict_with_generate=generates
            )
            found += [trainer.predict(_rows()).metrics["test_loss"], trainer.evaluate(_rows())["eval_loss"]]
    return found


def _configured(trainer_class: Any) -> list[Any]:
    """Return the limit of a model whose configuration of generation comes as an object, a file and a directory."""
    import transformers

    made: Any = transformers.GenerationConfig
    folder = Path(new_folder())
    given = made(max_length=11, num_beams=2)
    given.save_pretrained(folder)
    given.save_pretrained(folder, config_file_name="own.json")
    found: list[Any] = []
    for one in (given, str(folder), folder, str(folder / "own.json")):
        model = Answering()
        _trainer(trainer_class, model, generation_config=one)
        found.append([model.generation_config.max_length, model.generation_config.num_beams])
    model = Answering()
    _trainer(trainer_class, model, generation_config=given)
    found.append(model.generation_config is given)
    bad = made(max_length=11, do_sample=False)
    bad.temperature = 0.5
    try:
        _trainer(trainer_class, generation_config=bad)
    except ValueError:
        found.append("refused")
    return found


PLACE = "transformers:Seq2SeqTrainer"
# Sources: the documentation of Seq2SeqTrainer and Seq2SeqTrainingArguments.
TRANSLATION_ROWS: Sequence[Row] = (
    Row("validations", PLACE, "limits and beams of generation", _called, [], since="4.57"),
    Row("validations", PLACE, "answers and labels", _answered, [*ANSWERED, [ANSWERS, None, False]], since="4.57"),
    Row("validations", PLACE, "padding of answers", _padding, [[[1, 2, 5, 5]], [[1, 2, 6, 6]], [[1, 2, PAD, PAD]],
        "refused"], since="4.57"),
    Row(
        "validations", PLACE, "inputs of a decoder", _decoders,
        [["labels"], ["labels"], ["decoder_input_ids", "labels"]], since="4.57",
    ),
    Row(
        "validations", PLACE, "runs that do not generate", _plain,
        [[[[1.0, 9.0], [2.0, 9.0], [3.0, 9.0]], 0], [None, 0]], since="4.57",
    ),
    Row("validations", PLACE, "losses", partial(_losses, (1, 3)), [2.0] * 8, since="4.57"),
    Row(
        "validations", PLACE, "losses where the last batch is smaller", partial(_losses, (2, 5)), [2.0] * 8,
            since="4.57",
        known=KnownFailure(
            "the loss of each batch counts as often as the batches' size",
            finding="Transformers: the loss of Seq2SeqTrainer's last batch",
        ),
    ),
    Row("validations", PLACE, "configurations of generation", _configured, [[11, 2]] * 4 + [False, "refused"],
        since="4.57"),
)  # fmt: skip
