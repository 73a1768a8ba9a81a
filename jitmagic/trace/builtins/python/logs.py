"""Logging and warnings, emitted after the graph has run, in program order.

Calls of an enabled logger, and warnings, become effects; that the logger is enabled is guarded.
When the effect is performed, Python consults handlers, filters and warning registries, which decide
whether and where anything is printed.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from ...breaks import GraphBreak, UnsupportedArguments
from ...values.base import Args, Kwargs, Machine, Value
from ...values.objects.classes import ClassValue
from ..registry import handles

__all__ = ["raises_warnings"]

_NAMES = ("message", "category", "stacklevel")


@handles(logging.Logger._log)
def _log(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Log after the graph: every message of a logger passes through here."""
    machine.effects.perform(machine.constant(logging.Logger._log), args, kwargs)
    return machine.constant(None)


@handles(logging.Logger.isEnabledFor)
def _is_enabled_for(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Model the method, without its cache of the result."""
    logger, level = args
    if logger.get_attr(machine, "disabled").realize(machine).truth(machine):
        return machine.constant(False)
    known = logger.get_attr(machine, "_cache").realize(machine)
    if known.contains(machine, level).truth(machine):
        return known.get_item(machine, level)
    manager = logger.get_attr(machine, "manager").realize(machine)
    least = manager.get_attr(machine, "disable").realize(machine).as_constant(machine)
    wanted = level.as_constant(machine)
    if least >= wanted:
        return machine.constant(False)
    effective = logger.call_method(machine, "getEffectiveLevel", [], {}).realize(machine)
    return machine.constant(wanted >= effective.as_constant(machine))


@handles(torch._C._log_api_usage_once)
def _log_api_usage(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Log after the graph; torch itself logs each event only once."""
    machine.effects.perform(machine.constant(torch._C._log_api_usage_once), args, kwargs)
    return machine.constant(None)


@handles(warnings.warn)
def _warn(machine: Machine, args: Args, kwargs: Kwargs) -> Value:
    """Warn at the line that `stacklevel` names, which must be a traced one."""
    given = dict(zip(_NAMES, args, strict=False)) | dict(kwargs)
    level = given["stacklevel"].as_constant(machine) if "stacklevel" in given else 1
    category = given.get("category", machine.constant(UserWarning))
    if category.is_constant(machine) and category.as_constant(machine) is None:
        category = machine.constant(UserWarning)
    text = given.get("message", category)
    followed = len(args) <= len(_NAMES) and set(given) <= set(_NAMES) and text.is_constant(machine)
    if not followed or not 0 < level <= len(machine.frames) or not _is_only_said(category):
        what = "not a plain warning at a traced line"
        raise GraphBreak(UnsupportedArguments.of(name="warnings.warn", what=what))
    frame = machine.frames[-level]
    line = frame.line()
    place = (machine.constant(line.filename), machine.constant(line.lineno), frame.globals)
    machine.effects.perform(machine.constant(_warn_at), (text, category, *place))
    said: Value = machine.constant(None)
    return said


def _is_only_said(category: Value) -> bool:
    return isinstance(category, ClassValue) and not raises_warnings(category.live)


def raises_warnings(category: type) -> bool:
    """Return whether a filter turns such a warning into an error, which ends the traced program."""
    kinds = [kind for action, _, kind, *_ in warnings.filters if action == "error"]
    return any(issubclass(category, kind) for kind in kinds)


def _warn_at(
    message: str, category: type[Warning], filename: str, lineno: int, names: dict[str, Any]
) -> None:
    """Do what `warnings.warn` does in the frame with these globals."""
    registry = names.setdefault("__warningregistry__", {})
    module = names.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, lineno, module, registry)
