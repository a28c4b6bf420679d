"""`python -m truncation_guard`: the same as the command `truncation-guard`."""

from truncation_guard.cli.main import main

if __name__ == "__main__":
    main()
