"""Worked examples of what is trained: master weights, micro-batches, draft heads, merged layers, auxiliary parts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from refrl.policy import scoring
from refrl.policy.auxiliary import NONE, Auxiliary, Together
from refrl.policy.draft import DraftHead, DraftTraining, drafted
from refrl.policy.lora import LoraLinear
from refrl.policy.optimizer import MasterWeights
from refrl.streams import random_stream
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import batch, example, for_all, made_tensor


def of_trained() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all(
        {"drafts of a row, by loops": (_drafts, 6), "merged weights in bfloat16": (_merges, 8)}
    )
    yield example("master weights over two micro-batches", [[3.5], None, [0.25], True, [3.0]], _masters)
    yield from _of_cuts()
    sampled = [[True, False, False, False], [False, True, False, True], [True, False, False, False]]
    yield example("tokens that are drafted", sampled, _drafted)
    yield from _of_parts()


def _masters() -> list[Any]:
    """Return the sum of gradients, that of the model, and its weight before and after it is published."""
    model = nn.ParameterDict({"one": torch.tensor([0.25], dtype=torch.bfloat16), "kept": torch.tensor([2.0])})
    model["kept"].requires_grad_(False)
    masters = MasterWeights(model, torch.bfloat16)
    for value in (1.5, 2.0):
        model["one"].grad = torch.tensor([value], dtype=torch.bfloat16)
        masters.add_gradients()
    (master,) = masters.weights
    before = model["one"].tolist()
    master.data.fill_(3.0)
    masters.publish()
    same = masters.copies().keys() == {"one"} and master.dtype == torch.float32
    return [cast(Any, master.grad).tolist(), model["one"].grad, before, same, model["one"].tolist()]


def _of_cuts() -> Iterator[WorkedExample]:
    # Rows of 3, 6 and 3 tokens, each of them a prompt and a completion of 2, 3 and 1.
    packs, tokens = {"sequence_packing.enabled": True}, {"dynamic_batching.enabled": True}
    own = {"train_micro_batch_size": 2, "logprob_batch_size": 1, "max_total_sequence_length": 6}
    for name, options, right in (
        ("of two rows and of one", {}, [[[0, 1], [2]], [[0], [1], [2]]]),
        ("of packs", packs, [[[1, 0, 2]], [[1], [0, 2]]]),
        ("of packs of their own sizes",
         {**packs, "sequence_packing.train_mb_tokens": 6, "sequence_packing.logprob_mb_tokens": 9},
         [[[1], [0, 2]], [[1, 0], [2]]]),
        ("of as many tokens", tokens, [[[0, 1], [2]], [[0], [1], [2]]]),
    ):  # fmt: skip
        yield example(
            f"micro-batches {name}", [sorted(map(sorted, one)) for one in right], _cut, {**own, **options}
        )


def _cut(options: Any) -> list[list[list[int]]]:
    """Return the rows of micro-batches that are trained on, and of those that are scored, each in order."""
    found = []
    rows = batch()
    for cut in scoring.make_cuts(policy_configuration(options)):
        own = [
            (list(range(3))[one] if isinstance(one, slice) else list(one))
            for one, _ in cut.micro_batches(rows)
        ]
        for numbers, micro in zip(own, (micro for _, micro in cut.micro_batches(rows)), strict=True):
            assert micro.prompt_lens_B.tolist() == [rows.prompt_lens_B.tolist()[number] for number in numbers]
        found.append(sorted(map(sorted, own)))
    return found


def _drafted() -> Any:
    return drafted(batch()).tolist()


class Hidden(nn.Module):
    """A model of given hidden states."""

    def __init__(self, states_BSD: Tensor) -> None:
        super().__init__()
        self.states_BSD = states_BSD

    def forward(self) -> Any:
        """Return them."""
        return SimpleNamespace(last_hidden_state=self.states_BSD)


def _drafts(stream: random.Random) -> bool:
    """Return whether the loss, the chance that drafts are accepted, and their number are those of loops over tokens."""
    width, vocabulary, temperature = 2, 9, stream.choice((0.5, 1.0))
    rows = batch()
    size = rows.input_ids_BS.shape[1]
    head_of = made_tensor(stream, (vocabulary, width)) / 8
    embedding = made_tensor(stream, (10, width)) / 8
    model: Any = nn.Module()
    states = made_tensor(stream, (3, size, width)) / 8
    model.base_model = Hidden(states[1:])
    model.get_output_embeddings = lambda: SimpleNamespace(weight=head_of)
    model.get_input_embeddings = lambda: SimpleNamespace(weight=embedding)
    head = DraftHead(width, 3)
    for weight in head.parameters():
        weight.data.copy_(made_tensor(stream, weight.shape) / 8)
    reads: list[Any] = []

    def read(weight: Tensor) -> Tensor:
        reads.append(weight)
        return weight.detach()

    training = DraftTraining(head, model, cast(Any, None), temperature=temperature, read=read)
    with training.watching():
        model.base_model()
    loss, metrics = training.share(rows.rows([1, 2]), rows)
    mask = [[int(value) for value in row] for row in rows.at_positions(rows.mask_BT).tolist()]
    places = [(row, place) for row in range(3) for place in range(size - 2) if mask[row][place + 2]]
    total = len(places)
    due_loss, due_accepted, number = 0.0, 0.0, 0
    for row, place in places:
        if not row:
            continue
        number += 1
        ids = rows.input_ids_BS[row].tolist()
        given = head(states[row, place][None], embedding[ids[place + 1]][None])[0]
        draft = (head_of @ given / temperature).softmax(0)
        policy = (head_of @ states[row, place + 1] / temperature).softmax(0)
        due_loss -= math.log(float(draft[ids[place + 2]].detach())) / total
        due_accepted += sum(min(float(a), float(b)) for a, b in zip(draft, policy, strict=True)) / total
    found = float(loss), float(metrics["draft/loss"]), float(metrics["draft/acceptance_rate"])
    close = all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6)
        for a, b in zip(found, (due_loss, due_loss, due_accepted), strict=True)
    )
    return (
        close
        and int(metrics["draft/num_tokens"]) == number
        and training._states_BSD is None
        and len(reads) == 2
    )


def _merges(stream: random.Random) -> bool:
    """Return whether a layer's weight in half precision is merged in float32, and rounded once."""
    base = nn.Linear(4, 3, bias=False, dtype=torch.bfloat16)
    base.weight.data.copy_(made_tensor(stream, (3, 4), torch.bfloat16))
    layer = LoraLinear(base, dim=2, alpha=6, stream=random_stream(1, "made", 0))
    for half in (layer.lora_A, layer.lora_B):
        half.weight.data.copy_(
            torch.randn(half.weight.shape, generator=torch.Generator().manual_seed(stream.randrange(99)))
        )
    low, high = layer.lora_A.weight.double(), layer.lora_B.weight.double()
    due = (base.weight.double() + 3.0 * (high @ low)).to(torch.bfloat16)
    merged = layer.merged()
    return (
        merged.dtype == torch.bfloat16
        and bool(((merged - due).abs() <= 2**-8 * due.abs()).all())
        and torch.equal(merged, due)
    )


