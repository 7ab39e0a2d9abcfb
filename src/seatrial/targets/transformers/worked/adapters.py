"""Worked examples of adapters that Transformers' models add, save and load: files, given tensors, what trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import KnownFailure, since
from seatrial.targets.common.target import release
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.small_models import fresh_model
from seatrial.targets.transformers.worked.text_heads import LARGEST, configured
from seatrial.targets.transformers.worked.weights import folder, llama, same, saved, tensors

IDS = torch.arange(3, 15).reshape(2, 6)


def with_any_peft(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that release 5.24 and later serve with an older PEFT than they require."""

    def served(function: Any) -> Any:
        if Version(release("transformers")) < Version("5.24"):
            return call(function)
        import transformers.integrations.peft as module

        with patch.object(module, "check_peft_version", lambda *given, **more: None):
            return call(function)

    return served


def _config(**options: Any) -> Any:
    from peft import LoraConfig

    made: Any = LoraConfig
    return made(**{"r": 2, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], **options})


def _adapted(model: Any, name: str, seed: int, **options: Any) -> Any:
    """Add an adapter with drawn tensors."""
    try:
        model.add_adapter(_config(**options), adapter_name=name)
    except ValueError as error:
        if "version of PEFT" not in str(error):
            raise
        raise NotServed(str(error)) from error
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for where, value in model.named_parameters():
            if f".{name}." in where:
                value.copy_(torch.randn(value.shape, generator=generator) * 0.5)
    return model.eval()


def _logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def _close(one: Any, other: Any) -> bool:
    return bool((_logits(one) - _logits(other)).abs().max() < 1e-4)


def _saved(model_class: Any) -> list[Any]:
    """Return files and names of a saved adapter, in PEFT's form and not, and of the one in use of two."""
    model = _adapted(_adapted(llama(), "one", 1), "two", 2)
    found: list[Any] = []
    for name, options in (("one", {}), ("two", {}), ("two", {"save_peft_format": False})):
        model.set_adapter(name)
        path = saved(model, **options)
        values = tensors(path)
        first = sorted(values)[0]
        own = model.get_submodule("model.layers.0.mlp.down_proj").lora_A[name].weight
        found.append([
            (path / "model.safetensors").exists(), first, torch.equal(values[first], own), len(values),
            json.loads((path / "adapter_config.json").read_text())["r"],
        ])  # fmt: skip
    model.set_adapter(["one", "two"])
    try:
        saved(model)
    except ValueError as error:
        found.append("Multiple active adapters" in str(error))
    return found


def _loaded(model_class: Any) -> list[Any]:
    """Return whether logits are those of the saved adapter: of its folder, of tensors, of the base, of a name."""
    model = _adapted(llama(), "default", 1)
    path = saved(model)
    whole = llama()
    whole.load_adapter(str(path))
    given = llama()
    values = {name.removeprefix("base_model.model."): value for name, value in tensors(path).items()}
    given.load_adapter(peft_config=_config(), adapter_state_dict=values, adapter_name="other")
    base = saved(llama())
    words = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**words, "base_model_name_or_path": str(base)}))
    read = model_class.from_pretrained(path)
    named = model_class.from_pretrained(path, adapter_name="mine")
    return [
        _close(whole, model), _close(given, model), _close(read, model), given.active_adapters(),
        named.active_adapters(), _close(named, model), _close(llama(), model), read.training,
    ]  # fmt: skip


def _trains(model_class: Any) -> list[Any]:
    """Return what trains: of a new adapter, of one that is loaded, to be trained or not, and of the base."""
    model = _adapted(llama(), "one", 1)
    path = saved(model)
    found = []
    for options in (None, {}, {"is_trainable": True}, {"is_trainable": False}):
        made = model if options is None else llama()
        if options is not None:
            made.load_adapter(str(path), adapter_name="one", **options)
        kinds = {"lora" in name for name, value in made.named_parameters() if value.requires_grad}
        found.append(sorted(kinds))
    return found


def _scaled(model_class: Any) -> list[bool]:
    """Return whether logits of one adapter, of two at once and of none are those of their products."""
    model = _adapted(_adapted(llama(), "one", 1), "two", 2, r=4, lora_alpha=2)
    found = []
    for names in (["one"], ["two"], ["one", "two"], []):
        due = llama()
        if names:
            model.set_adapter(names if len(names) > 1 else names[0])
            model.enable_adapters()
        else:
            model.disable_adapters()
        with torch.no_grad():
            for place, module in model.named_modules():
                if not hasattr(module, "lora_A"):
                    continue
                for name in names:
                    scale = 3.0 if name == "one" else 0.5
                    product = module.lora_B[name].weight @ module.lora_A[name].weight
                    due.get_submodule(place).weight.add_(product * scale)
        found.append(_close(model.eval(), due))
    return found


