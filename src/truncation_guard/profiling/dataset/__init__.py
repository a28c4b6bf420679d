"""Lengths of the answers in a data set."""
