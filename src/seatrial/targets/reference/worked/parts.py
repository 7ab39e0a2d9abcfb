"""Worked examples of parts of a run whose others are replaced: what they ask of them, in which order, with what."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import LlamaConfig

from refrl.algorithms.batching import make_batch
from refrl.checkpointing.attempts import Attempt
from refrl.distributed import World
from refrl.generation import torch_engine
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoder import pad_prompts
from refrl.generation.pool import join
from refrl.generation.pooled import PooledSampler
from refrl.generation.torch_engine import CachedDecoder
from refrl.models.loading import load_model
from refrl.policy.auxiliary import NONE, Auxiliary, Together
from refrl.tasks import Example
from refrl.timing import Timer
from refrl.training import grpo, opening
from refrl.training.build_generation import build_generator
from refrl.training.sft import answer_rows
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration, model_directory
from seatrial.targets.reference.worked import built_parts
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.made import PAD, example, for_all, rows, sample


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all(
        {
            "completions that are continued": (_joined, 30),
            "rows shared out over the engines that are left": (_shared_out, 20),
            "rows that fine-tuning logs": (_answer_rows, 10),
            "a cache whose rows are chosen": (_cached, 10),
        }
    )
    yield from _of_steps()
    yield example("what a forward of an engine writes", [False, False], _written)
    static = "no static decoding: it does not serve Linear as it is here"
    for num in (0, 1, 2, 10):
        layers = f", {num} layers in int8" if num else ""
        yield example(f"an engine of {num} layers in int8", layers, _engine, num, 0)
        yield example(
            f"an engine of {num} layers in int8 and blocks", f"{layers}, {static}", _engine, num, 16
        )
    yield example("the second process of a run", ([], "", [1]), in_folder(_second_rank))
    yield example("auxiliaries of one kind", ([3.0, 3], {"a": 1.0, "b": 2.0}, ["a", "b"]), _together)
    yield from built_parts.examples()


def _joined(stream: random.Random) -> bool:
    """Return whether every token of two parts keeps what it had in its own."""

    def part() -> Completion:
        num = stream.randint(1, 4)
        first = stream.randint(0, 2)
        segments = sorted(stream.sample(range(1, num), stream.randint(0, num - 1)))
        versions = [(0, first), *((place, first + at) for at, place in enumerate(segments, start=1))]
        return Completion(
            prompt_ids=(1,),
            ids=tuple(stream.randrange(9) for _ in range(num)),
            logprobs=tuple(-stream.random() for _ in range(num)),
            finish_reason=stream.choice(["abort", "stop", "length"]),
            kept_ids=tuple((stream.randrange(9),) for _ in range(num)) if kept else None,
            weight_version=first,
            version_segments=tuple(versions) if segments else (),
            mask=tuple(stream.randint(0, 1) for _ in range(num)) if stream.random() < 0.5 else None,
        )

    def tokens(one: Completion) -> list[tuple[Any, ...]]:
        num = len(one.ids)
        starts = dict(one.version_segments or ((0, one.weight_version),))
        versions: list[int] = []
        for place in range(num):
            versions.append(starts.get(place, versions[-1] if versions else one.weight_version))
        return [
            *zip(
                one.ids,
                one.logprobs,
                one.kept_ids or [None] * num,
                one.mask or [1] * num,
                versions,
                strict=True,
            )
        ]

    kept = stream.random() < 0.5
    first, rest = part(), part()
    found = join(first, rest)
    versions = [version for *_, version in tokens(found)]
    changes = [place for place in range(1, len(versions)) if versions[place] != versions[place - 1]]
    return (
        tokens(found) == tokens(first) + tokens(rest)
        and [place for place, _ in found.version_segments[1:]] == changes
        and (found.finish_reason, found.weight_version) == (rest.finish_reason, first.weight_version)
        and (found.mask is None) == (first.mask is None and rest.mask is None)
    )


def _shared_out(stream: random.Random) -> bool:
    """Return whether every row is asked for once, in order, and rows of one prompt of one engine."""
    num, groups = (
        stream.randint(1, 5),
        [(place, stream.randint(1, 3)) for place in range(stream.randint(1, 6))],
    )
    prompts = [[place] for place, count in groups for _ in range(count)]
    lost = stream.sample(range(num), stream.randint(0, num))
    made: Any = object.__new__(PooledSampler)
    made._replicas, made._pool = [None] * num, SimpleNamespace(losses=dict.fromkeys(lost, "gone"))
    found = made._requests(prompts, SamplingParams(max_new_tokens=1), 5)
    asked = [list(prompt) for request in found for prompt in request.prompts]
    firsts = [sum(len(one.prompts) for one in found[:at]) for at in range(len(found))]
    of_engines = [set(request.prompts) for request in found]
    sizes = [len(one) for one in of_engines]
    return (
        asked == prompts
        and [request.first_row for request in found] == firsts
        and len(set().union(*of_engines)) == sum(sizes)
        and len(found) == min(max(1, num - len(lost)), len(groups))
        and max(sizes) - min(sizes) <= 1
        and {request.seed for request in found} == {5}
    )


class _Model(nn.Module):
    """A model whose cache holds the ids that it read, and whose logits are the positions."""

    dtype = torch.float32
    config = LlamaConfig(num_hidden_layers=1, hidden_size=4, num_attention_heads=1)

    def forward(
        self, input_ids: Any, attention_mask: Any, position_ids: Any, past_key_values: Any, **more: Any
    ) -> Any:
        read = input_ids[:, None, :, None].float()
        keys, values = past_key_values.update(read, read + 0.5, 0)
        self.seen = [
            [int(one) for one, is_there in zip(line, mask, strict=True) if is_there]
            for line, mask in zip(keys[:, 0, :, 0].tolist(), attention_mask.tolist(), strict=True)
        ]
        self.equal = torch.equal(values, keys + 0.5) and more == {"use_cache": True, "logits_to_keep": 1}
        return SimpleNamespace(logits=position_ids[..., None].float())


def _cached(stream: random.Random) -> bool:
    """Return whether each row reads its own prompt and tokens, at its own places, however rows are chosen."""
    prompts = [
        tuple(stream.randrange(9) for _ in range(stream.randint(1, 4))) for _ in range(stream.randint(1, 3))
    ]
    model: Any = _Model()
    decoder = CachedDecoder(model)
    places = decoder.prefill(pad_prompts(prompts, PAD, torch.device("cpu")))
    own = [list(prompt) for prompt in prompts]
    same = bool(model.equal) and bool(model.seen == own)
    same &= places[:, -1].tolist() == [len(row) - 1 for row in own]
    for turn in range(4):
        chosen = [stream.randrange(len(own)) for _ in range(stream.randint(1, 4))]
        (decoder.expand if turn == 0 else decoder.keep)(torch.tensor(chosen))
        ids = [stream.randrange(9) for _ in chosen]
        own = [[*own[row], token] for row, token in zip(chosen, ids, strict=True)]
        places = decoder.step(torch.tensor(ids))
        same &= (
            model.equal and model.seen == own and places.flatten().tolist() == [len(row) - 1 for row in own]
        )
    return same


@dataclass
class _Row:
    number: int


def _of_steps() -> Iterator[WorkedExample]:
    for fates, drawn in ((2, 1), (0, 2), (1, 0), (0, 0)):
        due = [*["group_data"] * (fates > 0), *["drawn_data"] * (drawn > 0)]
        counts = {"group_data": fates, "drawn_data": drawn}
        right = [
            ("updated", 6, "rows"),
            ("logged", 6, {"trained": 1.0, "both": 3.0, "filtered": 3.0, "of the rows": 2.0}),
            *((name, 6, [{"number": number} for number in range(counts[name])]) for name in due),
            ("checked", 6, "log"),
            ("rewards checked", 0.25, 6, "log"),
            ("observed", 6, {"own": 1.0}, fates),
            ("done", 6),
        ]
        yield example(f"a step of {fates} fates and {drawn} drawn prompts", right, _step, fates, drawn)


def _step(num_fates: int, num_drawn: int) -> list[Any]:
    noted: list[Any] = []
    collected = SimpleNamespace(
        rollouts="rows",
        counts={"of the rows": 2.0, "both": 2.0},
        fates=[_Row(number) for number in range(num_fates)],
        drawn=[_Row(number) for number in range(num_drawn)],
        served=["served"],
        discarded="discarded",
    )
    filtered = SimpleNamespace(batch="batch", counts={"filtered": 3.0, "both": 3.0})
    updated = SimpleNamespace(metrics={"trained": 1.0, "both": 1.0}, filtered=filtered, updates=["update"])

    def update(session: Any, config: Any, step: int, rollouts: Any) -> Any:
        noted.append(("updated", step, rollouts))
        return updated

    def log(session: Any, config: Any, step: int, of: Any, rest: Any, trained: Any) -> Any:
        assert (of, rest) == (collected, filtered)
        noted.append(("logged", step, trained))
        return {"own": 1.0}

    def observed(session: Any, step: Any) -> None:
        assert (step.rollouts, step.discarded, step.batch) == ("rows", "discarded", "batch")
        assert (step.served, step.updates) == (["served"], ["update"])
        noted.append(("observed", step.step, step.metrics, len(step.fates)))

    session: Any = SimpleNamespace(
        collector=SimpleNamespace(
            consume=lambda step, train: (collected, train(collected.rollouts)),
            trained=lambda step: noted.append(("done", step)),
        ),
        timer=Timer(),
        logger=SimpleNamespace(
            directory="log", log_rows=lambda rows, name, step: noted.append((name, step, list(rows)))
        ),
        observer=SimpleNamespace(trained=observed),
    )
    config: Any = SimpleNamespace(grpo=SimpleNamespace(max_verifier_error_share=0.25))
    with ExitStack() as stack:
        for name, call in (
            ("update_policy", update),
            ("log_step", log),
            ("check_update", lambda trained, step, folder: noted.append(("checked", step, folder))),
            (
                "check_rewards",
                lambda of, share, step, folder: noted.append(("rewards checked", share, step, folder)),
            ),
        ):
            stack.enter_context(patch.object(grpo, name, call))
        grpo.train_step(session, config, 6)
    return noted


def _second_rank(folder: Path) -> Any:
    """Return the files and lines that the second process of a run leaves, and its engine's number."""
    options = {"logger.log_dir": str(folder / "log"), "checkpointing.checkpoint_dir": str(folder / "kept")}
    config, numbers = configuration(options), []
    attempt = Attempt(run_id="one", checkpoint=None, continues_log=False, log_facts={})

    def engine(*words: Any, number: int, **more: Any) -> Any:
        numbers.append(number)
        return build_generator(*words, number=number, **more)

    with (
        patch.object(opening, "join", lambda cluster: nullcontext(World(rank=1))),
        patch.object(opening, "begin_attempt", lambda *words: attempt),
        patch.object(opening, "sandbox_of", lambda names: "made"),
        patch.object(opening, "build_generator", engine),
        redirect_stdout(io.StringIO()) as printed,
        opening.open_session(config, config.grpo, num_updates=1, with_reference=False) as session,
    ):
        session.logger.log({"loss": 1.0}, 1, "train")
    return [str(path) for path in folder.rglob("*") if path.is_file()], printed.getvalue(), numbers


