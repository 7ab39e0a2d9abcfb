"""TransferQueue as it is installed: its bookkeeping of ready rows held to the relations."""
