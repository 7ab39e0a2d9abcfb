"""verl's data sets with all options of their rows: prompts, and pairs of a reward model."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, between
from seatrial.targets.common.stand_ins import import_without
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.trainers import temporary_folder
from seatrial.targets.verl.estimators import UNUSED
from seatrial.targets.verl.prompts import DATA_SET
from seatrial.targets.verl.supervised import made_data_set, written

PAIRS = "verl.utils.dataset.rm_dataset"
COLUMNS = (
    "raw_prompt",
    "index",
    "tools_kwargs",
    "interaction_kwargs",
    "data_source",
    "reward_model",
    "extra_info",
)
"""Of a row: those that the trainer reads."""


class VerlDataSets(KnowsFailures):
    """`create_rl_dataset` with `RLHFDataset`, and `RMDataset`."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "an image or a video that is a dictionary is put into another one (verl#4864)",
            finding="verl: small functions of older releases",
            releases=between("verl", "0.7", "0.7.1"),
        ).of("R31.data_sets/messages with images and videos"),
    )

    def __init__(self) -> None:
        """Find both."""
        import_without(DATA_SET, (*UNUSED, "qwen_vl_utils"))
        self.prompts_class = find_name("verl", [f"{DATA_SET}:RLHFDataset"])
        self.pairs_class = find_name("verl", [f"{PAIRS}:RMDataset"])
        self.tokenizer = tiny_tokenizer(padding_side="left")
        self.end: str = self.tokenizer.eos_token
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "prompts of files": self.prompts,
            "pairs of files": self.pairs,
        }
        if hasattr(self.prompts_class, "_build_messages"):
            self.utilities = {**self.utilities, "messages with media": self.messages}

    def prompts(self, files: Sequence[Sequence[Mapping[str, Any]]], options: Mapping[str, Any]) -> list[Any]:
        """Return all rows, without what verl adds for its own sake."""
        takes = inspect.signature(self.prompts_class.__init__).parameters
        if options.get("max_samples", -1) != -1 and "max_samples" not in takes:
            raise NotServed(f"RLHFDataset of verl {release('verl')} takes all rows")
        source = inspect.getsource(self.prompts_class)
        if "tools_kwargs" not in source:
            raise NotServed(f"rows of verl {release('verl')} say nothing of tools")
        if (options.get("json") and '"json"' not in source) or (
            not options.get("extras", True) and '"extra_info" not in row_dict' not in source
        ):
            raise NotServed(f"RLHFDataset of verl {release('verl')} has not all of {sorted(options)}")
        config = {
            "cache_dir": temporary_folder(),
            "max_prompt_length": 4096,
            "filter_overlong_prompts": False,
            "return_raw_chat": True,
            **{name: options[name] for name in ("shuffle", "seed", "prompt_key") if name in options},
        }
        more = {"max_samples": options["max_samples"]} if "max_samples" in options else {}
        with contextlib.redirect_stdout(io.StringIO()):
            paths = [_file(own, options) for own in files]
            data = made_data_set(self.prompts_class, paths, self.tokenizer, config, **more)
            if options.get("reloaded"):
                data = copy.deepcopy(data)  # which takes and sets its state, as pickling does
                data.resume_dataset_state()
            parts = self._parts(data, options)
        rows = [part[place] for part in parts for place in range(len(part))]
        if rows and "raw_prompt" not in rows[0]:
            raise NotServed(f"RLHFDataset of verl {release('verl')} gives no conversations")
        return [{name: _plain(row.get(name)) for name in COLUMNS} for row in rows]

    def _parts(self, data: Any, options: Mapping[str, Any]) -> Sequence[Any]:
        if "parts" not in options:
            return [data]
        if not hasattr(data, "split"):
            raise NotServed(f"RLHFDataset of verl {release('verl')} is not divided")
        try:
            parts: Sequence[Any] = data.split(options["parts"])
        except ValueError as error:
            if len(data) % options["parts"] == 0:
                raise
            raise NotServed(str(error)) from error  # as before 0.8
        if len({len(part) for part in parts}) != 1 or len(parts) != options["parts"]:
            raise ValueError(f"{options['parts']} equal parts have {[len(part) for part in parts]} rows")
        return parts

    def pairs(self, files: Sequence[Sequence[Mapping[str, str]]], options: Mapping[str, Any]) -> list[Any]:
        """Return ids and mask of chosen and rejected of each row."""
        takes = inspect.signature(self.pairs_class.__init__).parameters
        if any(name not in takes for name in options):
            raise NotServed(f"RMDataset of verl {release('verl')} has not all of {sorted(options)}")
        keys = {name: options.get(f"{name}_key", name) for name in ("prompt", "chosen", "rejected")}
        paths = [
            written([{keys[name]: text for name, text in record.items()} for record in own]) for own in files
        ]
        with contextlib.redirect_stdout(io.StringIO()):
            data = self.pairs_class(paths, self.tokenizer, cache_dir=temporary_folder(), **dict(options))
        rows = [data[place] for place in range(len(data))]
        return [
            list(zip(row["input_ids"].tolist(), row["attention_mask"].tolist(), strict=True)) for row in rows
        ]

    def messages(
        self, messages: Sequence[Mapping[str, str]], media: Mapping[str, Sequence[str]]
    ) -> list[list[tuple[str, Any]]]:
        """Return the pieces of each message; releases that do not name a medium take them in turn."""
        data = object.__new__(self.prompts_class)
        data.prompt_key, data.processor, data.processor_type = "prompt", object(), "made"
        data.image_key, data.video_key, data.audio_key = "images", "videos", "audios"
        example = {
            "prompt": [dict(one) for one in messages],
            **{f"{kind}s": [{kind: name} for name in names] for kind, names in media.items() if names},
        }
        takes_key = "key" in inspect.signature(data._build_messages).parameters
        turns = {kind: iter(names) for kind, names in media.items()}
        found = []
        for message in data._build_messages(example, *(("prompt",) if takes_key else ())):
            content = message["content"]
            pieces = [{"type": "text", "text": content}] if isinstance(content, str) else content
            given = []
            for one in pieces:
                kind = one["type"]
                given.append((kind, next(turns[kind]) if kind in turns and kind not in one else one[kind]))
            found.append([piece for piece in given if piece != ("text", "")])
        return found

    def text_of(self, ids: Sequence[int], mask: Sequence[int]) -> str:
        """Return the text of shown tokens."""
        shown = [one for one, on in zip(ids, mask, strict=True) if on]
        return str(self.tokenizer.decode(shown, skip_special_tokens=False))


def _file(records: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
    """Return the path of a file of records, in the format and with the columns of the options."""
    key = options.get("prompt_key", "prompt")
    left = [
        {key if name == "prompt" else name: value for name, value in record.items()}
        for record in (
            {
                name: value
                for name, value in one.items()
                if name != "extra_info" or options.get("extras", True)
            }
            for one in records
        )
    ]
    if not options.get("json"):
        return written(left)
    path = Path(written(left)).with_name("rows.jsonl")
    path.write_text("".join(f"{json.dumps(one)}\n" for one in left), encoding="utf-8")
    return str(path)


def _plain(value: Any) -> Any:
    """Return nested values without those that a file's schema adds as None."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


ADAPTERS: dict[str, type[Any]] = {"data-sets": VerlDataSets}