def _answer_rows(stream: random.Random) -> bool:
    """Return whether a step of fine-tuning logs each answer with its own ids, in the order of the batch."""
    num = stream.randint(1, 4)
    side: Any = stream.choice(("right", "left"))
    made, given = [], []
    for number in range(num):
        ids = [[stream.randrange(9) for _ in range(stream.randint(1, 3))] for _ in range(2)]
        mask = tuple(stream.randint(0, 1) for _ in ids[1])
        made.append(sample(ids[0], ids[1], completion_mask=mask))
        given.append(
            Example(number + 10, f"p{number}", f"a{number}", "made", stream.choice([None, f"s{number}"]))
        )
    due = [
        {
            "step": 6,
            "index": number,
            "prompt_id": one.prompt_id,
            "prompt": one.prompt,
            "task": "made",
            "completion": one.solution or one.answer,
            "answer": one.answer,
            "token_ids": [*row.prompt_ids, *row.completion_ids],
            "prompt_length": len(row.prompt_ids),
            "loss_mask": [0] * len(row.prompt_ids) + list(row.completion_mask or ()),
        }
        for number, (one, row) in enumerate(zip(given, made, strict=True))
    ]
    return list(answer_rows(given, make_batch(made, pad_token_id=PAD, padding_side=side), 6)) == due


