"""The expression language of checks: text to typed nodes, and nodes with a log to values."""
