"""Consecutive items in lists of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def batches(items: Iterable[Item], size_of: Callable[[Item], int], enough: int) -> Iterator[list[Item]]:
    """Lists of consecutive items, each ending with the item that brings its size to `enough`."""
    batch: list[Item] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if size >= enough:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def groups_within(
    items: Iterable[Item], size_of: Callable[[Item], int], limit: int, most_items: int
) -> Iterator[list[Item]]:
    """Lists of consecutive items, each of a size up to `limit` and of up to `most_items`; a larger item is alone."""
    group: list[Item] = []
    size = 0
    for item in items:
        if group and (size + size_of(item) > limit or len(group) == most_items):
            yield group
            group, size = [], 0
        group.append(item)
        size += size_of(item)
    if group:
        yield group
