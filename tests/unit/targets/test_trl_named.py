"""What the code of a trainer names: scalars that it logs, and choices of its options."""

from seatrial.targets.trl.named import unknown_choices, unnamed_scalars


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
