"""Validates the options of a tagged function; this is the only module that reads JITMAGIC_*
variables.

`make_options` combines the keyword arguments of `jit`, the mapping `options=` and the environment
into a frozen, hashable `Options`. Unknown names and values raise `OptionError`, which lists the
known ones. The environment is read then, not at import, so a notebook may set it at any time.

    JITMAGIC_CXX        path of the C++ compiler; empty: use none
    JITMAGIC_CACHE_DIR  folder of the cache on disk (default: the platform's user cache folder)
    JITMAGIC_CACHE_SIZE  the default of `cache_size`
    JITMAGIC_SHARED_CACHES  the default of `shared_caches`, separated by os.pathsep
    JITMAGIC_VERIFY     1: verify traced graphs, lowered and scheduled programs (tests set it)
    JITMAGIC_PERSIST    0: compiled entries are not kept for later processes (tests set it)
    JITMAGIC_KEEP       the default of `keep`: "faster", or "compiled" (tests set it)
    JITMAGIC_COMPILE_SECONDS  the default of `compile_seconds`, in cells too (tests set it)
    JITMAGIC_DISABLE    1: jit() returns its argument unchanged
    JITMAGIC_LOGS       names of the logs that are on from the import, see jitmagic.logs
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import EllipsisType
from typing import Any

from .errors import OptionError
from .extend.backends import backend_names, find_backend
from .extend.devices import RENDERERS
from .lazy_dataclass import dataclass, fields, replace
from .torch_types import AnyFunction

__all__ = [
    "ALIASES",
    "BACKENDS",
    "MODES",
    "PRECISIONS",
    "Options",
    "disabled_by_environment",
    "logs_asked_for",
    "make_options",
    "trace_asked_for",
]

BACKENDS = ("native", "aot_eager", "eager")
ALIASES: Mapping[object, str] = {"inductor": "native"}  # torch.compile's default backend
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_GRAPH_MODES = ("reduce-overhead", "max-autotune")
PRECISIONS = ("eager", "fast")
ON_ERROR = ("eager", "raise")
NOTICES = ("auto", "always", "never")
KEEP = ("faster", "compiled")
COLLECTIVES = ("eager", "joined")
_ALWAYS_COMPILED = {"keep": "compiled", "background": False, "on_error": "raise"}
PICKLES = ("plain", "artifact")
CPU_TIERS = ("auto", "cpp", "blocks", "numba", "aten")


Bounds = tuple[int, tuple[int, int]]  # a dimension, its lowest and its highest size
Dimensions = tuple[tuple[str, tuple[Bounds, ...] | EllipsisType], ...]  # by argument; `...`: all
"""Maps an argument's name to its dynamic dimensions and their bounds."""
_ANY_SIZE = (2, 2**31)
Buckets = tuple[tuple[str, tuple[int, ...]], ...]  # by argument: batch sizes to compile for


