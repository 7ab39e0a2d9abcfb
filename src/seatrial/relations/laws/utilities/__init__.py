"""Laws of a stack's small functions: numbers, padded rows, orders, data sets and rewards."""
