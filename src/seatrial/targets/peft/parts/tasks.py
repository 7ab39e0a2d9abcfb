"""Models of every task with adapters and virtual tokens: each input reaches the base as it would without PEFT.

The right result is the base's own, with the virtual tokens in front of the embeddings, a mask of ones, token types of
zero and labels of -100 for them; with a prefix, with the cache that its tensor is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.adapter_parts import Use
from seatrial.relations.not_served import NotServed
from seatrial.targets.peft.bases import VOCAB

VIRTUAL, WIDTH, HEADS, LAYERS = 3, 32, 4, 2
IDS_BS = ((5, 9, 7, 30, 11, 6), (8, 4, 21, 3, 0, 0), (13, 3, 40, 17, 22, 0))
ANSWERS = "answers found"
PROMPTS = ("prompt", "encoded prompt", "prefix", "projected prefix")
Inputs = dict[str, Any]


def _sizes() -> dict[str, Any]:
    return {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }


def _encoder(head: str, **more: Any) -> Any:
    import transformers

    library: Any = transformers
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return getattr(library, f"Bert{head}")(library.BertConfig(**_sizes(), **off, **more))


def _decoder(head: str, **more: Any) -> Any:
    import transformers

    library: Any = transformers
    return getattr(library, f"Llama{head}")(
        library.LlamaConfig(**_sizes(), num_key_value_heads=2, bos_token_id=1, eos_token_id=2, **more)
    )


def _both(kind: str) -> Any:
    import transformers

    library: Any = transformers
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    if kind == "T5":
        sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": LAYERS, "num_heads": HEADS}
        return library.T5ForConditionalGeneration(
            library.T5Config(vocab_size=VOCAB, dropout_rate=0.0, **sizes, **ends)
        )
    sizes = {f"{side}_layers": LAYERS for side in ("encoder", "decoder")}
    sizes |= {f"{side}_attention_heads": HEADS for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")}
    return library.BartForConditionalGeneration(
        library.BartConfig(
            vocab_size=VOCAB, d_model=WIDTH, max_position_embeddings=64, dropout=0.0, **sizes, **ends
        )
    )


BASES: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "causal model": ("CAUSAL_LM", lambda: _decoder("ForCausalLM")),
    "encoder and decoder": ("SEQ_2_SEQ_LM", lambda: _both("Bart")),
    "encoder and decoder of relative positions": ("SEQ_2_SEQ_LM", lambda: _both("T5")),
    "texts classified": ("SEQ_CLS", lambda: _encoder("ForSequenceClassification", num_labels=3)),
    "texts scored": ("SEQ_CLS", lambda: _encoder("ForSequenceClassification", num_labels=1)),
    "texts classified by a decoder": ("SEQ_CLS", lambda: _decoder("ForSequenceClassification", num_labels=3)),
    "tokens classified": ("TOKEN_CLS", lambda: _encoder("ForTokenClassification", num_labels=3)),
    ANSWERS: ("QUESTION_ANS", lambda: _encoder("ForQuestionAnswering")),
    "features": ("FEATURE_EXTRACTION", lambda: _encoder("Model")),
}
"""Task type of PEFT and base model, by name."""


def base(name: str, seed: int) -> Any:
    """Return the model of a task with weights of a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BASES[name][1]()
        with torch.no_grad():
            for value in model.parameters():
                value.copy_(torch.randn_like(value) * (0.3 if value.dim() > 1 else 0.1))
            for layer in model.modules():
                if "norm" in type(layer).__name__.lower():
                    layer.weight.add_(1.0)
    return model.eval()


def _config(kind: str, task: str) -> Any:
    import peft

    plain = {"task_type": task, "num_virtual_tokens": VIRTUAL}
    if kind == "prompt":
        return peft.PromptTuningConfig(**plain)
    if kind == "encoded prompt":
        return peft.PromptEncoderConfig(**plain, encoder_hidden_size=16)
    if "prefix" in kind:
        projected = {"prefix_projection": True, "encoder_hidden_size": 16}
        return peft.PrefixTuningConfig(**plain, **(projected if kind == "projected prefix" else {}))
    targets = {"LORA": ["query", "value", "q_proj", "v_proj", "q", "v"]}
    return peft.LoraConfig(task_type=task, r=4, target_modules=targets["LORA"])


