"""Lengths of completions, some of them cut: quantiles, what a limit covers, which one to choose."""
