"""Migrates NeMo RL's shell scripts to suites."""
