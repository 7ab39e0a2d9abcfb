"""refrl obeys every relation, in cells of its configuration in which every two options meet."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from seatrial.relations import parametrize_with_relations
from seatrial.relations.engine import DEFAULT_SEEDS, run_relation
from seatrial.relations.records.run import RunOption
from seatrial.relations.registry import all_relations, select
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.targets.reference.configuration import allowed, cells, table
from seatrial.targets.reference.layouts.training import layouts
from seatrial.verdict import Outcome

pytestmark = pytest.mark.usefixtures("forked_processes")

Disobeyed = Callable[[Mapping[str, Any], Iterable[str], list[int]], list[str]]
CELLS = list(cells())
FORMULAS = (
    "R1.loss", "R3.loss", "R5.loss", "R9.loss", "R9.metrics", "R11.bandit", "R12.loss", "R22.metrics", "R27.loss",
    "R5.advantages", "R12.advantages", "R17.advantages", "R27.advantages",
)  # fmt: skip
PATHS = ("R1.step", "R3.step", "R5.policy", "R10.step", "R27.step")
RUNS = ("R9.run", "R12.run")
ASYNC_RUNS = ("R14.async", "R19.async")
WHOLE_RUNS = (
    "R6.run", "R9.run", "R10.run", "R11.run", "R12.run", "R14.run", "R15.run", "R17.run", "R17.run_filters", "R22.run",
    "R23.run", "R24.run", "R26.run",
)  # fmt: skip
ARCHITECTURES = (
    "R6.architectures",
    "R9.architectures",
    "R12.architectures",
    "R17.media",
    "R23.architectures",
)
LAYOUTS = (
    "dp2", "fsdp2-bf16", "fsdp2-packed", "tp2-filtered", "cp2-packed", "moe-tp2-sp", "moe-aux-cp2", "moe-ep2",
    "vlm-fsdp2", "audio-fsdp2", "draft-tp2", "megatron-dp2-dynamic", "megatron-tp2-sp", "megatron-cp2-filtered",
    "moe-megatron-pp2", "moe-megatron-ep2-dynamic", "lora-fsdp2", "lora-tp2", "lora-megatron-pp2", "moe-fsdp4-ep2",
)  # fmt: skip
"""A few of the layouts, in which every option and model of the others occurs, and one of four processes."""
BY_DAY = ("fsdp2-packed", "tp2-filtered", "cp2-packed", "moe-ep2", "megatron-tp2-sp", "lora-fsdp2")
"""One of each kind of layout."""
BESIDE = {"policy.generation.colocated.enabled": False, "grpo.async_grpo.enabled": True}


RESUMES = {
    "R13.run": (
        "stopped once", "with adapters", "with a draft head", "over other answers",
        "of equal checkpoints the latest is kept", "the last step is saved",
    ),
    "R13.async": ("while it trains",),
}  # fmt: skip
"""The laws of these relations that hold by day: the others stop or kill a run at other moments, or on other backends,
where tests/integration/refrl/test_backend_diamond.py, test_resume.py and test_async_resume.py stop one by day."""


class ByDay(ReferenceComponents):
    """refrl's components in one layout of each kind, with every third option of a run."""

    trains_in = BY_DAY

    def run_options(self) -> Mapping[str, RunOption]:
        """Return the options whose two values a run is made with."""
        return dict(itertools.islice(super().run_options().items(), 0, None, 3))


def in_layouts(names: tuple[str, ...]) -> ReferenceComponents:
    """Return refrl's components, in these layouts alone."""
    stack = ReferenceComponents()
    stack.trains_in = names
    return stack


@parametrize_with_relations(
    ByDay(), names=[one.id for one in all_relations() if one.id not in RESUMES], seeds=DEFAULT_SEEDS[:1]
)
def test_the_default_cell_obeys(relation) -> None:
    """The battery on the first default seed, in a few layouts, with a few options; more of all at night."""
    if repr(relation) == "R2.placement":
        pytest.importorskip(
            "ray", reason="Ray is not installed: test_placements.py, tests/peers/test_ray_ranks.py"
        )
    relation()


@pytest.mark.parametrize("name", RESUMES)
def test_a_run_that_is_stopped_or_killed_goes_on_as_one_that_is_not(name: str) -> None:
    """A few moments by day."""
    (relation,) = select([name])
    laws = [law for law in relation.laws if law.name in RESUMES[name]]
    assert len(laws) == len(RESUMES[name])
    verdict = run_relation(replace(relation, laws=laws), ReferenceComponents(), seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.nightly
@parametrize_with_relations(in_layouts(LAYOUTS))
def test_the_default_cell_obeys_on_every_seed(relation) -> None:
    """On every default seed, in the layouts that have every option and every model."""
    relation()


@pytest.mark.nightly
def test_every_layout_obeys() -> None:
    """Those that a thorough run alone trains in, too."""
    stack = ReferenceComponents()
    for relation in select(["layout-changes-nothing", "replicas-agree"]):
        verdict = run_relation(relation, stack, seeds=[0], thorough=True)
        assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize(
    "names", [LAYOUTS, [name for name, of in layouts().items() if not of.thorough]], ids=["tests", "battery"]
)
def test_the_layouts_of_every_run_have_every_option_and_every_model(names: Iterable[str]) -> None:
    """What none of them has, no run of the tests, or of the battery, would see break but a thorough one."""
    two = {name: layout for name, layout in layouts().items() if layout.processes == 2}

    def of(names: Iterable[str]) -> set[tuple[str, str]]:
        return {
            (backend, what)
            for name in names
            for backend in [next((key for key in two[name].policy if key.endswith("_cfg.enabled")), "")]
            for what in (two[name].model, two[name].alone, *two[name].policy)
        }

    chosen = [name for name in names if name in two]
    named = {what for _, what in of(chosen)}
    assert {what for _, what in of(two)} == named
    assert {backend for backend, _ in of(chosen)} == {backend for backend, _ in of(two)}


@pytest.mark.parametrize(("name", "options"), CELLS, ids=[name for name, _ in CELLS])
def test_every_cell_obeys(disobeyed: Disobeyed, name: str, options: Mapping[str, Any]) -> None:
    """Formulas."""
    assert not disobeyed(options, FORMULAS, [0])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, id=name, marks=[pytest.mark.nightly] * (number % 14 != 0))
        for number, (name, options) in enumerate(CELLS)
    ],
)
def test_training_obeys_in_every_cell(disobeyed: Disobeyed, name: str, options: Mapping[str, Any]) -> None:
    """Rows to gradients, and gradients of a run against the oracle; thirteen cells of fourteen at night."""
    assert not disobeyed(options, [*PATHS, *RUNS], [0])


