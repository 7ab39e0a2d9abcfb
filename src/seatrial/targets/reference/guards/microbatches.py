"""Checks the micro-batches of training against the sizes that are configured for them."""

from __future__ import annotations

from refrl.algorithms.batching import Batch
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import RunConfig, check


class MicroBatchGuard:
    """Checks that no micro-batch of a step holds more than it may: rows, padded tokens, or tokens of a pack."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin with no micro-batch seen."""
        self._config, self._guards = config.policy, guards
        self._wrong: list[str] = []
        self._num_passed = 0

    def passed(self, batch: Batch) -> None:
        """Compare a micro-batch with its bound; one row alone may be as long as rows may be."""
        policy, rows = self._config, batch.num_rows
        self._num_passed += 1
        packing, dynamic = policy.sequence_packing, policy.dynamic_batching
        longest = policy.train_micro_batch_size * policy.max_total_sequence_length
        if packing.enabled:
            what, size = "tokens in packs", int(batch.attention_mask_BS.sum())
            bound = packing.train_mb_tokens or longest
        elif dynamic.enabled:
            what, size = "padded tokens", batch.input_ids_BS.numel()
            bound = dynamic.train_mb_tokens or longest
        else:
            what, size, bound = "rows", rows, policy.train_micro_batch_size
        if size > bound and rows > 1:
            self._wrong.append(f"{rows} rows with {size} {what}, at most {bound} are configured")

    def check_step(self, step: int) -> None:
        """Check the micro-batches since the last step."""
        check(
            self._guards,
            "micro-batches as configured",
            self._wrong[:1],
            where=f"step {step}: ",
            number=self._num_passed,
        )
        self._wrong, self._num_passed = [], 0
