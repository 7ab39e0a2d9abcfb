"""vLLM as a generation engine: it samples, takes weights by name, and shows what it computes with."""
