"""refrl obeys the relations of a policy with Megatron-core in place of the Hugging Face model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from refrl.training import build
from seatrial.faults.matrix import broken_seeds
from seatrial.faults.plant import all_plants
from seatrial.faults.planting import ask
from seatrial.targets.reference.configuration import policy_configuration

pytest.importorskip(
    "megatron.core", reason="Megatron-core is not installed: pip install 'seatrial[megatron]'"
)
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Megatron-core takes the CUDA devices: tests/gpu/test_megatron_gpu.py"
)

Disobeyed = Callable[[Mapping[str, Any], Iterable[str], list[int]], list[str]]
CELL = {"policy.megatron_cfg.enabled": True}
PACKED = {**CELL, "policy.sequence_packing.enabled": True, "policy.activation_checkpointing": True}
SCORES_AND_GRADIENTS = ("R1.step", "R3.step", "R5.policy", "R10.step", "R27.step", "R10.update")
EXPORT_AND_UPDATES = ("R10.run", "R21.export")
NIGHTLY = ("R9.run", "R12.run", "R13.run", "R17.run", "R26.run")


def test_the_cell_is_served_by_megatron_core(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Otherwise everything below would be about another policy."""
    from refrl.models.tiny import TinyModelSpec, make_model
    from refrl.models.tokenization import make_byte_tokenizer

    model = tmp_path_factory.mktemp("cell") / "model"
    make_model(TinyModelSpec(hidden_size=32, num_layers=1), model)
    policy = build.build_policy(
        policy_configuration({"model_name": str(model), "megatron_cfg.enabled": True}),
        make_byte_tokenizer(),
        device=torch.device("cpu"),
        num_updates=1,
        with_reference=False,
    )
    assert policy.backend.name == "megatron"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SCORES_AND_GRADIENTS, id="rows"),
        pytest.param(EXPORT_AND_UPDATES, id="runs", marks=pytest.mark.nightly),
    ],
)
def test_it_obeys_the_relations(disobeyed: Disobeyed, names: tuple[str, ...]) -> None:
    assert not disobeyed(CELL, names, [0])


def test_it_obeys_them_packed_and_with_layers_computed_again(disobeyed: Disobeyed) -> None:
    assert not disobeyed(PACKED, SCORES_AND_GRADIENTS, [0])


@pytest.mark.nightly
@pytest.mark.parametrize("name", NIGHTLY)
def test_it_obeys_the_relations_of_whole_runs(disobeyed: Disobeyed, name: str) -> None:
    assert not disobeyed(CELL, [name], [0])


@pytest.mark.nightly
def test_the_default_cell_sees_what_its_decoder_attends_to() -> None:
    """Megatron-core samples in one law of R6.engine, also where the options name the torch engine."""
    (fault,) = (plant for plant in all_plants() if plant.id == "padding-seen-by-later-tokens")
    (sentence,) = ask(broken_seeds, fault, {}, {"R6.engine": [0]})["R6.engine"].values()
    assert "'log-probabilities agree, other engines' broken" in sentence
