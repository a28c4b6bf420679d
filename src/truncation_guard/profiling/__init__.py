"""Lengths of answers and completions, measured before or after a training.

Wherever lengths come from, the result is one `LengthProfile`, which says where that was.
"""
