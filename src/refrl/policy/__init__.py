"""The model that is trained: scoring, optimizer steps, the frozen reference, export."""
