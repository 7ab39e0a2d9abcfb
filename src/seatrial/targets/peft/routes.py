"""Ways to ask a model with adapters of PEFT for logits, and to move an adapter to another model."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.adapter_routes import Call, Transfer
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name
from seatrial.targets.peft.adapted import PeftAdapted, refusing, without_a_cache
from seatrial.targets.peft.bases import VOCAB
from seatrial.targets.peft.generated import generated
from seatrial.targets.peft.nets import NETS
from seatrial.targets.peft.readings import (
    added_by_the_library,
    has_rows_of_tokens,
    loaded_by_the_library,
    read_by_names,
    since_its_start,
    with_its_base,
    with_its_base_by_the_library,
)

NEW_IDS = 3
PADDING = 2
"""Ids in front of each row of a generation from padded rows."""
MOST_RANK = 32
"""The rank that a change of a weight of the tiny models can have."""


def answered(model: PeftAdapted, ids_BS: Tensor, call: Call) -> tuple[Tensor, Tensor]:
    """Return logits that were asked for in a way, and the ids that they are of; see `contracts.adapter_routes`."""
    given = model.model
    given.eval()
    with torch.no_grad():
        if call == "embeddings given":
            embed = _inner(given).get_input_embeddings()
            return model.read(
                given(inputs_embeds=embed(ids_BS), **_plain(given, ids_BS)).logits, ids_BS
            ), ids_BS
        if call == "without a mask":
            return model.read(given(input_ids=ids_BS, **without_a_cache(given)).logits, ids_BS), ids_BS
        if call == "as a tuple":
            _inner(given)
            found = given(input_ids=ids_BS, return_dict=False, **_plain(given, ids_BS))
            return model.read(found[0], ids_BS), ids_BS
        if call == "in training":
            if any(hasattr(config, "sample_at_inference") for config in given.peft_config.values()):
                raise NotServed("this type draws random numbers in training")
            given.train()
            logits_BSV = model.read(given(input_ids=ids_BS, **_plain(given, ids_BS)).logits, ids_BS)
            given.eval()
            return logits_BSV, ids_BS
        if call == "with a cache":
            return _with_a_cache(model, ids_BS), ids_BS
        return _generated(model, ids_BS, PADDING if call == "generated from padded rows" else 0)


def _inner(model: Any) -> Any:
    """Return the language model.

    Raises:
        NotServed: the base is a network without what language models have.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else None
    if inner is None or not hasattr(inner, "generate"):
        raise NotServed("this base is no language model")
    return inner


def _plain(given: Any, ids_BS: Tensor) -> dict[str, Any]:
    return {"attention_mask": torch.ones_like(ids_BS), **without_a_cache(given)}


