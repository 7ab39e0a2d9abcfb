"""Worked examples of small edges of names, ranks that share, and the data plane."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from refrl import distributed
from refrl.config import ClusterConfig, registry
from refrl.config.loading import ConfigError
from refrl.data_plane import BaseRolloutFilter, KVBatchMeta, StalenessFilter, ZeroVarianceFilter
from refrl.data_plane.columns import encode, gather
from refrl.data_plane.control import ControlState
from refrl.data_plane.factory import local_client
from refrl.directories import naming
from refrl.distributed import World
from refrl.generation.base import Completion
from refrl.generation.sampling import row_seeds
from refrl.models.chat import BYTE_CHAT_TEMPLATE, ChatEncoder
from refrl.models.tokenization import make_byte_tokenizer
from refrl.nearest import meant
from refrl.rewards import Scores
from refrl.rewards.verifiers import VerifierError
from refrl.rollout.sync import RolloutWorker, shared
from refrl.tasks import Example
from refrl.timing import Timer
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_names()
    yield from _of_ranks()
    yield from _of_planes()


def _of_names() -> Iterator[WorkedExample]:
    """Yield examples of names that are nearly right, of errors with and without a file, and of measured seconds."""
    yield example("names differ by their capitals", "did you mean 'Adam'?", meant, "Adam", ["adam", "Adam"])
    given, of_file = OSError("no space"), FileNotFoundError(2, "gone", "own")
    for error, right in (
        (given, ("OSError", "no space")),
        (OSError(28, "no space"), ("OSError", "[Errno 28] no space: '/there'")),
        (PermissionError(13, "no"), ("PermissionError", "[Errno 13] no: '/there'")),
        (of_file, ("FileNotFoundError", "[Errno 2] gone: 'own'")),
    ):
        yield example(f"an error of a file: {error!r}", right, _named, error)
    for missing, words in {
        "other": "importing made_up failed with ModuleNotFoundError: other",
        "made": "importing made_up failed with ModuleNotFoundError: made",
        "made_up": "there is no module 'made_up'",
    }.items():
        yield example(f"a module without {missing}", True, _fails_without, "made_up", missing, words)
    yield example(
        "a package without itself", True, _fails_without, "made.up", "made", "there is no module 'made'"
    )
    yield example("seconds of two blocks, one of which raises", {"a": 5.0, "b": 0.5}, _seconds)
    talk = [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}]
    made = ChatEncoder(make_byte_tokenizer(), BYTE_CHAT_TEMPLATE)
    yield example("words with white space around them", 1 + 1, lambda: sum(made.training_row(talk)[1]))
    for role in ("User", "ASSISTANT", "bot"):
        other = [{**talk[0], "role": role}, talk[1]]
        yield refused(f"unknown role '{role}'", f"a role {role}", made.training_row, other)


def _named(error: OSError) -> tuple[str, str]:
    try:
        with naming(Path("/there")):
            raise error
    except OSError as found:
        return type(found).__name__, str(found)


def _fails_without(module: str, missing: str, words: str) -> bool:
    """Return whether the error of an import has these words."""
    error = ModuleNotFoundError(missing, name=missing)
    with patch("importlib.import_module", side_effect=error):
        try:
            registry.import_object(f"{module}:x", "k")
        except ConfigError as found:
            return str(found).startswith(f"k={module}:x: {words}")
    return False


def _seconds() -> dict[str, float]:
    """Return what a timer adds up while the clock shows these times."""
    timer = Timer()
    with patch("time.perf_counter", side_effect=[1.0, 3.0, 10.0, 13.0, 20.0, 20.5]):
        with timer.time("a"):
            pass
        with contextlib.suppress(ArithmeticError), timer.time("a"):
            raise ArithmeticError
        with timer.time("b"):
            pass
    return timer.take()


@contextlib.contextmanager
def _first_rank_gives(*items: Any) -> Iterator[None]:
    """Gather for rank 1 of two, as if rank 0 gave these items."""

    def gather(shares: list[Any], own: Any, group: Any) -> None:
        shares[:] = [list(items), own]

    with patch("torch.distributed.all_gather_object", gather):
        yield


def _of_ranks() -> Iterator[WorkedExample]:
    """Yield examples of what a second rank of two judges, samples and joins."""
    for launched, configured in ((2, 3), (3, 2), (1, 2)):
        words = f"{launched} processes were started and cluster.num_processes={configured}"
        yield refused(words, f"{launched} processes for {configured}", _meets, launched, configured)
    unmet = "the ranks cannot meet at h:7: port in use; if another"
    yield refused(unmet, "a port that is taken", _meets, 2, 2, MASTER_ADDR="h", MASTER_PORT="7")
    yield refused(
        "cannot meet at tcp://h:8", "a port that refrl chose", _meets, 2, 2, REFRL_RENDEZVOUS="tcp://h:8"
    )
    yield example(
        "a rank rewards its own rows, and counts all",
        ([1.0, 0.0, 0.0], 2, "row 1: x b", [False, True, True], ["w", "x", "y"]),
        _judged,
    )
    for name, media in (("words", False), ("media", True)):
        right = (["first", "own"], [[2], [3]], ["b", None] if media else [], True)
        yield example(f"a rank samples its own rows of {name}", right, _sampled, media)


def _meets(launched: int, configured: int, **more: str) -> None:
    """Join ranks whose meeting fails."""
    environment = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": str(launched), "RANK": "1", **more}
    fails = dist.DistNetworkError("port in use")
    own = {
        name: value
        for name, value in os.environ.items()
        if name not in ("REFRL_RENDEZVOUS", "REFRL_LIFELINE")
    }
    with (
        patch.dict(os.environ, {**own, **environment}, clear=True),
        patch.object(distributed, "_meeting", return_value={}),
        patch("torch.distributed.init_process_group", side_effect=fails),
        distributed.join(ClusterConfig(num_processes=configured)),
    ):
        pass


def _judged() -> Any:
    """Return the rollouts of three rows of which rank 1 of two judges the last one."""

    def verifier(completion: str, answer: str) -> float:
        raise VerifierError(f"{completion} {answer}")

    examples = [Example(number, "p", answer, "made") for number, answer in enumerate("abc")]
    tokenizer: Any = make_byte_tokenizer()
    completions = [
        Completion(prompt_ids=(1,), ids=tuple(text.encode()), logprobs=(0.0,), finish_reason="stop")
        for text in "wxy"
    ]
    made = RolloutWorker(None, tokenizer, lambda rows: [], world=World(1, 2))  # type: ignore[arg-type]
    with _first_rank_gives(Scores([1.0], 0, None, failed=[False])):
        found = made.reward(examples, completions, verifier)
    scores = found.scores
    return scores.rewards, scores.num_errors, scores.first_error, scores.failed, found.texts


def _sampled(has_media: bool) -> Any:
    """Return all rows of a step, the prompts and media of rank 1 of two, and whether its stream skips one row."""
    seen: list[Any] = []
    seeds = row_seeds(3, torch.Generator().manual_seed(5))

    class Own:
        def generate(self, prompts: Any, params: Any, stream: torch.Generator) -> list[str]:
            seen.extend((prompts, [], row_seeds(2, stream) == seeds[1:]))
            return ["own"]

    class Media(Own):
        def generate_with_media(self, prompts: Any, media: Any, params: Any, stream: Any) -> list[str]:
            found = self.generate(prompts, params, stream)
            seen[1] = media
            return found

    made: Any = shared(Media() if has_media else Own(), World(1, 2))  # type: ignore[arg-type]
    rows, stream = [[1], [2], [3]], torch.Generator().manual_seed(5)
    with _first_rank_gives("first"):
        found = (
            made.generate_with_media(rows, ["a", "b", None], None, stream)
            if has_media
            else made.generate(rows, None, stream)
        )
    return found, *seen


def _of_planes() -> Iterator[WorkedExample]:
    """Yield examples of data planes: leases that are over at once, columns of no rows, numbers of numpy in tags."""
    yield example("a lease of no seconds", [["a", "b"], ["a", "b"], ["a", "b"], []], _claims)
    yield example("a partition that is not there is cleared", ([], []), _cleared)
    for dtype in (torch.int32, torch.float64, torch.bool):
        yield example(f"no rows of {dtype}", (dtype, (), [0, 2]), _no_rows, dtype)
    yield example("the types of columns", ["object", "uint8", "float32", "uint8"], _dtypes)
    for of in (np.float32, np.float64, np.int64, int, float):
        yield example(f"rewards as {of.__name__}", ("ab", "c"), _varied, of)
    for whole in (np.int64, np.int32, int):
        yield example(f"versions as {whole.__name__}", ("bc", "a"), _fresh, whole)
    for wrong in (np.bool_, np.float32, str):
        yield refused("not an integer", f"versions as {wrong.__name__}", _fresh, wrong)
    yield refused("not a number", "a reward as np.bool_", _varied, np.bool_)


def _claims() -> list[list[str]]:
    client = local_client(lease_s=600.0)
    client.register_partition("p", ["x"], 2, ["t"])
    client.put_samples(["a", "b"], "p", {"x": torch.ones(2)})
    return [
        client.claim_meta("p", "t", ["x"], 2, blocking=False, lease_s=seconds).sample_ids
        for seconds in (0.0, 0.0, None, None)
    ]


def _cleared() -> Any:
    waste = ControlState().clear("p", None)
    return waste.dropped, waste.sparse


def _no_rows(dtype: torch.dtype) -> Any:
    column = encode([torch.ones(1, 2).to(dtype), torch.ones(3, 2).to(dtype)], "x")
    found = gather([(column, [], []), (column, [], [])], 0)
    return found.values.dtype, found.lengths, list(found.values.shape)


def _dtypes() -> list[str]:
    objects = encode(np.array(["a", None], dtype=object), "x")
    return [objects.dtype, objects.dtype_of_values, *(
        encode(torch.ones(1).to(of), "x").dtype for of in (torch.float32, torch.uint8)
    )]  # fmt: skip


def _split(one: BaseRolloutFilter, tags: list[dict[str, Any]]) -> tuple[str, ...]:
    meta = KVBatchMeta(partition_id="p", sample_ids=list("abc"), tags=tags)
    return tuple("".join(part.sample_ids) for part in one(meta, current_weight_version=3))


def _varied(of: Any) -> tuple[str, ...]:
    rewards = [(0, of(1)), (0, of(0)), (1, of(1))]
    return _split(ZeroVarianceFilter(), [{"group_id": group, "reward": one} for group, one in rewards])


def _fresh(of: Any) -> tuple[str, ...]:
    return _split(StalenessFilter(1), [{"weight_version": of(version)} for version in (1, 2, 3)])
