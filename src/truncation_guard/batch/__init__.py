"""One generation batch: how each completion ended, what is left of each group, what a mode does."""
