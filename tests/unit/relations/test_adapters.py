"""The laws of adapters: a plain model satisfies them, and planted faults are seen by the law about them."""

import math
from collections.abc import Collection

import pytest
import torch
from tests.unit.relations.plain_adapters import PlainAdapters

from seatrial.relations.contracts.adapter_routes import CALLS, TRANSFERS
from seatrial.relations.contracts.adapters import AdapterSpec, WeightUpdate
from seatrial.relations.engine import run_relation
from seatrial.relations.oracles.adapters import adapted_weights, change, combined, orthogonal, scaling
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = [one for one in select(["R29"]) if one.component not in ("adapted_family", "adapter_histories")]


def broken(stack: PlainAdapters, laws: Collection[str] = ()) -> list[str]:
    """Return the laws that a stack breaks, of all relations or of those that have these laws."""
    ids = {law.partition("/")[0] for law in laws}
    return [
        f"{relation.id}/{law}"
        for relation in RELATIONS
        if not ids or relation.id in ids
        for law in run_relation(relation, stack, shrink_seconds=0).details.get("laws_broken", [])
    ]


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.id)
@pytest.mark.parametrize("tidy", [False, True])
def test_a_plain_model_satisfies_the_laws(relation, tidy: bool) -> None:  # type: ignore[no-untyped-def]
    """In every law, on the cases with traps and on the tidy ones."""
    verdict = run_relation(relation, PlainAdapters(), tidy=tidy)
    assert verdict.outcome is Outcome.PASS, verdict.reason


