"""Splits of files: every row is looked at once, and read again when it is drawn."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from refrl.config import ConfigError, DataConfig
from refrl.tasks.examples import Example, Splits, stable_id
from refrl.tasks.files.opening import open_rows
from refrl.tasks.files.rows import Columns, RowFile

HELD_OUT_SHARE, HELD_OUT_MOST = 10, 128
"""One row in so many, at most so many, is held out where the configuration does not say."""


@dataclass(frozen=True)
class Scan:
    """A file whose rows all fit, with the different prompts among them."""

    name: str
    """Of the path, without its suffix."""
    rows: RowFile
    columns: Columns
    numbers: array[int]
    """Row number of each different prompt, the first that has it."""
    ids: array[int]
    """Its `stable_id`."""
    sizes: array[int]
    """Its length in bytes."""
    notes: tuple[str, ...]


class FileExamples(Sequence[Example]):
    """Chosen rows of a file as examples; a row is read when it is asked for."""

    def __init__(self, scan: Scan, chosen: Iterable[int]) -> None:
        """Choose prompts of a scan by their index."""
        self._scan = scan
        self._chosen = array("Q", chosen)
        self._task = scan.name

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self._chosen)

    def prompt_sizes(self) -> array[int]:
        """Return the bytes of each prompt, as they were when the file was looked at."""
        return array("Q", (self._scan.sizes[chosen] for chosen in self._chosen))

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> FileExamples: ...
    def __getitem__(self, index: int | slice) -> Example | FileExamples:
        """Return one example, or chosen ones that are still unread.

        Raises:
            ConfigError: the file was changed after it was looked at.
        """
        if isinstance(index, slice):
            return FileExamples(self._scan, self._chosen[index])
        chosen = self._chosen[index]
        number, prompt_id = self._scan.numbers[chosen], self._scan.ids[chosen]
        place = self._scan.rows.place(number)
        prompt, answer, solution = self._scan.columns.fit(self._scan.rows.row(number), place)
        if stable_id(prompt) != prompt_id:
            raise ConfigError(
                f"{place} is another row than when the run began: the file was changed meanwhile"
            )
        return Example(prompt_id, prompt, answer, self._task, solution)


def make_file_splits(config: DataConfig) -> Splits:
    """Return the rows to train on, and those held out: of a file of their own, or drawn from the training file.

    Raises:
        ConfigError: a file or a row cannot be used, there are too few rows, or the splits share prompts and are not to.
    """
    columns = Columns(config.prompt_key, config.answer_key, config.solution_key)
    train = scan_rows(Path(config.train_path or ""), columns, "data.train_path")
    if config.validation_path is None:
        return _hold_out(train, config)
    validation = scan_rows(Path(config.validation_path), columns, "data.validation_path")
    held_out = set(validation.ids)
    own = [index for index, prompt_id in enumerate(train.ids) if prompt_id not in held_out]
    num_shared = len(train.ids) - len(own)
    notes = (*train.notes, *validation.notes)
    if num_shared:
        notes = (*notes, _overlap(train, validation, num_shared, config))
    return Splits(
        train=FileExamples(train, _choose(own, config.num_train, config, "train_path", "num_train")),
        validation=FileExamples(
            validation,
            _choose(
                range(len(validation.ids)), config.num_validation, config, "validation_path", "num_validation"
            ),
        ),
        notes=notes,
    )


def scan_rows(path: Path, columns: Columns, option: str) -> Scan:
    """Check every row of a file; a repeated prompt is left out and counted.

    Raises:
        ConfigError: the file or a row cannot be used (the message names the row's place), or there is none.
    """
    rows = open_rows(path, columns, option)
    first_answers: dict[int, bytes] = {}
    numbers, ids, sizes = array("Q"), array("Q"), array("Q")
    num_repeated = num_contradicting = 0
    first_repeated = ""
    for number, row in enumerate(rows.scan()):
        prompt, answer, _ = columns.fit(row, rows.place(number))
        prompt_id = stable_id(prompt)
        digest = hashlib.blake2b(answer.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
        if prompt_id in first_answers:
            first_repeated = first_repeated or rows.place(number)
            num_repeated += 1
            num_contradicting += first_answers[prompt_id] != digest
            continue
        first_answers[prompt_id] = digest
        numbers.append(number)
        ids.append(prompt_id)
        sizes.append(len(prompt.encode(errors="surrogatepass")))
    if not ids:
        raise ConfigError(f"{option}={path} holds no rows")
    notes: tuple[str, ...] = ()
    if num_repeated:
        notes = (
            f"{path}: {num_repeated} rows repeat the prompt of an earlier row and are left out "
            f"({num_contradicting} of them with another answer; the first is {first_repeated})",
        )
    return Scan(path.stem, rows, columns, numbers, ids, sizes, notes)


def _hold_out(scan: Scan, config: DataConfig) -> Splits:
    """Draw the validation split from the training file; the others are trained on."""
    num_rows = len(scan.ids)
    num_validation = config.num_validation or max(1, min(HELD_OUT_MOST, num_rows // HELD_OUT_SHARE))
    if num_rows < num_validation + (config.num_train or 1):
        raise ConfigError(
            f"data.train_path={config.train_path} has {num_rows} different prompts, and {num_validation} are held out "
            f"besides {config.num_train or 'at least 1'} to train on: lower data.num_validation or data.num_train, or "
            "give data.validation_path"
        )
    stream = random.Random(f"held out of a file: {config.seed}")
    held_out = set(stream.sample(range(num_rows), num_validation))
    own = [index for index in range(num_rows) if index not in held_out]
    return Splits(
        train=FileExamples(scan, _choose(own, config.num_train, config, "train_path", "num_train")),
        validation=FileExamples(scan, sorted(held_out)),
        notes=scan.notes,
    )


def _choose(indices: Sequence[int], num: int | None, config: DataConfig, path: str, option: str) -> list[int]:
    """Return `num` of the indices, drawn by `data.seed`, in their order; all of them where `num` is None."""
    if num is None or num == len(indices):
        return list(indices)
    if num > len(indices):
        raise ConfigError(
            f"data.{option}={num} is more than the {len(indices)} different prompts that data.{path}="
            f"{getattr(config, path)} has to offer: lower it, or leave it out for all of them"
        )
    return sorted(random.Random(f"{option} of a file: {config.seed}").sample(indices, num))


def _overlap(train: Scan, validation: Scan, num_shared: int, config: DataConfig) -> str:
    """Return the note on prompts of both files.

    Raises:
        ConfigError: they are not to be dropped, or nothing would be left to train on.
    """
    held_out = {prompt_id: index for index, prompt_id in enumerate(validation.ids)}
    index = next(index for index, prompt_id in enumerate(train.ids) if prompt_id in held_out)
    there = validation.rows.place(validation.numbers[held_out[train.ids[index]]])
    example = f"the first is {train.rows.place(train.numbers[index])} = {there}"
    found = f"{num_shared} of {len(train.ids)} prompts of data.train_path are in data.validation_path too"
    if config.on_overlap == "refuse":
        raise ConfigError(
            f"{found} ({example}): set data.on_overlap=drop to leave them out of training, or take them out of a file"
        )
    if num_shared == len(train.ids):
        raise ConfigError(f"{found}: nothing is left to train on")
    return f"{found} and are left out of training ({example})"
