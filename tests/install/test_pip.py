"""Installed by a stranger: pip, a wheel and an sdist, used elsewhere, without the checkout.

torch and the other packages are this environment's, seen through a .pth file; objects compiled
earlier are used again (build/objects), so that an installation takes seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from jitmagic.dependencies import REQUIRED
from tests.processes import ROOT, run_python

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
OBJECTS = ROOT / "build" / "objects"
USE = """
import jitmagic, torch
run = jitmagic.jit(lambda x, y: torch.relu(x * y + 2).sum(-1))
x, y = torch.randn(8, 64, requires_grad=True), torch.randn(8, 64)
torch.testing.assert_close(run(x, y), torch.relu(x * y + 2).sum(-1))
run(x, y).sum().backward()
journal = list(jitmagic.api.handle_of(run).journal)
print(jitmagic.__file__, journal[0].outcome, sum(record.kernels for record in journal))
"""
IMPORT = "try:\n    import jitmagic\nexcept ImportError as error:\n    print(error)"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files of the checkout, with their times: builds leave nothing in the checkout."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, folder)
    shutil.copy2(ROOT / "ARCHITECTURE.md", folder)
    unwanted = shutil.ignore_patterns("*.so", "__pycache__")
    for name in ("jitmagic", "extensions"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    return folder


class Environment(SimpleNamespace):
    """A virtual environment beside this one that sees its packages but not jitmagic's checkout."""

    python: Path
    folder: Path

    def run(self, *args: str) -> str:
        settings = self.folder / "objects.cfg"
        settings.write_text(f"[build_ext]\nbuild_temp = {OBJECTS}\n")
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env |= {"DIST_EXTRA_CONFIG": str(settings), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        env |= {"JITMAGIC_CACHE_DIR": str(self.folder / "cache"), "PIP_NO_INDEX": "1"}
        done = subprocess.run(
            [str(self.python), *args],
            cwd=self.folder, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def check(self) -> None:
        """A kernel is compiled, from a folder that has nothing to do with jitmagic."""
        where, outcome, kernels = self.run("-W", "error::UserWarning:jitmagic", "-c", USE).split()
        assert Path(where).is_relative_to(self.folder)
        assert (outcome, kernels) == ("compiled", "2")


def new_environment(folder: Path) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    theirs = Path(torch.__file__).parents[1]
    # A plain path: .pth files in there, an editable jitmagic's among them, are not read.
    (packages / "torch_of_the_tests.pth").write_text(f"{theirs}\n")
    return Environment(python=folder / "bin" / "python", folder=folder)


@pytest.fixture(scope="module")
def sdist(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    make = "import sys, build_backend as b; print(b.build_sdist(sys.argv[1]))"
    path = "import sys; sys.path.insert(0, 'extensions');"
    env = {**os.environ, "PYTHONPATH": ""}
    made = subprocess.run(
        [sys.executable, "-c", path + make, str(folder)],
        cwd=sources, env=env, capture_output=True, text=True, check=True,
    ).stdout.split()[-1]  # fmt: skip
    return folder / made


@pytest.fixture(scope="module")
def installed(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with a wheel of the sdist in its folder, and the wheel installed."""
    made = new_environment(tmp_path_factory.mktemp("stranger"))
    made.run("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", str(sdist))
    (wheel,) = made.folder.glob("jitmagic-*.whl")
    made.run("-m", "pip", "install", "--no-deps", "--ignore-installed", str(wheel))
    return made


def test_a_wheel_of_an_sdist(sources: Path, sdist: Path, installed: Environment) -> None:
    """What an sdist holds is enough for a wheel, and what a wheel holds for a kernel."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("extensions", "jitmagic"):
        found = [p for p in (sources / folder).rglob("*") if p.is_file()]
        files = {str(p.relative_to(sources)) for p in found if p.suffix not in (".pyc", ".o")}
        assert files <= held, files - held
    (wheel,) = installed.folder.glob("jitmagic-*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    included = (sources / "jitmagic" / "include").rglob("*.*")
    headers = {str(path.relative_to(sources)) for path in included}
    assert headers and headers <= held
    assert [name for name in held if name.startswith("jitmagic/runtime/objects/")]
    assert not [name for name in held if name.startswith(("tests", "extensions", "demos"))]
    installed.check()


# --------------------------------------------------------------------------- what may be missing


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_dependency_is_said_at_import(name: str) -> None:
    done = run_python(f"import sys; sys.modules[{name!r}] = None\nimport jitmagic")
    assert done.returncode != 0
    assert f"ImportError: jitmagic needs {name}" in done.stderr
    assert f"pip install {name}" in done.stderr


def test_a_free_threaded_python_is_refused_with_one_sentence() -> None:
    refused = "jitmagic needs the GIL, and this Python is a free-threaded build"
    imported = run_python("import sys; sys.abiflags = 't'; import jitmagic")
    assert f"ImportError: {refused}" in imported.stderr
    built = run_python(
        "import sys, sysconfig; sys.path.insert(0, 'extensions')\n"
        "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; import build_backend"
    )
    assert built.stderr.startswith(refused)
    assert built.returncode == 1


def test_the_dependencies_are_those_that_pip_installs() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert sorted(REQUIRED) == sorted(line.partition(">")[0] for line in declared)


def test_the_command_for_a_missing_native_part_works(sources: Path, installed: Environment) -> None:
    """`pip install FOLDER`, of all there is; the folder is named where pip was given one."""
    command = broken(installed)
    assert command[0] == str(installed.python)
    assert command[-1] == "FOLDER_OF_ITS_SOURCE"
    command[-1] = str(sources)
    # The isolated build would ask an index for setuptools; this environment has it.
    installed.run(*command[1:], "--no-build-isolation")
    installed.check()
    assert broken(installed) == command


def broken(environment: Environment) -> list[str]:
    """The command that is told once a native part is gone."""
    assert environment.run("-c", IMPORT) == ""
    (library,) = environment.folder.rglob("_frame.*.so")
    library.unlink()
    message = environment.run("-c", IMPORT)
    assert "No module named 'jitmagic._frame'" in message
    return message.partition("mend it with: ")[2].split()


def test_an_old_torch_is_refused_before_anything_is_compiled(sources: Path, tmp_path: Path) -> None:
    """The range is that of jitmagic/compat/versions.py."""
    folder = tmp_path / "torch" / "utils"
    folder.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.10.1+cu130'")
    (folder / "__init__.py").write_text("")
    (folder / "cpp_extension.py").write_text("include_paths = library_paths = list")
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-temp", str(tmp_path / "objects")],
        cwd=sources, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "does not fit torch 2.10.1+cu130" in done.stderr
    assert re.search(r"pip install 'torch[<>=.,\d]+'$", done.stderr.strip())
    assert not (tmp_path / "objects").exists()


def test_a_header_that_is_gone_ends_the_build_with_one_sentence(
    sources: Path, tmp_path: Path
) -> None:
    gone = "a.cpp:1:10: fatal error: torch/csrc/gone.h: No such file or directory"
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\necho '{gone}' >&2\nexit 1\n")
    compiler.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-temp", str(tmp_path / "objects")],
        cwd=sources, env={**os.environ, "CC": str(compiler), "CXX": str(compiler)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert said == f"jitmagic does not compile against torch {torch.__version__}: {gone}"


def test_a_wheel_names_its_torch_and_refuses_another(
    sources: Path, installed: Environment, tmp_path: Path
) -> None:
    minor = ".".join(torch.__version__.split(".")[:2])
    wheels = str(sources / "extensions" / "wheels.py")
    installed.run(wheels, str(tmp_path), str(installed.python))
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"jitmagic-0.1.0+torch{minor}-")
    quoted = wheel.name.replace("+", "%2B")
    assert f'href="{quoted}"' in (tmp_path / "index.html").read_text()
    assert list(tmp_path.glob("jitmagic-0.1.0.tar.gz"))
    options = ("--no-deps", "--force-reinstall", "--find-links", str(tmp_path))
    installed.run("-m", "pip", "install", *options, f"jitmagic==0.1.0+torch{minor}")
    installed.check()
    another = "import torch; torch.__version__ = '2.99.1'\n" + IMPORT
    message = installed.run("-c", another)
    assert f"built for torch {minor}, this is torch 2.99.1" in message
    assert "'jitmagic==0.1.0+torch2.99'" in message.partition("pip install")[2]


@pytest.mark.parametrize("build", ["+cpu", "+cu130", ""])
def test_builds_of_one_release_share_the_extensions(build: str) -> None:
    release = torch.__version__.partition("+")[0]
    done = run_python(f"import torch; torch.__version__ = {release + build!r}\nimport jitmagic")
    assert done.returncode == 0, done.stderr


def test_the_extension_for_notebooks_names_what_it_needs() -> None:
    code = "import sys; sys.modules['IPython'] = None\nimport jitmagic\n"
    done = run_python(code + "jitmagic.load_ipython_extension(None)")
    assert "ImportError: %load_ext jitmagic needs IPython" in done.stderr
    assert "pip install ipython" in done.stderr