class Part(Auxiliary):
    """A part that notes its calls."""

    def __init__(self, name: str, noted: list[Any]) -> None:
        self.name, self.noted = name, noted

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note both ends."""
        self.noted.append(f"{self.name} in")
        yield
        self.noted.append(f"{self.name} out")

    def share(self, micro: Any, update: Any) -> Any:
        """Return a loss by the part's name."""
        self.noted.append((micro.num_rows, update.num_rows))
        return torch.tensor(float(ord(self.name))), {self.name: torch.tensor(1.0)}

    def step(self) -> None:
        """Note it."""
        self.noted.append(f"{self.name} step")

    def finished(self, metrics: Any) -> dict[str, float]:
        """Add the number of metrics that there are."""
        return {**metrics, self.name: float(len(metrics))}

    @property
    def weights(self) -> Sequence[Tensor]:
        """One weight."""
        return [torch.tensor(float(ord(self.name)))]

    def state_tensors(self) -> Any:
        """Return one tensor."""
        return {self.name: torch.tensor(2.0)}

    def resume(self, num_updates_done: int) -> None:
        """Note it."""
        self.noted.append((self.name, num_updates_done))

    def write(self, folder: Path) -> None:
        """Note it."""
        self.noted.append((self.name, folder.name))


def _of_parts() -> Iterator[WorkedExample]:
    right = {
        "noted": ["a in", "b in", "b out", "a out", (1, 3), (1, 3), "a step", "b step", ("a", 4), ("b", 4),
                  ("a", "f"), ("b", "f")],
        "share": (195.0, ["a", "b"]), "finished": {"x": 0.5, "a": 1.0, "b": 2.0},
        "weights": [97.0, 98.0], "state": ["a", "b"],
    }  # fmt: skip
    yield example("two parts as one", right, _together, True)
    none: dict[str, Any] = {
        "noted": [],
        "share": (0.0, []),
        "finished": {"x": 0.5},
        "weights": [],
        "state": [],
    }
    yield example("no parts as one", none, _together, False)


def _together(has_parts: bool) -> dict[str, Any]:
    noted: list[Any] = []
    some = [Part("a", noted), Part("b", noted)] if has_parts else []
    both = Together([NONE, *some, NONE])
    rows = batch()
    with both.watching():
        assert len(noted) == len(some)
    loss, metrics = both.share(rows.rows([0]), rows)
    both.step()
    both.resume(4)
    both.write(Path("f"))
    return {
        "noted": noted, "share": (float(loss), sorted(metrics)), "finished": both.finished({"x": 0.5}),
        "weights": [float(one) for one in both.weights], "state": sorted(both.state_tensors()),
    }  # fmt: skip
