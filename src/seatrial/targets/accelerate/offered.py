"""What Accelerate offers, by the public names of the installed release, and what no adapter covers of it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping

PLACES = (
    "accelerate:Accelerator",
    "accelerate.data_loader",
    "accelerate.utils.operations",
    "accelerate.utils.modeling",
    "accelerate.utils.random",
    "accelerate.utils.memory",
    "accelerate.utils.offload",
    "accelerate.big_modeling",
    "accelerate.hooks",
    "accelerate.checkpointing",
    "accelerate.local_sgd",
    "accelerate.optimizer",
    "accelerate.scheduler",
    "accelerate.tracking",
)
"""Where its public names are: the methods of a class, or functions and classes that a module defines."""
COVERED: Mapping[str, str] = {
    "loaders": "prepare_data_loader skip_first_batches BatchSamplerShard IterableDatasetShard DataLoaderShard "
    "DataLoaderDispatcher SeedableRandomSampler SkipBatchSampler SkipDataLoader get_sampler DataLoaderStateMixin "
    "slice_tensors find_batch_size ignorant_find_batch_size send_to_device initialize_tensors get_data_structure "
    "synchronize_rng_state synchronize_rng_states even_batches split_batches dispatch_batches use_seedable_sampler",
    "loaders-stateful": "DataLoaderAdapter use_stateful_dataloader",
    "metrics": "gather_for_metrics",
    "exchanges": "gather pad_across_processes reduce",
    "exchanges-nested": "broadcast broadcast_object_list gather_object concatenate convert_to_fp32 recursively_apply "
    "honor_type is_namedtuple gather_tensor_shape copy_tensor_to_devices",
    "splits": "split_between_processes",
    "seeds": "set_seed",
    "batch-sizes": "find_executable_batch_size should_reduce_batch_size clear_device_cache",
    "accumulation": "accumulate backward clip_grad_norm_ clip_grad_value_ prepare prepare_model prepare_optimizer "
    "prepare_scheduler no_sync sync_gradients gradient_accumulation_steps join_uneven_inputs unwrap_model autocast "
    "AcceleratedOptimizer AcceleratedScheduler LocalSGD unscale_gradients ConvertOutputsToFp32 "
    "convert_outputs_to_fp32 mixed_precision",
    "saved-state": "save_state load_state register_for_checkpointing save_accelerator_state load_accelerator_state "
    "save_custom_state load_custom_state",
    "functions": "convert_file_size_to_int compute_module_total_buffer_size get_balanced_memory id_tensor_storage "
    "attach_layerwise_casting_hooks LayerwiseCastingHook get_module_size_with_ties fallback_allocate listify",
    "worked": "check_trigger clear free_memory local_main_process_first main_process_first on_last_process "
    "on_local_main_process on_local_process on_process optimizer_step_was_skipped register_load_state_pre_hook "
    "register_save_state_pre_hook trigger_sync_in_backward verify_operation chained_operation align_module_device "
    "release_memory patch_optimizer_step filter_trackers load_offloaded_weights",
    "histories": "set_trigger",
    "tracker": "get_available_trackers GeneralTracker TensorBoardTracker WandBTracker TrackioTracker CometMLTracker "
    "AimTracker MLflowTracker ClearMLTracker DVCLiveTracker SwanLabTracker init_trackers get_tracker log end_training "
    "on_main_process",
    "models": "save_model save get_state_dict init_empty_weights init_on_device load_checkpoint_and_dispatch "
    "cpu_offload disk_offload dispatch_model load_checkpoint_in_model set_module_tensor_to_device "
    "named_module_tensors get_non_persistent_buffers find_tied_parameters retie_parameters compute_module_sizes "
    "get_max_layer_size get_max_memory infer_auto_device_map check_device_map load_state_dict "
    "get_state_dict_offloaded_model get_state_dict_from_offload calculate_maximum_sizes has_offloaded_params "
    "dtype_byte_size check_tied_parameters_on_same_device "
    "check_tied_parameters_in_config clean_device_map offload_weight load_offloaded_weight save_offload_index "
    "offload_state_dict OffloadedWeightsLoader PrefixedDataset extract_submodules_state_dict AlignDevicesHook "
    "ModelHook SequentialHook add_hook_to_module remove_hook_from_module remove_hook_from_submodules "
    "attach_align_device_hook attach_align_device_hook_on_blocks attach_execution_device_hook "
    "get_module_leaves "
    "is_peft_model",
}
"""Names by the adapter whose laws run through them."""
SCOPE: Mapping[str, str] = {
    "several accelerators": """
    deepspeed_plugin deepspeed_ulysses_dl_adapter maybe_context_parallel parallelism_config is_fsdp2
    is_composable_parallelism_enabled torch_device_mesh tensor_parallel_rank pipeline_parallel_rank
    context_parallel_rank data_parallel_rank data_parallel_shard_rank fp8_backend lomo_backward get_grad_scaler
    GatheredParameters
    """,
    "no computation": """
    device local_process_index is_main_process is_local_main_process is_last_process num_processes process_index
    use_distributed multi_device distributed_type project_dir logging_dir save_iteration non_blocking
    should_save_model is_torch_tensor is_torch_xpu_tensor is_tensor_information get_shape find_device
    check_device_same move_to_device wait_for_everyone print profile DistributedOperationException
    CannotPadNestedTensorWarning FindTiedParametersResult register_tracker_class
    """,
}
"""Names by the reason why they are left out."""


def uncovered() -> dict[str, str]:
    """Return the public names of the installed release that no adapter covers, by the reason."""
    covered = {name for names in COVERED.values() for name in names.split()}
    reasons = {name: reason for reason, names in SCOPE.items() for name in names.split()}
    found: dict[str, list[str]] = {}
    for place in PLACES:
        for name in _public(place):
            if name not in covered:
                found.setdefault(reasons.get(name, "no adapter yet"), []).append(name)
    return {reason: ", ".join(dict.fromkeys(names)) for reason, names in sorted(found.items())}


def _public(place: str) -> list[str]:
    """Return the public names of a class, or those that a module defines; none where the release does not have it."""
    module_name, _, name = place.partition(":")
    try:
        owner = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if not module_name.startswith(missing.name or ""):
            raise
        return []
    if name:
        return [one for one in dir(getattr(owner, name)) if not one.startswith("_")]
    return [
        one
        for one, value in vars(owner).items()
        if not one.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and getattr(value, "__module__", "") == module_name
    ]
