"""Formats of numbers for people."""


def figure(number: float | None, digits: int = 4) -> str:
    """Significant digits; nothing for what isn't known."""
    if number is None:
        return ""
    if number >= 1e6:
        return f"{number:.2e}"
    return f"{number:,.0f}" if number >= min(1000, 10**digits - 0.5) else f"{number:.{digits}g}"


def compact(number: float) -> str:
    """12345678 -> 12.3M"""
    for unit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{suffix}"
    return f"{number:,.0f}"