def _engine(num_layers: int, block_tokens: int) -> str:
    """Return what an engine without a lean decoder says that it is, after the version of torch."""
    made: Any = object.__new__(torch_engine.TorchGenerator)
    made._model, made._block_tokens = nn.Linear(1, 1), block_tokens
    with (
        patch.object(torch_engine, "num_quantized", lambda model: num_layers),
        patch.object(torch_engine, "supports_lean", lambda model: False),
    ):
        return str(made.engine).removeprefix(f"torch {torch.__version__}")


def _written() -> list[bool]:
    """Return whether what a model's own forward writes may be used in training: tensors of inference mode may not."""
    model = load_model(model_directory())
    kept: list[bool] = []
    model.register_forward_hook(lambda of, given, output: kept.append(output.logits.is_inference()))
    torch_engine.TorchGenerator(model, PAD, lean=False, block_tokens=0).generate(
        [[1, 2], [3]], SamplingParams(max_new_tokens=2, stop_token_ids=()), torch.Generator().manual_seed(0)
    )
    return kept


class _Auxiliary(Auxiliary):
    def __init__(self, name: str, loss: float) -> None:
        self.name, self.loss = name, loss

    def share(self, micro: Any, update: Any) -> Any:
        self.seen = (micro, update)
        return torch.tensor(self.loss), {self.name: self.loss}

    def state_tensors(self) -> Mapping[str, Any]:
        return {self.name: torch.zeros(1)}

    @property
    def weights(self) -> Sequence[Any]:
        return [torch.zeros(1)] * int(self.loss)


def _together() -> Any:
    parts = [_Auxiliary("a", 1.0), _Auxiliary("b", 2.0)]
    both = Together([parts[0], NONE, parts[1]])
    made = make_batch(rows(), pad_token_id=PAD)
    update = make_batch(rows()[:2], pad_token_id=PAD)
    total, metrics = both.share(made, update)
    assert all(one.seen == (made, update) for one in parts)
    return [float(total), len(both.weights)], metrics, [*both.state_tensors()]
