"""Divisors of a number, and a check that names the nearest one."""

from math import isqrt

from pretrain.errors import ConfigError


def check_divides(name: str, divisor: int, total_name: str, total: int) -> None:
    if total % divisor:
        raise ConfigError(
            f"{name}={divisor} does not divide {total_name} ({total}): the nearest that does is "
            f"{nearest(divisors(total), divisor)}"
        )


def divisors(number: int) -> list[int]:
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def nearest(values: list[int], wanted: int) -> int:
    return min(values, key=lambda value: (abs(value - wanted), value))
