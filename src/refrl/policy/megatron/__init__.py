"""A policy on Megatron-core: Llama, Qwen2, Qwen3 and Qwen3-MoE, converted from Hugging Face files and back."""
