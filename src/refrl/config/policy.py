"""`policy`: the model, how it is trained, scored and sampled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from refrl.config.base import Directory, Section, SwitchedSection
from refrl.config.dtensor import DTensorConfig
from refrl.config.megatron import MegatronConfig


class LoraConfig(SwitchedSection):
    """Low-rank adapters (LoRA, arXiv 2106.09685) in place of training all weights (NeMo RL's `lora_cfg`)."""

    key = "policy.lora_cfg"
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
    adapter_path: Directory | None = None
    """Directory of an adapter in PEFT's format to start from; None starts with adapters that have no effect."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the randomly initialised half of new adapters."""


Decay = Annotated[float, Field(ge=0, lt=1)]
"""Share of a running mean that an update keeps."""


class OptimizerConfig(Section):
    """AdamW."""

    lr: float = Field(default=1e-3, ge=0)
    """Learning rate after the warm-up."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the mean square."""


class SchedulerConfig(Section):
    """Learning rate: linear warm-up, then constant, linear or cosine decay to `min_lr_ratio`."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises to `lr`."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate of the decay, as a fraction of `lr`."""


class GenerationResources(Section):
    """GPUs on which nothing but generation runs (NeMo RL's `colocated.resources`)."""

    gpus_per_node: int | None = Field(default=None, gt=0)
    """Engines run in turn on the last so many CUDA devices of the host, and the policy on the ones before; None runs
    them on the policy's device. Needs `placement=process`."""


class ColocatedConfig(Section):
    """Whether the generator shares the weights of the trained model."""

    enabled: bool = True
    """Share them; false gives the generator its own copy, updated before every generation."""
    resources: GenerationResources = GenerationResources()


class DeltaCompressionConfig(Section):
    """Weight sync to a separate generator that sends only what changed since the last sync."""

    enabled: bool = False
    """Send only changed elements: their indices and new values."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type in which weights are sent and compared; None takes `policy.precision`."""
    transport: Literal["sparse_indices"] = "sparse_indices"
    """Encoding of changes: the index and the new value of each."""
    full_sync_interval: int = Field(default=20, gt=0)
    """Send all weights at every so many syncs."""
    sparse_bucket_size_bytes: int = Field(default=64 * 2**20, gt=0)
    """Largest message in bytes, indices included."""
    delta_load_batch_size_bytes: int = Field(default=64 * 2**20, gt=0)
    """Most bytes of changes that the generator writes at a time."""


class VllmConfig(Section):
    """The vLLM engine (NeMo RL's `vllm_cfg`)."""

    python: str | None = None
    """Python interpreter of an environment with vLLM, for `placement=process`; None uses the trainer's."""
    enforce_eager: bool = True
    """Compile nothing, so that the first batch is not delayed."""
    gpu_memory_utilization: float = Field(default=0.3, gt=0, le=1)
    """Fraction of a GPU's memory that vLLM may use."""


class GenerationConfig(Section):
    """Sampling."""

    backend: Literal["torch", "vllm", "megatron"] = "torch"
    """The generation engine; `vllm` and `megatron` (Megatron-core's model) hold their own weights and need
    `colocated.enabled=false`."""
    vllm_cfg: VllmConfig = VllmConfig()
    colocated: ColocatedConfig = ColocatedConfig()
    placement: Literal["inline", "process", "ray"] = "inline"
    """Where the engine runs: within the training process, in a separate process on this host, or in an actor of a
    Ray cluster, on the node with the fewest of them. The latter two receive weights in messages, and every sync
    compares them with the policy's (not with `colocated.enabled`)."""
    weight_bucket_size_bytes: int = Field(default=64 * 2**20, gt=0)
    """Largest message of weights in bytes, without delta compression."""
    weight_transport: Literal["messages", "broadcast"] = "messages"
    """How weights reach an engine in a separate process: in messages, or broadcast by torch.distributed, where one
    bucket is packed while the engine loads the one before: by NCCL to an engine on another CUDA device, by gloo
    otherwise. `broadcast` needs `placement=process`."""
    timeout_seconds: float = Field(default=600.0, gt=0)
    """How long an engine in a separate process may take to answer."""
    delta_compression: DeltaCompressionConfig = DeltaCompressionConfig()
    quantization: Literal["int8"] | None = None
    """Type to which the generator rounds the weights of linear layers, except the output head, with one scale per
    output channel (`backend=torch` within the training process); None takes `policy.precision`."""
    max_new_tokens: int = Field(default=16, gt=0)
    """Longest completion, in tokens, the end token included."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; log-probabilities of completions are computed at the same temperature for training.
    Fine-tuning scores answers at temperature 1, since they are not sampled."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of the likeliest tokens whose probabilities sum to this."""
    top_k: int | None = Field(default=None, gt=0)
    """Sample from this many of the likeliest tokens; None takes all."""
    stop_token_ids: tuple[int, ...] | None = None
    """Ids that end a completion; None takes the end-of-sequence ids of the model and of the tokenizer."""
    block_tokens: int | None = Field(default=None, ge=0)
    """Tokens that the torch engine samples between two looks at which rows have ended, with a cache of fixed shape and,
    on a CUDA device, captured graphs. 0 looks after each token. None takes 16 on a CUDA device and 0 on a CPU."""

    @model_validator(mode="after")
    def _shared_weights_do_not_travel(self) -> GenerationConfig:
        travels = {
            f"placement={self.placement}": self.placement != "inline",
            "delta_compression.enabled=true": self.delta_compression.enabled,
            f"backend={self.backend}": self.backend != "torch",
            f"quantization={self.quantization}": self.quantization is not None,
        }
        if self.quantization and (self.backend, self.placement) != ("torch", "inline"):
            raise ValueError(
                f"policy.generation.quantization={self.quantization} is implemented for the torch engine within the "
                "training process: set policy.generation.backend=torch and policy.generation.placement=inline, or "
                "leave it out"
            )
        if self.quantization and self.delta_compression.enabled:
            raise ValueError(
                "policy.generation.delta_compression sends changes of weights that are not rounded: leave out "
                f"policy.generation.quantization={self.quantization}, or it"
            )
        for option in (name for name, is_set in travels.items() if is_set and self.colocated.enabled):
            raise ValueError(
                f"policy.generation.{option} needs a generator with its own weights: set "
                "policy.generation.colocated.enabled=false"
            )
        gpus = self.colocated.resources.gpus_per_node
        if gpus is not None and (self.placement != "process" or self.colocated.enabled):
            raise ValueError(
                f"policy.generation.colocated.resources.gpus_per_node={gpus} is for engines in separate processes: set "
                "policy.generation.placement=process and policy.generation.colocated.enabled=false, or leave it out"
            )
        if self.weight_transport == "broadcast" and self.placement != "process":
            raise ValueError(
                "policy.generation.weight_transport=broadcast needs an engine in a separate process on this host, "
                f"and placement={self.placement}: set placement=process, or weight_transport=messages"
            )
        return self


class TokenizerConfig(Section):
    """Where the tokenizer comes from."""

    name: Directory | None = None
    """Directory of the tokenizer; None takes `policy.model_name`."""
    chat_template: str | None = None
    """None passes prompts to the model unchanged; `default` wraps them in the tokenizer's own chat template, `byte`
    in `refrl.models.chat.BYTE_CHAT_TEMPLATE`, and any other text is the Jinja template itself."""

    @model_validator(mode="after")
    def _template_is_one(self) -> TokenizerConfig:
        template = self.chat_template
        if template is not None and template not in ("default", "byte") and "{" not in template:
            raise ValueError(
                f"policy.tokenizer.chat_template={template!r} is not a Jinja template; give its text, or `default` or "
                "`byte`"
            )
        return self


class BatchTokensConfig(Section):
    """Micro-batches by number of tokens instead of number of rows."""

    enabled: bool = False
    """Form micro-batches this way."""
    train_mb_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of a forward and backward pass; None allows `train_micro_batch_size` rows of the longest length."""
    logprob_mb_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of a forward pass that only scores; None allows `logprob_batch_size` rows of the longest length."""


class DraftConfig(SwitchedSection):
    """A draft head that is trained with the policy (NeMo RL's `policy.draft`)."""

    key = "policy.draft"
    enabled: bool = False
    """Train a head that predicts the token after next from the policy's hidden states."""
    model_name: Directory | None = None
    """Directory of the head; None takes the folder `draft` in `policy.model_name`."""


class PolicyConfig(Section):
    """The model that is trained."""

    model_name: Directory
    """Directory of a Hugging Face causal language model."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    precision: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights in scoring and sampling."""
    train_global_batch_size: int = Field(gt=0)
    """Rows of an optimizer step."""
    train_micro_batch_size: int = Field(gt=0)
    """Rows of a forward and backward pass."""
    logprob_batch_size: int = Field(default=64, gt=0)
    """Rows of a forward pass that only scores."""
    max_total_sequence_length: int = Field(gt=1)
    """Longest prompt plus completion, in tokens."""
    sequence_length_buckets: tuple[int, ...] = ()
    """Padded lengths of prompt plus completion; empty pads to the longest row of the batch."""
    sequence_packing: BatchTokensConfig = BatchTokensConfig()
    """Concatenate rows without padding; no row attends to another; a micro-batch is one pack."""
    dynamic_batching: BatchTokensConfig = BatchTokensConfig()
    """Put rows of similar length into one micro-batch, padded to its longest row."""
    logprob_chunk_size: int | None = Field(default=None, ge=0)
    """Number of tokens whose logits are computed at a time, in slices of the vocabulary; 0 computes all at once. None
    takes 4096 for Llama, Mistral, Qwen2 and Qwen3 on a CUDA device, and 0 elsewhere."""
    fused_kernels: bool = True
    """On a CUDA device, train Llama, Mistral, Qwen2 and Qwen3 with the fused kernels of the package liger_kernel, if it
    is installed. Compiled or checkpointed layers do without."""
    compile_layers: bool = False
    """Compile the decoder layers of the trained model with torch.compile: faster passes, and a first step that takes 10
    to 20 s longer."""
    activation_checkpointing: bool = False
    """Keep only the inputs of each layer, and recompute the rest in the backward pass."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Clip the gradient of an update to this norm; None does not clip."""
    router_aux_loss_coef: float = Field(default=0.0, ge=0)
    """Weight of the loss that balances the load of experts (sequence-wise, arXiv 2412.19437, eq. 17-20)."""
    draft: DraftConfig = DraftConfig()
    lora_cfg: LoraConfig = LoraConfig()
    dtensor_cfg: DTensorConfig = DTensorConfig()
    megatron_cfg: MegatronConfig = MegatronConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    generation: GenerationConfig = GenerationConfig()

    @property
    def backend(self) -> str:
        """The effective backend: `hf`, the model's own code on each process, if no other is enabled."""
        if self.megatron_cfg.enabled:
            return "megatron"
        return "dtensor" if self.dtensor_cfg.enabled else "hf"

    @property
    def model_parallel_size(self) -> int:
        """Processes that train on the same rows."""
        chosen = self.megatron_cfg if self.megatron_cfg.enabled else self.dtensor_cfg
        return chosen.model_parallel_size

    @model_validator(mode="after")
    def _backend_serves_it(self) -> PolicyConfig:
        if self.dtensor_cfg.enabled and self.megatron_cfg.enabled:
            raise ValueError(
                "policy.dtensor_cfg.enabled and policy.megatron_cfg.enabled exclude each other: a policy has one "
                "backend; disable one"
            )
        if self.backend != "hf":
            refused = {
                "logprob_chunk_size": bool(self.logprob_chunk_size),
                "router_aux_loss_coef": self.router_aux_loss_coef > 0 and self.backend == "megatron",
                "draft.enabled": self.draft.enabled and self.backend == "megatron",
            }
            for option in (name for name, is_set in refused.items() if is_set):
                raise ValueError(
                    f"policy.{option} is not implemented for policy.{self.backend}_cfg.enabled=true: disable one"
                )
        return self

    @model_validator(mode="after")
    def _batch_forms_go_together(self) -> PolicyConfig:
        forms = {"sequence_packing": self.sequence_packing, "dynamic_batching": self.dynamic_batching}
        enabled = [name for name, form in forms.items() if form.enabled]
        if len(enabled) > 1:
            raise ValueError(
                "policy.sequence_packing.enabled and policy.dynamic_batching.enabled exclude each other: a pack is "
                "filled by tokens already; disable one"
            )
        others = {
            "sequence_packing.enabled=true": self.sequence_packing.enabled,
            "lora_cfg.enabled=true": self.lora_cfg.enabled,
            "dtensor_cfg.sequence_parallel=true": self.dtensor_cfg.sequence_parallel,
            "dtensor_cfg.context_parallel_size > 1": self.dtensor_cfg.context_parallel_size > 1,
        }
        for other in (name for name, is_set in others.items() if is_set and self.draft.enabled):
            raise ValueError(
                f"policy.draft.enabled is not implemented for policy.{other}: leave one of them out"
            )
        if self.sequence_packing.enabled and self.router_aux_loss_coef:
            raise ValueError(
                "policy.router_aux_loss_coef is a mean over rows, which policy.sequence_packing.enabled concatenates: "
                "use policy.dynamic_batching, or leave one of them out"
            )
        if enabled and self.sequence_length_buckets:
            raise ValueError(
                f"policy.sequence_length_buckets has no effect with policy.{enabled[0]}.enabled, which takes the "
                "padding off: leave it out"
            )
        for name, form in forms.items():
            for key in ("train_mb_tokens", "logprob_mb_tokens"):
                tokens = getattr(form, key)
                if tokens is not None and not form.enabled:
                    raise ValueError(
                        f"policy.{name}.{key} has no effect without policy.{name}.enabled=true: set it, or leave "
                        f"{key} out"
                    )
                if tokens is not None and tokens < self.max_total_sequence_length:
                    raise ValueError(
                        f"policy.{name}.{key}={tokens} is less than one row of policy.max_total_sequence_length="
                        f"{self.max_total_sequence_length} tokens: raise it to that or more"
                    )
        return self
