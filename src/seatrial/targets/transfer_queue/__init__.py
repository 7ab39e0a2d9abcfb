"""TransferQueue as it is installed: an adapter of its bookkeeping of ready rows."""
