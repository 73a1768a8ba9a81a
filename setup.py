"""Builds the native extensions against torch; everything else is in pyproject.toml.

torch is imported when something is compiled, so that metadata and an sdist are made without it.
JITMAGIC_SANITIZE=1 builds with AddressSanitizer and UndefinedBehaviorSanitizer (`make asan`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import cache, partial
from importlib import import_module
from itertools import count
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any, NamedTuple

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
CXX_FLAGS = [
    *MODE,
    "-std=c++20",
    "-fvisibility=hidden",
    "-Wall",
    "-Wno-unused-function",
    "-Wno-unknown-warning-option",  # clang++ does not know the next one
    "-Wno-maybe-uninitialized",  # g++ 12 to 14 warn where a c10::SmallVector outgrows its buffer
    "-DAT_PER_OPERATOR_HEADERS",  # torch's headers then do not include every operator: 5 s less
]

# C++ files are compiled as a few units, each of which includes its files: torch's headers take
# 10 s to parse and the code of a file about 1 s. A file belongs to the first unit that names it.
UNITS = {
    "frame": {"tensors": ["*_tensor"], "python": ["*"]},
    "runtime": {
        "autograd": [
            *("alloc", "around", "autograd", "autograd_template", "held", "node", "numbers"),
            *("signature", "spent", "split", "split_graph", "undo", "view_replay", "wrappers"),
        ],
        "plans": ["*"],
    },
    "lazy": {"lazy": ["*"]},
}


# The block interpreter's operations are compiled once per instruction set, with the flags of
# generated kernels, whose values they have to give. Each set has a namespace `jm` of its own: the
# linker would otherwise keep one copy of an inline function for all sets.
OPERATIONS = (
    *("casts", "memory", "pairs", "pointwise_floats", "pointwise_numbers", "products"),
    *("reductions", "table"),
)
OPERATION_FLAGS = ["-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]


class Unit(NamedTuple):
    """One run of the compiler: a C file, or C++ files of an extension that share headers. `flags`
    are in addition to those of its language; with them, the first file alone is compiled.
    """

    name: str
    files: list[Path]
    flags: tuple[str, ...] = ()

    def source(self, folder: Path) -> Path:
        """Return the file to compile; `folder` gets one that includes the unit's files."""
        if self.files[0].suffix == ".c" or self.flags:
            return self.files[0]
        text = "".join(f'#include "{file.name}"\n' for file in self.files)
        path = folder / f"{self.name}_unit.cpp"
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return path


def paths(names: list[str]) -> list[Path]:
    return [Path(name) for name in names]


def units(files: list[Path]) -> list[Unit]:
    """Return the units of an extension; each C file is one, and so is each of the interpreter's.
    Python.h has to be included before all other headers, so the files without it, which are in the
    executor's folder, come last.
    """
    interpreted = [file for file in files if file.parent.name == "interpreter"]
    files = [file for file in files if file not in interpreted]
    files = sorted(files, key=lambda file: file.parent.name == "executor")
    folder = files[0].parent.name
    groups: dict[str, list[Path]] = {name: [] for name in UNITS[folder]}
    for file in files:
        named = UNITS[folder].items()
        fitting = [n for n, globs in named if any(fnmatch(file.stem, glob) for glob in globs)]
        groups.setdefault(file.stem if file.suffix == ".c" else fitting[0], []).append(file)
    made = [Unit(f"{folder}/{name}", group) for name, group in groups.items() if group]
    return [*made, *(unit for file in interpreted for unit in interpreter_units(file))]


def interpreter_units(file: Path) -> list[Unit]:
    """Return the units of a file of the block interpreter: one per instruction set if it defines
    operations.
    """
    folder = ROOT / "jitmagic" / "include"
    headers = f"-I{folder}"
    files = [file, *(folder / "jitmagic").glob("*.h")]
    if file.stem not in OPERATIONS:
        return [Unit(f"interpreter/{file.stem}", files, (headers,))]
    return [
        Unit(
            f"interpreter/{file.stem}_{row.isa}",
            files,
            (
                headers,
                *OPERATION_FLAGS,
                *row.flags,
                f"-Djm=jm_{row.isa}",
                f"-DJITMAGIC_ISA={row.isa}",
            ),
        )
        for row in processors()
    ]


@cache
def processors() -> list[Any]:
    """Return the processors that operations are compiled for."""
    with without_extensions():
        found: list[Any] = import_module("jitmagic.runtime.linking").processors_here()
    return found


