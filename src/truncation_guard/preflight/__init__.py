"""What is wrong with a set-up, found before the first rollout."""
