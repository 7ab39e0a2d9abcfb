"""The target `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget


class TransformersTarget(ComponentsTarget):
    """`transformers.Trainer` as it is installed."""

    name = "transformers"
    modules = ("transformers", "datasets", "accelerate")
    packages = ("transformers", "accelerate", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.transformers import (
            any_configurations,
            any_media,
            any_models,
            any_records,
            causal,
            class_records,
            class_rich,
            collated,
            collators,
            configurations,
            decoding,
            experts,
            families,
            family_options,
            family_records,
            generators,
            head_records,
            heads,
            masking,
            model_heads,
            models,
            own_adapters,
            ranked,
            rotary,
            rows,
            runs,
            translations,
            utilities,
            variants,
        )
        from seatrial.targets.transformers.worked import adapter as worked
        from seatrial.targets.transformers.worked import (
            every_class,
            family_files,
            generating,
            halves,
            kept_wide,
            left_out,
            other_classes,
            paired,
            passed_on,
            piped,
            starts,
            text_ties,
            training_laws,
        )
        from seatrial.targets.transformers.worked import models as worked_models
        from seatrial.targets.transformers.worked.processing import adapter as worked_processing
        from seatrial.targets.transformers.worked.records import adapter as worked_records

        parts = (
            causal,
            heads,
            rotary,
            rows,
            translations,
            variants,
            experts,
            collators,
            collated,
            masking,
            model_heads,
            any_media,
            any_models,
            head_records,
            any_records,
            any_configurations,
            class_records,
            class_rich,
            models,
            families,
            family_options,
            family_records,
            decoding,
            generators,
            runs,
            ranked,
            own_adapters,
            utilities,
            configurations,
            worked,
            every_class,
            other_classes,
            family_files,
            generating,
            halves,
            kept_wide,
            left_out,
            paired,
            passed_on,
            piped,
            starts,
            text_ties,
            training_laws,
            worked_models,
            worked_processing,
            worked_records,
        )
        return {name: adapter for part in parts for name, adapter in part.ADAPTERS.items()}

    def uncovered(self) -> Mapping[str, str]:
        """Return the schedules of the release without a known formula, and its models of which none is made."""
        from seatrial.relations.oracles.schedules import FORMULAS
        from seatrial.targets.transformers.architectures import UNSUITED
        from seatrial.targets.transformers.families import families_of_release
        from seatrial.targets.transformers.family_table import FAMILIES
        from seatrial.targets.transformers.generators import KINDS
        from seatrial.targets.transformers.head_table import FAMILIES as HEADS
        from seatrial.targets.transformers.model_heads import families_with_heads
        from seatrial.targets.transformers.option_table import NOT_JUDGED
        from seatrial.targets.transformers.runs import BY_METRIC, schedule_names
        from seatrial.targets.transformers.small_models import classes_of_release

        return (
            {
                f"schedule {name}": BY_METRIC.get(name, "no formula of it is known yet")
                for name in schedule_names()
                if name not in FORMULAS
            }
            | {
                f"family {name}": UNSUITED.get(name, "no tiny model of it is made yet")
                for name in families_of_release()
                if name not in FAMILIES
            }
            | {
                f"heads of {name}": "no small model of it is judged yet"
                for name in families_with_heads()
                if name not in HEADS
            }
            | {f"options of {name}": "of its options sizes alone are judged" for name in NOT_JUDGED}
            | {
                f"generation of {kind}": "no small model of it is made yet"
                for kind in classes_of_release()
                if kind not in KINDS
            }
        )
