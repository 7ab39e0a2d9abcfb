"""Finding the culprit commit, also under noise."""
