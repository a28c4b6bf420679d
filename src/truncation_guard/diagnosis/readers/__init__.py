"""What a run left behind, read into a `RunTrace`."""
