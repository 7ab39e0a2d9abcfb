"""Records of every class of Transformers' modules of models."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.class_modes import MODES, NOISY_MODES
from seatrial.targets.transformers.class_outputs import number_of, start_of
from seatrial.targets.transformers.class_records import LINES, PLAIN, ClassRecord, record


def test_outputs_of_each_size_weigh_alike() -> None:
    """A small output that differs moves the projection as much as a large one."""
    large, small = torch.arange(6.0) + 1, (torch.arange(6.0) + 1) / 100
    right = number_of({"a": large, "b": (small, None)})
    for wrong in ({"a": -large, "b": (small, None)}, {"a": large, "b": (-small, None)}):
        assert abs(number_of(wrong)[0] - right[0]) > 0.05
    assert abs(number_of({"a": large, "b": (2 * small, None)})[1] - right[1]) > 0.05


def test_an_infinite_output_counts_and_none_is_no_record() -> None:
    """Numbers stay finite where a mask is infinite; an output without tensors has none."""
    masked = torch.tensor([0.5, -math.inf, 1.0])
    assert all(map(math.isfinite, number_of([masked])))
    assert number_of([masked]) != number_of([masked.nan_to_num(neginf=0.0)])
    with pytest.raises(NotServed):
        number_of({"loss": None})


def test_starts_are_a_constant_or_a_spread() -> None:
    """Zeros give another number than drawn values, and layers of one kind are one parameter."""
    layers = [torch.nn.Linear(16, 16) for _ in range(2)]
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(layers)})
    for layer in layers:
        torch.nn.init.zeros_(layer.bias)
        torch.nn.init.normal_(layer.weight, std=0.25)
    bias, weight, _ = start_of(model)
    assert bias == -50.0
    assert weight == pytest.approx(-2.0, abs=0.3)


def test_starts_allow_for_other_random_numbers() -> None:
    """Another draw of few numbers is the due spread; twice the spread of many, and another constant, are not."""
    model = torch.nn.Linear(16, 16)
    torch.nn.init.constant_(model.bias, 0.5)
    torch.nn.init.normal_(model.weight, std=0.25)
    assert start_of(model, (50.5, -2.2, 60.0)) == [50.5, -2.2, 60.0]
    bias, weight, _ = start_of(model, (50.25, -3.0, 60.0))
    assert bias == 50.5
    assert weight == pytest.approx(-2.0, abs=0.3)


def test_hooks_of_earlier_calls_are_no_part() -> None:
    """A hook that was there before changes nothing of what is recorded of parts."""
    first, second = _Asking(), _Asking()
    second.table.register_forward_hook(lambda module, given, found: None)
    assert MODES["parts given"](first, {}) == MODES["parts given"](second, {})
    vars(second)["enable_input_require_grads"] = first.disable_input_require_grads
    assert MODES["parts given"](first, {}) != MODES["parts given"](second, {})


def test_a_call_that_raises_leaves_no_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy in half precision computes with its own weights, not with those of the model that was copied."""
    given, model = torch.ones(1, 2, dtype=torch.bfloat16), torch.nn.Sequential(torch.nn.Linear(2, 2))
    whole = model[0].forward
    vars(model[0])["forward"] = lambda *inputs: whole(*inputs)
    monkeypatch.setattr(ClassRecord, "_fresh", lambda self, name: (model, ()))
    with pytest.raises(RuntimeError, match="dtype"):
        copy.deepcopy(model).to(torch.bfloat16)(given)
    found = ClassRecord.__new__(ClassRecord)._model("any")
    assert copy.deepcopy(found).to(torch.bfloat16)(given).shape == (1, 2)


def test_a_record_names_its_lines_of_releases() -> None:
    """Each projection is of one line of releases or of both, and ends with its scale."""
    for names in record().values():
        for lines in names.values():
            assert {*lines} <= {"", *LINES}
            assert all(len(values) >= 2 and values[-1] > 0 for values in lines.values())


class _Tied(torch.nn.Module):
    """A model of a table and a head, which may share their weights."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(7, 5), torch.nn.Linear(5, 7, bias=False)
        self.kept = torch.nn.Buffer(torch.arange(3), persistent=not tied)
        if tied:
            self.head.weight = self.table.weight


class _Asking(_Tied):
    """A model that sets a hook on its table."""

    def __init__(self) -> None:
        super().__init__(True)

    def enable_input_require_grads(self) -> None:
        self.hook = self.table.register_forward_hook(lambda module, given, found: None)

    def disable_input_require_grads(self) -> None:
        if hasattr(self, "hook"):
            self.hook.remove()


def test_what_is_saved_counts_with_its_ties() -> None:
    """A tie, and a buffer that is left out of files, change the sums over names."""
    assert MODES["keys"](_Tied(True), {}) == MODES["keys"](_Tied(True), {})
    assert MODES["keys"](_Tied(True), {}) != MODES["keys"](_Tied(False), {})


def test_a_class_is_recorded_in_every_mode() -> None:
    """The adapter lists each mode by the name that makes its numbers."""
    assert {*MODES, *NOISY_MODES} <= {*PLAIN}
    assert not {*MODES} & {*NOISY_MODES}
