"""A Megatron-core model that is sampled with and not trained: whole in this process, under Hugging Face names."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from refrl.config import ConfigError, MegatronConfig, PolicyConfig
from refrl.distributed import World
from refrl.policy.megatron.making import check_available


class ServedModel:
    """A `refrl.generation.megatron.engine.ServedModel`."""

    def __init__(self, config: PolicyConfig, device: torch.device) -> None:
        """Load the model of a directory.

        Args:
            config: names it, and its type; how training spreads it over processes does not matter here.
            device: where it computes.

        Raises:
            ConfigError: Megatron-core is not installed, or the model cannot be converted.
        """
        check_available("policy.generation.backend=megatron", device)
        with warnings.catch_warnings():
            # Megatron-core warns of its own defaults, and at every import that Transformer Engine is not there.
            warnings.simplefilter("ignore")
            from refrl.policy.megatron import cpu
            from refrl.policy.megatron.architecture import read_architecture
            from refrl.policy.megatron.conversion import ConversionError
            from refrl.policy.megatron.model import load_model
            from refrl.policy.megatron.parallel import join_parallel

            cpu.prepare()
            directory = Path(config.model_name)
            parallel = join_parallel(MegatronConfig(), World())
            try:
                self._local = load_model(directory, read_architecture(directory), parallel, config, device)
            except ConversionError as error:
                raise ConfigError(f"policy.model_name={directory}: {error}") from error
        self._dtype = getattr(torch, config.precision)
        self._local.module.to(dtype=self._dtype).requires_grad_(False)

    @property
    def module(self) -> nn.Module:
        """The GPTModel, in evaluation mode."""
        return self._local.module

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Put whole parameters in their places.

        Args:
            weights: every parameter of the Hugging Face model, by its name there.

        Raises:
            refrl.policy.megatron.conversion.ConversionError: a tensor has another shape than the architecture says.
        """
        from refrl.policy.megatron.exchange import take

        take(weights, self._local.parameters, self._local)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter, gathered, as the module holds it."""
        from refrl.policy.megatron.conversion import in_memory
        from refrl.policy.megatron.exchange import gather

        gathered = gather(self._local.parameters.get, self._local, self._dtype)
        yield from in_memory(gathered, self._local.architecture)