@pytest.mark.parametrize("name", ["R9.run", "R10.run", "R17.run"])
def test_laws_of_the_whole_run_hold_beside_the_training(disobeyed: Disobeyed, name: str) -> None:
    """Gradients against the oracle, one run for one seed, every prompt once: with rollouts a step older."""
    assert not disobeyed(BESIDE, [name], [0])


def need(backend: str) -> None:
    """Skip the test where Megatron-core is asked for and cannot serve a policy on the CPU."""
    if backend == "megatron":
        pytest.importorskip("megatron.core", reason="pip install 'seatrial[megatron]'")
        if torch.cuda.is_available():
            pytest.skip("Megatron-core takes the CUDA devices: tests/gpu/test_megatron_gpu.py")


@pytest.mark.parametrize("backend", ["dtensor", "megatron"])
def test_other_policy_backends_obey(disobeyed: Disobeyed, backend: str) -> None:
    """Rows to gradients, updates against AdamW, precision; all laws of a run are for the night."""
    need(backend)
    on_it = {f"policy.{backend}_cfg.enabled": True}
    assert not disobeyed(on_it, ["R1.step", "R3.step", "R5.policy", "R10.run", "R12.run", "R20.run"], [0])


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["dtensor", "megatron"])
def test_every_law_of_the_whole_run_holds_on_other_policy_backends(
    disobeyed: Disobeyed, backend: str
) -> None:
    """Resumes and exports too, and the paths that only some architectures have, which Megatron-core's model lacks."""
    need(backend)
    asked = [*WHOLE_RUNS, "R13.run", "R21.export", "R4.packing"]
    asked += ARCHITECTURES if backend == "dtensor" else []
    assert not disobeyed({f"policy.{backend}_cfg.enabled": True}, asked, [0])


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*ASYNC_RUNS, *WHOLE_RUNS])
def test_every_law_of_the_whole_run_holds_beside_the_training(disobeyed: Disobeyed, name: str) -> None:
    """Those of asynchronous runs under the cell's options too."""
    assert not disobeyed(BESIDE, [name], [0])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name, options in CELLS if options.get("grpo.async_grpo.enabled")],
    ids=[name for name, options in CELLS if options.get("grpo.async_grpo.enabled")],
)
def test_every_asynchronous_cell_loses_no_group_and_knows_its_weights(
    disobeyed: Disobeyed, name: str, options: Mapping[str, Any]
) -> None:
    """Packed, dynamic, chunked, filtered, with weights that are copied or sent."""
    assert not disobeyed(options, ASYNC_RUNS, [0])


def test_every_two_values_meet_in_a_cell_or_exclude_one_another() -> None:
    """The matrix grows with the schema: what is not met must be refused by it."""
    found = table("cells")
    for one, other in itertools.combinations(found, 2):
        for a, b in itertools.product(found[one].values(), found[other].values()):
            met = any(
                all(options.get(key) == value for key, value in {**a, **b}.items()) for _, options in CELLS
            )
            conflict = any(key in b and b[key] != value for key, value in a.items())
            assert met or conflict or not allowed({**a, **b}) or not (a and b), (one, a, other, b)


def losses() -> Iterator[dict[str, Any]]:
    """Yield every loss that the dimensions of the loss and the schema allow."""
    parts = ("loss", "reduction", "kl", "clip", "correction", "entropy")
    for chosen in itertools.product(*(table("cells")[part].values() for part in parts)):
        options: dict[str, Any] = {}
        for one in chosen:
            if any(options.get(key, value) != value for key, value in one.items()):
                break
            options |= one
        else:
            if allowed(options):
                yield options


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_every_loss_obeys(disobeyed: Disobeyed, seed: int) -> None:
    """The whole product of what a loss reads."""
    assert not [said for options in losses() for said in disobeyed(options, FORMULAS, [seed])]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_twenty_seeds_obey(seed: int) -> None:
    """The default cell under seeds beyond the default ones."""
    verdicts = [run_relation(relation, ReferenceComponents(), seeds=[seed]) for relation in select([])]
    assert not [verdict.reason for verdict in verdicts if verdict.outcome is Outcome.FAIL]