def _with_a_cache(model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    if any(config.is_prompt_learning for config in model.model.peft_config.values()):
        raise NotServed("a forward pass of PEFT puts the virtual tokens in front, also after a cache")
    _inner(model.model)
    begun, mask_BS = ids_BS.shape[1] // 2, torch.ones_like(ids_BS)
    if not begun:
        raise NotServed("a row of one id has no beginning to be kept")
    first = model.model(input_ids=ids_BS[:, :begun], attention_mask=mask_BS[:, :begun], use_cache=True)
    second = model.model(
        input_ids=ids_BS[:, begun:],
        attention_mask=mask_BS,
        past_key_values=first.past_key_values,
        use_cache=True,
    )
    return torch.cat([first.logits, second.logits], dim=1)


def _generated(model: PeftAdapted, ids_BS: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    _inner(model.model)
    padded_BS = torch.nn.functional.pad(ids_BS, (padding, 0), value=0)
    mask_BS = torch.nn.functional.pad(torch.ones_like(ids_BS), (padding, 0), value=0)
    logits_BNV, all_BS = generated(model.model, padded_BS, mask_BS, NEW_IDS)
    # The last id is predicted, and predicts nothing.
    return logits_BNV, all_BS[:, padding:-1]


def transferred(adapters: Any, model: PeftAdapted, ids_BS: Tensor, transfer: Transfer) -> Tensor:
    """Return the logits of another model that got the adapter `first`; see `contracts.adapter_routes`."""
    return TRANSFERS[transfer](adapters, model, ids_BS)


def _logits(adapters: Any, model: Any, ids_BS: Tensor) -> Tensor:
    logits_BSV: Tensor = adapters.of_model(model).outputs(ids_BS)
    return logits_BSV


def _new(adapters: Any, model: PeftAdapted, **options: Any) -> Any:
    import peft

    config = copy.deepcopy(model.model.peft_config["first"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(77)
        return peft.get_peft_model(adapters.given("float32"), config, adapter_name="first", **options)


def _is_a_prompt(model: PeftAdapted) -> bool:
    return bool(model.model.peft_config["first"].is_prompt_learning)


def _refuse_encoders(model: PeftAdapted) -> None:
    """Raise NotServed for a prompt that an encoder computes, which is saved as it is computed."""
    config = model.model.peft_config["first"]
    if hasattr(config, "encoder_reparameterization_type") or getattr(config, "prefix_projection", False):
        raise NotServed("the prompt is saved as the encoder computes it, which another encoder does not read")


def _set_in_new(adapters: Any, model: PeftAdapted, ids_BS: Tensor, **options: Any) -> Tensor:
    import peft

    _refuse_encoders(model)
    if _is_a_prompt(model) and options:
        raise NotServed("virtual tokens are not made without memory")
    if options and model.model.peft_config["first"].to_dict().get("layer_replication"):
        raise NotServed("replicated layers are not made without memory")
    state = model.state("first")
    new = _new(adapters, model, **options)
    peft.set_peft_model_state_dict(new, dict(state), adapter_name="first", **options)
    return _logits(adapters, new, ids_BS)


def _of_a_given_state(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    import peft

    _refuse_encoders(model)
    whole = {name: value.detach().clone() for name, value in model.model.state_dict().items()}
    state = peft.get_peft_model_state_dict(model.model, state_dict=whole, adapter_name="first")
    new = _new(adapters, model)
    peft.set_peft_model_state_dict(new, state, adapter_name="first")
    return _logits(adapters, new, ids_BS)


def _injected(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    import peft

    if _is_a_prompt(model):
        raise NotServed("virtual tokens are not injected")
    plain = adapters.given("float32")
    peft.inject_adapter_in_model(copy.deepcopy(model.model.peft_config["first"]), plain, adapter_name="first")
    state = {name.removeprefix("base_model.model."): value for name, value in model.state("first").items()}
    peft.set_peft_model_state_dict(plain, state, adapter_name="first")
    plain.eval()
    with torch.no_grad():
        logits_BSV: Tensor = plain(input_ids=ids_BS, **_plain(plain, ids_BS)).logits
    return logits_BSV


def _loaded(
    adapters: Any,
    model: PeftAdapted,
    ids_BS: Tensor,
    *,
    name: str = "first",
    safe: bool = True,
    **options: Any,
) -> Tensor:
    import peft

    if "low_cpu_mem_usage" in options and model.model.peft_config["first"].to_dict().get("layer_replication"):
        raise NotServed("replicated layers are not made without memory")
    embeddings = {"save_embedding_layers": True} if options.pop("embeddings", False) else {}
    if embeddings:
        _inner(model.model)
    with tempfile.TemporaryDirectory() as folder:
        model.model.save_pretrained(
            folder, selected_adapters=["first"], safe_serialization=safe, **embeddings
        )
        loaded = peft.PeftModel.from_pretrained(
            adapters.given("float32"), str(Path(folder) / "first"), adapter_name=name, **options
        )
    return _logits(adapters, loaded, ids_BS)


def _written_while_disabled(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    import peft

    with tempfile.TemporaryDirectory() as folder:
        with model.disabled():
            model.save(Path(folder), "first")
        loaded = peft.PeftModel.from_pretrained(
            adapters.given("float32"), str(Path(folder) / "first"), "first"
        )
    return _logits(adapters, loaded, ids_BS)


def _written_while_merged(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    import peft

    if not adapters.adapter_spec.merges:
        raise NotServed("this type is not merged")
    with tempfile.TemporaryDirectory() as folder:
        model.merge()
        model.save(Path(folder), "first")
        model.unmerge()
        loaded = peft.PeftModel.from_pretrained(
            adapters.given("float32"), str(Path(folder) / "first"), "first"
        )
    return _logits(adapters, loaded, ids_BS)


def _merged_in_one_file(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    """Return the logits of the base after a merge, a save and a load; the head may no longer be the embedding.

    Raises:
        NotServed: nothing of LoRA is on embeddings or the head, which files may hold once; or the merge itself differs,
            which is for the laws of merging.
    """
    kind = adapters.kind
    if kind.config != "LoraConfig" or kind.trait in NETS or not has_rows_of_tokens(kind.options):
        raise NotServed("embeddings and the head are as they were")
    before = model.outputs(ids_BS)
    try:
        copied = copy.deepcopy(model.model)
    except RuntimeError as error:  # of a tensor that is computed from another
        raise NotServed("such a model cannot be copied") from error
    with refusing():
        merged = copied.merge_and_unload()
    found = _logits_of_base(merged, ids_BS)
    if not torch.allclose(found, before, atol=1e-4):
        raise NotServed("the merged model has other outputs")
    with tempfile.TemporaryDirectory() as folder:
        merged.save_pretrained(folder)
        loaded = type(merged).from_pretrained(folder)
    return _logits_of_base(loaded, ids_BS)


def _logits_of_base(base: Any, ids_BS: Tensor) -> Tensor:
    with torch.no_grad():
        logits_BSV: Tensor = base.eval()(input_ids=ids_BS, **_plain(base, ids_BS)).logits
    return logits_BSV


def _over_the_one_that_is_there(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    _refuse_encoders(model)
    other = _new(adapters, model)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        other.load_adapter(str(Path(folder) / "first"), "first")
    return _logits(adapters, other, ids_BS)


def _copied(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    try:
        copied = copy.deepcopy(model.model)
    except RuntimeError as error:
        if "deepcopy protocol" not in str(error):
            raise
        raise NotServed("torch refuses to copy a weight that is computed from another one") from error
    return _logits(adapters, copied, ids_BS)


def _converted(adapters: Any, model: PeftAdapted, ids_BS: Tensor, *, rank: float) -> Tensor:
    import peft

    if model.model.peft_config["first"].to_dict().get("layer_replication"):
        raise NotServed("a converted adapter does not replicate layers")
    if model.model.peft_config["first"].to_dict().get("use_bdlora"):
        raise NotServed("blocks are not converted, and PEFT says so by an error")
    try:
        convert = find_name("peft", ["peft:convert_to_lora", "peft.tuners.lora.conversion:convert_to_lora"])
    except Gone as gone:
        raise NotServed(str(gone)) from gone
    with refusing():
        config, state = convert(model.model, rank=rank, adapter_name="first")
    new = peft.get_peft_model(adapters.given("float32"), config, adapter_name="first")
    peft.set_peft_model_state_dict(new, state, adapter_name="first")
    return _logits(adapters, new, ids_BS)


def _named_like_a_module(adapters: Any, model: PeftAdapted, ids_BS: Tensor) -> Tensor:
    import peft

    _refuse_encoders(model)
    layers = [name for name, layer in model.model.get_base_model().named_modules() if "first" in _kept(layer)]
    parts = [part for part in layers[0].split(".")[:-1] if not part.isdigit()] if layers else []
    if not parts:
        raise NotServed("no module with a name is around an adapted layer")
    name = parts[-1]
    with refusing():
        new = peft.get_peft_model(
            adapters.given("float32"), copy.deepcopy(model.model.peft_config["first"]), adapter_name=name
        )
    peft.set_peft_model_state_dict(new, dict(model.state("first")), adapter_name=name)
    with tempfile.TemporaryDirectory() as folder:
        new.save_pretrained(folder, selected_adapters=[name])
        loaded = peft.PeftModel.from_pretrained(adapters.given("float32"), str(Path(folder) / name), "first")
    return _logits(adapters, loaded, ids_BS)


def _kept(layer: Any) -> list[str]:
    """Return the names of the adapters that a layer has."""
    return [key for kept in getattr(layer, "adapter_layer_names", ()) for key in getattr(layer, kept, {})]


TRANSFERS: Mapping[Transfer, Callable[[Any, PeftAdapted, Tensor], Tensor]] = {
    "tensors set in a new model": _set_in_new,
    "tensors set in a new model, low memory": lambda *given: _set_in_new(*given, low_cpu_mem_usage=True),
    "tensors of a given state": _of_a_given_state,
    "injected into a plain model": _injected,
    "file, low memory": lambda *given: _loaded(*given, low_cpu_mem_usage=True),
    "file without safetensors": lambda *given: _loaded(*given, safe=False),
    "file, another name": lambda *given: _loaded(*given, name="another"),
    "file of an adapter with the name of a module": _named_like_a_module,
    "file read by its names": read_by_names,
    "file with its base and a tokenizer of fewer tokens": lambda *given: with_its_base(
        *given, num_tokens=VOCAB - 7
    ),
    "file with its base and a tokenizer of more tokens": lambda *given: with_its_base(
        *given, num_tokens=VOCAB + 3
    ),
    "file with embeddings": lambda *given: _loaded(*given, embeddings=True),
    "file loaded by the model itself": loaded_by_the_library,
    "file of an adapter that the model itself added": added_by_the_library,
    "file with its base, loaded as one model": with_its_base_by_the_library,
    "file written while disabled": _written_while_disabled,
    "file written while merged": _written_while_merged,
    "file of the change since its start": since_its_start,
    "merged into its base, in one file": _merged_in_one_file,
    "over the one that is there": _over_the_one_that_is_there,
    "copied": _copied,
    "converted to low rank": lambda *given: _converted(*given, rank=MOST_RANK),
    "converted to low rank by energy": lambda *given: _converted(*given, rank=1.0),
}
