"""How a share is written."""


def percent(share: float) -> str:
    """A share in [0, 1] for a reader. Only what is all of them reads as 100%."""
    text = f"{100 * share:.4g}%"
    return "more than 99.99%" if text == "100%" and share < 1 else text
