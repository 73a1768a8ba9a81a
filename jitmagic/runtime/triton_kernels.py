"""Compiles Triton text to cubins; the only file that imports triton, and only on a cache miss.

In: a KernelSource of language "triton", which pointers are 16-byte aligned, the target. Out: a
Cubin per kernel: machine code and launch facts. Compiling needs no GPU. The cache key covers
everything the bytes depend on (the kernel's text but for names, triton's version, architecture,
options, alignment), so that a second process finds its kernels without importing triton.
Multiplications and additions are not contracted and denormals are kept, so results are rounded like
eager's; those of attention are contracted, whose sums have another order than eager's. Device
assertions are compiled in; Triton's overflow checks are not.
"""

from __future__ import annotations

import ast
import json
import linecache
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import torch

from ..budget import check
from ..codegen.plan import KernelSource
from ..devices import Target
from ..errors import ToolchainError
from ..lazy_dataclass import dataclass, replace
from .store import Store, content_key

__all__ = [
    "Cubin", "build_cubins", "cubin_files", "cubins_of_files", "import_triton", "read_cubin",
]  # fmt: skip

POINTERS: Mapping[torch.dtype, str] = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
    torch.float8_e4m3fn: "*fp8e4nv",
}
_THREADS = 8
_FACTS = ("name", "warps", "shared_bytes", "scratch")  # of a Cubin, in a kernel's JSON
_SUFFIXES = (".cubin", ".json", ".py")  # of a kernel's files: code, launch facts, text


@dataclass(frozen=True, slots=True)
class Cubin:
    """Holds a kernel's machine code and launch facts. `scratch` counts the null pointers that
    Triton's calling convention appends; `files` are its names in the cache.
    """

    image: bytes
    name: str
    warps: int
    shared_bytes: int
    scratch: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Request:
    """Holds everything that one kernel's machine code depends on, except triton's version.

    The key omits the kernel's name and those of its arguments, which name buffers: graphs that
    contain the same layers, such as the stages of a backward, share their kernels.
    """

    symbol: str
    text: str
    signature: tuple[str, ...]
    aligned: tuple[bool, ...]
    arch: int
    options: tuple[tuple[str, Any], ...]

    def key(self) -> str:
        facts = (self.signature, self.aligned, self.arch, self.options)
        text = _without_names(self.text, self.symbol)
        return content_key(text, _triton_version(), repr(facts))


_COMMENT = re.compile(r"^\s*#.*\n", re.MULTILINE)


def _without_names(text: str, symbol: str) -> str:
    """Return the text with a kernel's name and arguments numbered, and without comments. Keywords
    and attributes of the same names stay.
    """
    _, _, rest = text.partition(f"def {symbol}(")
    arguments = re.findall(r"\w+", rest.partition(")")[0])
    numbers = {name: f"#{place}" for place, name in enumerate([symbol, *arguments])}
    names = re.compile(rf"(?<![.\w])(?:{'|'.join(numbers)})(?!\w|\s*=[^=])")
    return names.sub(lambda found: numbers[found[0]], _COMMENT.sub("", text))


