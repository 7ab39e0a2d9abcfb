"""The vLLM engine without vLLM: options, and requests to a stand-in; tests/peers/vllm_engine.py runs the real one."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from refrl.config import ConfigError, PolicyConfig, validate_config
from refrl.generation.base import SamplingParams
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.training.build_generation import build_generator

CPU = torch.device("cpu")


def config(model: Path, **generation: Any) -> PolicyConfig:
    """Return a policy whose rollouts vLLM samples."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 4,
        "max_total_sequence_length": 32,
        "generation": {"backend": "vllm", "colocated": {"enabled": False}, **generation},
    }
    return validate_config(PolicyConfig, values, source="test")


def test_shared_weights_are_refused() -> None:
    """vLLM keeps its own."""
    with pytest.raises(ConfigError, match="backend=vllm needs a generator with its own weights"):
        config(Path("model"), colocated={"enabled": True})


def test_without_vllm_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the interpreter's name."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    make_model(TinyModelSpec(hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1), tmp_path / "model")
    with pytest.raises(ConfigError, match=r"cannot import it .* policy\.generation\.vllm_cfg\.python"):
        build_generator(config(tmp_path / "model"), make_byte_tokenizer(), device=CPU)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Before anything is loaded."""
    wanted = config(tmp_path, placement="process", vllm_cfg={"python": str(tmp_path / "python")})
    with pytest.raises(ConfigError, match="python cannot be started"):
        build_generator(wanted, make_byte_tokenizer(), device=CPU)


class StandIn:
    """vLLM's `LLM` and its engine: a request goes on with its last id plus 1, plus 2 and so on, a token a step."""

    def __init__(self, **options: Any) -> None:
        self.options, self.llm_engine = options, self
        self.given: dict[str, Any] = {}
        self.running: dict[str, list[int]] = {}
        self.aborted: list[str] = []
        self.after_step: Callable[[], None] = lambda: None

    def add_request(self, name: str, prompt: Mapping[str, Any], params: Any) -> None:
        self.given[name], self.running[name] = params, [prompt["prompt_token_ids"][-1]]

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def step(self) -> Sequence[Any]:
        found = []
        for name, ids in reversed(list(self.running.items())):
            params, token = self.given[name], ids[-1] + 1
            ids.append(token)
            place = {token: SimpleNamespace(logprob=-token / 100)}
            if params.logprobs == -1:
                place |= {one: SimpleNamespace(logprob=float("-inf")) for one in range(259) if one != token}
            part = SimpleNamespace(token_ids=[token], logprobs=[place])
            found.append(SimpleNamespace(request_id=name, outputs=[part]))
            if len(ids) > params.max_tokens or token in params.stop_token_ids:
                del self.running[name]
        self.after_step()
        return found

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        self.running.clear()


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the engine over the stand-in."""
    vllm, params = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    vllm.LLM, vllm.SamplingParams = StandIn, SimpleNamespace  # type: ignore[attr-defined]
    params.RequestOutputKind = SimpleNamespace(DELTA="delta")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)
    make_model(TinyModelSpec(hidden_size=32, num_layers=1, num_heads=1, num_kv_heads=1), tmp_path / "model")
    return build_generator(config(tmp_path / "model"), make_byte_tokenizer(), device=CPU)


def test_rows_are_those_of_their_requests(engine: Any) -> None:
    """Although the steps give them in another order, and one ends before the other."""
    params = SamplingParams(max_new_tokens=3, temperature=0.7, stop_token_ids=(12,))
    rows = engine.generate([(5, 10), (7, 20)], params, torch.Generator().manual_seed(0))
    assert [row.ids for row in rows] == [(11, 12), (21, 22, 23)]
    assert [row.logprobs for row in rows] == [(-0.11, -0.12), (-0.21, -0.22, -0.23)]
    assert [row.finish_reason for row in rows] == ["stop", "length"]
    assert [row.kept_ids for row in rows] == [None, None]


def test_every_request_has_the_parameters_and_a_seed_of_its_own(engine: Any) -> None:
    """Temperature, filters, limit and end; the log-probabilities are those of the filtered distribution."""
    params = SamplingParams(max_new_tokens=2, temperature=0.7, top_p=0.9, top_k=4, stop_token_ids=(3, 1))
    rows = engine.generate([(5,), (7,)], params, torch.Generator().manual_seed(0))
    given = list(engine._vllm.given.values())
    asked = {"temperature": 0.7, "top_p": 0.9, "top_k": 4, "max_tokens": 2, "stop_token_ids": [1, 3]}
    assert all(vars(one).items() >= asked.items() for one in given)
    assert len({one.seed for one in given}) == 2
    assert rows[0].kept_ids == ((6,), (7,))
    assert engine._vllm.options["logprobs_mode"] == "processed_logprobs"


def test_an_abort_ends_every_request_with_what_it_has(engine: Any) -> None:
    """And the next call samples to the end again."""
    params = SamplingParams(max_new_tokens=5, stop_token_ids=())
    engine._vllm.after_step = engine.abort
    rows = engine.generate([(5,), (7,)], params, torch.Generator().manual_seed(0))
    assert [row.ids for row in rows] == [(6,), (8,)]
    assert engine._vllm.aborted == ["0", "1"]
    engine._vllm.after_step = lambda: None
    engine.resume()
    (row,) = engine.generate([(5,)], params, torch.Generator().manual_seed(0))
    assert row.ids == (6, 7, 8, 9, 10)
