"""Lengths of the completions that the trainer's model writes."""
