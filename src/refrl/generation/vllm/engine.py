"""The vLLM engine: vLLM samples in this process; its weights are held against those that arrived."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refrl.config import ConfigError, PolicyConfig
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoding import finish_reason
from refrl.generation.receiving import StagedEngine
from refrl.generation.sampling import check_prompts, filtered_logits, is_filtered, row_seeds
from refrl.generation.vllm.weights import TIED_HEAD, pack_experts, pack_tied_head, served_weights
from refrl.models.loading import load_model
from refrl.weight_sync.base import WeightSyncError

Token = tuple[int, Mapping[int, Any]]
"""An id, and the log-probabilities that vLLM gave at its place, by id."""


def vllm_params(params: SamplingParams, stop_ids: frozenset[int], seed: int) -> Any:
    """Return vLLM's own parameters of one request; tokens come as they are sampled."""
    from vllm import SamplingParams as VllmParams
    from vllm.sampling_params import RequestOutputKind

    # The whole vocabulary, to see which ids the filters kept; vLLM applies neither temperature nor filters when greedy.
    all_ids = params.greedy or params.top_p < 1.0 or params.top_k is not None
    return VllmParams(
        temperature=0.0 if params.greedy else params.temperature,
        top_p=1.0 if params.greedy else params.top_p,
        top_k=0 if params.greedy or params.top_k is None else params.top_k,
        seed=seed,
        max_tokens=params.max_new_tokens,
        stop_token_ids=sorted(stop_ids),
        ignore_eos=True,
        logprobs=-1 if all_ids else 0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def completion(
    prompt: tuple[int, ...],
    tokens: Sequence[Token],
    params: SamplingParams,
    stop_ids: frozenset[int],
    version: int,
) -> Completion:
    """Return a row from its tokens.

    Raises:
        FloatingPointError: the model's logits are not finite.
    """
    ids = tuple(token for token, _ in tokens)
    logprobs = tuple(_logprob(token, place, params) for token, place in tokens)
    if not all(map(_is_finite, logprobs)):
        raise FloatingPointError("the model's logits are not finite: vLLM sampled an id of no probability")
    kept = tuple(
        tuple(sorted(token for token, at in place.items() if _is_finite(at.logprob))) for _, place in tokens
    )
    filtered = bool(tokens) and is_filtered(params, len(tokens[0][1]))
    return Completion(
        prompt_ids=prompt,
        ids=ids,
        logprobs=logprobs,
        finish_reason=finish_reason(ids, params, stop_ids),
        kept_ids=kept if filtered else None,
        weight_version=version,
    )


def _logprob(token: int, place: Mapping[int, Any], params: SamplingParams) -> float:
    """Return the log-probability of an id under the distribution that it is sampled from, or would have been."""
    if not params.greedy:
        return float(place[token].logprob)
    logprobs_V = torch.tensor([place[other].logprob for other in sorted(place)])
    return float(filtered_logits(logprobs_V[None], params).log_softmax(-1)[0, token])


def _is_finite(value: float) -> bool:
    return value > float("-inf")


ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""Of vLLM, where the environment says nothing else: the engine runs in this process, takes the threads that torch has,
1 GiB for keys and values on a CPU, and is quiet."""


class VllmGenerator(StagedEngine):
    """A `refrl.generation.base.Generator`."""

    library = "vLLM"

    def __init__(self, config: PolicyConfig, *, device: torch.device) -> None:
        """Start vLLM with the weights of the model's directory.

        Args:
            config: names the model and its type.
            device: what vLLM is to compute on; it takes its own.

        Raises:
            ConfigError: there is no vLLM here, or it cannot load the model.
        """
        model = load_model(Path(config.model_name)).eval().requires_grad_(False)
        super().__init__(
            model.to(getattr(torch, config.precision)),
            load_batch_bytes=config.generation.delta_compression.delta_load_batch_size_bytes,
        )
        self._limit = min(config.max_total_sequence_length, model.config.max_position_embeddings)
        self._vllm = _start(config, device, self._limit)
        self._num_requests = 0

    @property
    def engine(self) -> str:
        """The library that samples, and its version."""
        return f"vllm {sys.modules['vllm'].__version__}"

    def close(self) -> None:
        """Give vLLM's memory back."""
        self._vllm.llm_engine.engine_core.shutdown()

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per prompt (see `refrl.generation.base.Generator`).

        The streams of the rows are vLLM's own: equal seeds give other tokens than the torch engine does.

        Raises:
            ValueError: a prompt is empty or holds an id outside the vocabulary.
            ConfigError: a prompt and a completion exceed `policy.max_total_sequence_length`.
            FloatingPointError: the model's logits are not finite.
            WeightSyncError: a sync of the weights is open, or failed half-way.
        """
        self._check_serving()
        rows = [tuple(prompt) for prompt in prompts]
        check_prompts(
            rows,
            vocab_size=self._embedding().num_embeddings,
            limit=self._limit,
            max_new_tokens=params.max_new_tokens,
        )
        stop_ids = frozenset(params.stop_token_ids) if params.stop_token_ids is not None else self.stop_ids()
        sampled = self._sample(rows, params, stop_ids, row_seeds(len(rows), generator))
        return [
            completion(prompt, tokens, params, stop_ids, self.weight_version)
            for prompt, tokens in zip(rows, sampled, strict=True)
        ]

    def _sample(
        self,
        rows: Sequence[tuple[int, ...]],
        params: SamplingParams,
        stop_ids: frozenset[int],
        seeds: Sequence[int],
    ) -> list[list[Token]]:
        """Run vLLM until every row has ended, or until it is aborted and each row has a token."""
        engine = self._vllm.llm_engine
        tokens: dict[str, list[Token]] = {}
        for prompt, seed in zip(rows, seeds, strict=True):
            name = str(self._num_requests)
            self._num_requests += 1
            tokens[name] = []
            engine.add_request(name, {"prompt_token_ids": list(prompt)}, vllm_params(params, stop_ids, seed))
        while engine.has_unfinished_requests():
            for output in engine.step():
                (part,) = output.outputs
                tokens[output.request_id] += zip(part.token_ids, part.logprobs, strict=True)
            if self._aborting.is_set() and all(tokens.values()):
                engine.abort_request(list(tokens))
                break
        return list(tokens.values())

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter that vLLM computes with; a tied head is listed with its embedding."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self._model.named_parameters()}
        if TIED_HEAD not in shapes:
            shapes[TIED_HEAD] = tuple(self._model.get_output_embeddings().weight.shape)
        return shapes

    def _take(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self._vllm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(parameters)})
        self._vllm.apply_model(pack_tied_head)
        self._vllm.apply_model(pack_experts)

    def _served(self) -> Iterator[tuple[str, Tensor]]:
        (served,) = self._vllm.apply_model(lambda model: dict(served_weights(model, self._shapes())))
        yield from served.items()

    def _clear_caches(self) -> None:
        """Drop the keys and values of prompts that were sampled with the weights of before."""
        if not self._vllm.reset_prefix_cache():
            raise WeightSyncError("vLLM kept keys and values of the weights of before: requests are running")


def _start(config: PolicyConfig, device: torch.device, limit: int) -> Any:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from vllm import LLM
    except ImportError as error:
        raise ConfigError(
            f"policy.generation.backend=vllm needs vLLM, and {sys.executable} cannot import it ({error}): install it "
            "there, or name the interpreter of an environment that has it in policy.generation.vllm_cfg.python, with "
            "policy.generation.placement=process"
        ) from error
    own = config.generation.vllm_cfg
    on_gpu = {"gpu_memory_utilization": own.gpu_memory_utilization} if device.type == "cuda" else {}
    try:
        return LLM(
            model=str(Path(config.model_name).resolve()),
            dtype=config.precision,
            max_model_len=limit,
            enforce_eager=own.enforce_eager,
            skip_tokenizer_init=True,
            logprobs_mode="processed_logprobs",
            max_logprobs=-1,
            disable_log_stats=True,
            **on_gpu,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(f"vLLM cannot load {config.model_name}: {' '.join(str(error).split())}") from error