SUMS = "R29.combined/"


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("option", {"R29.options/the option has an effect"}),
        ("start", {"R29.adapted/starts as the base", "R29.adapted/spread of its start"}),
        ("wide start", {"R29.adapted/spread of its start"}),
        (
            "scaling",
            {"R29.adapted/float64 oracle", "R29.merged/weights in bfloat16", "R29.merged/weights in float16"},
        ),
        ("disabling does nothing", {"R29.adapted/disabled is the base"}),
        ("trains for inference", {"R29.several/used for inference"}),
        ("disabling thaws the base", {"R29.adapted/nothing of the base trains while disabled"}),
        ("stays disabled", {"R29.adapted/after it was disabled"}),
        ("dropout", {"R29.adapted/dropout"}),
        ("merged twice", {"R29.merged/outputs", "R29.merged/outputs while merged"}),
        ("added while merged", {"R29.merged/outputs while merged", "R29.merged/two adapters"}),
        ("cast before the sum", {"R29.merged/weights in bfloat16", "R29.merged/weights in float16"}),
        ("safe merge", {"R29.merged/safe merge", "R29.merged/two adapters, safe merge"}),
        ("safe merge of the first", {"R29.merged/two adapters, safe merge"}),
        (
            "unmerging leaves the last",
            {"R29.merged/merge and unmerge", "R29.merged/merge and unmerge in bfloat16"},
        ),
        (
            "factors are made anew",
            {"R29.merged/training continues", "R29.merged/training continues in bfloat16"},
        ),
        ("factors are cast", {"R29.merged/training continues in bfloat16"}),
        ("disabled stays merged", {"R29.merged/disabled while merged"}),
        ("shared factors", {"R29.several/switching"}),
        ("all train", {"R29.several/only the adapter in use trains"}),
        ("deleting leaves it", {"R29.several/deleting"}),
        ("deleting leaves it merged", {"R29.several/deleting a merged one"}),
        ("names ignored", {"R29.several/mixed batch"}),
        ("sign", {f"{SUMS}one adapter times -0.7", f"{SUMS}concatenated, one subtracted"}),
        (
            "combined twice",
            {f"{SUMS}one adapter times 0.7", f"{SUMS}concatenated", f"{SUMS}by singular values"},
        ),
        ("combining moves the base", {f"{SUMS}the given ones stay"}),
        ("a bias trains", {"R29.trained/nothing else trains"}),
        ("dead", {"R29.trained/every tensor has a gradient"}),
        ("both start at zero", {"R29.trained/every tensor has a gradient"}),
        ("checkpointing", {"R29.trained/gradient checkpointing"}),
        ("half is saved", {"R29.saved/loaded equals saved", "R29.saved/the second adapter of two"}),
        ("saves the first", {"R29.saved/the second adapter of two"}),
        ("names of adapters", {"R29.saved/the adapter's tensors alone"}),
        ("cast when loaded", {"R29.saved/into bfloat16"}),
        ("smallest", {f"{SUMS}pruned by magnitude", f"{SUMS}pruned by magnitude, one subtracted"}),
        ("checks nothing", {"R29.merged/refused merge"}),
        (
            "dropped alone",
            {
                f"{SUMS}{what} dropped at random{how}"
                for what in ("factors", "changes")
                for how in ("", ", by elected signs")
            },
        ),
        ("all agree", {f"{SUMS}by elected signs"}),
        ("padding", {"R29.adapted/padded rows"}),
        ("mean of all", {"R29.adapted/loss of labels"}),
        ("stays rescaled", {"R29.adapted/rescaled"}),
        ("adding moves the base", {"R29.adapted/the base stays"}),
        ("set by another name", {"R29.several/set to train by name"}),
        ("counted twice", {"R29.trained/numbers that train"}),
        ("merges another weight", {"R29.merged/weights that the options name"}),
        ("names no merge", {"R29.merged/one of two by name"}),
        ("merges on the way out", {"R29.merged/unloaded is the base"}),
        ("half", {"R29.saved/float32 over bfloat16"}),
        ("loads into the first", {"R29.saved/loaded as another one"}),
        ("swaps half", {"R29.saved/swapped in"}),
        ("padding is not zero", {"R29.saved/swapped in after preparing"}),
        ("padding freezes", {"R29.saved/what trains after preparing"}),
        ("sets the first", {"R29.saved/tensors of one set in the other"}),
        ("trains always", {"R29.saved/for inference"}),
        ("frozen when loaded", {"R29.saved/what trains after loading"}),
        (
            "all train",
            {"R29.elsewhere/added", "R29.elsewhere/switched", "R29.elsewhere/any order"},
        ),
        ("disabling does nothing", {"R29.elsewhere/disabled"}),
        ("deleting leaves it", {"R29.elsewhere/deleted and added again"}),
        ("saves all", {"R29.elsewhere/saved"}),
        ("merges again", {"R29.elsewhere/merged twice"}),
        ("unmerging leaves the last", {"R29.elsewhere/merged again"}),
        ("unmerging leaves the last", {"R29.elsewhere/merged next to the other"}),
        ("gradients of the other", {"R29.elsewhere/gradients"}),
        ("dropout of the base", {"R29.routes/training with dropout starts as the base"}),
        ("no rate", {"R29.routes/training with all of it dropped"}),
        ("tokens without a label", {"R29.prepared/tokens without a label"}),
        ("padding", {"R29.prepared/padding"}),
        ("starts from nothing", {"R29.prepared/tokens without a label", "R29.prepared/padding"}),
        ("a group is missing", {"R29.groups/each tensor once"}),
        ("embedding rate", {"R29.groups/rates"}),
        ("decay", {"R29.groups/decay"}),
    ],
)
def test_a_fault_is_seen_by_the_law_about_it(fault: str, laws: set[str]) -> None:
    """Others may see it as well."""
    assert laws <= set(broken(PlainAdapters(fault), laws))


@pytest.mark.parametrize("way", [*CALLS, *TRANSFERS])
def test_each_route_is_judged(way: str) -> None:
    """A fault of one way to ask, or to move an adapter, is seen by the law of its name."""
    (routes,) = select(["R29.routes"])
    verdict = run_relation(routes, PlainAdapters(way), seeds=[0], shrink_seconds=0)
    law = f"{'asked' if way in CALLS else 'moved'}: {way}"
    assert law in verdict.details["laws_broken"]


@pytest.mark.parametrize("fault", ["", "no rate", "not scaled"])
def test_the_mean_under_dropout_is_judged(fault: str) -> None:
    """In a thorough run, which breaks no other law of a plain model."""
    (routes,) = select(["R29.routes"])
    verdict = run_relation(routes, PlainAdapters(fault), seeds=[0], shrink_seconds=0, thorough=True)
    assert ("training with dropout, on average" in verdict.details.get("laws_broken", [])) == bool(fault)


