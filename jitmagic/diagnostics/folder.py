"""folder: writes the files of a report, all of them or none, and never replaces other files.

Input: a folder and texts by relative path. Output: the files and a manifest with their names, from
which the next report knows which files it may replace. All texts go to a staging folder first, so
that an error (a full disk) leaves the report as it was. A folder with files but without a manifest
is refused. A report in one page is recognised by its first line.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import ReportError

__all__ = ["MANIFEST", "PAGE_HEAD", "write_folder", "write_page", "write_text"]

MANIFEST = "manifest.json"
_KIND = "jitmagic report"
PAGE_HEAD = "<!DOCTYPE html><!-- jitmagic report -->\n"
_ANOTHER = "name another folder or a file that ends in .html, or move what is there"
_ANOTHER_PAGE = "name another file that ends in .html or a folder, or move what is there"


def write_folder(folder: str | Path, files: Mapping[str, str]) -> Path:
    """Write the files, remove the other files of an earlier report, and return the absolute path.

    Raises ReportError, and changes nothing, if the folder holds files that no report wrote.
    """
    root = Path(folder).absolute()
    before = _own_files(root)
    for name in files:
        if name not in before and os.path.lexists(root / name):
            raise ReportError(f"{root / name} was not written by a report", _ANOTHER)
    try:
        _replace(root, before, files)
    except OSError as error:
        raise ReportError(
            f"{root} cannot be written: {error}", "name a folder that you may write to, with room"
        ) from error
    return root


def write_page(file: str | Path, text: str) -> Path:
    """Write a page that begins with PAGE_HEAD, replacing an earlier one; return the absolute path.

    Raises ReportError, and changes nothing, if another kind of file is there.
    """
    path = Path(file).absolute()
    try:
        _check_page(path)
        with _staging(path.parent) as staged:
            write_text(staged / path.name, text)
            os.replace(staged / path.name, path)
    except ReportError:  # is a subclass of OSError
        raise
    except OSError as error:
        raise ReportError(
            f"{path} cannot be written: {error}", "name a file that you may write, with room"
        ) from error
    return path


def _check_page(path: Path) -> None:
    if not os.path.lexists(path):
        return
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not a file"
        ending = f"a report whose name ends in {path.suffix} is one file"
        raise ReportError(f"{path} {what}; {ending}", _ANOTHER_PAGE)
    with path.open("rb") as opened:
        if opened.readline(len(PAGE_HEAD)) != PAGE_HEAD.encode():
            raise ReportError(f"{path} was not written by a report", _ANOTHER_PAGE)


def _own_files(root: Path) -> frozenset[str]:
    """Return the names of the files of an earlier report; raise ReportError for other contents."""
    if not os.path.lexists(root):
        return frozenset()
    if not root.is_dir():
        raise ReportError(f"{root} is not a folder", _ANOTHER)
    try:
        if not any(root.iterdir()):
            return frozenset()
        manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
        names = manifest["files"] if manifest["kind"] == _KIND else None
        if isinstance(names, list) and all(isinstance(n, str) and _is_inside(n) for n in names):
            return frozenset([*names, MANIFEST])
    except PermissionError as error:
        raise ReportError(f"{root} cannot be read: {error}", "name another folder") from error
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no manifest, or one of another tool
    raise ReportError(f"{root} holds files that were not written by a report", _ANOTHER)


def _is_inside(name: str) -> bool:
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts


def _replace(root: Path, before: frozenset[str], files: Mapping[str, str]) -> None:
    """Move the new files into place and remove old ones.

    Meanwhile the manifest names old and new files, so that the next report can replace one that was
    interrupted.
    """
    with _staging(root) as staged:
        try:
            for name, text in files.items():
                write_text(staged / name, text)
            write_text(staged / "both", _manifest([*before, *files]))
            write_text(staged / "new", _manifest([*files]))
            for name in files:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged / "both", root / MANIFEST)
            for name in files:
                os.replace(staged / name, root / name)
            for name in before - {*files, MANIFEST}:
                (root / name).unlink(missing_ok=True)
            os.replace(staged / "new", root / MANIFEST)
        finally:
            _remove_empty(_folders_of(root, [*before, *files]))


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """Yield a temporary folder inside `root`, as os.replace needs one disk; clean up after it."""
    new_folders = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".report-", dir=root))
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    finally:
        _remove_empty(new_folders)


def _folders_of(root: Path, names: Sequence[str]) -> list[Path]:
    """Return the folders below the root that hold these files, innermost first."""
    folders = {folder for name in names for folder in Path(name).parents if folder != Path(".")}
    return [root / folder for folder in sorted(folders, key=lambda f: len(f.parts), reverse=True)]


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _manifest(names: Sequence[str]) -> str:
    own = sorted({*names} - {MANIFEST})
    return json.dumps({"kind": _KIND, "files": own}, indent=1) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a text; lone surrogates, which names and sources may hold, become escapes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
