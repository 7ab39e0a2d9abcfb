"""The errors of a data plane, one class a cause, so that a wrong call differs from a store that is down."""

from __future__ import annotations


class DataPlaneError(Exception):
    """Anything that a data plane reports."""


class UnknownNameError(DataPlaneError, KeyError):
    """A partition, task, sample or field that is not there."""

    def __str__(self) -> str:
        """Return the message as it is; KeyError would quote it."""
        return str(self.args[0]) if self.args else ""


class UnknownPartitionError(UnknownNameError):
    """The partition is not registered, or was cleared whole."""


class UnknownTaskError(UnknownNameError):
    """The partition was registered without this consumer."""


class UnknownSampleError(UnknownNameError):
    """A sample was never put, or was cleared."""


class FieldNotProducedError(UnknownNameError):
    """A sample has no value in a field yet, or the partition has no such field."""


class PartitionFullError(DataPlaneError):
    """The put would bring more rows than the partition was registered for; nothing of it was kept."""


class LeaseExpiredError(DataPlaneError):
    """Rows of a claim are no longer this claimer's: the lease ran out and they were given back, or were cleared."""


class StoreUnavailableError(DataPlaneError):
    """A part of the store is dead, or did not answer within its time."""


class DataLostError(StoreUnavailableError):
    """Rows are known and their bytes are gone; the message names samples."""