@pytest.mark.parametrize("other", ["weight", "embedding"])
def test_weights_that_are_one_are_judged(other: str) -> None:
    """A weight is one with itself, and not with another one."""
    spec = AdapterSpec(weights=frozenset({"weight"}), one_weight=("weight", other))
    assert ("R29.adapted/weights that are one" in broken(PlainAdapters(adapter_spec=spec))) == (
        other != "weight"
    )


def test_what_is_declared_is_not_exercised() -> None:
    """And counts as held by declaration."""
    spec = AdapterSpec(starts_as_base=False, closed_form=False, takes_dropout=False, refuses=("mixed batch",))
    stack = PlainAdapters("names ignored", adapter_spec=spec)
    assert broken(stack) == []


def test_a_step_that_moves_the_base_is_seen() -> None:
    """As where a buffer is overwritten by every step."""

    class Moving(PlainAdapters):
        def adapted(self, **options):  # type: ignore[no-untyped-def]
            model = super().adapted(**options)
            plain = model.gradients

            def gradients(ids_BS, **given):  # type: ignore[no-untyped-def]
                model.base["bias"].add_(1.0)
                return plain(ids_BS, **given)

            model.gradients = gradients  # type: ignore[method-assign]
            return model

    law = "R29.trained/a step changes the adapter alone"
    assert law in broken(Moving(), [law])


def test_an_adapter_without_effect_is_seen() -> None:
    """As where the forward pass does not read it."""

    class Idle(PlainAdapters):
        def adapted(self, **options):  # type: ignore[no-untyped-def]
            model = super().adapted(**options)
            model.names_in_use = list  # type: ignore[method-assign]
            return model

    law = "R29.adapted/the adapter has an effect"
    assert law in broken(Idle(), [law])


def test_scaling_is_alpha_over_the_rank_or_its_root() -> None:
    """By LoRA and rsLoRA."""
    assert scaling(rank=16, alpha=32, rank_stabilised=False) == 2.0
    assert scaling(rank=16, alpha=32, rank_stabilised=True) == 8.0


def test_the_norm_of_each_row_is_the_magnitude() -> None:
    """For any factors, as DoRA says; a transposed weight is normed by column."""
    generator = torch.Generator().manual_seed(0)
    factors = {"A": torch.randn(2, 5, generator=generator), "B": torch.randn(3, 2, generator=generator)}
    weight, magnitude = torch.randn(3, 5, generator=generator), torch.tensor([1.0, 2.0, 3.0])
    plain = WeightUpdate(weight="w", form="low rank", factors=factors, magnitude=magnitude)
    assert torch.allclose(adapted_weights({"w": weight}, [plain])["w"].norm(dim=1), magnitude.double())
    turned = WeightUpdate(weight="w", form="low rank", factors=factors, magnitude=magnitude, transposed=True)
    assert torch.allclose(adapted_weights({"w": weight.T}, [turned])["w"].norm(dim=0), magnitude.double())


