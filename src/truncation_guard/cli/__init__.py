"""The command `truncation-guard`."""
