"""Liger as it is installed: its chunked losses, which need no GPU, as objectives."""