@lru_cache(maxsize=1)
def _triton_version() -> str:
    """Return the installed version without importing it."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"


def build_cubins(
    source: KernelSource,
    aligned: Mapping[str, tuple[bool, ...]],
    target: Target,
    store: Store,
    anew: bool = False,
) -> tuple[dict[str, Cubin], bool]:
    """Return cubins by kernel name, and whether all were cached. `anew` ignores the cache."""
    requests = _requests(source, aligned, int(target.isa.removeprefix("sm_")))
    cubins = {r.symbol: None if anew else _stored(r, store) for r in requests}
    missing = [request for request in requests if cubins[request.symbol] is None]
    if missing:
        cubins.update(_compile_all(missing, store))
    files = {r.symbol: tuple(f"{r.key()}{suffix}" for suffix in _SUFFIXES) for r in requests}
    found = {name: cubin for name, cubin in cubins.items() if cubin is not None}
    return {name: replace(c, files=files[name]) for name, c in found.items()}, not missing


def cubin_files(
    source: KernelSource,
    aligned: Mapping[str, tuple[bool, ...]],
    target: Target,
    store: Store,
) -> dict[str, bytes]:
    """Return the files of the kernels in an archive, by names that need no Triton to be found."""
    files = {}
    for symbol, cubin in build_cubins(source, aligned, target, store)[0].items():
        name = _file_name(source, symbol, aligned)
        facts = {name: getattr(cubin, name) for name in _FACTS}
        files[f"{name}.cubin"], files[f"{name}.json"] = cubin.image, json.dumps(facts).encode()
    return files


def cubins_of_files(
    source: KernelSource, aligned: Mapping[str, tuple[bool, ...]], files: Mapping[str, bytes]
) -> dict[str, Cubin]:
    """Return the kernels that `cubin_files` has written. Raises LookupError for a missing one."""
    names = {symbol: _file_name(source, symbol, aligned) for symbol in source.symbols}
    return {
        symbol: Cubin(files[f"{name}.cubin"], **json.loads(files[f"{name}.json"]))
        for symbol, name in names.items()
    }


def _file_name(source: KernelSource, symbol: str, aligned: Mapping[str, tuple[bool, ...]]) -> str:
    return content_key(source.text, symbol, repr(aligned[symbol]))


def _requests(
    source: KernelSource, aligned: Mapping[str, tuple[bool, ...]], arch: int
) -> list[_Request]:
    requests = []
    for symbol, text in _separate(source.text, source.symbols).items():
        grid = source.grids[symbol]
        options = {
            "num_warps": grid.num_warps,
            "num_stages": grid.num_stages,
            "debug": "tl.device_assert(" in text,
            "sanitize_overflow": False,
            "enable_fp_fusion": grid.contracts,
            "enable_reflect_ftz": False,
        }
        numbers = source.by_value.get(symbol, ())
        signature = tuple(
            POINTERS[dtype].removeprefix("*" if index in numbers else "")
            for index, dtype in enumerate(source.symbols[symbol])
        )
        multiples = source.multiples.get(symbol, ())
        divisible = tuple(
            index in multiples or (flag and index not in numbers)
            for index, flag in enumerate(aligned[symbol])
        )
        requests.append(_Request(symbol, text, signature, divisible, arch, tuple(options.items())))
    return requests


def _separate(text: str, symbols: Mapping[str, object]) -> dict[str, str]:
    """Return, for every kernel, the module without the other kernels."""
    lines = text.splitlines()
    spans = {
        node.name: (node.decorator_list[0].lineno - 1, node.end_lineno)
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name in symbols
    }
    first = min(start for start, _ in spans.values())
    head = "\n".join(lines[:first]).rstrip()
    return {
        name: f"{head}\n\n\n" + "\n".join(lines[start:end]) + "\n"
        for name, (start, end) in spans.items()
    }


def _stored(request: _Request, store: Store) -> Cubin | None:
    key = request.key()
    facts, image = store.get(key, ".json"), store.get(key, ".cubin")
    if facts is None or image is None:
        return None
    try:
        return Cubin(image, **json.loads(facts))
    except (ValueError, TypeError):  # written by another version
        return None


def _compile_all(requests: Sequence[_Request], store: Store) -> dict[str, Cubin]:
    """Compile in parallel: most of the work is in LLVM and ptxas, outside the GIL."""
    import_triton()
    if len(requests) == 1:
        return {requests[0].symbol: _compile(requests[0], store)}
    with ThreadPoolExecutor(min(len(requests), _THREADS)) as pool:
        made = pool.map(lambda request: _compile_on_thread(request, store), requests)
        with closing(made):  # type: ignore[type-var]  # a generator; cancels what has not begun
            cubins = [_counted(cubin) for cubin in made]
    return {
        request.symbol: cubin or _compile(request, store)
        for request, cubin in zip(requests, cubins, strict=True)
    }


def _counted(cubin: Cubin | None) -> Cubin | None:
    check()  # between kernels: ptxas cannot be stopped within one
    return cubin


def _compile_on_thread(request: _Request, store: Store) -> Cubin | None:
    """Compile on a thread; None if threads interfered. In CPython 3.11 and 3.12, ast.parse counts
    its recursion depth for all threads together, and raises SystemError if a second thread runs in
    between.
    """
    try:
        return _compile(request, store)
    except ToolchainError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, SystemError):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        return None


def import_triton() -> Any:
    try:
        import triton  # noqa: PLC0415 - heavy, and needed only when a kernel is not in the cache
        import triton.backends.compiler  # noqa: PLC0415
        import triton.compiler  # noqa: PLC0415
    except ImportError as error:
        raise ToolchainError("triton", "import triton", str(error)) from error
    return triton


def _compile(request: _Request, store: Store) -> Cubin:
    """Compile by triton.compile; the text is stored next to the cubin, where profilers read it."""
    triton = import_triton()
    key = request.key()
    path = str(store.put(key, ".py", request.text.encode()) or f"<jitmagic {key}>")
    try:
        compiled = _through_triton(triton, request, path)
    except Exception as error:  # triton raises errors of many unrelated classes
        command = f"triton.compile({request.symbol}, sm_{request.arch})"
        raise ToolchainError("triton", command, f"{error}\n{request.text}") from error
    cubin = read_cubin(compiled, len(request.signature))
    facts = {name: getattr(cubin, name) for name in _FACTS}
    store.put(key, ".cubin", cubin.image)
    store.put(key, ".json", json.dumps(facts).encode())
    return cubin


def _through_triton(triton: Any, request: _Request, path: str) -> Any:
    with _as_module(path, request) as function:
        names = function.arg_names
        aligned = {(n,): [["tt.divisibility", 16]] for n, at in enumerate(request.aligned) if at}
        signature = dict(zip(names, request.signature, strict=True))
        code = triton.compiler.ASTSource(function, signature, {}, aligned)
        gpu = triton.backends.compiler.GPUTarget("cuda", request.arch, 32)
        with _disabled_cache.empty(triton):
            return triton.compile(code, target=gpu, options=dict(request.options))


class _DisabledTritonCache:
    """Disables Triton's own cache, which verifies neither its files nor their owner. While a kernel
    compiles, an empty folder takes its place; jitmagic's cache has already been searched, so little
    is lost.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._restored = ExitStack()

    @contextmanager
    def empty(self, triton: Any) -> Iterator[None]:
        """Set the empty folder, process-wide: the first of several threads sets it, the last one
        restores the setting.
        """
        settings = triton.knobs.cache
        with self._lock:
            if not self._users:
                folder = self._restored.enter_context(_temporary_folder())
                self._restored.enter_context(settings.scope())
                settings.dir = folder
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._restored.close()


