"""Prompts of the user's own: files read row by row, never as a whole."""
