"""Worked examples of small edges: widths, zeros that are given, draws by name, lines and facts."""

from __future__ import annotations

import json
import math
import os
import platform
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch

import refrl
from refrl.algorithms import advantages
from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.kept_ids import KeptIds, gather_kept_ids
from refrl.algorithms.losses.base import specification
from refrl.algorithms.losses.ratios import sequence_ratio
from refrl.algorithms.metrics import approx_entropy
from refrl.algorithms.microbatches import split_by_rows, split_by_tokens
from refrl.algorithms.ops import checked_ids
from refrl.algorithms.packing import compute_logprobs_packed, pack_batch
from refrl.algorithms.schedule import make_schedule
from refrl.checkpointing import layout, tensors
from refrl.config import AdvantageConfig, CheckpointingConfig, DataConfig, LoggerConfig, LossConfig
from refrl.data_plane.column_io import jagged
from refrl.data_plane.factory import local_client
from refrl.data_plane.flow import ConsumePlan, consume
from refrl.logging import RunLogger, run_info
from refrl.tasks.base import make_splits
from refrl.training import grpo, profiling
from refrl.training.session import shown
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.parts.custom import Scaled, Weighed
from seatrial.targets.reference.worked.checkpoints import in_folder, saved_with
from seatrial.targets.reference.worked.made import PAD, batch, example, refused, rollouts
from seatrial.targets.reference.worked.made_packages import package
from seatrial.targets.reference.worked.steps import quietly, stepped


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    for width in (3, 5):
        yield refused("a head of width", f"hidden states of 4 and a head of {width}", _scored, width)
    yield refused("outside the vocabulary", "kept ids of packed rows beyond the vocabulary", _packed, 9)
    yield example("kept ids of packed rows in the vocabulary", (3, 3), _packed, 8)
    for gap in (-20.0, 0.0, 3.0, 200.0):
        yield example(f"the ratio of a sequence {gap} away", math.exp(min(gap, 80.0)), _ratio, gap)
    yield example("the entropy of rows that another policy drew", 2 * math.exp(-1.5), _entropy)
    yield refused("too small for a row of 3", "tokens of a row that is longer", _cut, [1, 3])
    for num in (1, 2):
        yield example(f"rows that {num} ranks trained on", (4, 0), _left, num)
    yield example("threads of a writer in the background", [(1, "checkpoint")], _writer)
    for task in ("add", "reverse"):
        yield example(f"prompts of {task} that a seed holds out", True, _held_out, task)
    yield from _of_zeros()
    yield from _of_claims()
    yield from _of_lines()
    yield from _of_facts()


def _scored(width: int, **options: int) -> Any:
    ids, lens = torch.tensor([[1]]), torch.tensor([1])
    chunks: Any = options
    return compute_logprobs_chunked(torch.ones(1, 2, 4), torch.ones(6, width), ids, lens, **chunks)


def _packed(kept: int) -> Any:
    """Return the shape of the scores of rows whose first token had these ids to be drawn from, of nine."""
    made = batch()
    packed = pack_batch(made, pack_length=16, pad_token_id=PAD)
    ids = gather_kept_ids([[(2, kept)], [], []], 3)
    logits = torch.zeros(*packed.input_ids_PS.shape, 9)
    found, _ = compute_logprobs_packed(
        logits, packed, made.completion_ids_BT, mask_BT=made.mask_BT, kept_ids=ids
    )
    return tuple(found.shape)


