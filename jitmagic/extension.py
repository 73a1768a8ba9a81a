"""Loads the native extensions _runtime and _lazy at their first use, and checks all extensions.

jitmagic._runtime executes plans: the first compiled graph needs it. jitmagic._lazy records
operations: the first block of `jitmagic.lazy()` needs it. If loading one fails, or if it was built
for another torch, NativeMissing names the command that builds it again.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import torch

from .errors import NativeMissing

__all__ = ["check_build", "lazy_module", "native_missing", "runtime_module"]


def runtime_module() -> Any:
    """Return the native module. Raises NativeMissing with the remedy."""
    try:
        from . import _runtime  # type: ignore[attr-defined]  # noqa: PLC0415 - absent until built
    except ImportError as error:
        raise native_missing("jitmagic._runtime", str(error)) from error
    module: Any = _runtime
    check_build("jitmagic._runtime", module.TORCH_VERSION)
    return module


def lazy_module() -> Any:
    """Return the native module that records operations. Raises NativeMissing with the remedy."""
    try:
        from . import _lazy  # type: ignore[attr-defined]  # noqa: PLC0415 - absent until built
    except ImportError as error:
        raise native_missing("jitmagic._lazy", str(error)) from error
    module: Any = _lazy
    check_build("jitmagic._lazy", module.TORCH_VERSION)
    return module


def check_build(module: str, built: str) -> None:
    """Raise NativeMissing if an extension was built for a torch with other memory layouts.

    Releases of one minor version have the same ones, also those for CPU and CUDA.
    """
    here = torch.__version__
    if built != here and not _minor(built) == _minor(here) != "":
        raise native_missing(module, f"it was built for torch {built}, this is torch {here}")


def _minor(version: str) -> str:
    """Return "2.13" of a release ("2.13.1+cu130"), "" of any other build."""
    release = re.fullmatch(r"(\d+\.\d+)\.\d+(\+(cpu|cu\d+|rocm[\d.]+|xpu))?", version)
    return release[1] if release else ""


def native_missing(module: str, cause: str) -> NativeMissing:
    """Return the error for an unusable extension, with the command that rebuilds it here."""
    import shlex  # noqa: PLC0415 - 0.5 ms, and only a failure needs it

    command = f"{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps"
    version, _, label = _installed().partition("+torch")
    minor = _minor(torch.__version__)
    if label and minor:  # one of several wheels
        if label != minor:  # a symbol that the other torch lacks says less
            cause = f"it was built for torch {label}, this is torch {torch.__version__}"
        wheel = f"--find-links FOLDER_OF_ITS_WHEELS 'jitmagic=={version}+torch{minor}'"
        return NativeMissing(module, cause, f"{command} {wheel}")
    source = _source()
    where = shlex.quote(source) if source else "FOLDER_OF_ITS_SOURCE"
    editable = "--editable " if source and _is_checkout(Path(source)) else ""
    return NativeMissing(module, cause, f"{command} {editable}{where}")


def _installed() -> str:
    """Return the version that pip installed, with its label; "" in a checkout."""
    try:
        return distribution("jitmagic").version
    except PackageNotFoundError:
        return ""


def _is_checkout(folder: Path) -> bool:
    """Return whether `folder` is the checkout that this package is imported from."""
    package = Path(__file__).resolve().parent
    return package.parent == folder.resolve() and (folder / "setup.py").is_file()


def _source() -> str:
    """Return what this package was built from, a checkout or pip's argument; "" if unknown."""
    checkout = Path(__file__).resolve().parent.parent
    if _is_checkout(checkout):
        return str(checkout)
    try:
        note = json.loads(distribution("jitmagic").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return ""
    url = note.get("url", "")
    if "vcs_info" in note:
        return f"{note['vcs_info']['vcs']}+{url}"
    if url.endswith(".whl"):
        return ""  # built for another torch, as often as it is installed
    path = Path(url2pathname(urlsplit(url).path))
    return (str(path) if path.exists() else "") if url.startswith("file:") else url
