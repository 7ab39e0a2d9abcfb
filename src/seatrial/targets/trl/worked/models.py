"""Worked examples of functions of models, adapters, references and their costs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.trl.former import LOSSES
from seatrial.targets.trl.worked.rows import EXPERIMENTAL, UTILS, Row

SHARED_LAYERS = KnownFailure(
    "a reference that shares its first layers shares none, and is not frozen",
    finding=LOSSES,
    releases=before("trl", "1.7"),
).of("R34.worked/models")
SDFT, SDPO = (f"trl.experimental.{name}" for name in ("sdft", "sdpo"))
MODELS = "trl.models.utils"


def _model() -> Any:
    return tiny_model(tiny_tokenizer(), 0)


def _adapted(**options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    given = {"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False, **options}
    return get_peft_model(_model(), LoraConfig(**given))


class _Rows(nn.Module):
    """Two rows of weights in two layers, an embedding and dropout."""

    def __init__(self, value: float = 1.0) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(2, 2)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.LayerNorm(2)) for _ in range(2)
        )
        self.lm_head = nn.Linear(2, 2)
        with torch.no_grad():
            for one in self.parameters():
                one.fill_(value)


def _reference(create: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return what a reference shares with its model, before and after the model changes."""
    model = _Rows().train()
    reference = create(model, **options)
    pairs = list(zip(model.named_parameters(), reference.parameters(), strict=True))
    shared = sorted({name.partition(".")[0] + name.partition(".")[2][:2] for (name, one), own in pairs
                     if one.data_ptr() == own.data_ptr()})  # fmt: skip
    return {
        "equal": all(torch.equal(one, own) for (_, one), own in pairs),
        "shared": shared,
        "frozen": not any(own.requires_grad for _, own in pairs),
        "shared ones are frozen": not any(
            one.requires_grad for (_, one), own in pairs if one.data_ptr() == own.data_ptr()
        ),
        "others train": all(one.requires_grad for (_, one), own in pairs if one.data_ptr() != own.data_ptr()),
        "in training": [model.training, reference.training],
    }


def _without_dropout(disable: Callable[..., Any]) -> list[float]:
    model = _Rows()
    disable(model)
    return [one.p for one in model.modules() if isinstance(one, nn.Dropout)]


def _hashes(digest: Callable[..., str]) -> list[bool]:
    changed, narrow = _Rows(), _Rows()
    with torch.no_grad():
        changed.lm_head.bias[1] += 1e-3
    narrow.lm_head.to(torch.bfloat16)
    first = digest(_Rows())
    return [digest(one) == first for one in (_Rows(), changed, narrow)]


def _active(use: Callable[..., Any]) -> dict[str, Any]:
    """Return which adapter computes inside and after the context, even if it ends by an error."""
    from peft import LoraConfig

    model = _adapted().eval()
    model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    ids = torch.tensor([[7, 8, 9]])

    def computed() -> Tensor:
        with torch.no_grad():
            found: Tensor = model(input_ids=ids).logits
        return found

    due = {"default": computed()}
    model.set_adapter("second")
    due["second"] = computed()
    with model.disable_adapter():
        due["none"] = computed()
    model.set_adapter("default")

    def which() -> str:
        found = computed()
        return next((name for name, one in due.items() if torch.equal(one, found)), "another")

    seen = []
    for name in ("second", None):
        try:
            with use(model, name):
                seen.append(which())
                raise KeyError
        except KeyError:
            seen.append(which())
    return {"inside and after": seen}


def _checkpointing(disable: Callable[..., Any]) -> list[Any]:
    found = []
    for was_on in (True, False):
        model = _model()
        if was_on:
            model.gradient_checkpointing_enable()
        with disable(model):
            inside = model.is_gradient_checkpointing
        found.append([inside, model.is_gradient_checkpointing])
    return found


def _made_of_path(create: Callable[..., Any], **options: Any) -> list[str]:
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        _model().to(torch.bfloat16).save_pretrained(folder)
        named = {
            key: getattr(transformers, value) if key == "architecture" else value
            for key, value in options.items()
        }
        model = create(folder, **named)
    return [type(model).__name__, str(next(model.parameters()).dtype)]


def _pure(is_pure: Callable[..., bool]) -> list[bool]:
    saved = _adapted(modules_to_save=["lm_head"])
    biased = _adapted(bias="all")
    return [is_pure(one) for one in (_adapted(), saved, biased, _model())]


def _synchronised(callback_class: Any) -> list[float]:
    """Return the teacher's weight after each of four steps, of which every second one counts."""
    student, teacher = _Rows(2.0), _Rows(0.0)
    callback = callback_class(teacher_model=teacher, accelerator=None)
    options, found = SimpleNamespace(teacher_sync_steps=2, teacher_update_rate=0.25), []
    for step in range(1, 5):
        callback.on_step_end(options, SimpleNamespace(global_step=step), None, model=student)
        found.append(float(teacher.lm_head.bias[0].detach()))
    return found