def _temporary_folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="jitmagic-triton-", ignore_cleanup_errors=True)


_disabled_cache = _DisabledTritonCache()


@contextmanager
def _as_module(path: str, request: _Request) -> Iterator[Any]:
    """Yield the function of a generated module, which is not put into sys.modules. Triton reads the
    source through linecache, so it sees the text that runs and not the file.
    """
    module = ModuleType(f"jitmagic_{request.key()[:16]}")
    lines = request.text.splitlines(keepends=True)
    linecache.cache[path] = (len(request.text), None, lines, path)
    try:
        exec(compile(request.text, path, "exec"), module.__dict__)
        yield getattr(module, request.symbol)
    finally:
        linecache.cache.pop(path, None)


def read_cubin(compiled: Any, pointers: int) -> Cubin:
    """Return what a launch needs, from metadata and PTX: triton versions differ in trailing
    parameters.
    """
    facts = compiled.metadata
    if getattr(facts, "global_scratch_size", 0):
        raise ToolchainError("triton", facts.name, "the kernel needs scratch memory")
    entry = re.search(r"\.entry\s+[\w$%]+\((.*?)\)", compiled.asm["ptx"], re.DOTALL)
    if entry is None:
        raise ToolchainError("triton", facts.name, "the kernel's parameters are unknown")
    declared = len(re.findall(r"\.param\b", entry.group(1)))
    return Cubin(
        compiled.asm["cubin"], facts.name, facts.num_warps, facts.shared, declared - pointers
    )
