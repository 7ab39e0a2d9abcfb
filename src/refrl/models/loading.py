"""Loading and saving any Hugging Face causal language model by path."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from refrl.config.loading import ConfigError
from refrl.directories import naming, new_directory

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

NEVER = -1e9
"""Logit of a token that is never written: its probability is 0 in float32 and in bfloat16, and no logit is infinite."""
_NUMBER = re.compile(r"\.\d+\.")


def save_directory(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    extra: Callable[[Path], None] | None = None,
) -> None:
    """Save weights (safetensors), configuration and tokenizer; the directory appears whole or not at all.

    Args:
        model: what is saved.
        tokenizer: saved with it.
        output: an empty or missing directory.
        extra: writes more files into the folder.

    Raises:
        ConfigError: the directory cannot be made.
        OSError: it cannot be written, as on a full disk; the message names it.
    """
    with new_directory(output) as folder, writing(output):
        write_model(model, tokenizer, folder)
        if extra is not None:
            extra(folder)


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """Put the name of what is written into the errors of writing it, those of safetensors included.

    Raises:
        OSError: it cannot be written.
    """
    from safetensors import SafetensorError

    with naming(output):
        try:
            yield
        except SafetensorError as error:
            raise OSError(f"cannot write the weights of {output}: {error}") from error


def write_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write weights (safetensors), configuration and tokenizer into a folder.

    Args:
        model: what is written.
        tokenizer: written with it.
        folder: is there.
        weights: in place of the model's own, by their names.
    """
    _silence_progress_bars()
    chosen: dict[str, Any] = {} if weights is None else {"state_dict": dict(weights)}
    model.save_pretrained(str(folder), **chosen)
    if weights is not None:  # Transformers names the type of the model's own
        config = copy.deepcopy(model.config)
        config.dtype = next(weight.dtype for weight in weights.values() if weight.is_floating_point())
        config.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def load_model(directory: Path) -> PreTrainedModel:
    """Load a causal language model, also one for images or sounds, with float32 weights; nothing is downloaded.

    Raises:
        ConfigError: the directory, its configuration or its weights are missing or unreadable.
    """
    check_model_directory(directory)
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    _silence_progress_bars()
    try:
        with _no_load_report():
            config = AutoConfig.from_pretrained(str(directory), local_files_only=True)
            check_layers(config, directory)
            is_text = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            # Transformers' attention by torch's kernels leaves the cap out (5.19 silently, 5.24 with a warning).
            caps_scores = getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None
            of_kind: Any = AutoModelForCausalLM if is_text else AutoModelForMultimodalLM
            loaded: Any = of_kind.from_pretrained(
                str(directory),
                config=config,
                local_files_only=True,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are in the report
                attn_implementation="eager" if caps_scores else None,
            )
    except StrictDataclassError as error:
        raise ConfigError(
            f"{directory}/config.json is not valid: {' '.join(str(error).split())}; copy config.json and weights of "
            "one model"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the model in {directory} cannot be loaded: {reason}") from error
    model: PreTrainedModel
    model, report = loaded
    if mismatched := sorted(report["mismatched_keys"]):
        name, stored, wanted = mismatched[0]
        raise ConfigError(
            f"{len(mismatched)} weights in {directory} have other shapes than its config.json gives: {name} is "
            f"{list(stored)}, and config.json needs {list(wanted)}; copy config.json and weights of one model"
        )
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise ConfigError(
            f"the weights in {directory} lack {len(report['missing_keys'])} parameters of the model ({missing}); "
            "they would be random: copy the whole model"
        )
    if left := _of_further_layers(report["unexpected_keys"], dict(model.named_parameters())):
        raise ConfigError(
            f"the weights in {directory} hold {len(left)} parameters of further layers ({', '.join(left[:3])}) than "
            f"the {getattr(model.config, 'num_hidden_layers', 'few')} of config.json (num_hidden_layers): the model "
            "would be cut; copy config.json and weights of one model"
        )
    placeholder = media_token_id(directory)
    if placeholder is not None and not is_text:
        _never_write(model, placeholder)
        _freeze_as_made(model)
    return model.eval()


def _freeze_as_made(model: PreTrainedModel) -> None:
    """Freeze what the model's class freezes when it is created, such as sinusoidal positions: loading unfreezes it."""
    with torch.device("meta"):
        made = dict(type(model)(model.config).named_parameters())
    for name, weight in model.named_parameters():
        weight.requires_grad_(made[name].requires_grad)


def _never_write(model: PreTrainedModel, token: int) -> None:
    """Take a token out of every distribution: one that is sampled would be taken for the place of a further feature."""
    head: Any = model.get_output_embeddings()
    head.register_forward_hook(
        lambda module, inputs, logits: logits.index_fill(-1, torch.tensor(token, device=logits.device), NEVER)
    )


def _of_further_layers(unexpected: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the unexpected weights that differ from known ones by the number of their layer alone."""
    forms = {_NUMBER.sub(".N.", name) for name in known}
    return sorted(name for name in unexpected if _NUMBER.sub(".N.", name) in forms)


@contextmanager
def _no_load_report() -> Iterator[None]:
    """Keep transformers from printing a table of what was missing: what matters ends in one message here."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def check_model_directory(directory: Path) -> None:
    """Look whether a directory holds a model.

    Raises:
        ConfigError: it does not; the message names what is missing.
    """
    remedy = (
        f"give a Hugging Face directory, or make a tiny one: python -m refrl make-model --output {directory}"
    )
    if not directory.is_dir():
        raise ConfigError(f"policy.model_name={directory} is not a directory; {remedy}")
    if not (directory / "config.json").exists():
        raise ConfigError(f"policy.model_name={directory} holds no config.json; {remedy}")
    weights = [*directory.glob("*.safetensors"), *directory.glob("pytorch_model*.bin")]
    if not weights:
        raise ConfigError(
            f"policy.model_name={directory} holds no weights (*.safetensors); copy the whole model"
        )


def check_layers(config: PreTrainedConfig, directory: Path) -> None:
    """Refuse a configuration without layers, for which Transformers makes a model that is none.

    Raises:
        ConfigError: it has none.
    """
    num_layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if num_layers is not None and num_layers < 1:
        raise ConfigError(
            f"{directory}/config.json has num_hidden_layers: {num_layers}, a model without layers; copy config.json "
            "and weights of one model"
        )


def media_token_id(directory: Path) -> int | None:
    """Return the id of a feature of an image or a sound in a prompt; None if the model takes none."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    names = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _silence_progress_bars() -> None:
    """A tiny model is there before a bar is drawn."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def end_ids(model: PreTrainedModel) -> frozenset[int]:
    """Return every end-of-sequence id of a model, of its configuration and of its generation configuration."""
    found: set[int] = set()
    for config in (model.config, getattr(model, "generation_config", None)):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            found.update(ids if isinstance(ids, list | tuple) else (ids,))
    return frozenset(found)
