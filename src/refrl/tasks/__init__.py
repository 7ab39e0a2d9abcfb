"""Datasets and prompts of tasks with verifiable answers."""
