"""The only rooms that know the inside of TRL and transformers."""
