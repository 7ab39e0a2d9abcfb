"""The configuration schema of refrl: YAML plus dotted overrides, validated whole before anything is loaded.

Names follow NeMo RL's configuration (project convention). Every field is used somewhere; an unknown key is
an error that names the nearest known one. Options that exclude one another are refused here, with the remedy.
"""

from refrl.config.algorithms import AdvantageConfig, LossConfig
from refrl.config.checkpointing import CheckpointingConfig
from refrl.config.data import DataConfig
from refrl.config.dtensor import DTensorConfig
from refrl.config.loading import ConfigError, load_config, validate_config
from refrl.config.megatron import MegatronConfig
from refrl.config.policy import (
    BatchTokensConfig,
    ColocatedConfig,
    DeltaCompressionConfig,
    GenerationConfig,
    LoraConfig,
    OptimizerConfig,
    PolicyConfig,
    SchedulerConfig,
    TokenizerConfig,
)
from refrl.config.run import (
    AsyncGRPOConfig,
    ClusterConfig,
    DataPlaneConfig,
    GRPOConfig,
    GRPORunConfig,
    LoggerConfig,
    RewardShapingConfig,
    SFTConfig,
    SFTRunConfig,
)

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
