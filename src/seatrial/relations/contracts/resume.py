"""Contract of a run that is stopped and resumed.

Part of `seatrial.relations.contracts`, which lists every component.
Options are those of `contracts.run`, and `checkpointing.save_period`, `.keep_top_k`, `.metric_name`,
`policy.precision`, `policy.lora_cfg.enabled`, `.dim`, `.alpha`, and `data.answers`, which gives the same prompts
their `own` answers or `other` ones. `policy.model_name` may be `experts` or
`drafts` (`contracts.architectures`), and `policy.draft.enabled` true with the latter; or `tied`, a model whose output
head is its embedding; or `others`, one of the same shape as the adapter's own with other weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from seatrial.relations.records.run import GroupRecord

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ResumedRun:
    """The files of a run that may have been started several times, read back."""

    log: Mapping[str, tuple[tuple[int, float], ...]]
    """(step, value) of every logged series, in the order of steps; what depends on the clock is left out."""
    steps_twice: tuple[str, ...]
    """Series that hold a step more than once."""
    served: Mapping[int, tuple[int, ...]]
    """Id of the prompt of every trained row, by step."""
    state: Mapping[str, Any]
    """Tensors and counters of the last checkpoint: weights, float32 copies, moments, cursors."""
    went_on_from: tuple[int, ...]
    """Steps that had been taken before each start, as it says of itself."""
    kept_steps: tuple[int, ...]
    """Steps whose checkpoints are there at the end."""
    exported: Mapping[str, Tensor]
    """The exported model; adapters are merged into it."""
    exported_files: Mapping[str, Any]
    """The other files of the exported directory, by name: parsed JSON, or bytes."""
    initial_files: Mapping[str, Any]
    """The same for the directory of the initial model."""
    adapters: Mapping[str, Tensor]
    """The exported adapters: `<layer>.lora_A.weight` [r, in] and `<layer>.lora_B.weight` [out, r]; empty without."""
    adapter_scale: float
    """What an adapter's product is multiplied by, as its exported configuration says."""
    exported_draft: Mapping[str, Tensor] = field(default_factory=dict)
    """The exported draft head, by the names that its recorded weights have after `draft.`."""
    groups: Mapping[int, tuple[GroupRecord, ...]] = field(default_factory=dict)
    """Asynchronous rollouts: the fate of each group, by the step that took or dropped it; those that no step took have
    the fate `unused` and the step after the last."""


Moment = Literal["sampling", "training", "syncing", "saving"]


@dataclass(frozen=True)
class Kill:
    """When a process is killed."""

    moment: Moment
    """`sampling`: a batch of rollouts is sampled and has not reached the trainer. `training`: gradients of an update
    are being computed. `syncing`: some of the new weights have reached the samplers. `saving`: a checkpoint is due and
    may be half written."""
    step: int
    """Step of the training, sync or save; for `sampling`, the number of the batch, from 1."""


@runtime_checkable
class ResumableRun(Protocol):
    """Short runs of the real loop, which save after every step, and are started several times in one place."""

    def resumable_run(
        self, options: Mapping[str, Any], *, seed: int, num_starts: int, last: Mapping[str, Any]
    ) -> ResumedRun:
        """Run the loop with these options; each start but the last ends well after its first step.

        Args:
            options: dotted names, over the adapter's own.
            seed: of everything that the run draws.
            num_starts: 1 is a run that is not stopped.
            last: further options of the last start, which runs to the end.

        Raises:
            NotServed: the stack has no such option, value or model, by design.
            Exception: the last start does not continue from what the one before saved; any exception is a refusal.
        """
        ...


@runtime_checkable
class KilledRun(Protocol):
    """Short runs with asynchronous rollouts that save after every step and whose process is killed."""

    def killed_run(self, options: Mapping[str, Any], *, seed: int, kills: Sequence[Kill]) -> ResumedRun:
        """Run the loop once for each kill, without any cleanup at its end, and once more to the end, in one place.

        Args:
            options: dotted names, over the adapter's own.
            seed: of everything that the run draws.
            kills: in order; empty is a run that is not killed.

        Raises:
            NotServed: the stack has no such option, value or model, by design.
        """
        ...