@dataclass(frozen=True, slots=True)
class Options:
    """Holds a user's options for one tagged function. Hashable, as it is part of every cache
    key.
    """

    backend: str | AnyFunction = "native"
    mode: str = "default"
    fullgraph: bool = False
    dynamic: bool | Dimensions | None = None  # see frame/declared_dynamic.py
    buckets: Buckets | None = None  # see compile/buckets.py
    precision: str = "eager"  # "eager": keep eager's intermediate roundings; "fast": do not
    collectives: str = "eager"  # "joined": small ones become one; no rank may run as eager then
    recompile_limit: int = 8  # compiled variants per handle before further ones run as eager
    inline_depth: int = 64  # calls inlined below the tagged function
    unroll_limit: int = 100_000  # instructions one trace may interpret, an optimizer's 4 times that
    on_error: str = "eager"  # if a compile fails: "eager", with a warning, or "raise"
    notices: str = "auto"  # the line about plain Python: "auto": when output is interactive
    keep: str = "faster"  # the faster of variant and eager; "compiled": no comparison
    cpu_tier: str = "auto"  # code generator for CPU tensors; "auto": best that is available
    cuda_graphs: bool = False  # on under mode="reduce-overhead" and mode="max-autotune"
    fuse: bool = True
    activation_memory_budget: float = 1.0  # 0: a backward recomputes what can be, to save memory
    freeze: bool | str = False  # inference treats weights as constants, until they change
    verify: bool = False
    cxx: str | None = None  # None: search for a compiler; "": use none
    cache_dir: str | None = None
    cache_size: int | str = "2 GiB"  # limit of the folder; least recently used files go; 0: none
    shared_caches: tuple[str, ...] = ()  # further folders, which are only read
    persist: bool = True  # compiled entries are kept in the cache folder for later processes
    pickle: str = "plain"  # "artifact": pickles carry compiled code to workers
    # "auto": what takes long is compiled once it pays; True: eager until kernels are built; number:
    # seconds to wait for them first
    background: bool | float | str = "auto"
    compile_seconds: float | None = None  # limit for one compile; None: see `budget`

    def __post_init__(self) -> None:
        named = self.backend
        if isinstance(named, str) and named not in (*BACKENDS, *ALIASES):
            object.__setattr__(self, "backend", find_backend(named) or named)
        object.__setattr__(self, "shared_caches", _folders(self.shared_caches))
        _check(self)
        if self.collectives == "joined":
            # A rank that runs as eager for a while starts others, and all would wait for ever.
            for name, value in _ALWAYS_COMPILED.items():
                object.__setattr__(self, name, value)

    @property
    def never_eager(self) -> bool:
        """Return whether a call beyond the recompile limit raises rather than run as eager."""
        return self.fullgraph or self.collectives == "joined"

    @property
    def patience(self) -> float:
        """Return the seconds that a call waits for kernels which are built in the background."""
        return 0.0 if isinstance(self.background, bool | str) else float(self.background)

    @property
    def budget(self) -> float:
        """Return the seconds that one compile may take before it is abandoned and calls run as
        eager.
        """
        if self.compile_seconds is not None:
            return float(self.compile_seconds)
        return _TUNING_SECONDS if self.tunes else _COMPILE_SECONDS

    @property
    def cache_bytes(self) -> int:
        """Return the limit of the cache folder in bytes, 0 for none."""
        return _bytes(self.cache_size)

    @property
    def tunes(self) -> bool:
        """Return whether candidates are measured before a graph is loaded."""
        return self.mode.startswith("max-autotune")


_COMPILE_SECONDS = 60.0
_TUNING_SECONDS = 600.0  # candidates are compiled and measured as well

_DEFAULTS = {field.name: field.default for field in fields(Options)}
_TUNED: Mapping[object, object] = {True: "max-autotune-no-cudagraphs", False: None}
# torch.compile's option name -> (jitmagic's option, how values are translated). Without a mapping
# values are the same; a value mapped to None changes nothing.
_TORCH_NAMES: Mapping[str, tuple[str, Mapping[object, object] | None]] = {
    "triton.cudagraphs": ("cuda_graphs", None),
    "max_autotune": ("mode", _TUNED),
    "max_autotune_gemm": ("mode", _TUNED),
    "max_autotune_pointwise": ("mode", _TUNED),
    "epilogue_fusion": ("fuse", {True: None, False: False}),
    "emulate_precision_casts": ("precision", {True: None, False: "fast"}),
    "fallback_random": ("precision", {True: None, False: None}),  # always as in eager
    "cache_size_limit": ("recompile_limit", None),
    "freezing": ("freeze", None),
}


def _from_environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    if "JITMAGIC_CXX" in os.environ:
        values["cxx"] = os.environ["JITMAGIC_CXX"]
    if "JITMAGIC_CACHE_DIR" in os.environ:
        values["cache_dir"] = os.environ["JITMAGIC_CACHE_DIR"]
    if os.environ.get("JITMAGIC_CACHE_SIZE"):
        values["cache_size"] = os.environ["JITMAGIC_CACHE_SIZE"]
    if folders := os.environ.get("JITMAGIC_SHARED_CACHES"):
        values["shared_caches"] = tuple(filter(None, folders.split(os.pathsep)))
    if os.environ.get("JITMAGIC_PERSIST", "") == "0":
        values["persist"] = False
    if os.environ.get("JITMAGIC_KEEP"):
        values["keep"] = os.environ["JITMAGIC_KEEP"]
    if os.environ.get("JITMAGIC_VERIFY", "") not in ("", "0"):
        values["verify"] = True
    if os.environ.get("JITMAGIC_COMPILE_SECONDS"):
        values["compile_seconds"] = _seconds(os.environ["JITMAGIC_COMPILE_SECONDS"])
    return values


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError("value for JITMAGIC_COMPILE_SECONDS", text, ("a number",)) from None


def logs_asked_for() -> str:
    """Return the value of JITMAGIC_LOGS."""
    return os.environ.get("JITMAGIC_LOGS", "")


def trace_asked_for() -> str:
    """Return the folder that JITMAGIC_TRACE names."""
    return os.environ.get("JITMAGIC_TRACE", "")


