"""Files of adapters of PEFT, read as other programs read them: by names of tensors, or with the base that they name."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.adapters import WeightUpdate
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.adapters import adapted_weights, scaling
from seatrial.targets.peft.adapted import PeftAdapted, refusing, without_a_cache
from seatrial.targets.peft.bases import TASKS, VOCAB
from seatrial.targets.peft.nets import NETS
from seatrial.targets.peft.updates import by_pattern

OTHERS = (
    "use_dora",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "ensure_weight_tying",
    "kasa_config",
    "use_bdlora",
    "velora_config",
)
"""Options of LoRA whose files have more than pairs of factors, or are of another base."""


def read_by_names(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    """Return the logits of a plain model with the changes that names and options of a file of LoRA say, in float64.

    Programs that serve adapters read such files; the names are those of every release.
    """
    from safetensors.torch import load_file

    options, config = adapters.kind.options, model.model.peft_config["first"]
    known = adapters.adapter_spec.closed_form or options.get("modules_to_save")
    others = getattr(config, "bias", "none") != "none" or any(options.get(option) for option in OTHERS)
    if adapters.kind.config != "LoraConfig" or adapters.kind.trait in NETS or others or not known:
        raise NotServed("the file is not one of factors of LoRA, and of modules that are saved")
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        tensors = load_file(str(Path(folder) / "first" / "adapter_model.safetensors"))
        said = json.loads((Path(folder) / "first" / "adapter_config.json").read_text(encoding="utf-8"))
    weights = {name: value.double() for name, value in adapters.plain_weights(dtype="float32").items()}
    rest = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): value.double()
        for name, value in tensors.items()
    }
    updates = []
    for path in [name.rpartition(".")[0] for name in weights if name.endswith(".weight")]:
        weights[f"{path}.weight"] = rest.pop(f"{path}.weight", weights[f"{path}.weight"])
        updates += _update(rest, path, said)
    if rest:
        # A reader that finds no module for a tensor computes something else.
        return torch.full((*ids_BS.shape, adapters.vocab_size), torch.nan)
    logits_BSV: Tensor = adapters.plain_outputs(ids_BS, adapted_weights(weights, updates))
    return logits_BSV.float()


def _update(tensors: dict[str, Tensor], path: str, said: Mapping[str, Any]) -> list[WeightUpdate]:
    """Return the change of a module, if it has one, and take its factors out of the tensors."""
    names = [f"{path}.lora_A.weight", f"{path}.lora_B.weight"]
    embeds = f"{path}.lora_embedding_A" in tensors
    if embeds:
        names = [f"{path}.lora_embedding_A", f"{path}.lora_embedding_B"]
    if not set(names) <= set(tensors):
        return []
    factors = {"A": tensors.pop(names[0]), "B": tensors.pop(names[1])}
    alpha = by_pattern(said["alpha_pattern"], path, said["lora_alpha"])
    scale = scaling(rank=len(factors["A"]), alpha=alpha, rank_stabilised=bool(said.get("use_rslora", False)))
    bias = tensors.pop(f"{path}.lora_B.bias", None)
    update = WeightUpdate(
        weight=f"{path}.weight",
        form="low rank",
        factors=factors,
        scaling=scale,
        transposed=embeds or bool(said["fan_in_fan_out"]),
        bias={} if bias is None else {f"{path}.bias": bias * scale},
    )
    return [update]


def with_its_base(adapters: Any, model: PeftAdapted, ids_BS: Tensor, *, num_tokens: int) -> Tensor:
    """Return the logits of base and adapter as `AutoPeftModelForCausalLM` loads them with a tokenizer."""
    import peft
    import transformers
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    kind = adapters.kind
    if kind.trait in NETS or kind.trait in TASKS or "replicated" in kind.trait:
        raise NotServed("the base is no language model of a file")
    if num_tokens > VOCAB and has_rows_of_tokens(kind.options):
        raise NotServed("the adapter has a row for each token")
    words = Tokenizer(WordLevel({f"w{number}": number for number in range(num_tokens)}, unk_token="w0"))
    with tempfile.TemporaryDirectory() as folder:
        inner = _saved_with_its_base(adapters, model, folder)
        fast: Any = transformers.PreTrainedTokenizerFast
        fast(tokenizer_object=words, unk_token="w0").save_pretrained(str(inner))
        loaded = peft.AutoPeftModelForCausalLM.from_pretrained(str(inner))
    logits_BSV: Tensor = adapters.of_model(loaded).outputs(ids_BS)
    return logits_BSV[..., :VOCAB]


def _saved_with_its_base(adapters: Any, model: PeftAdapted, folder: str) -> Path:
    """Save the base and the adapter, which names it, and return the adapter's folder."""
    adapters.plain("float32").save_pretrained(f"{folder}/base")
    model.save(Path(folder), "first")
    inner = Path(folder) / "first"
    said = json.loads((inner / "adapter_config.json").read_text(encoding="utf-8"))
    said["base_model_name_or_path"] = f"{folder}/base"
    (inner / "adapter_config.json").write_text(json.dumps(said), encoding="utf-8")
    return inner


