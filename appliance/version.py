"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as of_package


def version() -> str:
    """Return the version of the installed package, such as `0.4.0`; "" if it is not installed."""
    try:
        return of_package("vedette")
    except PackageNotFoundError:
        return ""


def program_version(program: str) -> str:
    """Return what `--version` of a program prints."""
    return f"{program} {version() or 'unknown (not installed)'}"
