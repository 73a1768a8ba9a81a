"""Builds the two native extensions against torch; everything else is in pyproject.toml.

torch is imported when something is compiled, so that metadata and an sdist are made without it.
JITMAGIC_SANITIZE=1 builds with AddressSanitizer and UndefinedBehaviorSanitizer (`make asan`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from runpy import run_path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
VERSIONS = run_path(str(ROOT / "jitmagic" / "compat" / "versions.py"))  # importing needs torch
TORCH = VERSIONS["REQUIREMENT"]
SANITIZE = [
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr",  # torch's libraries have hidden type information
]
OPTIMIZE = ["-O3", "-g0"]
MODE = SANITIZE if os.environ.get("JITMAGIC_SANITIZE") == "1" else OPTIMIZE
C_FLAGS = [*MODE, "-std=c11"]
CXX_FLAGS = [*MODE, "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wno-unused-function"]


def sources(folder: str) -> list[str]:
    """C and C++ files of an extension, repository-relative, in a stable order."""
    found = [p for p in (ROOT / "extensions" / folder).rglob("*") if p.suffix in (".c", ".cpp")]
    return sorted(str(p.relative_to(ROOT)) for p in found)


def headers(folder: str) -> list[str]:
    """Header files an extension depends on (a change rebuilds it)."""
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "extensions" / folder).rglob("*.h"))


def extension(name: str, folder: str) -> Extension:
    return Extension(
        f"jitmagic.{name}",
        sources(folder),
        depends=headers(folder),
        include_dirs=[f"extensions/{folder}"],
        extra_link_args=[flag for flag in MODE if flag.startswith("-fsanitize")],
        language="c++",
    )


def add_torch(ext: Extension) -> str:
    """Include folders, libraries and ABI macro of the torch that is imported here: its version.
    Its libraries are found at run time because torch is imported first, not by a path in ours.
    """
    try:
        import torch  # noqa: PLC0415 - see the module's head
        from torch.utils.cpp_extension import include_paths, library_paths  # noqa: PLC0415
    except ImportError as error:
        raise SystemExit(
            f"jitmagic is compiled against the torch that it will run with ({error}). Install it "
            f"first:\n    python -m pip install '{TORCH}'"
        ) from error
    if VERSIONS["is_older"](torch.__version__):
        raise SystemExit(
            f"jitmagic does not fit torch {torch.__version__}, which is installed here. Before "
            f"minutes of compiling against it:\n    python -m pip install '{TORCH}'"
        )
    ext.include_dirs += include_paths()
    ext.library_dirs += library_paths()
    ext.libraries += ["c10", "torch", "torch_cpu", "torch_python"]
    ext.define_macros += [
        ("_GLIBCXX_USE_CXX11_ABI", str(int(torch.compiled_with_cxx11_abi()))),
        ("JITMAGIC_TORCH_VERSION", f'"{torch.__version__}"'),
    ]
    return torch.__version__


def run_compiler(torch: str, command: list[str]) -> None:
    """Run the compiler or the linker; if it fails, end the build with its first error.

    With a newer torch that is mostly the name of a header or of a member that is gone.
    """
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.search(r"\berror\b", line)]
        first = errors[0] if errors else f"{command[0]} failed"
        hint = f"\n{VERSIONS['REMEDY']}" if VERSIONS["is_newer"](torch) else ""
        raise SystemExit(f"jitmagic does not compile against torch {torch}: {first}{hint}")


def unfit_names() -> str:
    """Return one line if torch is newer than all tested ones or lacks names that jitmagic uses.

    The table is imported without the package, whose import needs the extensions.
    """
    package = sys.modules["jitmagic"] = ModuleType("jitmagic")
    package.__path__ = [str(ROOT / "jitmagic")]
    try:
        return import_module("jitmagic.compat").check_names(everything=True)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "jitmagic"]:
            del sys.modules[name]


class BuildByLanguage(build_ext):
    """C files get the C standard's flags, C++ files ours; setuptools would hand both the same.

    Files of one extension are compiled side by side, and only those that changed: a file that
    includes torch's headers takes 20 to 40 s. Objects are kept in build/ for every kind of
    installation, by what they were compiled for: those of another torch would fit no more.
    """

    def finalize_options(self) -> None:
        if self.build_temp is None:
            self.build_temp = str(ROOT / "build" / "objects")
        super().finalize_options()
        self.force = True  # link anew; which files are compiled is decided below

    def build_extensions(self) -> None:
        (version,) = {add_torch(ext) for ext in self.extensions}
        if unfit := unfit_names():
            print(unfit, file=sys.stderr)
        kind = "sanitized" if MODE is SANITIZE else "optimized"
        folder = f"{sysconfig.get_config_var('SOABI')}-torch-{version}-{kind}"
        self.build_temp = os.path.join(self.build_temp, folder)
        run = partial(run_compiler, version)
        self.compiler.spawn = self.compiler.call = run  # setuptools 84 renamed it
        self._compile_one = self.compiler._compile
        self.compiler.compile = self._compile_all
        super().build_extensions()

    def _compile_all(self, sources, output_dir=None, macros=None, include_dirs=None, debug=0,
                     extra_preargs=None, extra_postargs=None, depends=None):  # fmt: skip
        macros, objects, _, pp_opts, jobs = self.compiler._setup_compile(
            output_dir, macros, include_dirs, sources, depends, extra_postargs
        )
        cc_args = self.compiler._get_cc_args(pp_opts, debug, extra_preargs)
        newest = max((Path(path).stat().st_mtime for path in depends or ()), default=0.0)
        stale = [obj for obj in objects if _is_stale(Path(obj), Path(jobs[obj][0]), newest)]

        def compile_one(obj: str) -> None:
            source = jobs[obj][0]
            flags = C_FLAGS if source.endswith(".c") else CXX_FLAGS
            self._compile_one(obj, source, None, cc_args, flags, pp_opts)

        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(compile_one, stale))
        return objects


def _is_stale(obj: Path, source: Path, newest_header: float) -> bool:
    """Whether an object file is older than its source or than any header of its extension."""
    return not obj.exists() or obj.stat().st_mtime < max(source.stat().st_mtime, newest_header)


setup(
    license="MIT",
    ext_modules=[extension("_frame", "frame"), extension("_runtime", "runtime")],
    cmdclass={"build_ext": BuildByLanguage},
)
