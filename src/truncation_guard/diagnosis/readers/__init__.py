"""What a run left behind, read into one form."""
