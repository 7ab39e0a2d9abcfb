"""verl's merger of checkpoints that FSDP wrote in shards, on tiny models; see `contracts.utilities`."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import made_model, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder

MERGER = "verl.model_merger"
LORA: Mapping[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"]}
GENERATION: Mapping[str, Any] = {"temperature": 0.7, "top_k": 7, "do_sample": True}


class VerlMerged(KnowsFailures):
    """`FSDPModelMerger.merge_and_save` of files as `FSDPCheckpointManager` writes them."""

    thorough: ClassVar[bool] = True

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the adapter's scale is not in the merged files, or the merge ends at the name of the adapter's task",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.8"),
        ).of("R31.merged/weights and adapter"),
        KnownFailure(
            "a head that is the embedding is in the files as a second tensor (verl#6334)",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.8"),
        ).of("R31.merged/tensors of the file, a head that is the embedding"),
    )

    def __init__(self) -> None:
        """Find the classes."""
        self._merger = find_name("verl", [f"{MERGER}.fsdp_model_merger:FSDPModelMerger"])
        self._config = find_name("verl", [f"{MERGER}.base_model_merger:ModelMergerConfig"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"merged model": self._merged}

    def _merged(self, kind: str, shape: Sequence[int]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the model has, and what is read from the merged files.

        Args:
            kind: `plain`, `tied`, `classifier` or `adapter`.
            shape: numbers of copies and of shards of each.
        """
        root = Path(new_folder())
        model = _model(kind)
        right: dict[str, Any] = {"weights": _weights(model), "generation": {}}
        # A parameter that has two names is named once.
        right["tensors"] = [name for name, _ in model.named_parameters()]
        own, target = root / "actor" / "huggingface", root / "merged"
        model.config.save_pretrained(own)
        tiny_tokenizer().save_pretrained(own)
        if model.can_generate():
            model.generation_config.update(**GENERATION)
            model.generation_config.save_pretrained(own)
            right["generation"] = dict(GENERATION)
        if kind == "adapter":
            model = _with_adapter(model)
            right["adapter"] = _adapter_weights(model)
            right["options"] = {**LORA, "target_modules": sorted(LORA["target_modules"])}
            meta = {"r": LORA["r"], "lora_alpha": LORA["lora_alpha"], "task_type": "CAUSAL_LM"}
            (root / "actor" / "lora_train_meta.json").write_text(json.dumps(meta), encoding="utf-8")
        _write_shards(root / "actor", model.state_dict(), shape)
        config = self._config(
            operation="merge",
            backend="fsdp",
            local_dir=str(root / "actor"),
            target_dir=str(target),
            hf_model_config_path=str(own),
        )
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self._merger(config).merge_and_save()
        return right, _read(target, type(_model(kind)), kind)


def _model(kind: str) -> Any:
    """Return a model in bfloat16, in which it is merged."""
    import transformers

    head = "TokenClassification" if kind == "classifier" else "CausalLM"
    config = transformers.Qwen2Config(
        vocab_size=len(tiny_tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=kind == "tied",
        architectures=[f"Qwen2For{head}"],
    )
    if kind == "classifier":
        config.num_labels = 1
    return made_model(getattr(transformers, f"Qwen2For{head}"), config, 3).bfloat16()


def _weights(model: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _with_adapter(model: Any) -> Any:
    import peft

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **LORA))
        for name, value in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(value)
    return model.bfloat16()


def _adapter_weights(model: Any) -> dict[str, Tensor]:
    return {
        name.replace(".default.", "."): tensor for name, tensor in _weights(model).items() if "lora_" in name
    }


def _write_shards(folder: Path, state: Mapping[str, Tensor], shape: Sequence[int]) -> None:
    """Write one file a rank; each tensor is divided along its first dimension within a copy."""
    from torch.distributed.device_mesh import DeviceMesh

    copies, shards = shape
    world = copies * shards
    ranks, names = torch.arange(world), ("fsdp",)
    if copies > 1:
        ranks, names = ranks.view(copies, shards), ("ddp", "fsdp")  # type: ignore[assignment]
    options = {"world_size": world, "FSDP_version": 2}
    (folder / "fsdp_config.json").write_text(json.dumps(options), encoding="utf-8")
    for rank in range(world):
        # No process group: the files of all ranks are made, and read, in this process.
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=names, _init_backend=False, _rank=rank)
        own = {name: _sharded(tensor, mesh, rank % shards, shards) for name, tensor in state.items()}
        torch.save(own, folder / f"model_world_size_{world}_rank_{rank}.pt")


def _sharded(tensor: Tensor, mesh: Any, place: int, shards: int) -> Any:
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    parts = [*torch.chunk(tensor.detach(), shards, 0), *[tensor.detach()[:0]] * shards]
    placements = (*[Replicate()] * (mesh.ndim - 1), Shard(0))
    spec = DTensorSpec(mesh, placements, tensor_meta=TensorMeta(tensor.shape, tensor.stride(), tensor.dtype))
    return DTensor(parts[place].clone(), spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _read(folder: Path, model_class: Any, kind: str) -> dict[str, Any]:
    import safetensors.torch

    model = model_class.from_pretrained(folder, dtype=torch.bfloat16)
    found: dict[str, Any] = {"weights": _weights(model), "generation": {}}
    files = folder.glob("*.safetensors")
    found["tensors"] = [name for one in files for name in safetensors.torch.load_file(one)]
    if model.can_generate():
        found["generation"] = {name: getattr(model.generation_config, name) for name in GENERATION}
    if kind == "adapter":
        own = folder / "lora_adapter"
        options = json.loads((own / "adapter_config.json").read_text(encoding="utf-8"))
        found["adapter"] = safetensors.torch.load_file(own / "adapter_model.safetensors")
        found["options"] = {
            "r": options["r"],
            "lora_alpha": options["lora_alpha"],
            "target_modules": sorted(options["target_modules"]),
        }
    return found


ADAPTERS: dict[str, type[Any]] = {"merged-checkpoints": VerlMerged}
