"""How a command is started and ended."""
