"""setuptools' build backend, with the torch that the built extensions will run with.

The extensions fit the one torch they were compiled against. pip builds in an environment of its
own, where torch would be downloaded again (gigabytes) and might be another one than the user has.
So the torch of the environment that is installed into is used where there is one; only where there
is none is torch a requirement of the build. What a build without isolation lacks is said.
"""

from __future__ import annotations

import functools
import site
import sysconfig
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit(
        "jitmagic needs the GIL, and this Python is a free-threaded build. Install it for the "
        "ordinary build of the same version (python3.14 instead of python3.14t)."
    )

LACKING = (
    "{} is missing here, and jitmagic cannot be built without it. Install it with\n"
    "    python -m pip install 'setuptools>=65' wheel\n"
    "or leave out --no-build-isolation."
)
try:
    from setuptools import build_meta
except ImportError as error:
    raise SystemExit(LACKING.format("setuptools")) from error

ROOT = Path(__file__).parent.parent
TORCH = run_path(str(ROOT / "jitmagic" / "compat" / "versions.py"))  # importing it needs torch


def _with_wheel(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, or the reason why it cannot run: setuptools before 70.1 needs another package."""

    @functools.wraps(hook)
    def run(*args: Any, **kwargs: Any) -> Any:
        if _release("setuptools") < (70, 1) and find_spec("wheel") is None:
            raise SystemExit(LACKING.format("The package wheel"))
        return hook(*args, **kwargs)

    return run


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What setuptools asks for, and torch unless a torch that fits is there."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_torch_requirement()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """As for a wheel."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_torch_requirement()]


get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
build_sdist = build_meta.build_sdist
prepare_metadata_for_build_wheel = _with_wheel(build_meta.prepare_metadata_for_build_wheel)
prepare_metadata_for_build_editable = _with_wheel(build_meta.prepare_metadata_for_build_editable)
build_wheel = _with_wheel(build_meta.build_wheel)
build_editable = _with_wheel(build_meta.build_editable)


def _torch_requirement() -> list[str]:
    return [] if _release("torch") >= TORCH["OLDEST"] else [TORCH["REQUIREMENT"]]


def _release(package: str) -> tuple[int, ...]:
    """Major and minor number of an installed package, () where there is none."""
    try:
        return tuple(int(part) for part in version(package).split(".")[:2])
    except PackageNotFoundError:
        return ()


def _see_the_environment() -> None:
    """Packages of the environment that is installed into come after those of the isolated one:
    its interpreter runs the build, but pip has taken its folders off the path.
    """
    for folder in dict.fromkeys([sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]):
        site.addsitedir(folder)


_see_the_environment()
