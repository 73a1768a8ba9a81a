"""Builds the two native extensions against torch; everything else is in pyproject.toml.

_frame needs CPython headers and, for tensor guards only, torch's; JITMAGIC_WITHOUT_TORCH=1 builds
it without (that is how the interpreter-layout part is tested on Pythons that have no torch).
_runtime needs torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
WITHOUT_TORCH = os.environ.get("JITMAGIC_WITHOUT_TORCH") == "1"
CXX_FLAGS = ["-O3", "-g0", "-std=c++20", "-fvisibility=hidden", "-Wall", "-Wno-unused-function"]


def sources(folder: str) -> list[str]:
    """C and C++ files of an extension, repository-relative, in a stable order."""
    found = [p for p in (ROOT / "extensions" / folder).rglob("*") if p.suffix in (".c", ".cpp")]
    if WITHOUT_TORCH:
        found = [p for p in found if "tensor" not in p.name]
    return sorted(str(p.relative_to(ROOT)) for p in found)


def headers(folder: str) -> list[str]:
    """Header files an extension depends on (a change rebuilds it)."""
    return sorted(str(p.relative_to(ROOT)) for p in (ROOT / "extensions" / folder).rglob("*.h"))


def torch_settings() -> dict[str, list]:
    """Include folders, libraries and ABI macro of the installed torch."""
    if WITHOUT_TORCH:
        return {"define_macros": [("JITMAGIC_WITHOUT_TORCH", "1")]}
    import torch  # noqa: PLC0415 - absent where only the interpreter-layout part is built
    from torch.utils.cpp_extension import include_paths, library_paths  # noqa: PLC0415

    abi = int(torch.compiled_with_cxx11_abi())
    return {
        "include_dirs": include_paths(),
        "library_dirs": library_paths(),
        "runtime_library_dirs": library_paths(),
        "libraries": ["c10", "torch", "torch_cpu", "torch_python"],
        "define_macros": [
            ("_GLIBCXX_USE_CXX11_ABI", str(abi)),
            ("JITMAGIC_TORCH_VERSION", f'"{torch.__version__}"'),
        ],
    }


def extension(name: str, folder: str) -> Extension:
    settings = torch_settings()
    settings["include_dirs"] = [*settings.get("include_dirs", []), f"extensions/{folder}"]
    return Extension(
        f"jitmagic.{name}",
        sources(folder),
        depends=headers(folder),
        language="c++",
        **settings,
    )


class BuildByLanguage(build_ext):
    """C files get the C standard's flags, C++ files ours; setuptools would hand both the same."""

    def build_extensions(self) -> None:
        compile_one = self.compiler._compile

        def with_flags(obj, src, ext, cc_args, extra, pp_opts):
            extra = ["-O3", "-g0", "-std=c11"] if src.endswith(".c") else CXX_FLAGS
            compile_one(obj, src, ext, cc_args, extra, pp_opts)

        self.compiler._compile = with_flags
        super().build_extensions()


names = [("_frame", "frame")] + ([] if WITHOUT_TORCH else [("_runtime", "runtime")])
setup(
    ext_modules=[extension(name, folder) for name, folder in names if sources(folder)],
    cmdclass={"build_ext": BuildByLanguage},
    include_package_data=True,
)
