"""Why a command failed: patterns of failures as data."""
