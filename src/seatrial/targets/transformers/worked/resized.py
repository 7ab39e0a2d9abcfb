"""Worked examples of models whose vocabulary is resized, and whose layers are computed again in training."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.tiny import made_model
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.weights import BERT, GPT2, SIZES, T5, llama, same, saved

KINDS = (
    ("LlamaForCausalLM", "LlamaConfig", {**SIZES, "tie_word_embeddings": False}),
    ("LlamaForCausalLM", "LlamaConfig", {**SIZES, "tie_word_embeddings": True}),
    ("LlamaModel", "LlamaConfig", SIZES),
    ("LlamaForSequenceClassification", "LlamaConfig", SIZES),
    ("GPT2LMHeadModel", "GPT2Config", GPT2),
    ("BertForMaskedLM", "BertConfig", BERT),
    ("T5ForConditionalGeneration", "T5Config", T5),
    ("PhiForCausalLM", "PhiConfig", SIZES),
)
"""Models with heads of their own, tied heads, none, and heads with a bias."""
BART: Mapping[str, Any] = {
    "vocab_size": 23, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64,
    "pad_token_id": 0, "dropout": 0.0,
}  # fmt: skip
DRAWN_KINDS = (
    *KINDS,
    ("BartForConditionalGeneration", "BartConfig", BART),
    ("MBartForConditionalGeneration", "MBartConfig", BART),
    ("MambaForCausalLM", "MambaConfig", {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 23}),
)
"""With models of an encoder and a decoder whose logits have a bias of their own, and one without attention."""
LOGIT_SIZES: Sequence[Mapping[str, int]] = (
    {"new_num_tokens": 29},
    {"new_num_tokens": 17},
    {"new_num_tokens": 23, "pad_to_multiple_of": 8},
    {"new_num_tokens": 30, "pad_to_multiple_of": 8},
)


def _table(model: Any) -> Tensor:
    found: Tensor = model.get_input_embeddings().weight
    return found


def _resized(model_class: Any) -> list[str]:
    """Return where a larger or smaller vocabulary leaves other rows, sizes, ties, types or a frozen table behind."""
    wrong = []
    for (kind, config, sizes), size, frozen in product(KINDS, (29, 17, 23), (True, False)):
        model = made_model(of_name(kind), of_name(config)(**sizes), 0)
        old = copy.deepcopy(model)
        if frozen:
            _table(model).requires_grad_(False)
        returned = model.resize_token_embeddings(size)
        what, kept = f"{kind}, {size}, {frozen=}", min(size, 23)
        head, before = model.get_output_embeddings(), old.get_output_embeddings()
        if returned is not model.get_input_embeddings() or returned.num_embeddings != size:
            wrong.append(f"{what}: what is returned")
        if tuple(_table(model).shape) != (size, 16) or not torch.equal(
            _table(model)[:kept], _table(old)[:kept]
        ):
            wrong.append(f"{what}: rows of inputs")
        if model.config.vocab_size != size or getattr(model, "vocab_size", size) != size:
            wrong.append(f"{what}: {model.config.vocab_size} in the configuration")
        if _table(model).requires_grad == frozen:
            wrong.append(f"{what}: frozen or not")
        if head is not None:
            if tuple(head.weight.shape) != (size, 16) or not torch.equal(
                head.weight[:kept], before.weight[:kept]
            ):
                wrong.append(f"{what}: rows of outputs")
            if (head.weight is _table(model)) != (before.weight is _table(old)):
                wrong.append(f"{what}: a tie")
            if isinstance(head, nn.Linear) and head.out_features != size:
                wrong.append(f"{what}: {head.out_features} outputs")
            bias = getattr(head, "bias", None)
            if bias is not None and (
                bias.shape != (size,) or not torch.equal(bias[:kept], before.bias[:kept])
            ):
                wrong.append(f"{what}: a bias")
        names = ("embed", "wte", "shared", "lm_head", "cls.predictions", "decoder.embed", "encoder.embed")
        wrong += [f"{what}: {name}" for name in same(model, old) if not any(one in name for one in names)]
    return wrong[:4]


def _multiples(model_class: Any) -> list[Any]:
    """Return sizes of vocabularies that are filled up to a multiple, with a size and without, and what is refused."""
    found: list[Any] = []
    for given in ({"pad_to_multiple_of": 8}, {"new_num_tokens": 25, "pad_to_multiple_of": 8},
                  {"new_num_tokens": 32, "pad_to_multiple_of": 8}, {"new_num_tokens": None}, {}):  # fmt: skip
        model = llama()
        model.resize_token_embeddings(**given)
        found.append([len(_table(model)), len(model.lm_head.weight), model.config.vocab_size])
    try:
        llama().resize_token_embeddings(30, pad_to_multiple_of=8.0)
    except ValueError:
        found.append("refused")
    return found


def _new_rows(model_class: Any) -> list[Any]:
    """Return whether new rows are the mean of old ones, or drawn around zero; of inputs, of outputs, and of a bias."""
    found = []
    for mean, tied in product((True, False), (True, False)):
        model = made_model(
            of_name("PhiForCausalLM"),
            of_name("PhiConfig")(**SIZES, tie_word_embeddings=tied, initializer_range=0.3),
            0,
        )
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for value in (_table(model), model.lm_head.weight, model.lm_head.bias):
                value.add_(5.0 if value.dim() == 2 else 3.0)
            old = copy.deepcopy(model)
            model.resize_token_embeddings(423, mean_resizing=mean)
        for new, before in ((_table(model), _table(old)), (model.lm_head.weight, old.lm_head.weight)):
            if mean:
                found.append(bool((new[23:] - before.mean(0)).abs().max() < 1e-2))
            else:
                found.append(abs(float(new[23:].mean())) < 0.02 and abs(float(new[23:].std()) - 0.3) < 0.02)
        bias = model.lm_head.bias[23:]
        found.append(bool((bias - (3.0 if mean and not tied else 0.0)).abs().max() < 1e-2) or tied)
    return found


def _drawn_rows(model_class: Any) -> list[str]:
    """Return where new rows do not differ among themselves as the old ones do, with their mean and covariance.

    Releases scale the covariance by a small number; its ratio to that of the old rows is the same in every direction.
    """
    wrong = []
    options = ({"new_num_tokens": 400}, {"new_num_tokens": 397, "pad_to_multiple_of": 8})
    for (kind, config, sizes), given in product(DRAWN_KINDS, options):
        model = made_model(of_name(kind), of_name(config)(**{**sizes, "vocab_size": 80}), 0)
        olds: dict[str, Tensor] = {}
        tables = {"inputs": model.get_input_embeddings(), "outputs": model.get_output_embeddings()}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for name, one in tables.items():
                if one is None or any(one.weight is other for other in olds.values()):
                    continue
                width = one.weight.shape[1]
                one.weight.copy_(2 + torch.randn(80, width) @ torch.randn(width, width))
                olds[name] = one.weight
            before = {name: value.detach().clone().double() for name, value in olds.items()}
            model.resize_token_embeddings(**given)
        after = {"inputs": model.get_input_embeddings(), "outputs": model.get_output_embeddings()}
        for name, old in before.items():
            new = after[name].weight.detach()[80:].double()
            what = f"{kind}, {dict(given)}: {name}"
            if len(new) != 320 or not bool(((new.mean(0) - old.mean(0)).abs() < 1e-2).all()):
                wrong.append(f"{what} have another number or mean")
                continue
            ratios = torch.linalg.eigvals(torch.linalg.solve(old.T.cov(correction=0), new.T.cov())).real
            if not 0 < float(ratios.max()) < 3 * float(ratios.min()):
                wrong.append(
                    f"{what} have another covariance: {float(ratios.min())} to {float(ratios.max())} of it"
                )
    return wrong[:4]


def _kept_logits(model_class: Any) -> list[str]:
    """Return models whose logits of old tokens change with the size of the vocabulary, by the ways it is resized."""
    wrong = []
    ids = torch.arange(3, 15).reshape(2, 6)
    for (kind, config, sizes), mean, given in product(DRAWN_KINDS, (True, False), LOGIT_SIZES):
        model = made_model(of_name(kind), of_name(config)(**sizes), 0).eval()
        if model.get_output_embeddings() is None:
            continue
        more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
        with torch.no_grad():
            # The bias that BART keeps next to the head is not zero in published files.
            for name, value in model.named_buffers():
                if name.endswith("final_logits_bias"):
                    value.copy_(torch.arange(23.0)[None])
            before = model(input_ids=ids, **more).logits
            model.resize_token_embeddings(**given, mean_resizing=mean)
            after = model(input_ids=ids, **more).logits
        kept = min(before.shape[-1], after.shape[-1])
        what = f"{kind}, {dict(given)}, {mean=}"
        if after.shape[-1] != model.config.get_text_config().vocab_size or not bool(after.isfinite().all()):
            wrong.append(f"{what}: {after.shape[-1]} logits")
        if not bool((after[..., :kept] - before[..., :kept]).abs().max() < 1e-5):
            wrong.append(f"{what}: other logits of old tokens")
    return wrong[:4]


def _again(model_class: Any) -> list[Any]:
    """Return what differs after a resized model was saved and read, resized twice, and in a narrow type."""
    found: list[Any] = []
    for tied in (True, False):
        model = llama(tie_word_embeddings=tied).bfloat16()
        old = copy.deepcopy(model)
        model.resize_token_embeddings(31)
        read = model_class.from_pretrained(saved(model))
        found.append([str(_table(model).dtype), same(read, model), read.config.vocab_size])
        read.resize_token_embeddings(23)
        found.append(same(read, old))
    return found


def _padded(model_class: Any) -> list[Any]:
    """Return the padding id of tables after a size that keeps it, and one that does not."""
    found = []
    for size in (29, 21, 20):
        model = llama(pad_token_id=20)
        model.resize_token_embeddings(size)
        found.append(model.get_input_embeddings().padding_idx)
    return found


def _call(model: Any, new: str, old: str, **options: Any) -> Any:
    """Call a method by its name in this release or in earlier ones."""
    method = getattr(model, new, None) or getattr(model, old)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method(**options)


def enable(model: Any, given: Any = None, **options: Any) -> None:
    """Have layers of a model computed again in training."""
    new = hasattr(model, "activation_checkpointing_enable")
    name = "activation_checkpointing_kwargs" if new else "gradient_checkpointing_kwargs"
    _call(
        model, "activation_checkpointing_enable", "gradient_checkpointing_enable", **{name: given}, **options
    )


def _losses(model: Any, ids: Tensor) -> tuple[list[int], dict[str, Tensor]]:
    """Return how often each layer is computed in a step, and its gradients."""
    counts: list[int] = []
    kept = []
    layers = model.model.layers
    for number, layer in enumerate(layers):
        counts.append(0)
        one = layer.mlp

        def noted(module: Any, inputs: Any, number: int = number) -> None:
            counts[number] += 1

        kept.append(one.register_forward_pre_hook(noted))
    model.zero_grad()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    for hook in kept:
        hook.remove()
    return counts, {
        name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None
    }


def _computed_again(model_class: Any) -> list[Any]:
    """Return how often layers are computed: usually, again, in evaluation, after an end; and gradients that differ."""
    model = llama(num_hidden_layers=3).train()
    ids = torch.arange(3, 15).reshape(2, 6)
    found: list[Any] = []
    counts, right = _losses(model, ids)
    for given in (None, {"use_reentrant": False}, {"use_reentrant": True}):
        enable(model, given)
        again, gradients = _losses(model, ids)
        found.append([again, same(gradients, right), model.is_gradient_checkpointing])
    evaluated, _ = _losses(model.eval(), ids)
    _call(model, "activation_checkpointing_disable", "gradient_checkpointing_disable")
    ended, _ = _losses(model.train(), ids)
    return [counts, *found, evaluated, ended, model.is_gradient_checkpointing]


def _every(model_class: Any) -> list[Any]:
    """Return how often layers are computed where every second or third one is to be again."""
    model = llama(num_hidden_layers=4).train()
    if not hasattr(model, "activation_checkpointing_enable"):
        raise NotServed("layers of this release are all computed again")
    ids = torch.arange(3, 15).reshape(2, 6)
    _, right = _losses(model, ids)
    found = []
    for options in ({"every_n_layers": 2}, {"every_n_layers": 3}, {}):
        enable(model, None, **options)
        counts, gradients = _losses(model, ids)
        found.append([counts, same(gradients, right)])
    return found


def _with_cache(model_class: Any) -> list[Any]:
    """Return whether a model whose layers are computed again gives a cache: in training, and its length otherwise."""
    model = llama().train()
    enable(model)
    ids = torch.arange(3, 15).reshape(2, 6)
    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    trained = getattr(model(input_ids=ids, use_cache=True), name, None)
    evaluated = getattr(model.eval()(input_ids=ids, use_cache=True), name, None)
    length = [None if one is None else int(one.get_seq_length()) for one in (trained, evaluated)]
    return [length[0] in (None, 0), length[1]]


def _inputs(model_class: Any) -> list[bool]:
    """Return whether embeddings have gradients of a model that is frozen: before, while it is asked for, and after."""
    model = llama().requires_grad_(False)
    ids = torch.arange(3, 9)[None]
    found = [model.get_input_embeddings()(ids).requires_grad]
    model.enable_input_require_grads()
    found.append(model.get_input_embeddings()(ids).requires_grad)
    model.disable_input_require_grads()
    return [*found, model.get_input_embeddings()(ids).requires_grad]


def _unsupported(model_class: Any) -> str:
    model = made_model(of_name("LlamaForCausalLM"), of_name("LlamaConfig")(**SIZES), 0)
    type(model).supports_gradient_checkpointing, kept = False, type(model).supports_gradient_checkpointing
    try:
        enable(model)
    except ValueError as error:
        return "support" if "support" in str(error) else str(error)
    finally:
        type(model).supports_gradient_checkpointing = kept
    return "taken"


CAUSAL = "transformers:LlamaForCausalLM"
LATER = "Transformers: small functions of later releases"
ONCE, TWICE = [1, 1, 1], [2, 2, 2]
# Sources: the documentation of resize_token_embeddings and of checkpointed activations.
RESIZED_ROWS: Sequence[Row] = (
    Row(
        "models",
        CAUSAL,
        "another vocabulary",
        _resized,
        [],
        since="4.57",
        known=KnownFailure(
            "the number of outputs of a tied head stays",
            finding=LATER,
            releases=between("transformers", "5", "5.16"),
        ),
    ),
    Row(
        "models",
        CAUSAL,
        "a vocabulary of a multiple",
        _multiples,
        [[24, 24, 24], [32, 32, 32], [32, 32, 32], [23, 23, 23], [23, 23, 23], "refused"],
    ),
    Row("models", CAUSAL, "new rows of a vocabulary", _new_rows, [True] * 12, since="4.57"),
    Row("models", CAUSAL, "spread of new rows of a vocabulary", _drawn_rows, [], since="4.57"),
    Row("models", CAUSAL, "logits of old tokens of another vocabulary", _kept_logits, [], since="4.57"),
    Row(
        "models",
        CAUSAL,
        "another vocabulary that is saved",
        _again,
        [["torch.bfloat16", [], 31], [], ["torch.bfloat16", [], 31], []],
        since="4.57.6",
    ),
    Row("models", CAUSAL, "the padding id of another vocabulary", _padded, [20, 20, None], since="4.57"),
    Row(
        "models",
        CAUSAL,
        "layers that are computed again",
        _computed_again,
        [ONCE, [TWICE, [], True], [TWICE, [], True], [TWICE, [], True], ONCE, ONCE, False],
        since="4.57.6",
    ),
    Row(
        "models",
        CAUSAL,
        "some layers that are computed again",
        _every,
        [[[2, 1, 2, 1], []], [[2, 1, 1, 2], []], [[2, 2, 2, 2], []]],
        since="5",
    ),
    Row(
        "models",
        CAUSAL,
        "a cache with layers that are computed again",
        _with_cache,
        [True, 6],
        since="4.57.6",
    ),
    Row("models", CAUSAL, "gradients of embeddings", _inputs, [False, True, False]),
    Row("models", CAUSAL, "a model that computes nothing again", _unsupported, "support"),
)
