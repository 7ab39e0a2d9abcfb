"""`policy.lora_cfg`: low-rank adapters, in NeMo RL's names."""

from __future__ import annotations

from pydantic import Field, model_validator

from refrl.config.base import Section


class LoraConfig(Section):
    """Low-rank adapters (LoRA, arXiv 2106.09685) in place of training all weights (NeMo RL's `lora_cfg`)."""

    enabled: bool = False
    """Freeze the model, and train adapters on its linear layers."""
    dim: int = Field(default=8, gt=0)
    """Rank of each adapter."""
    alpha: float = Field(default=32, gt=0)
    """An adapter's output is multiplied by `alpha / dim`."""
    target_modules: tuple[str, ...] | None = None
    """Linear layers that get an adapter, by the end of their names (`q_proj`); None takes all but the output head."""
    exclude_modules: tuple[str, ...] = ()
    """Linear layers that get no adapter, by the end of their names."""
    adapter_path: str | None = None
    """Directory of an adapter in PEFT's format to start from; None starts with adapters that have no effect."""
    seed: int = Field(default=0, ge=0)
    """Seed of the randomly initialised half of new adapters."""

    @model_validator(mode="after")
    def _options_have_effect(self) -> LoraConfig:
        given = sorted(self.model_fields_set - {"enabled"})
        if not self.enabled and any(
            getattr(self, name) != LoraConfig.model_fields[name].default for name in given
        ):
            raise ValueError(
                f"policy.lora_cfg.{given[0]} has no effect without policy.lora_cfg.enabled=true: set it, or leave "
                "it out"
            )
        return self
