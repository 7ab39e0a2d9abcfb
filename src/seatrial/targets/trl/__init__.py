"""TRL as it is installed: adapters of its trainers."""
