"""Seconds that this process has spent on compiling kernels, and where compilers keep what the next start loads."""

_seconds = 0.0
_folders: list[str] = []


def kept_in(folder: str) -> None:
    """A compiler that counts keeps its kernels in `folder`."""
    if folder not in _folders:
        _folders.append(folder)


def add(seconds: float) -> None:
    """A compiler has worked for so many seconds."""
    global _seconds
    _seconds += seconds


def seconds() -> float:
    """Sum of what compilers have added since the process began."""
    return _seconds


def folders() -> list[str]:
    """Folders of the compilers that count."""
    return list(_folders)
