"""The fault catalogue, planted in refrl."""
