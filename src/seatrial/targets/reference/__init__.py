"""The reference target: refrl as a whole, and its components by contract."""
