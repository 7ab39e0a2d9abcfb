"""What PEFT offers by name, and the adapters whose laws run it; `python -m seatrial.targets.peft.public` prints it."""

from __future__ import annotations

from collections.abc import Mapping

from seatrial.targets.common.followed import page
from seatrial.targets.peft.target import NOT_COVERED, PeftTarget

QUANTISED = "layers of packages that quantise"
OUT_OF_SCOPE: Mapping[str, str] = {
    "peft.tuners.lora.aqlm": QUANTISED,
    "peft.tuners.lora.awq": QUANTISED,
    "peft.tuners.lora.bnb": QUANTISED,
    "peft.tuners.lora.eetq": QUANTISED,
    "peft.tuners.lora.gptq": QUANTISED,
    "peft.tuners.lora.hqq": QUANTISED,
    "peft.tuners.lora.inc": QUANTISED,
    "peft.tuners.lora.torchao": QUANTISED,
    "peft.tuners.lora.te": QUANTISED,
    "peft.utils.quantization_utils": QUANTISED,
    "peft.utils.loftq_utils": QUANTISED,
    "peft.tuners.lora.tp_layer": "Megatron",
    "peft.import_utils": "whether packages are installed",
    "peft.utils.warning": "warnings",
    "peft.utils.error": "errors",
    **{f"peft.tuners.{kind.lower()}": reason for kind, reason in NOT_COVERED.items()},
}
"""By module, or by the beginning of its name: what a run on a CPU without other packages does not have."""
HEAD = """# What PEFT offers, and which adapters judge it

`python -m seatrial.targets.peft.public` draws this page for the installed release, in half an hour.

A public class or function is **judged** by the adapters that have a law in which its code runs, and **uncovered** if it
runs in none. Adapters that only a thorough run judges count, without those of one more option, and their laws of an
ordinary run. Types that no adapter is
of, Megatron, and layers of packages that quantise are out of scope, with the reason. A fault in code that does not run
cannot be seen; one in code that runs may still not be. Laws of several processes are not counted.
"""


if __name__ == "__main__":
    peft = PeftTarget()
    # Variants of a type by one option run its code.
    adapters = {name: one for name, one in peft.components().items() if not hasattr(one, "plain_type")}
    print(page(peft, adapters, OUT_OF_SCOPE, HEAD), end="")
