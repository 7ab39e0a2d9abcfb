"""What several loaders of Accelerate are known to break, with the finding that shows each."""

from __future__ import annotations

from seatrial.targets.common.known import KnownFailure, before

EPOCH_LOST = KnownFailure(
    "the epoch does not reach a sampler of the caller behind the one that divides batches",
    finding="Accelerate: the epoch of a sampler of the caller",
    releases=before("accelerate", "1.7"),
).of("R30.rows/another order in each epoch, a sampler of the caller")
SEED_LOST = KnownFailure(
    "the generator of a shuffle is not seeded by the run",
    finding="Accelerate: the seed of a shuffle",
    releases=before("accelerate", "1.6"),
).of("R30.rows/another order for another seed of the process")
STILL_FILLED = KnownFailure(
    "iterable data are filled up with rows from the beginning although even_batches is False",
    finding="Accelerate: uneven ends of iterable data",
).of("R30.rows/every row once, iterable data, uneven ends")
LENGTHS_OF_ITERABLE = KnownFailure(
    "the length of iterable data is that of whole batches in each process, also where batches are split or left out",
    finding="Accelerate: lengths of loaders of iterable data",
).of(
    "R30.rows/batches that are said, iterable data, split batches",
    "R30.rows/batches that are said, in a resumed epoch of iterable data",
)
LEFT_WITHIN = KnownFailure(
    "a prepared loader whose loop was left stays the one that says where an epoch ends",
    finding="Accelerate: an evaluation that is left within a loop",
).of(
    "R30.histories/steps, evaluations that are left",
    "R30.histories/steps, evaluations that are left, one process",
)
SKIPPED_EPOCH = KnownFailure(
    "skip_first_batches returns a loader of the first epoch, regardless of the one that was set",
    finding="Accelerate: the epoch of a loader that leaves out batches",
    releases=before("accelerate", "1.15"),
).of("R30.histories/rows", "R30.histories/rows, one process")
OF_ITS_OWN = KnownFailure(
    "parameters and buffers of the outermost module are not in the state of an offloaded model",
    finding="Accelerate: parameters of an offloaded model",
).of(
    "R30.placed/offloaded: own parameter",
    "R30.placed/offloaded to disk: own parameter",
    "R30.placed/loaded half to disk: own parameter",
)
_FORMER = "Accelerate: loaders and splits before 1.6"
NO_BATCH = KnownFailure(
    "a loader without a batch gives None, and raises an UnboundLocalError",
    finding=_FORMER,
    releases=before("accelerate", "1.5"),
).of("R30.rows/pairs of options")
FILLED_FULL = KnownFailure(
    "each process gets a row more where processes are filled up that have as many rows",
    finding=_FORMER,
    releases=before("accelerate", "1.5"),
).of("R30.split/lists, rows that divide evenly, filled")