def disabled_by_environment() -> bool:
    """Return whether JITMAGIC_DISABLE makes `jit` return its argument unchanged."""
    return os.environ.get("JITMAGIC_DISABLE", "") not in ("", "0")


def make_options(extra: Mapping[str, Any] | Options | None = None, /, **given: Any) -> Options:
    """Build options from keywords and the argument `options=`.

    A mapping overrides keywords; keywords that differ from their defaults override an Options
    object. Raises OptionError on unknown names and values.
    """
    if "dynamic" in given:
        given["dynamic"] = _dimensions(given["dynamic"])
    if "buckets" in given:
        given["buckets"] = _buckets(given["buckets"])
    if isinstance(extra, Options):
        given |= _of_torch_compile(given)
        defaults = {f.name: f.default for f in fields(Options)}
        changed = {name: value for name, value in given.items() if value != defaults[name]}
        return _complete(replace(extra, **changed)) if changed else extra
    if extra is not None and not isinstance(extra, Mapping):
        raise OptionError("value for options", extra, ("a mapping", "jitmagic.Options"))
    known = tuple(f.name for f in fields(Options))
    merged = {**_from_environment(), **given, **(extra or {})}
    merged["dynamic"] = _dimensions(merged.get("dynamic"))
    merged["buckets"] = _buckets(merged.get("buckets"))
    unknown = [name for name in merged if name not in known and name not in _TORCH_NAMES]
    if unknown:
        raise OptionError("option", unknown[0], known, tuple(unknown[1:]))
    ours = {name: value for name, value in merged.items() if name in known}
    return _complete(Options(**{**ours, **_of_torch_compile(merged)}))


def _of_torch_compile(given: Mapping[str, object]) -> dict[str, Any]:
    """Translate torch.compile's option names; options of jitmagic have precedence."""
    ours_of: dict[str, Any] = {}
    if isinstance(given.get("backend"), str) and given["backend"] in ALIASES:
        ours_of["backend"] = ALIASES[given["backend"]]
    for name in _TORCH_NAMES.keys() & given.keys():
        ours, values = _TORCH_NAMES[name]
        if values is not None and given[name] not in values:
            raise OptionError(f"value for {name}", given[name], ("True", "False"))
        value = given[name] if values is None else values[given[name]]
        if value is not None and given.get(ours, _DEFAULTS[ours]) == _DEFAULTS[ours]:
            ours_of[ours] = value
    return ours_of


def _complete(options: Options) -> Options:
    """Set the options that others imply."""
    if options.mode in _GRAPH_MODES and not options.cuda_graphs:
        options = replace(options, cuda_graphs=True)
    if options.buckets and options.dynamic is not True:
        named = {name: {0: (2, max(sizes[-1], 2))} for name, sizes in options.buckets}
        others = options.dynamic if isinstance(options.dynamic, tuple) else ()
        rows: Any = _dimensions(named)
        options = replace(options, dynamic=tuple(dict.fromkeys((*others, *rows))))
    if options.freeze and options.dynamic is None:
        options = replace(options, dynamic=False)  # constant folding needs concrete sizes
    return options


def _check(options: Options) -> None:
    if not callable(options.backend):
        own = (*BACKENDS, *map(str, ALIASES))
        if options.backend not in own:
            raise OptionError("backend", options.backend, (*own, *backend_names()))
    _one_of("mode", options.mode, MODES)
    _one_of("precision", options.precision, PRECISIONS)
    _one_of("on_error", options.on_error, ON_ERROR)
    _one_of("notices", options.notices, NOTICES)
    _one_of("keep", options.keep, KEEP)
    _one_of("collectives", options.collectives, COLLECTIVES)
    _one_of("pickle", options.pickle, PICKLES)
    _one_of("cpu_tier", options.cpu_tier, (*CPU_TIERS, *RENDERERS.rows))
    for name in ("fullgraph", "cuda_graphs", "fuse", "persist", "verify"):
        _of_type(name, getattr(options, name), bool, ("True", "False"))
    if options.freeze != "dequantise":
        _of_type("freeze", options.freeze, bool, ("True", "False", "dequantise"))
    if options.dynamic is not None and not isinstance(options.dynamic, tuple):
        _of_type("dynamic", options.dynamic, bool, (*_DYNAMIC, "None", "True", "False"))
    for name in ("cxx", "cache_dir"):
        if getattr(options, name) is not None:
            _of_type(name, getattr(options, name), str, ("None", "a path as a string"))
    if not all(isinstance(folder, str) for folder in options.shared_caches):
        raise OptionError("value for shared_caches", options.shared_caches, _FOLDERS)
    _bytes(options.cache_size)
    for name in ("recompile_limit", "inline_depth", "unroll_limit"):
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise OptionError(f"value for {name}", value, ("a positive integer",))

    background = options.background
    is_number = isinstance(background, (bool, int, float)) and background >= 0
    if background != "auto" and not is_number:
        raise OptionError(
            "value for background", background, ("auto", "True", "False", "seconds to wait")
        )
    seconds = options.compile_seconds
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and seconds > 0):
        raise OptionError("value for compile_seconds", seconds, ("None", "a positive number"))
    share = options.activation_memory_budget
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
        raise OptionError("value for activation_memory_budget", share, ("a number from 0 to 1",))


