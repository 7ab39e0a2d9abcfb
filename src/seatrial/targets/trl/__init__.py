"""TRL as it is installed: its trainers held to the relations."""
