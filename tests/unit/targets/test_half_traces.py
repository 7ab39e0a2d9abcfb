"""What modules compute from sizes alone is found, and judged in half precision."""

import torch
from torch import Tensor, nn

from seatrial.targets.transformers.half_traces import misplaced, traced, unlike_record, wide_steps


class Placed(nn.Module):
    """Adds sines of places, which are rounded or not."""

    def __init__(self, *, rounded: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.rounded = rounded

    def forward(self, states: Tensor) -> Tensor:
        places = torch.arange(300, dtype=states.dtype if self.rounded else torch.float32)
        table: Tensor = torch.sin(places).to(states.dtype)
        found: Tensor = self.linear(states) + table[:, None]
        return found


def _faults(*, rounded: bool) -> list[str]:
    traces = []
    for seed, dtype in ((0, torch.bfloat16), (0, torch.float32), (1, torch.float32)):
        torch.manual_seed(seed)
        model = Placed(rounded=rounded).to(dtype)
        traces.append(traced(model, {"states": torch.randn(300, 4).to(dtype)}))
    return misplaced(*traces, torch.finfo(torch.bfloat16).eps)


def test_places_that_are_rounded_are_found() -> None:
    assert _faults(rounded=False) == []
    assert _faults(rounded=True) == ["Placed (), arange >h: 256 where 257 is due, 22 of 300"]


def test_a_sine_in_another_type_is_unlike_the_record() -> None:
    model = Placed(rounded=False).to(torch.bfloat16)
    found = wide_steps(traced(model, {"states": torch.randn(300, 4).to(torch.bfloat16)}))
    assert found == {"Linear": "", "Placed": "arange:>f sin:f>f to:f>h"}
    assert unlike_record({"Placed": {"arange:>f sin:f>f to:f>h"}}, found) == []
    assert unlike_record({"Placed": {"arange:>f to:f>h"}}, found) == ["Placed: sin:f>f for "]
    assert unlike_record({"Linear": {"linear:ff>f"}}, found) == ["Linear:  for linear:ff>f"]
    assert unlike_record({}, found) == []