def _states(model_class: Any) -> list[Any]:
    """Return numbers of tensors of each adapter's state, and refusals of unknown and known names."""
    model = _adapted(_adapted(llama(), "one", 1), "two", 2, target_modules=["q_proj"])
    found: list[Any] = [len(model.get_adapter_state_dict(name)) for name in ("one", "two")]
    found.append(len(model.get_adapter_state_dict()))
    calls: Sequence[Callable[[], Any]] = (
        lambda: model.set_adapter("three"),
        lambda: model.add_adapter(_config(), adapter_name="one"),
        lambda: llama().active_adapters(),
        lambda: llama().disable_adapters(),
    )
    for call in calls:
        try:
            call()
        except ValueError:
            found.append(True)
    model.delete_adapter("two")
    return [
        *found,
        sorted(model.peft_config),
        [name for name, _ in model.named_parameters() if ".two." in name],
    ]


def _with_its_base(model_class: Any) -> list[str]:
    """Return what differs of a model that saves its base besides its adapter: after it was saved, and read again."""
    config = configured(model_class.config_class.model_type, "granite")
    model = fresh_model(model_class, config, LARGEST).eval()
    draw_by_names_alone(model)
    base = {name: value.clone() for name, value in model.state_dict().items()}
    _adapted(model, "default", 1, target_modules=["q_proj", "v_proj"])
    due, wrong, paths = _logits(model), [], []
    for time in ("first", "second"):
        path = folder()
        model.save_pretrained(str(path))
        paths.append(path)
        if not (path / "adapter_model.safetensors").exists():
            wrong.append(f"no adapter in the {time} folder")
        if not model._hf_peft_config_loaded or model.active_adapters() != ["default"]:
            wrong.append(f"the model does not know its adapter after the {time} time")
        if not torch.equal(_logits(model), due):
            wrong.append(f"other logits after the {time} time")
    try:
        read = model_class.from_pretrained(paths[0])
    except OSError as error:
        wrong.append(error_line(error))
    else:
        if not (_logits(read) - due).abs().max() < 1e-4:
            wrong.append("other logits of what is read")
    for file in paths[0].glob("adapter_*"):
        file.unlink()
    plain, said = model_class.from_pretrained(paths[0], output_loading_info=True)
    wrong += [f"{name} of the base" for name in same(plain, base)]
    wrong += [f"{name} is missing" for name in said["missing_keys"]]
    return wrong[:4]


BENEATH = KnownFailure(
    "the base is saved with the names that its layers have beneath the adapter",
    finding="Transformers: Granite Speech saved with its adapter",
    releases=since("transformers", "5"),
)
CAUSAL = "transformers:LlamaForCausalLM"
FIRST = "model.layers.0.mlp.down_proj.lora_A.weight"
# Sources: the documentation of add_adapter, load_adapter and save_pretrained.
ADAPTER_ROWS: Sequence[Row] = (
    Row(
        "states",
        CAUSAL,
        "adapters that are saved",
        with_any_peft(_saved),
        [
            [False, f"base_model.model.{FIRST}", True, 8, 2],
            [False, f"base_model.model.{FIRST}", True, 8, 2],
            [False, FIRST, True, 8, 2],
            True,
        ],
        since="4.56",
    ),
    Row(
        "states",
        CAUSAL,
        "adapters that are loaded",
        with_any_peft(_loaded),
        [True, True, True, ["other"], ["mine"], True, False, False],
        since="4.56",
    ),
    Row(
        "states",
        CAUSAL,
        "adapters that train",
        with_any_peft(_trains),
        [[True], [], [True], []],
        since="4.56",
    ),
    Row("states", CAUSAL, "adapters at once", with_any_peft(_scaled), [True] * 4, since="4.56"),
    Row(
        "states",
        CAUSAL,
        "states of adapters",
        with_any_peft(_states),
        [8, 4, 4, True, True, True, True, ["one"], []],
        since="4.56",
    ),
    *(
        Row(
            "states",
            f"transformers:{name}ForConditionalGeneration",
            "an adapter that is saved with its base",
            with_any_peft(_with_its_base),
            [],
            since="4.57",
            known=BENEATH,
        )
        for name in ("GraniteSpeech", "GraniteSpeechPlus")
    ),
)
