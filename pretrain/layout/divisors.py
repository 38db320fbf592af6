"""Divisors of a number, and a check that names the nearest one."""

from math import isqrt

from pretrain.errors import ConfigError


def check_divides(name: str, divisor: int, total_name: str, total: int) -> None:
    """Raises ConfigError for a divisor that leaves a rest."""
    if (reason := indivisible(name, divisor, total_name, total)) is not None:
        raise ConfigError(reason)


def indivisible(name: str, divisor: int, total_name: str, total: int) -> str | None:
    """Error of a divisor that leaves a rest, as a sentence with the nearest that does not; None: it leaves none."""
    if not total % divisor:
        return None
    return (
        f"{name}={divisor} does not divide {total_name} ({total}): the nearest that does is "
        f"{nearest(divisors(total), divisor)}"
    )


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest(values: list[int], wanted: int) -> int:
    return min(values, key=lambda value: (abs(value - wanted), value))
