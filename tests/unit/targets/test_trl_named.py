"""What the code of a trainer names: scalars that it logs, and choices of its options."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from seatrial.relations.contracts.trainers import RolloutSpec, Scalar, TrainerSpec
from seatrial.targets.trl.former import averages_processes
from seatrial.targets.trl.named import generates_micro_batches, scalars_of, unknown_choices, unnamed_scalars


class Base:
    """Stands for a trainer's base class, which logs `documented`."""

    def log(self, prefix: str, key: str, value: float) -> dict[str, float]:
        """Return metrics, some with names that are put together."""
        cross_entropy = value
        metrics: dict[str, float] = {}
        metrics |= {
            f"{prefix}logits/chosen": cross_entropy,
            f"rewards/{key}/mean": value,
            "plain": value,
        }
        return metrics


class Trainer(Base):
    """Extends it."""

    def loss(self, loss_type: str, columns: dict[str, float]) -> float:
        """Return a loss by name; its argument has more than the samples of a column do."""
        return {"first": 1.0, "second": 2.0}[loss_type] - columns["margin"]


def test_names_are_quoted_texts_and_forms_of_them() -> None:
    """A base class counts; a part of another word does not, nor a form of which no part is the name's."""
    names = ("plain", "documented", "logits/chosen", "rewards/reward0/mean")
    assert unnamed_scalars(names, Trainer) == frozenset()
    missing = ("mar" + "gin", "entro" + "py", "logits/" + "rejected", "other/reward0/" + "deviation")
    assert unnamed_scalars((*names, *missing), Trainer) == frozenset(missing)


def test_choices_are_words_that_the_code_has() -> None:
    """Words of a list are checked one by one; options that are not choices are not checked."""
    third = "thi" + "rd"
    options = {
        "loss_type": ["first", third],
        "truncation_mode": "second",
        "scale_rewards": True,
        "optim": third,
    }
    assert unknown_choices(options, Trainer) == [f"loss_type={third}"]


class GroupStatistics:
    """Stands for a trainer before TRL 0.27, which counts by `generate_every`."""

    def log(self, metrics: dict[str, Any], std_rewards: Any) -> None:
        """Log the mean of the deviations."""
        metrics["reward_std"] = std_rewards.mean()


def test_rewards_are_those_that_the_release_documents() -> None:
    """Deviations in a group, unless rewards are scaled by that of the batch, and a penalty that is in the reward."""
    given = {"reward": Scalar(quantity="reward"), "reward_std": Scalar(quantity="reward", how="deviation")}
    spec = TrainerSpec(objective=RolloutSpec(), scalars=given)
    assert scalars_of(object, spec) == given
    assert scalars_of(GroupStatistics, spec)["reward_std"] == Scalar(
        quantity="deviation of the reward in a group"
    )
    by_batch = replace(spec, objective=RolloutSpec(scale="batch"))
    assert scalars_of(GroupStatistics, by_batch) == given
    penalised = scalars_of(GroupStatistics, replace(spec, objective=RolloutSpec(kl_in="reward")))
    assert penalised["reward"] == Scalar(quantity="shaped reward")
    assert penalised["reward_std"] == Scalar(quantity="deviation of the shaped reward in a group")


def test_trainers_that_count_no_generations_sample_for_each_micro_batch() -> None:
    """The name of the counter is all that is looked for."""
    assert generates_micro_batches(object)
    assert not generates_micro_batches(GroupStatistics)


class ProcessMeans:
    """Stands for a trainer before TRL 1.9, which has one mean of each process."""

    def log(self, metrics: dict[str, Any], accelerator: Any, mean_kl: Any) -> None:
        """Log the mean of the means."""
        metrics["kl"] = accelerator.gather(mean_kl).nanmean().item()


def test_means_of_processes_are_known_of_trainers_that_gather_them() -> None:
    """In several processes, and with a reference or steps on parts of a batch."""
    for trainer, beta, spreads, num_slices, known in (
        (ProcessMeans, 0.2, True, 1, True),
        (ProcessMeans, 0.2, False, 1, False),
        (ProcessMeans, 0.0, True, 1, False),
        (ProcessMeans, 0.0, True, 2, True),
        (ProcessMeans, 0.0, False, 2, False),
        (object, 0.2, True, 1, False),
    ):
        spec = TrainerSpec(objective=RolloutSpec(beta=beta), scalars={}, spreads=spreads)
        setup = SimpleNamespace(num_slices=num_slices)
        adapter = SimpleNamespace(trainer_spec=spec, trainer_class=trainer, setup=setup)
        assert averages_processes(adapter) == known
