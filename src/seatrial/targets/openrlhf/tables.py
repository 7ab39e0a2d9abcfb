"""OpenRLHF's `Experience` as a table of rows, whichever release is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from seatrial.relations.contracts.tables import Cell, Column, Table, TableOperation
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.stand_ins import import_part, without_init
from seatrial.targets.common.tables import PAD, columns_of, rows_of, width_of

NAMES = {"ids": "sequences", "mask": "attention_mask", "reward": "rewards", "text": "prompts"}
"""What `Experience` calls the columns."""


PADDED_NUMBERS = KnownFailure(
    "concat_experiences pads a number of each row as if it were one of each token",
    finding="OpenRLHF: experiences of several rows joined",
)


class OpenRLHFTables(KnowsFailures):
    """`Experience`: split into rows without padding, of which batches are made as the replay buffer makes them."""

    table_columns: frozenset[Column] = frozenset(("ids", "reward", "text"))
    table_operations: frozenset[TableOperation] = frozenset(("select", "split", "concat"))

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        PADDED_NUMBERS.of("R5.tables/tables in a row, of unequal sizes"),
    )

    def __init__(self) -> None:
        """Find the class and its functions; before 0.9 they are in other forms."""
        without_init("openrlhf", ("openrlhf.utils", "openrlhf.trainer", "openrlhf.trainer.ppo_utils"))
        self.module = import_part("openrlhf.trainer.ppo_utils.experience", {})

    def operate(
        self, operation: TableOperation, tables: Sequence[Table], numbers: Sequence[int]
    ) -> list[list[dict[str, Cell]]]:
        batches = [self._experience(table) for table in tables]
        if operation == "concat":
            return [self._rows(self.module.Experience.concat_experiences(batches, PAD))]
        items = self.module.remove_padding_in_sequences(self.module.split_experience_batch(batches[0]))
        size = numbers[0]
        parts = (
            [[items[place] for place in numbers]]
            if operation == "select"
            else [items[start : start + size] for start in range(0, len(items), size)]
        )
        return [self._rows(self.module.make_experience_batch(part)) for part in parts]

    def _experience(self, table: Table) -> Any:
        columns = columns_of(table, width_of([table]))
        return self.module.Experience(**{NAMES[name]: values for name, values in columns.items()})

    def _rows(self, batch: Any) -> list[dict[str, Cell]]:
        return rows_of({name: getattr(batch, own) for name, own in NAMES.items()})


ADAPTERS: dict[str, type[Any]] = {"experience": OpenRLHFTables}
