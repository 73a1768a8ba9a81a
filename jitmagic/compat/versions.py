"""Defines the range of torch versions, for the package, its build and its tests.

Imports nothing of torch, so that the build can read it before torch is installed. pyproject.toml
repeats OLDEST; a newer torch than NEWEST is accepted with a warning.
"""

from __future__ import annotations

__all__ = [
    "NEWEST",
    "OLDEST",
    "REMEDY",
    "REQUIREMENT",
    "Release",
    "is_newer",
    "is_older",
    "release",
]

Release = tuple[int, int]

OLDEST: Release = (2, 11)
NEWEST: Release = (2, 15)  # the test suite passes with it
REMEDY = (
    f"jitmagic is tested with torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}: install "
    "one of these, or a newer jitmagic"
)
REQUIREMENT = f"torch>={OLDEST[0]}.{OLDEST[1]}"


def release(version: str) -> Release:
    """Return major and minor number of a version such as `2.15.0a0+git1234`."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def is_older(version: str) -> bool:
    """Return whether this torch is too old to build against."""
    return release(version) < OLDEST


def is_newer(version: str) -> bool:
    """Return whether this torch is newer than any that jitmagic was tested with."""
    return release(version) > NEWEST