def _ratio(gap: float) -> float:
    current = torch.tensor([[gap, gap, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    found = sequence_ratio(current * mask, torch.zeros(1, 3, dtype=torch.float64), mask)
    return float(found[0, 0])


def _entropy() -> float:
    current, drawn = torch.tensor([[-2.0, 5.0]]), torch.tensor([[-0.5, 0.0]])
    return float(approx_entropy(current, drawn, torch.tensor([[1.0, 0.0]]), 1.0))


def _cut(lengths: list[int]) -> Any:
    return jagged({"input_ids": torch.ones(2, 2)}, lengths)


def _left(num_ranks: int) -> Any:
    """Return how many rows ranks trained on, and how many the store has afterwards."""
    client = local_client(lease_s=60.0)
    client.register_partition("p", ["x"], 4, ["t"])
    client.put_samples(list("abcd"), "p", {"x": torch.ones(4)})
    plan = ConsumePlan(
        partition_id="p", task_name="t", fields=["x"], batch_size=4, min_batch_size=4, dp_world=num_ranks
    )
    trained: list[int] = []
    consume(
        client,
        plan,
        lambda batches: trained.extend(one.meta.size for one in batches),
        current_weight_version=0,
    )
    return sum(trained), client.status("p").num_rows


def _writer() -> list[Any]:
    made: list[Any] = []
    with patch.object(tensors, "ThreadPoolExecutor", lambda *words: made.append(words)):
        tensors.BackgroundWriter(background=True)
        tensors.BackgroundWriter(background=False)
    return made


def _held_out(task: str) -> bool:
    """Return whether a seed draws as it always has: other prompts would be trained on that were held out before."""
    found = make_splits(DataConfig(task=task, num_train=5, num_validation=3, seed=4))
    stream = random.Random(f"splits of {task}: 4")
    space = 10**4 if task == "add" else sum(26**length for length in range(1, 5))
    return [one.prompt_id for one in found.validation] == stream.sample(range(space), 3)


def _of_zeros() -> Iterator[WorkedExample]:
    """Yield what is refused where zero is given and not nothing."""
    schedule: Mapping[str, Any] = {"prompts_per_step": 2, "prompts_per_forward_backward": 2}
    words = "prompts_per_{}=0 and prompts_per_step=2 must be positive"
    for name in ("sync", "reference_sync"):
        options = {**schedule, f"prompts_per_{name}": 0}
        yield refused(words.format(name), f"no prompts per {name}", make_schedule, **options)
    for num in (0, -2):
        yield refused(f"={num} must be", f"{num} rows of a micro-batch", split_by_rows, 1, num)
    yield refused(
        "0 prompts and 0 completions: need as many, and some", "no rows", split_by_tokens, [], [], 4
    )
    for name, value in (("vocab_chunk", 0), ("row_chunk", 0), ("vocab_chunk", -1), ("keep_bytes", -1)):
        words = f"{name}={value}" + (" must not be negative" if name == "keep_bytes" else "")
        yield refused(words, f"tiles with {name}={value}", _scored, 4, **{name: value})
    two = torch.zeros(2, 2)
    yield refused("must both be (B,)", "rewards of two dimensions", advantages.compute_advantages, two, two.long(),
                  AdvantageConfig())  # fmt: skip
    for ids in ((1, 7, 9), (7, 9, 1)):
        yield refused("token id 7 is outside the vocabulary of 6", f"the first of ids {ids}", checked_ids,
                      torch.tensor(ids), 6)  # fmt: skip
    words = "judge 40% of the completions, which is more than grpo.max_verifier_error_share=0;"
    yield refused(words, "any error of a verifier", stepped, grpo__max_verifier_error_share=0.0)


def _of_claims() -> Iterator[WorkedExample]:
    given: Any = SimpleNamespace(options={"fctor": 2.0})
    for kind, key in ((Scaled, "grpo.advantage.options.fctor"), (Weighed, "loss_fn.options.fctor")):
        yield refused(key, f"an unknown option of {kind.__name__}", kind, given)
    own = f"{Scaled.__module__}:{{}}".format
    for part, config in (
        (advantages, AdvantageConfig(estimator=own("Scaled"))), (None, LossConfig(kind=own("Weighed"))),
    ):  # fmt: skip
        claim: Any = specification if part is None else part.specification
        yield example(f"what a user's {type(config).__name__} claims", None, claim, config)
    for kind_of, more, options in (
        ("cispo", {}, {}),
        ("gspo", {"ratio_clip_c": 3.0}, {"reduction": "sequence", "ratio_clip_c": 3.0}),
        ("ppo_clip", {"ratio_clip_c": None}, {}),
    ):
        loss = LossConfig.model_validate(
            {"kind": kind_of, "ratio_clip_min": 0.1, "ratio_clip_max": 0.3, **options}
        )
        due = {"kind": kind_of, "ratio_clip_min": 0.1, "ratio_clip_max": 0.3, **more}
        yield example(f"what {kind_of} claims", due, _claimed, loss)
    for config_of in (AdvantageConfig(epsilon=0.5), AdvantageConfig(estimator="rloo", epsilon=0.5)):
        scale = "group" if config_of.estimator == "grpo" else "none"
        claimed = {"estimator": config_of.estimator, "scale": scale, "epsilon": 0.5, "unbiased": True}
        yield example(f"what {config_of.estimator} claims", claimed, advantages.specification, config_of)
    yield example("kept ids on a device", ("meta", "meta", [3], [1, 2]), _moved)


def _claimed(config: LossConfig) -> Any:
    found = specification(config) or {}
    return {name: value for name, value in found.items() if name == "kind" or name.startswith("ratio_")}


def _moved() -> Any:
    kept: KeptIds = gather_kept_ids([[(2, 8), (1,)]], 2).to("meta")
    return (
        kept.ids_M.device.type,
        kept.counts_BT.device.type,
        list(kept.ids_M.shape),
        list(kept.counts_BT.shape),
    )


def _of_lines() -> Iterator[WorkedExample]:
    """Yield what is printed of checkpoints that are skipped, and of runs without a reward."""
    info, skips = "training_info.json", "skipping checkpoint ROOT/step_1, which is not complete: "
    for what, change, right in (
        ("nothing wrong", lambda at: None, []),
        ("no index", lambda at: (at / info).unlink(), [f"{skips}it has no {info}"]),
        ("two wrong values", _with_info(step="2", finished="x"), [f"{skips}{info}: Input should be a valid integer"]),
        ("another key", _with_info(more=1), [f"{skips}{info}: Extra inputs are not permitted"]),
        ("a missing key", _with_info(step=None), [f"{skips}{info}: Input should be a valid integer"]),
        ("a later form", _with_info(schema_version=2, digest=""),
         [f"{skips}{info} has schema_version 2, this refrl reads 1"]),
        ("another step", _with_info(step=7), [f"{skips}{info} does not match its digest"]),
        ("no digest of the index", _with_info(digest=""), []),
        ("no word of a digest", _without("digest"), []),
        ("no digest of the index, and another byte", _flipped_without_digest, DAMAGED),
        ("no word of digests and form", _without("digests", "digest", "schema_version"), []),
        ("a shorter file", lambda at: _tensors(at).write_bytes(b"x"), [f"{skips}FILE has 1 bytes of SIZE"]),
        ("a missing file", lambda at: _tensors(at).unlink(), [f"{skips}FILE is missing"]),
        ("a folder in its place", _folder_instead,
         [f"{skips}FILE is missing"]),
        ("another byte", _flip, DAMAGED),
    ):  # fmt: skip
        yield example(
            f"what is said of a checkpoint with {what}", (not right, right), in_folder(_skipped), change
        )
    yield example("the folder of an export before there is one", (True, []), in_folder(_before_export))
    for steps, is_rewarded in (((3,), False), ((3, 4), False), ((3,), True), ((), False)):
        line = "every completion of steps 3 to {} has reward 0: the policy had nothing to learn from\n"
        right_line = line.format(steps[-1]) if steps and not is_rewarded else ""
        yield example(f"rewards {is_rewarded} in steps {steps}", right_line, _noted, steps, is_rewarded)


def _with_info(**changes: Any) -> Callable[[Path], Any]:
    """Return a change of values in the index of a checkpoint, whose digest stays."""

    def change(directory: Path) -> None:
        path = directory / "training_info.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def _without(*names: str) -> Callable[[Path], Any]:
    """Return a change that leaves out keys of the index, as earlier versions did."""

    def change(directory: Path) -> None:
        path = directory / "training_info.json"
        found = json.loads(path.read_text())
        path.write_text(json.dumps({name: value for name, value in found.items() if name not in names}))

    return change


DAMAGED = ["skipping checkpoint ROOT/step_1, which is damaged: FILE does not match its digest"]
_FILE = f"policy/{tensors.FILE}"


def _tensors(directory: Path) -> Path:
    return directory / _FILE


def _flip(directory: Path) -> None:
    whole = _tensors(directory).read_bytes()
    _tensors(directory).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def _flipped_without_digest(directory: Path) -> None:
    _with_info(digest="")(directory)
    _flip(directory)


def _folder_instead(directory: Path) -> None:
    _tensors(directory).unlink()
    _tensors(directory).mkdir()


def _skipped(folder: Path, change: Callable[[Path], Any]) -> Any:
    """Return whether a run resumes from a checkpoint that was changed, and what is printed, without its own names."""
    root = saved_with(folder, [None])
    size = _tensors(root / "step_1").stat().st_size
    change(root / "step_1")
    found: list[Any] = []
    printed = quietly(lambda: found.append(layout.latest_checkpoint(root)))
    for own, name in ((str(root), "ROOT"), (_FILE, "FILE"), (f"of {size}", "of SIZE")):
        printed = printed.replace(own, name)
    return found[0] is not None, printed.splitlines()


def _before_export(folder: Path) -> Any:
    config = CheckpointingConfig(checkpoint_dir=str(folder / "kept"))
    return layout.final_directory(config) == folder / "kept" / "final", list((folder / "kept").iterdir())


def _noted(steps: tuple[int, ...], is_rewarded: bool) -> str:
    note, rows = grpo.RewardNote(), rollouts().rows([0] if is_rewarded else [2, 3])
    session: Any = SimpleNamespace(worker=SimpleNamespace(environment=None))
    for step in steps:
        made: Any = SimpleNamespace(step=step, rollouts=rows)
        note.trained(session, made)
    return quietly(note.ended, session)


def _of_facts() -> Iterator[WorkedExample]:
    yield example("what an observer is passed of a micro-batch", (_PASSED, _PASSED), _passed)
    yield example("facts of the process of a run", [], _wrong_facts)
    for sandbox, more in ((None, {}), ("made", {"sandbox": "made"})):
        due = {"seed": 9, "attempts": [1], "config": {"a": 1}, "device": "cuda:3", **more}
        yield example(f"facts of a run with the sandbox {sandbox}", due, in_folder(_facts), sandbox)
    for kind in ("trained", "tuned"):
        for first, events in ((1, ["start", 1, "stop"]), (3, [1, 2, "start", 3, "stop"])):
            for has_cuda in (False, True):
                keys = ["self_cuda_time_total"] * has_cuda + ["self_cpu_time_total"]
                right = [*events, "trace.json", *((key, 40) for key in keys)], "\n".join(keys)
                name = f"a profile of step {first} that is {kind}, with a GPU: {has_cuda}"
                yield example(name, right, in_folder(_profiled), kind, first, has_cuda)


_PASSED = ("batch", "logprobs", "entropy", "tokens", "rows")


def _passed() -> Any:
    """Return what an observer and a loss are passed of a micro-batch."""
    seen: list[Any] = []
    session: Any = SimpleNamespace(
        observer=SimpleNamespace(
            passed=lambda of, micro: seen.append(tuple(micro)) if of is session else None
        )
    )

    def loss(
        logprobs: Any, entropy: Any, of: Any, *, global_valid_tokens: Any, global_valid_seqs: Any
    ) -> Any:
        return of, logprobs, entropy, global_valid_tokens, global_valid_seqs

    call: Any = shown(session, cast(Any, loss))
    found = call("logprobs", "entropy", "batch", global_valid_tokens="tokens", global_valid_seqs="rows")
    return seen[0], found


def _wrong_facts() -> list[str]:
    """Return the facts of a process that are wrong; a module that is not imported has none."""
    made = package("made", __file__="there", __version__="1.5")
    with patch.dict(sys.modules, {"transformers": made, "tokenizers": package("made")}):
        del sys.modules["tokenizers"]
        found = run_info("cuda:3")
    due = {
        "pid": os.getpid(), "host": platform.node(), "device": "cuda:3",
        "origins": {"refrl": refrl.__file__, "torch": torch.__file__, "transformers": "there"},
        "versions": {"python": platform.python_version(), "refrl": str(getattr(refrl, "__version__", None)),
                     "torch": torch.__version__, "transformers": "1.5"},
    }  # fmt: skip
    return [name for name, value in due.items() if found[name] != value]


def _facts(folder: Path, sandbox: str | None) -> Any:
    config: Any = SimpleNamespace(model_dump=lambda mode: {"a": 1} if mode == "json" else {})
    with RunLogger(LoggerConfig(log_dir=str(folder), tensorboard_enabled=False)) as logger:
        logger.log_run_info(config, 3, "cuda:3", sandbox, attempt={"attempts": [1], "seed": 9})
    found = json.loads((folder / "run_info.json").read_text())
    return {
        name: found[name] for name in ("seed", "attempts", "config", "device", "sandbox") if name in found
    }


def _profiled(folder: Path, kind: str, first: int, has_cuda: bool) -> Any:
    """Return what a profiler does while a run takes four steps, and the tables that it leaves."""
    noted: list[Any] = []

    def table(*, sort_by: str, row_limit: int) -> str:
        noted.append((sort_by, row_limit))
        return sort_by

    made = SimpleNamespace(
        start=lambda: noted.append("start"),
        stop=lambda: noted.append("stop"),
        export_chrome_trace=lambda path: noted.append(Path(path).name),
        key_averages=lambda: SimpleNamespace(table=table),
    )
    session: Any = SimpleNamespace()
    with (
        patch.object(profiling, "profile", lambda: made),
        patch("torch.cuda.is_available", lambda: has_cuda),
        patch("torch.cuda.synchronize", lambda: None),
    ):
        profiler = profiling.StepProfiler(first, folder / "a" / "b")
        profiler.started(session)
        for step in range(1, 5):
            if step <= first:
                noted.append(step)
            getattr(profiler, kind)(session, SimpleNamespace(step=step))
    return noted, (folder / "a" / "b" / "table.txt").read_text()