def adapted(name: str, kind: str, seed: int) -> Any:
    """Return a model of a task with one adapter, whose tensors are drawn; heads stay those of the base."""
    import peft

    model = peft.get_peft_model(base(name, seed), _config(kind, BASES[name][0]))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed + 1)
        for key, value in model.named_parameters():
            if "prompt_encoder" in key or "lora_" in key:
                value.copy_(torch.randn_like(value) * 0.5)
    return model.eval()


def _prompt(model: Any) -> Tensor:
    """Return the tensor of all virtual tokens, computed as the type's paper says."""
    (encoder,) = model.prompt_encoder.values()
    made: Tensor = encoder.embedding.weight
    for part in ("mlp_head", "transform"):
        if hasattr(encoder, part):
            for layer in getattr(encoder, part):
                made = layer(made)
    return made


def _cache(tensor_VL: Tensor, rows: int) -> Any:
    import transformers

    parts = tensor_VL.view(VIRTUAL, LAYERS, 2, HEADS_KEPT[tensor_VL.shape[1]], -1)
    cache = transformers.DynamicCache()
    for layer in range(LAYERS):
        keys, values = (parts[:, layer, part].transpose(0, 1)[None].repeat(rows, 1, 1, 1) for part in (0, 1))
        cache.update(keys, values, layer)
    return cache


