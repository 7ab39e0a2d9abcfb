"""NeMo RL's shell scripts carried over to suites."""
