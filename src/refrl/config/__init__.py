"""The configuration schema of refrl: YAML plus dotted overrides, validated whole before anything is loaded.

Names follow NeMo RL's configuration (project convention). Every field is used somewhere; an unknown key is
an error that names the nearest known one. Options that exclude one another are refused here, with the remedy.
"""

from refrl.config.algorithms import AdvantageConfig, LossConfig
from refrl.config.asynchronous import AsyncGRPOConfig
from refrl.config.checkpointing import CheckpointingConfig
from refrl.config.data import DataConfig
from refrl.config.data_plane import DataPlaneConfig
from refrl.config.dtensor import DTensorConfig
from refrl.config.loading import ConfigError, load_config, validate_config
from refrl.config.lora import LoraConfig
from refrl.config.megatron import MegatronConfig
from refrl.config.optimizer import OptimizerConfig, SchedulerConfig
from refrl.config.policy import (
    BatchTokensConfig,
    ColocatedConfig,
    DeltaCompressionConfig,
    GenerationConfig,
    PolicyConfig,
    TokenizerConfig,
)
from refrl.config.run import (
    GRPOConfig,
    GRPORunConfig,
    RewardShapingConfig,
    SFTConfig,
    SFTRunConfig,
)
from refrl.config.surroundings import ClusterConfig, LoggerConfig

__all__ = [
    "AdvantageConfig",
    "AsyncGRPOConfig",
    "BatchTokensConfig",
    "CheckpointingConfig",
    "ClusterConfig",
    "ColocatedConfig",
    "ConfigError",
    "DTensorConfig",
    "DataConfig",
    "DataPlaneConfig",
    "DeltaCompressionConfig",
    "GRPOConfig",
    "GRPORunConfig",
    "GenerationConfig",
    "LoggerConfig",
    "LoraConfig",
    "LossConfig",
    "MegatronConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "RewardShapingConfig",
    "SFTConfig",
    "SFTRunConfig",
    "SchedulerConfig",
    "TokenizerConfig",
    "load_config",
    "validate_config",
]