def _cast(cast: Callable[..., Any]) -> list[str]:
    model: Any = _Rows()
    model.layers[0].to(torch.bfloat16)
    cast(model)
    parts = (model.embed_tokens, model.lm_head, model.layers[0][2], model.layers[0][0], model.layers[1][0])
    return [str(one.weight.dtype).removeprefix("torch.") for one in parts]


def _gradients(model: Any) -> list[Tensor]:
    ids = torch.tensor([[7, 8, 9, 10]])
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def _same_gradients(enable: Callable[..., Any]) -> list[bool]:
    """Compare gradients with those without checkpointing, and return whether it is on."""
    plain, own = _model(), _model()
    enable(own)
    own.gradient_checkpointing_enable()
    pairs = zip(_gradients(plain), _gradients(own), strict=True)
    return [own.is_gradient_checkpointing, all(torch.allclose(*pair, atol=1e-6) for pair in pairs)]


def _fused(add: Callable[..., Any]) -> list[Any]:
    """Compare a fused head's log-probabilities and entropies with those of the model's own logits."""
    plain, own = _model().eval(), _model().eval()
    add(own, temperature=0.5, outputs=("log_probs", "entropy"))
    ids = torch.tensor([[7, 8, 9, 10]])
    with torch.no_grad():
        due = torch.log_softmax(plain(input_ids=ids).logits[0, :-1] / 0.5, -1)
        found = own(input_ids=ids, labels=ids, fused_lm_head=True)
    chosen = due.gather(-1, ids[0, 1:, None])[:, 0]
    entropies = -(due.exp() * due).sum(-1)
    return [
        torch.allclose(found.log_probs[0, -3:], chosen, atol=1e-4),
        torch.allclose(found.entropy[0, -3:], entropies, atol=1e-4),
    ]


REFERENCES = f"{EXPERIMENTAL}:create_reference_model {MODELS}:create_reference_model"
SYNC = "{}.teacher_sync:SyncTeacherModelCallback"

MODEL_ROWS: Sequence[Row] = (
    Row(
        "models",
        REFERENCES,
        "a copy",
        _reference,
        {
            "equal": True,
            "shared": [],
            "frozen": True,
            "shared ones are frozen": True,
            "others train": True,
            "in training": [True, False],
        },
    ),
    Row(
        "models",
        REFERENCES,
        "one layer is shared",
        partial(_reference, num_shared_layers=1, pattern="layers.{layer}"),
        {
            "equal": True,
            "shared": ["embed_tokenswe", "layers0."],
            "frozen": True,
            "shared ones are frozen": True,
            "others train": True,
            "in training": [True, False],
        },
        known=SHARED_LAYERS,
    ),
    Row("models", f"{UTILS}:disable_dropout_in_model", "two layers", _without_dropout, [0, 0]),
    Row(
        "models",
        f"{UTILS}:hash_module",
        "equal, a changed value, another type",
        _hashes,
        [True, False, False],
    ),
    Row(
        "parts",
        f"{UTILS}:use_adapter",
        "another adapter and none, left by an error",
        _active,
        {"inside and after": ["second", "default", "none", "default"]},
    ),
    Row(
        "parts",
        f"{MODELS}:disable_gradient_checkpointing",
        "on before, off before",
        _checkpointing,
        [[False, True], [False, False]],
    ),
    Row(
        "models",
        f"{UTILS}:create_model_from_path",
        "by default",
        _made_of_path,
        ["Qwen2ForCausalLM", "torch.float32"],
    ),
    Row(
        "models",
        f"{UTILS}:create_model_from_path",
        "a type by name, an architecture",
        partial(_made_of_path, dtype="bfloat16", architecture="AutoModelForSequenceClassification"),
        ["Qwen2ForSequenceClassification", "torch.bfloat16"],
        since="0.26",
    ),
    *(
        Row(
            "parts",
            f"{place}.teacher_sync:is_pure_lora_training",
            "adapters, saved modules, biases, none",
            _pure,
            [True, False, False, False],
        )
        for place in (SDFT, SDPO)
    ),
    *(
        Row("steps", SYNC.format(place), "every second step", _synchronised, [0.0, 0.5, 0.5, 0.875])
        for place in (SDFT, SDPO)
    ),
    Row(
        "models",
        f"{EXPERIMENTAL}:peft_module_casting_to_bf16",
        "embedding, head, norm, layers",
        _cast,
        ["bfloat16", "bfloat16", "float32", "bfloat16", "float32"],
    ),
    Row(
        "parts",
        "trl.models.selective_activation_checkpointing:enable_selective_activation_checkpointing",
        "gradients",
        _same_gradients,
        [True, True],
    ),
    Row(
        "parts",
        f"{EXPERIMENTAL}:enable_gradient_checkpointing",
        "gradients",
        lambda enable: _same_gradients(lambda model: enable(model, {"use_reentrant": False})),
        [True, True],
    ),
    Row("formulas", f"{UTILS}:add_fused_lm_head", "a temperature", _fused, [True, True]),
)