HEADS_KEPT: Mapping[int, int] = {2 * LAYERS * WIDTH: HEADS, 2 * LAYERS * WIDTH // 2: HEADS // 2}
"""Heads of keys and values by the size of a virtual token."""


def _in_front(inputs: Inputs, name: str, prompt_VD: Tensor, embed: Callable[[Tensor], Tensor]) -> Inputs:
    """Return the inputs of the base with virtual tokens in front."""
    made = dict(inputs)
    ids_BS = made.pop("input_ids", None)
    embeds_BSD = made.pop("inputs_embeds") if ids_BS is None else embed(ids_BS)
    rows = len(embeds_BSD)
    made["inputs_embeds"] = torch.cat([prompt_VD.expand(rows, -1, -1), embeds_BSD], dim=1)
    fills = {"attention_mask": 1, "token_type_ids": 0}
    if name == "causal model":
        fills["labels"] = -100
    for key, value in fills.items():
        if made.get(key) is not None:
            made[key] = torch.nn.functional.pad(made[key], (VIRTUAL, 0), value=value)
    return made


def _right(model: Any, plain: Any, name: str, kind: str, inputs: Inputs) -> Any:
    if kind == "low rank":
        return plain(**inputs)
    made = _prompt(model)
    if "prefix" not in kind:
        # The decoder of a model of two parts has no virtual tokens in PEFT.
        prompt_VD = made[:VIRTUAL]
        return plain(**_in_front(inputs, name, prompt_VD, plain.get_input_embeddings()))
    given = dict(inputs)
    if name not in ("causal model", "texts classified by a decoder"):
        raise NotServed("a prefix of encoders is read in ways of its own")
    key: Tensor = given["input_ids"] if "input_ids" in given else given["inputs_embeds"]
    if given.get("attention_mask") is not None:
        given["attention_mask"] = torch.nn.functional.pad(given["attention_mask"], (VIRTUAL, 0), value=1)
    return plain(**given, past_key_values=_cache(made, len(key)))


def _ids() -> Tensor:
    return torch.tensor(IDS_BS)


def _labels(name: str) -> Inputs:
    ids_BS = _ids()
    if BASES[name][0] in ("CAUSAL_LM", "SEQ_2_SEQ_LM"):
        return {"labels": ids_BS.masked_fill(ids_BS == 0, -100)}
    if name == "texts scored":
        return {"labels": torch.tensor([0.5, -1.0, 2.0])}
    if BASES[name][0] == "SEQ_CLS":
        return {"labels": torch.tensor([2, 0, 1])}
    if BASES[name][0] == "TOKEN_CLS":
        return {"labels": (ids_BS % 3).masked_fill(ids_BS == 0, -100)}
    if BASES[name][0] == "QUESTION_ANS":
        return {"start_positions": torch.tensor([1, 0, 2]), "end_positions": torch.tensor([3, 2, 4])}
    return {}


def _inputs(name: str) -> Iterator[tuple[str, Inputs]]:
    """Yield ways to call a model of a task."""
    ids_BS = _ids()
    mask_BS = (ids_BS != 0).long()
    both = {"decoder_input_ids": ids_BS[:, 1:5]} if BASES[name][0] == "SEQ_2_SEQ_LM" else {}
    yield "ids alone", {"input_ids": ids_BS, **both}
    yield "ids and a mask", {"input_ids": ids_BS, "attention_mask": mask_BS, **both}
    yield "labels", {"input_ids": ids_BS, "attention_mask": mask_BS, **_labels(name)}
    yield (
        "labels without a mask",
        {"input_ids": ids_BS[:1], **{key: value[:1] for key, value in _labels(name).items()}},
    )
    if both:
        yield (
            "a mask of the decoder",
            {
                "input_ids": ids_BS,
                "attention_mask": mask_BS,
                **both,
                "decoder_attention_mask": mask_BS[:, 1:5],
            },
        )
    if name in ("texts classified", "texts scored", "tokens classified", ANSWERS, "features"):
        types_BS = (torch.arange(ids_BS.shape[1]) > 2).long().expand_as(ids_BS)
        yield "token types", {"input_ids": ids_BS, "attention_mask": mask_BS, "token_type_ids": types_BS}
        yield (
            "token types and labels",
            {"input_ids": ids_BS, "attention_mask": mask_BS, "token_type_ids": types_BS, **_labels(name)},
        )
    if not both:
        places_BS = torch.arange(ids_BS.shape[1]).flip(0).expand_as(ids_BS)
        yield "positions", {"input_ids": ids_BS, "attention_mask": mask_BS, "position_ids": places_BS}
    yield "embeddings", {"inputs_embeds": "embed", "attention_mask": mask_BS, **both}


READS = ("logits", "start_logits", "end_logits", "last_hidden_state", "loss")


def _numbers(made: Any) -> dict[str, Tensor]:
    return {name: made[name].detach() for name in READS if made.get(name) is not None}


def _as_tuple(made: Any) -> list[Tensor]:
    return [one.detach() for one in made if isinstance(one, Tensor)]


def _given(inputs: Inputs, plain: Any) -> Inputs:
    made = {key: value.clone() if isinstance(value, Tensor) else value for key, value in inputs.items()}
    if isinstance(made.get("inputs_embeds"), str):
        made["inputs_embeds"] = plain.get_input_embeddings()(_ids()).detach()
    return made


def _use(name: str, kind: str, inputs: Inputs, way: str, seed: int) -> tuple[Any, Any]:
    if way == "positions" and kind != "low rank":
        raise NotServed("positions are left to the model, and PEFT warns of it")
    if name == "features" and "token_type_ids" in inputs and kind != "low rank":
        raise NotServed("token types are left out, and PEFT warns of it")
    if name == ANSWERS and "start_positions" in inputs and kind != "low rank":
        raise NotServed("positions of an answer are those of all tokens")
    model, plain = adapted(name, kind, seed), base(name, seed)
    if kind == "low rank":
        plain = _with_changes(plain, model)
    with torch.no_grad():
        right = _numbers(_right(model, plain, name, kind, _given(inputs, plain)))
        given = _given(inputs, plain)
        kept = {key: value.clone() for key, value in given.items() if isinstance(value, Tensor)}
        found = _numbers(model(**given))
        again = _numbers(model(**given))
    if any(not torch.equal(given[key], value) for key, value in kept.items()):
        return "inputs that are changed", right
    return [found, again], [right, right]


def _with_changes(plain: Any, model: Any) -> Any:
    """Add the products of all layers to the weights of the base."""
    with torch.no_grad():
        for key, layer in model.base_model.model.named_modules():
            if hasattr(layer, "lora_A") and len(layer.lora_A):
                (low,), (high,) = layer.lora_A.values(), layer.lora_B.values()
                scale = (
                    layer.lora_alpha["default"] / layer.r["default"] if hasattr(layer, "lora_alpha") else 1.0
                )
                plain.get_submodule(key).weight.add_(scale * high.weight @ low.weight)
    return plain


def _uses(names: Iterable[str], seed: int) -> Sequence[Use]:
    return [
        (
            f"{name}, {kind}, {way}",
            lambda name=name, kind=kind, way=way, inputs=inputs: _use(name, kind, inputs, way, seed),  # type: ignore[misc]
        )
        for name, kind in itertools.product(names, ("low rank", *PROMPTS))
        for way, inputs in _inputs(name)
    ]


def tasks(seed: int) -> Sequence[Use]:
    """Return forward passes of each task, type and way."""
    return _uses([name for name in BASES if name != ANSWERS], seed)


def answers(seed: int) -> Sequence[Use]:
    """Return those of models that find answers in texts."""
    return _uses([ANSWERS], seed)
