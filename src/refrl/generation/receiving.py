"""What every engine shares: weights that arrive in a Hugging Face model, and word to give up."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import chain

from torch import nn
from transformers import PreTrainedModel

from refrl.models.loading import end_ids
from refrl.weight_sync.base import Part, Receipt, TensorSpec
from refrl.weight_sync.receiver import Receiver


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
