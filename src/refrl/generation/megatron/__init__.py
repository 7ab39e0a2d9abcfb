"""Megatron-core as the generation engine."""