_FOLDERS = ("a list of paths",)
_SIZES = ('bytes, or text such as "2 GiB" and "500 MB"', "0 for no limit")
_UNITS = {"": 1} | {
    prefix + binary: (1024 if binary else 1000) ** power
    for power, prefix in enumerate("kmgt", 1)
    for binary in ("", "i")
}


def _folders(value: object) -> object:
    """Return the paths as a hashable tuple; another value unchanged, for `_check` to refuse."""
    if type(value) is type(()) and not value:  # also while the program has replaced `tuple`
        return value
    if isinstance(value, str | os.PathLike):
        value = [value]
    if not isinstance(value, list | tuple):
        return (value,)
    found = (os.fspath(path) if isinstance(path, os.PathLike) else path for path in value)
    return tuple(path for path in found if path != "")


def _bytes(value: object) -> int:
    """Return a size in bytes. Raises OptionError; GB are 1000 and GiB 1024 to the third power."""
    size = value
    if isinstance(value, str):
        text = value.strip().lower()
        number = text.rstrip("kmgtib ")
        try:
            size = int(float(number) * _UNITS[text.removeprefix(number).strip().removesuffix("b")])
        except (ValueError, OverflowError, KeyError):
            size = None
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise OptionError("value for cache_size", value, _SIZES)
    return size


_DYNAMIC = ('a mapping like {"x": {0: (2, 4096), 1: None}, "n": ...}',)


def _dimensions(value: object) -> object:
    """Return dynamic={...} in a hashable form; any other value unchanged."""
    if not isinstance(value, Mapping):
        return value
    return tuple(map(_named, value.items()))


def _named(item: tuple[object, object]) -> tuple[str, tuple[Bounds, ...] | EllipsisType]:
    """Validate one argument's dynamic dimensions; `...` stands for every number in it."""
    name, dims = item
    if isinstance(name, str) and isinstance(dims, EllipsisType):
        return name, dims
    if isinstance(name, str) and isinstance(dims, Mapping):
        return name, tuple(map(_bounds, dims.items()))
    raise OptionError("value for dynamic", {name: dims}, _DYNAMIC)


def _bounds(item: tuple[Any, Any]) -> Bounds:
    dim, bounds = item
    if bounds is not None and not (isinstance(bounds, tuple | list) and len(bounds) == 2):
        raise OptionError("value for dynamic", {dim: bounds}, _DYNAMIC)
    low, high = _ANY_SIZE if bounds is None else bounds
    if not all(type(n) is int for n in (dim, low, high)) or low > high or dim < 0:
        raise OptionError("value for dynamic", {dim: bounds}, _DYNAMIC)
    return dim, (low, high)


_BUCKETS = ('a mapping like {"x": (1, 2, 4, 8)}, of arguments to batch sizes',)


def _buckets(value: object) -> object:
    """Return buckets={...} in a hashable form, sizes in rising order."""
    if isinstance(value, tuple):
        value = dict(value) if all(isinstance(part, tuple) for part in value) else value
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value:
        raise OptionError("value for buckets", value, _BUCKETS)
    for name, sizes in value.items():
        listed = isinstance(sizes, tuple | list | range) and len(sizes) > 0
        if not (listed and isinstance(name, str) and all(type(n) is int and n > 0 for n in sizes)):
            raise OptionError("value for buckets", {name: sizes}, _BUCKETS)
    return tuple((name, tuple(sorted({*sizes}))) for name, sizes in value.items())


def _of_type(name: str, value: object, wanted: type, known: tuple[str, ...]) -> None:
    if not isinstance(value, wanted):
        raise OptionError(f"value for {name}", value, known)


def _one_of(kind: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(kind, value, known)
