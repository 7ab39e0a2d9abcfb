"""What every engine shares: weights that arrive in a Hugging Face model, and word to give up."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from refrl.models.loading import end_ids
from refrl.weight_sync.base import Part, Receipt, TensorSpec, WeightSyncError
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.tensors import copy_tensors


class ReceivingEngine:
    """The part of a `refrl.generation.base.Generator` that receives weights in parts, and can be aborted."""

    def __init__(self, model: PreTrainedModel, *, load_batch_bytes: int) -> None:
        """Take the model whose parameters and buffers are where weights arrive.

        Args:
            model: the engine's own.
            load_batch_bytes: changed values that are put in their places at a time.
        """
        self._model = model
        self._receiver = Receiver(
            lambda: chain(model.named_parameters(), model.named_buffers()), load_batch_bytes=load_batch_bytes
        )
        self._aborting = threading.Event()

    @property
    def weight_version(self) -> int:
        """Optimizer steps that its weights have seen."""
        return self._receiver.weight_version

    @weight_version.setter
    def weight_version(self, version: int) -> None:
        self._receiver.weight_version = version

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return the tensors that it samples with (see `refrl.weight_sync.base.WeightReceiver`)."""
        return self._receiver.specs()

    def begin(self, version: int, based_on: int | None) -> None:
        """Sample no more, and take weights in parts."""
        self._receiver.begin(version, based_on)

    def receive(self, parts: Sequence[Part]) -> None:
        """Put parts of weights in their places."""
        self._receiver.receive(parts)

    def commit(self, fingerprints: Mapping[str, str]) -> Receipt:
        """Sample again, when every tensor arrived whole."""
        return self._receiver.commit(fingerprints)

    def close(self) -> None:
        """Hold nothing outside this process."""

    def abort(self) -> None:
        """Give up, after its next token, what another thread lets it generate, until `resume`."""
        self._aborting.set()

    def resume(self) -> None:
        """Generate to the end again."""
        self._aborting.clear()

    def stop_ids(self) -> frozenset[int]:
        """Return every end-of-sequence id of the model, of its configuration and of its generation configuration."""
        return end_ids(self._model)

    def _embedding(self) -> nn.Embedding:
        embedding = self._model.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding


class StagedEngine(ReceivingEngine, ABC):
    """The part of a `refrl.generation.base.Generator` that has a library take the weights that arrived."""

    library: str
    """Its name in messages."""

    def __init__(self, model: PreTrainedModel, *, load_batch_bytes: int) -> None:
        """Take the model in host memory, whose weights the library has already.

        Args:
            model: its parameters and buffers are where weights arrive.
            load_batch_bytes: changed values that are put in their places at a time.
        """
        super().__init__(model, load_batch_bytes=load_batch_bytes)
        self._buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
        self._is_loaded = True

    @abstractmethod
    def _take(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        """Have the library take these."""

    @abstractmethod
    def _served(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what the library computes with, by the names of the model's `state_dict`."""

    @abstractmethod
    def _clear_caches(self) -> None:
        """Drop what the library computed with the weights of before.

        Raises:
            WeightSyncError: it cannot.
        """

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter that the library computes with, and the model's buffers, by name."""
        served = dict(self._served())
        yield from ((name, served[name]) for name, _ in self._model.named_parameters())
        yield from self._model.named_buffers()

    def share_weights(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Refuse: the library keeps its weights in a form of its own.

        Raises:
            WeightSyncError: always.
        """
        raise WeightSyncError(
            f"{self.library} shares no weights; set policy.generation.colocated.enabled=false"
        )

    def load_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Copy the weights into its own (see `refrl.weight_sync.base.WeightTarget`)."""
        copy_tensors(self._model, dict(weights))
        self._load()
        self.weight_version = version

    def commit(self, fingerprints: Mapping[str, str]) -> Receipt:
        """Sample again, when every tensor arrived whole and the library computes with it.

        Raises:
            WeightSyncError: names the tensors that did not arrive, or that the library did not take.
        """
        self._is_loaded = False
        receipt = super().commit(fingerprints)
        self._load()
        return receipt

    def _check_serving(self) -> None:
        """Refuse to sample with weights that are not whole, or that the library did not take.

        Raises:
            WeightSyncError: a sync of the weights is open, or failed half-way.
        """
        self._receiver.check_whole()
        if not self._is_loaded:
            raise WeightSyncError(
                f"{self.library} did not take the weights of the last sync; sync again before sampling"
            )

    def _load(self) -> None:
        """Have the library take the weights that arrived, and hold what it computes with against them.

        Raises:
            WeightSyncError: names the tensors that differ.
        """
        self._is_loaded = False
        changed = [name for name, before in self._buffers.items()
                   if not torch.equal(before, self._model.get_buffer(name))]  # fmt: skip
        if changed:
            raise WeightSyncError(
                f"{self.library} makes buffers of its own and takes none: {', '.join(changed[:3])} changed"
            )
        self._take(list(self._model.named_parameters()))
        expected = self._model.state_dict()
        stale = [name for name, served in self._served() if not torch.equal(served.cpu(), expected[name])]
        if stale:
            raise WeightSyncError(
                f"{self.library} does not compute with the weights that it was given: {', '.join(stale[:3])}"
                + (f" and {len(stale) - 3} more" if len(stale) > 3 else "")
            )
        self._clear_caches()
        self._is_loaded = True
