"""Where files of an adapter are: versions of a repository, folders within it, and a folder on this machine.

Repositories are written into a cache of the hub as its client does, and the hub is never called.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.adapter_parts import Use
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.parts.shared import logits_of, redraw

IDS_BS = ((5, 9, 7, 30), (8, 4, 21, 3))
VERSIONS = ("main", "older")
FOLDERS = ("", "one", "parts/two")
REPOSITORY = "someone/adapter"
BASE = "someone/base"


def _config(rank: int) -> Any:
    import peft

    return peft.LoraConfig(
        r=rank,
        lora_alpha=6,
        target_modules=["q_proj", "up_proj"],
        task_type="CAUSAL_LM",
        base_model_name_or_path=BASE,
    )


def _base(version: str) -> Any:
    """Return the base of a version, whose weights are others."""
    model = base("linear", torch.float32)
    if version != "main":
        with torch.no_grad():
            for value in model.parameters():
                value.mul_(0.7)
    return model.eval()


def _adapted(version: str, folder: str, seed: int, plain: Any) -> Any:
    """Return the model whose adapter a version has in a folder; all have other ranks and tensors."""
    import peft

    number = VERSIONS.index(version) * len(FOLDERS) + FOLDERS.index(folder)
    model = peft.get_peft_model(plain, _config(number + 2))
    redraw(model, "lora_", seed + 100 * number)
    return model.eval()


def _write(cache: Path, repository: str, write: Callable[[str, Path], None]) -> None:
    """Write all versions of a repository into a cache of the hub."""
    root = cache / f"models--{repository.replace('/', '--')}"
    for number, version in enumerate(VERSIONS):
        commit = f"{number + 1:040x}"
        (root / "refs").mkdir(parents=True, exist_ok=True)
        (root / "refs" / version).write_text(commit, encoding="utf-8")
        snapshot = root / "snapshots" / commit
        snapshot.mkdir(parents=True)
        write(version, snapshot)


def _save_adapters(version: str, snapshot: Path, seed: int, base_version: str | None) -> None:
    for folder in FOLDERS:
        model = _adapted(version, folder, seed, _base("main"))
        model.peft_config["default"].base_model_name_or_path = BASE
        model.peft_config["default"].revision = base_version
        model.save_pretrained(str(snapshot / folder), save_embedding_layers=False)


@lru_cache(maxsize=4)
def _cache(seed: int, base_version: str | None) -> Path:
    cache = Path(new_folder())
    _write(cache, REPOSITORY, lambda version, folder: _save_adapters(version, folder, seed, base_version))
    _write(cache, BASE, lambda version, folder: _base(version).save_pretrained(str(folder)))
    return cache


@contextmanager
def _hub(seed: int, base_version: str | None = None) -> Iterator[Path]:
    """Have a cache of the hub with the adapter and its base, and no connection."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _http
    from transformers.utils import hub

    reset = getattr(
        _http, "reset_sessions", lambda: None
    )  # of releases whose sessions keep that they are connected
    with ExitStack() as stack:
        stack.enter_context(patch.object(constants, "HF_HUB_OFFLINE", True))
        if hasattr(hub, "_is_offline_mode"):
            stack.enter_context(patch.object(hub, "_is_offline_mode", True))
        stack.enter_context(patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}))
        reset()
        stack.callback(reset)
        cache = _cache(seed, base_version)
        stack.enter_context(patch.object(constants, "HF_HUB_CACHE", str(cache)))
        yield cache


def _options(version: str | None, folder: str) -> dict[str, Any]:
    made = {} if version is None else {"revision": version}
    return {**made, **({"subfolder": folder} if folder else {})}


def _loaded(options: dict[str, Any], cache: Path) -> Any:
    import peft

    return peft.PeftModel.from_pretrained(_base("main"), REPOSITORY, cache_dir=str(cache), **options)


def _loaded_second(options: dict[str, Any], cache: Path) -> Any:
    import peft

    model = peft.get_peft_model(_base("main"), _config(3))
    model.load_adapter(REPOSITORY, "second", cache_dir=str(cache), **options)
    model.set_adapter("second")
    return model


def _loaded_with_base(options: dict[str, Any], cache: Path) -> Any:
    import peft

    return peft.AutoPeftModelForCausalLM.from_pretrained(REPOSITORY, cache_dir=str(cache), **options)


def _loaded_by_itself(options: dict[str, Any], cache: Path) -> Any:
    model = _base("main")
    if "adapter_kwargs" not in inspect.signature(model.load_adapter).parameters:
        raise NotServed("load_adapter of this release of Transformers takes no options of files")
    model.load_adapter(REPOSITORY, adapter_kwargs={"cache_dir": str(cache), **options})
    return model


def _loaded_from_here(options: dict[str, Any], cache: Path) -> Any:
    import peft

    version = options.pop("revision", "main")
    commit = f"{VERSIONS.index(version) + 1:040x}"
    path = cache / f"models--{REPOSITORY.replace('/', '--')}" / "snapshots" / commit
    return peft.PeftModel.from_pretrained(_base("main"), str(path), **options)


def _with_config(options: dict[str, Any], cache: Path) -> Any:
    import peft

    config = peft.PeftConfig.from_pretrained(REPOSITORY, cache_dir=str(cache), **options)
    return peft.PeftModel.from_pretrained(
        _base("main"), REPOSITORY, config=config, cache_dir=str(cache), **options
    )


WAYS: dict[str, Callable[[dict[str, Any], Path], Any]] = {
    "PeftModel": _loaded,
    "PeftModel with its configuration": _with_config,
    "a second adapter": _loaded_second,
    "with its base": _loaded_with_base,
    "by the model itself": _loaded_by_itself,
    "from a folder of this machine": _loaded_from_here,
}


def places(seed: int) -> Sequence[Use]:
    """Return each way to load an adapter, of each version and folder."""

    def loaded(way: str, version: str | None, folder: str) -> tuple[Any, Any]:
        right = _adapted(version or "main", folder, seed, _base("main"))
        ids_BS = torch.tensor(IDS_BS)
        with _hub(seed) as cache:
            found: Tensor = logits_of(WAYS[way](_options(version, folder), cache), ids_BS)
        return found, logits_of(right, ids_BS)

    def of_a_base(base_version: str | None) -> tuple[Any, Any]:
        right = _adapted("main", "", seed, _base(base_version or "main"))
        ids_BS = torch.tensor(IDS_BS)
        with _hub(seed, base_version) as cache:
            model = _loaded_with_base({}, cache)
        return logits_of(model, ids_BS), logits_of(right, ids_BS)

    def is_one() -> tuple[Any, Any]:
        from peft.helpers import check_if_peft_model

        with _hub(seed):
            found = [check_if_peft_model(name) for name in (REPOSITORY, BASE, "someone/else")]
        return found, [True, False, False]

    uses: list[Use] = [
        (
            f"{way}, version {version}, folder {folder or 'none'}",
            lambda way=way, version=version, folder=folder: loaded(way, version, folder),  # type: ignore[misc]
        )
        for way in WAYS
        for version in (None, "main", "older")
        # Without a connection, PEFT finds weights in a folder of this machine alone.
        for folder in (FOLDERS if way == "from a folder of this machine" else FOLDERS[:1])
    ]
    bases: list[Use] = [
        (f"a base of version {version}", lambda version=version: of_a_base(version))  # type: ignore[misc]
        for version in (None, "main", "older")
    ]
    return [*uses, *bases, ("whether a repository has an adapter", is_one)]