def has_rows_of_tokens(options: Mapping[str, Any]) -> bool:
    """Return whether options put an adapter on embeddings or the head, or train them."""
    named = [*(options.get("modules_to_save") or ()), *(options.get("trainable_token_indices") or ())]
    targets = options.get("target_modules") or ()
    named += [targets] if isinstance(targets, str) else list(targets)
    return any(name in ("embed_tokens", "lm_head", "wte") for name in named)


def _need_its_library(adapters: Any, model: PeftAdapted) -> None:
    """Raise NotServed for what Transformers takes no adapter of."""
    if adapters.kind.trait in NETS or adapters.kind.trait in TASKS or "replicated" in adapters.kind.trait:
        raise NotServed("the base is no language model of a file")
    if model.model.peft_config["first"].is_prompt_learning:
        raise NotServed("Transformers takes no virtual tokens")


@contextmanager
def _other_draws() -> Iterator[None]:
    """Context in which what is not read from a file gets other values than the model has."""
    with refusing(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)
        yield


def _plain_logits(base: Any, ids_BS: Tensor) -> Tensor:
    base.eval()
    with torch.no_grad():
        logits_BSV: Tensor = base(
            input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS), **without_a_cache(base)
        ).logits
    return logits_BSV


def loaded_by_the_library(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    """Return the logits of a model that loads a file of an adapter by its own `load_adapter`."""
    _need_its_library(adapters, model)
    base = adapters.given("float32")
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        with _other_draws():
            base.load_adapter(str(Path(folder) / "first"), adapter_name="first")
    return _plain_logits(base, ids_BS)


def with_its_base_by_the_library(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    """Return the logits of the base that an adapter names, as `from_pretrained` of a base loads both."""
    import transformers

    _need_its_library(adapters, model)
    auto: Any = transformers.AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        inner = _saved_with_its_base(adapters, model, folder)
        with _other_draws():
            loaded = auto.from_pretrained(str(inner))
    return _plain_logits(loaded, ids_BS)


def added_by_the_library(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    """Return the logits of a loaded adapter that a model's own `add_adapter` and `save_pretrained` made."""
    import peft

    _need_its_library(adapters, model)
    base = adapters.given("float32")
    with tempfile.TemporaryDirectory() as folder:
        with _other_draws():
            base.add_adapter(copy.deepcopy(model.model.peft_config["first"]), adapter_name="first")
        state = {
            name.removeprefix("base_model.model."): value for name, value in model.state("first").items()
        }
        peft.set_peft_model_state_dict(base, state, adapter_name="first")
        try:
            with refusing():
                base.save_pretrained(folder)
        except KeyError as error:
            raise NotServed(f"saving raises: {error}") from error
        loaded = peft.PeftModel.from_pretrained(adapters.given("float32"), folder, "first")
    return adapters.of_model(loaded).outputs(ids_BS)  # type: ignore[no-any-return]


def since_its_start(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    """Return the logits of a plain base with the change of an adapter since its start, which changed the base.

    Raises:
        NotServed: the start is drawn, or is that of the base.
    """
    import peft

    start = str(adapters.kind.options.get("init_lora_weights", ""))
    if not start.startswith(("pissa", "olora")) or adapters.kind.trait == "conv1d":
        raise NotServed("the base is as it was")
    given = adapters.kind.options
    if given.get("use_rslora") and (given.get("rank_pattern") or given.get("alpha_pattern")):
        raise NotServed("PEFT refuses patterns with other scales")
    with tempfile.TemporaryDirectory() as folder:
        with torch.random.fork_rng(devices=[]):
            begun = peft.get_peft_model(
                adapters.given("float32"),
                copy.deepcopy(model.model.peft_config["first"]),
                adapter_name="start",
            )
        begun.peft_config["start"].init_lora_weights = True
        begun.save_pretrained(folder)
        model.model.save_pretrained(
            folder,
            selected_adapters=["first"],
            path_initial_model_for_weight_conversion=str(Path(folder) / "start"),
        )
        loaded = peft.PeftModel.from_pretrained(
            adapters.given("float32"), str(Path(folder) / "first"), adapter_name="first"
        )
    logits_BSV: Tensor = adapters.of_model(loaded).outputs(ids_BS)
    return logits_BSV
