"""Lengths of answers and completions, measured before or after a training.

The one idea: wherever lengths come from (`from_dataset`, `from_rollouts`, `from_completions`), what
comes out is one `LengthProfile`, which says where that was.
"""
