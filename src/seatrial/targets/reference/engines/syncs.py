"""refrl's policy, engine and weight sync between updates: `seatrial.relations.contracts.syncs`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch, TrainSample
from refrl.config import DeltaCompressionConfig, GRPORunConfig
from refrl.generation.base import Generator
from refrl.rollout.multi_turn import take_turns
from refrl.timing import Timer
from refrl.training import build
from refrl.training.build_generation import build_generator, build_weight_sync
from refrl.weight_sync.base import Part, Receipt, TensorSpec, WeightSyncError
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.transferred import TransferredWeights
from seatrial.relations import NotServed
from seatrial.relations.contracts.syncs import Cut, Filters, Spoken
from seatrial.relations.records import Sampled
from seatrial.targets.reference.configuration import MODEL, configuration, wide_model_directory
from seatrial.targets.reference.engines.engine import sampled
from seatrial.targets.reference.engines.transfers import MadeEnvironment

CPU = torch.device("cpu")
PAD_ID = 0
NUM_UPDATES = 100
NUM_EPISODE_TOKENS = 60
"""Tokens of an episode."""
TURN_ENDS = tuple(range(0, 256, 2))
"""Ids that end a turn."""
APART = {"policy.generation.colocated.enabled": False}
SENT = {
    **APART,
    "policy.generation.delta_compression.enabled": True,
    "policy.generation.delta_compression.sparse_bucket_size_bytes": 5000,
}
"""Weights travel in parts, also within one process."""
OTHER_ENGINES: Mapping[str, Mapping[str, Any]] = {
    "blocks": {"policy.generation.block_tokens": 3},
    "megatron": {"policy.generation.backend": "megatron", **APART},
}
"""Options of the engines that the default options do not name: blocks of tokens of static shapes, Megatron-core."""
BYTES = "weight_sync/bytes_sent"


class TrainedSync:
    """A `seatrial.relations.contracts.syncs.OpenSync`."""

    def __init__(self, config: GRPORunConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        self._config, self._tokenizer = config, tokenizer
        self._policy = build.build_policy(
            config.policy, tokenizer, device=CPU, num_updates=NUM_UPDATES, with_reference=False
        )
        self._generator = _engine(config, tokenizer)
        self._sync = build_weight_sync(config.policy.generation, self._policy, self._generator)

    def train(self) -> int:
        batch = self._batch(_made_rows())
        batch.old_logprobs_BT = batch.ref_logprobs_BT = self._policy.logprobs(batch)
        self._policy.train(batch, build.build_loss(self._config.loss_fn))
        return self._policy.version

    def sync(self) -> Mapping[str, float]:
        return self._sync.sync()

    def trained_tensors(self) -> Mapping[str, Tensor]:
        delta = self._config.policy.generation.delta_compression
        travels = getattr(torch, delta.dtype) if delta.enabled and delta.dtype else None

        def as_sent(tensor: Tensor) -> Tensor:
            copied = tensor.detach().clone()
            rounds = travels is not None and tensor.is_floating_point()
            return copied.to(travels).to(tensor.dtype) if rounds else copied

        return {name: as_sent(tensor) for name, tensor in self._policy.named_weights()}

    def served_tensors(self) -> Mapping[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._generator.named_weights()}

    def served_version(self) -> int:
        return self._generator.weight_version

    def sample(
        self, prompts: Sequence[Sequence[int]], *, seed: int, filters: Filters | None = None
    ) -> list[Sampled]:
        encoder = build.build_encoder(self._config.policy, self._config.data, self._tokenizer)
        params = build.build_sampling(self._config.policy.generation, self._generator, encoder)
        if filters is not None:
            params = replace(params, **asdict(filters))
        return sampled(self._generator.generate(prompts, params, torch.Generator().manual_seed(seed)))

    def converse(self, prompts: Sequence[Sequence[int]], words: Sequence[str], *, seed: int) -> list[Spoken]:
        encoder = build.build_encoder(self._config.policy, self._config.data, self._tokenizer)
        params = replace(
            build.build_sampling(self._config.policy.generation, self._generator, encoder),
            max_new_tokens=NUM_EPISODE_TOKENS,
            stop_token_ids=TURN_ENDS,
        )
        stream = torch.Generator().manual_seed(seed)
        episodes = take_turns(
            self._generator, MadeEnvironment(words), self._tokenizer, prompts, params, stream
        )
        return [
            Spoken(row=row, mask=episode.mask or (1,) * len(episode.ids))
            for row, episode in zip(sampled(episodes), episodes, strict=True)
        ]

    def score(
        self, rows: Sequence[Sampled], masks: Sequence[tuple[int, ...]] | None = None
    ) -> list[tuple[float, ...]]:
        delta = self._config.policy.generation.delta_compression
        if (delta.enabled and delta.dtype) or self._config.policy.precision != "float32":
            raise NotServed("weights that are rounded on their way agree to their rounding")
        scored = self._policy.logprobs(self._batch(rows, masks)).tolist()
        return [tuple(values[: len(row.ids)]) for values, row in zip(scored, rows, strict=True)]

    def close(self) -> None:
        if self._generator not in _STARTED.values():
            self._generator.close()

    def _batch(self, rows: Sequence[Sampled], masks: Sequence[tuple[int, ...]] | None = None) -> Batch:
        samples = [
            TrainSample(
                prompt_ids=row.prompt_ids,
                completion_ids=row.ids,
                sampling_logprobs=row.logprobs,
                reward=float(number % 2),
                group_id=number // 2,
                advantage=1.0 - 2.0 * (number % 2),
                kept_ids=row.kept_ids,
                completion_mask=None if masks is None else masks[number],
            )
            for number, row in enumerate(rows)
        ]
        return build.build_batch(samples, self._config.policy, pad_token_id=PAD_ID)


class CutWeights:
    """A `seatrial.relations.contracts.syncs.OpenCutSync`."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], cut: Cut) -> None:
        self._sent = {f"tensors.{number}": torch.zeros(shape) for number, shape in enumerate(shapes)}
        self._had = {name: torch.zeros_like(tensor) for name, tensor in self._sent.items()}
        self._cut = cut
        self.version = 0
        self.shares_weights = True
        self._link = _Link(Receiver(lambda: iter(self._had.items()), load_batch_bytes=24))
        delta = DeltaCompressionConfig(
            enabled=cut.changes_alone,
            sparse_bucket_size_bytes=cut.bucket_bytes,
            full_sync_interval=cut.whole_every,
        )
        self._sync = TransferredWeights(
            self, self._link, bucket_bytes=cut.bucket_bytes, delta=delta, timer=Timer()
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        names = list(self._sent)
        yield from ((names[place], self._sent[names[place]]) for place in self._cut.order)

    def tensors(self) -> Mapping[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._sent.items()}

    def change(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._sent[name].copy_(tensor)
        self.version += 1

    def sync(self) -> tuple[Mapping[str, float], Sequence[int]]:
        self._link.messages = []
        logged = self._sync.sync()
        return {"bytes": logged[BYTES]}, list(self._link.messages)

    def received(self) -> Mapping[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._had.items()}

    def stop_after(self, num_messages: int) -> bool | None:
        self._link.left = num_messages
        try:
            self._sync.sync()
            return None
        except ConnectionResetError:
            pass
        finally:
            self._link.left = None
        try:
            self._link.receiver.check_whole()
        except WeightSyncError:
            return False
        return True


class _Link:
    """The way to a receiver: it counts what a message holds, and can end."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.messages: list[int] = []
        self.left: int | None = None

    @property
    def weight_version(self) -> int:
        return self.receiver.weight_version

    @weight_version.setter
    def weight_version(self, version: int) -> None:
        self.receiver.weight_version = version

    def specs(self) -> Mapping[str, TensorSpec]:
        return self.receiver.specs()

    def begin(self, version: int, based_on: int | None) -> None:
        self.receiver.begin(version, based_on)

    def receive(self, parts: Sequence[Part]) -> None:
        self._pass()
        carried = [one for part in parts for one in (part.values_N, part.indices_N) if one is not None]
        self.messages.append(sum(tensor.numel() * tensor.element_size() for tensor in carried))
        self.receiver.receive(parts)

    def commit(self, fingerprints: Mapping[str, str]) -> Receipt:
        self._pass()
        return self.receiver.commit(fingerprints)

    def _pass(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            raise ConnectionResetError("the link ended")
        self.left -= 1


class ReferenceSyncs:
    """See `seatrial.relations.contracts.syncs`."""

    options: Mapping[str, Any]
    tokenizer: PreTrainedTokenizerBase

    engines_draw_alike = True

    @property
    def other_engines(self) -> Sequence[str]:
        """Those that serve here; vLLM has an environment of its own."""
        if self.options:
            return ()
        serves = importlib.util.find_spec("megatron") is not None and not torch.cuda.is_available()
        return [name for name in OTHER_ENGINES if name != "megatron" or serves]

    def open_sync(
        self, *, tied: bool, sent: bool, filters: Filters, engine: str | None = None
    ) -> TrainedSync:
        drawn = {f"policy.generation.{name}": value for name, value in asdict(filters).items()}
        fixed = {
            "policy.model_name": str(wide_model_directory(tied=tied)),
            "policy.max_total_sequence_length": MODEL.max_positions,
            "policy.optimizer.lr": 1e-2,
            "policy.generation.stop_token_ids": [],
        }
        sends = SENT if sent else {}
        other = {} if engine is None else OTHER_ENGINES[engine]
        return TrainedSync(
            configuration({**self.options, **sends, **other, **fixed, **drawn}), self.tokenizer
        )

    def open_cut_sync(self, shapes: Sequence[tuple[int, ...]], cut: Cut) -> CutWeights:
        return CutWeights(shapes, cut)


_STARTED: dict[str, Generator] = {}
"""Engines of vLLM, which take seconds to start, by the model's directory: every sync sends all weights again."""


def _engine(config: GRPORunConfig, tokenizer: PreTrainedTokenizerBase) -> Generator:
    if config.policy.generation.backend != "vllm":
        return build_generator(config.policy, tokenizer, device=CPU)
    name = config.policy.model_name
    if name not in _STARTED:
        _STARTED[name] = build_generator(config.policy, tokenizer, device=CPU)
    return _STARTED[name]


def _made_rows() -> list[Sampled]:
    """Return rows of unequal length that every tensor learns from."""
    row = Sampled(prompt_ids=(5, 9, 4), ids=(7, 11, 3, 20), logprobs=(-4.0,) * 4, finish_reason="length")
    other = replace(row, prompt_ids=(8,), ids=(30, 6), logprobs=(-4.0,) * 2)
    rows = [row, other, replace(row, ids=(13, 2, 40, 8)), replace(other, ids=(17, 21))]
    return rows + [replace(one, ids=tuple(token + 50 for token in one.ids)) for one in rows]
