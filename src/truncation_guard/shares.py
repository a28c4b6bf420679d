"""How a share is written."""


def percent(share: float, digits: int = 4) -> str:
    """A share in [0, 1] for a reader, with so many significant digits.

    Only what is all of them reads as 100%.
    """
    text = f"{100 * share:.{digits}g}%"
    return f"more than 99.{'9' * (digits - 2)}%" if text == "100%" and share < 1 else text
