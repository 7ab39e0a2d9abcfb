"""The loops, their parts built from configuration, validation and step metrics."""
