"""Builds wheels for several (Python, torch), an sdist and an index page into a folder.

    python extensions/wheels.py FOLDER [PYTHON[:TORCH] ...]

PYTHON is an interpreter, TORCH a requirement (torch==2.13.0), for which a virtual environment is
made in build/wheels. Without TORCH the interpreter's own torch, setuptools and wheel are used. A
wheel's version has the torch that it fits in its local label:

    pip install --find-links FOLDER jitmagic==0.1.0+torch2.13
"""

from __future__ import annotations

import subprocess
import sys
from html import escape
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
PIP = ("-m", "pip", "--disable-pip-version-check")
TORCH_MINOR = "import torch; print('.'.join(torch.__version__.split('.')[:2]))"


def main(folder: Path, builds: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for build in builds or [sys.executable]:
        python, _, torch = build.partition(":")
        interpreter = environment(python, torch) if torch else python
        build_wheel(interpreter, folder)
    build_sdist(folder)
    write_index(folder)


def run(*command: str) -> str:
    print("$", " ".join(command), flush=True)
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout.strip()


def environment(python: str, torch: str) -> str:
    """Return the interpreter of a virtual environment with `torch`; it is made once."""
    version = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    home = ROOT / "build" / "wheels" / f"python{version}-{torch.replace('==', '')}"
    made = home / "bin" / "python"
    if not (home / "ready").exists():
        run(python, "-m", "venv", str(home))
        run(str(made), *PIP, "install", "setuptools>=77", "wheel", "numpy", torch)
        (home / "ready").touch()
    return str(made)


def build_wheel(python: str, folder: Path) -> None:
    minor = run(python, "-c", TORCH_MINOR)
    command = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), "."]
    label = f"--config-settings=--global-option=egg_info --tag-build=+torch{minor}"
    run(python, *PIP, *command, label)


def build_sdist(folder: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'extensions'); "
        "import build_backend; build_backend.build_sdist(sys.argv[1])"
    )
    run(sys.executable, "-c", code, str(folder))


def write_index(folder: Path) -> None:
    """Write index.html, which `pip --find-links URL` reads when the folder is on a web server."""
    names = sorted(path.name for path in folder.iterdir() if path.suffix in (".whl", ".gz"))
    links = "".join(f'<li><a href="{quote(name)}">{escape(name)}</a></li>\n' for name in names)
    page = f"<!doctype html>\n<title>jitmagic</title>\n<ul>\n{links}</ul>\n"
    (folder / "index.html").write_text(page)
    print(f"{folder}: {len(names)} files\n" + "\n".join(names))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
