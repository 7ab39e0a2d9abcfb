"""refrl: a compact, real GRPO and SFT stack; the reference that relations compare with."""

__version__ = "0.1.0"