def extension(name: str, *folders: str) -> Extension:
    """Return the extension of the files in these folders; the first one is its own."""
    found = [sorted((ROOT / "extensions" / folder).rglob("*")) for folder in folders]
    files = [path.relative_to(ROOT) for part in found for path in part]
    return Extension(
        f"jitmagic.{name}",
        [str(file) for file in files if file.suffix in (".c", ".cpp")],
        depends=[str(file) for file in files if file.suffix == ".h"],
        include_dirs=[f"extensions/{folder}" for folder in folders],
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


def show(line: str) -> None:
    """Print a line to the terminal, if there is one, even if pip captures what a build prints."""
    if "build_backend" in sys.modules:
        try:
            with open("/dev/tty", "w") as terminal:
                terminal.write(f"\r\x1b[K{line}\n")  # over pip's spinner
                return
        except OSError:  # there is no terminal
            pass
    print(f"{line}\n", end="", flush=True)  # whole lines from several threads


@contextmanager
def without_extensions() -> Iterator[None]:
    """Let modules of jitmagic be imported in the block without the package, which needs the
    extensions.
    """
    package = sys.modules["jitmagic"] = ModuleType("jitmagic")
    package.__path__ = [str(ROOT / "jitmagic")]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "jitmagic"]:
            del sys.modules[name]


def unfit_names() -> str:
    """Return one line if torch is newer than all tested ones or lacks names that jitmagic uses."""
    with without_extensions():
        return import_module("jitmagic.compat").check_names(everything=True)


def compile_objects(cxx: str, folder: Path) -> None:
    """Compile what kernels are linked with to `folder`; on a failure, each cache compiles it."""
    with without_extensions():
        toolchain = import_module("jitmagic.runtime.toolchain")
        commands = toolchain.commands_of_installation(cxx, folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    running = [subprocess.Popen(one, stderr=subprocess.DEVNULL) for one in commands.values()]
    for file, compiler in zip(commands, running, strict=True):
        if compiler.wait():
            file.unlink(missing_ok=True)
            show(f"{file.name} is not compiled ahead")


class BuildUnits(build_ext):
    """Compiles the units of the extensions in parallel, and only those that changed.

    Objects are cached in build/ for every kind of installation, in a folder for each Python, torch
    and set of flags.
    """

    def finalize_options(self) -> None:
        if self.build_temp is None:
            self.build_temp = str(ROOT / "build" / "objects")
        super().finalize_options()
        self.force = True  # link anew; _is_stale decides what is compiled
        self.parallel = True

    def run(self) -> None:
        super().run()
        if MODE is OPTIMIZE:  # sanitized kernels are linked with what is sanitized too
            package = Path(self.get_ext_fullpath("jitmagic._runtime")).parent
            compile_objects(self.compiler.compiler_cxx[0], package / "runtime" / "objects")

    def build_extensions(self) -> None:
        (version,) = {add_torch(ext) for ext in self.extensions}
        if unfit := unfit_names():
            show(unfit)
        flags = zlib.crc32(repr((C_FLAGS, CXX_FLAGS)).encode())
        folder = f"{sysconfig.get_config_var('SOABI')}-torch-{version}-flags-{flags:08x}"
        self.build_temp = os.path.join(self.build_temp, folder)
        run = partial(run_compiler, version)
        self.compiler.spawn = self.compiler.call = run  # setuptools 84 renamed it
        self._compile_one = self.compiler._compile
        self.compiler.compile = self._compile_all
        jobs = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
        self._total = sum(len(units(paths(ext.sources))) for ext in self.extensions)
        self._finished = count(1)
        with ThreadPoolExecutor(max_workers=jobs) as self._pool:
            super().build_extensions()

    def _compile_all(self, sources, output_dir, macros=None, include_dirs=None, debug=0,
                     extra_preargs=None, extra_postargs=None, depends=()):  # fmt: skip
        macros, _, _, pp_opts, _ = self.compiler._setup_compile(
            output_dir, macros, include_dirs, [], depends, extra_postargs
        )
        cc_args = self.compiler._get_cc_args(pp_opts, debug, extra_preargs)
        newest = max(Path(path).stat().st_mtime for path in depends)

        def compile_unit(unit: Unit) -> str:
            start = time.monotonic()
            source = unit.source(Path(output_dir))
            obj = Path(output_dir, f"{unit.name}.o")
            if _is_stale(obj, [source, *unit.files], newest):
                obj.parent.mkdir(parents=True, exist_ok=True)
                flags = C_FLAGS if source.suffix == ".c" else CXX_FLAGS
                flags = [*flags, *unit.flags]
                self._compile_one(str(obj), str(source), None, cc_args, flags, pp_opts)
                took = f"compiled in {time.monotonic() - start:.0f} s"
            else:
                took = "unchanged"
            show(f"[{next(self._finished)}/{self._total}] {unit.name} {took}")
            return str(obj)

        return list(self._pool.map(compile_unit, units(paths(sources))))


def _is_stale(obj: Path, sources: list[Path], newest_header: float) -> bool:
    """Return whether an object file is older than its sources or than any header it may include."""
    times = (source.stat().st_mtime for source in sources)
    return not obj.exists() or obj.stat().st_mtime < max(*times, newest_header)


setup(
    license="MIT",
    ext_modules=[
        extension("_frame", "frame"),
        extension("_runtime", "runtime", "executor", "interpreter"),
        extension("_lazy", "lazy"),
    ],
    cmdclass={"build_ext": BuildUnits},
)