def test_closed_forms_of_worked_examples() -> None:
    """By hand."""
    one, two = torch.ones(2, 1).double(), torch.ones(1, 2).double()
    assert change("low rank", {"A": two, "B": one * 3}, (2, 2)).tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert (
        change("diagonal core", {"A": two, "B": one, "core": torch.tensor([5.0])}, (2, 2)).tolist()
        == [[5.0, 5.0]] * 2
    )
    hadamard = {"left_a": one * 2, "left_b": two, "right_a": one, "right_b": two * 3}
    assert change("hadamard", hadamard, (2, 2)).tolist() == [[6.0, 6.0]] * 2
    kronecker = {"left": torch.tensor([[1.0, 2.0]]).double(), "right": torch.tensor([[3.0], [4.0]]).double()}
    assert change("kronecker", kronecker, (2, 2)).tolist() == [[3.0, 6.0], [4.0, 8.0]]
    vectors = {"A": two, "B": one, "d": torch.tensor([2.0]).double(), "b": torch.tensor([1.0, 10.0]).double()}
    assert change("vectors", vectors, (2, 2)).tolist() == [[2.0, 2.0], [20.0, 20.0]]
    spectrum = {"places": torch.tensor([[0], [1]]), "values": torch.tensor([4.0]).double()}
    waves = [[math.cos(math.pi * column) for column in range(2)] for _ in range(2)]
    assert change("spectrum", spectrum, (2, 2)).tolist() == waves
    scaled = WeightUpdate(weight="w", form="columns", factors={"scale": torch.tensor([2.0, 3.0])})
    assert adapted_weights({"w": torch.ones(1, 2)}, [scaled])["w"].tolist() == [[2.0, 3.0]]
    kernel = WeightUpdate(
        weight="k", form="low rank", factors={"A": torch.ones(1, 1, 2), "B": torch.full((2, 1, 1), 3.0)}
    )
    assert adapted_weights({"k": torch.zeros(2, 1, 2)}, [kernel])["k"].tolist() == [[[3.0, 3.0]]] * 2
    places = {"places": torch.tensor([[0], [1]]), "values": torch.tensor([4.0]).double()}
    assert change("places", places, (2, 2)).tolist() == [[0.0, 4.0], [0.0, 0.0]]
    # Haar's wavelet: an average, and a difference of rows.
    for column, due in ((0, [[2.0, 2.0], [2.0, 2.0]]), (1, [[2.0, 2.0], [-2.0, -2.0]])):
        wave = {"places": torch.tensor([[0], [column]]), "values": torch.tensor([4.0]).double()}
        made = change("wavelets", {**wave, "low": torch.tensor([0.5, 0.5]).double()}, (2, 2))
        assert torch.allclose(made, torch.tensor(due).double())
    # A kernel of two numbers in one block, by the number of inputs.
    assert change("circulant", {"kernel": torch.tensor([[[2.0, 6.0]]])}, (2, 2)).tolist() == [[1, 3], [3, 1]]
    with pytest.raises(ValueError, match="no closed form"):
        change("rotation", {}, (1, 1))


def test_closed_forms_that_change_weights() -> None:
    """By hand: turned pairs, a reflection, a product of elements, and a change of the norm of the weight."""
    weights = {"w": torch.eye(2)}

    def updated(form: str, scaling: float = 1.0, **factors: torch.Tensor) -> list[list[float]]:
        update = WeightUpdate(weight="w", form=form, factors=factors, scaling=scaling)  # type: ignore[arg-type]
        found: list[list[float]] = adapted_weights(weights, [update])["w"].tolist()
        return found

    turned = {"first": torch.tensor([1.0, 2.0]), "second": torch.tensor([3.0, 4.0]), "group": torch.tensor(2)}
    assert updated("rotated outputs", **turned) == [[1.0, -3.0], [4.0, 2.0]]
    assert updated("reflected inputs", vectors=torch.tensor([[2.0], [0.0]])) == [[-1.0, 0.0], [0.0, 1.0]]
    low_rank = {"A": torch.tensor([[1.0, 1.0]]), "B": torch.tensor([[2.0], [3.0]])}
    assert updated("modulated", **low_rank) == [[3.0, 0.0], [0.0, 4.0]]
    given = {
        "A": torch.tensor([[0.0, 5.0]]),
        "B": torch.tensor([[2.0], [0.0]]),
        "weights": torch.tensor([6.0]),
    }
    assert updated("normalised", 0.5, **given) == [[1.0, 3.0], [0.0, 1.0]]
    columns = orthogonal(torch.tensor([[3.0, 1.0], [0.0, 2.0]]))
    assert columns.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_elected_signs_by_hand() -> None:
    """The first element has both signs, and the mean of the one that is larger; the last one is pruned in both."""
    changes = [torch.tensor([3.0, 2.0, 1.0, 0.5]), torch.tensor([-4.0, 2.0, 0.25, 0.25])]
    assert combined(changes, (0.5, 0.5), "ties_svd", 0.5).tolist() == [-2.0, 1.0, 0.0, 0.0]
    assert combined(changes, (0.5, 0.5), "magnitude_prune_svd", 0.5).tolist() == [-0.5, 2.0, 0.0, 0.0]
    assert combined(changes, (0.5, 0.5), "svd", 0.5).tolist() == [-0.5, 2.0, 0.625, 0.375]
