"""Whole runs of refrl, and what they leave, offered to the relations."""
