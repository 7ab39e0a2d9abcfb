"""Decoding with static shapes: one cache, a few numbers of rows, one captured CUDA graph for each."""
