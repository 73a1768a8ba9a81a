"""Every module that registers values, builtins or opcodes; importing this one imports them all.

A new module of values/, builtins/ or opcodes/ gets its line here, and nowhere else.
"""

from __future__ import annotations

from types import ModuleType

from .builtins import attention as _attention
from .builtins import autocast as _autocast
from .builtins import autograd_functions as _autograd_functions
from .builtins import checkpointing as _checkpointing
from .builtins import checks as _checks
from .builtins import clocks as _clocks
from .builtins import constructors as _constructors
from .builtins import containers as _containers
from .builtins import copying as _copying
from .builtins import counters as _counters
from .builtins import differentiation as _differentiation
from .builtins import distributions as _distributions
from .builtins import exit_stacks as _exit_stacks
from .builtins import foreach as _foreach
from .builtins import functional_calls as _functional_calls
from .builtins import generators as _torch_generators
from .builtins import gradients as _gradients
from .builtins import impure_calls as _impure_calls
from .builtins import introspection as _introspection
from .builtins import iteration as _iteration
from .builtins import iterator_tools as _iterator_tools
from .builtins import logs as _logs
from .builtins import nested as _nested
from .builtins import numbers as _numbers
from .builtins import numpy_calls as _numpy_calls
from .builtins import objects as _objects
from .builtins import operators as _operators
from .builtins import optimizers as _optimizers
from .builtins import ordering as _ordering
from .builtins import parameters as _parameters
from .builtins import patterns as _regular
from .builtins import process_state as _process_state
from .builtins import recurrent as _recurrent
from .builtins import seeds as _seeds
from .builtins import set_methods as _set_methods
from .builtins import signatures as _signatures
from .builtins import spectral as _spectral
from .builtins import statistics as _statistics
from .builtins import sums as _sums
from .builtins import texts as _texts
from .builtins import torch_calls as _torch_calls
from .builtins import transforms as _transforms
from .builtins import wrappers as _wrappers
from .opcodes import attributes as _attributes
from .opcodes import calls as _calls
from .opcodes import class_bodies as _class_bodies
from .opcodes import comparisons as _comparisons
from .opcodes import containers as _container_opcodes
from .opcodes import control as _control
from .opcodes import exceptions as _exception_opcodes
from .opcodes import functions as _function_opcodes
from .opcodes import imports as _imports
from .opcodes import intrinsics as _intrinsics
from .opcodes import locals as _locals
from .opcodes import patterns as _patterns
from .opcodes import stack as _stack
from .opcodes import with_ as _with
from .values import cached as _cached
from .values import class_statements as _class_statements
from .values import context_vars as _context_vars
from .values import contexts as _contexts
from .values import deferred as _deferred
from .values import deques as _deques
from .values import dict_objects as _dict_objects
from .values import enums as _enums
from .values import exceptions as _exceptions
from .values import functions as _functions
from .values import getters as _getters
from .values import hook_handles as _hook_handles
from .values import inference as _inference
from .values import instances as _instances
from .values import library_flags as _library_flags
from .values import live_iterators as _live_iterators
from .values import made_modules as _made_modules
from .values import namedtuples as _namedtuples
from .values import namespaces as _namespaces
from .values import nn_module as _nn_module
from .values import numpy_ints as _numpy_ints
from .values import numpy_numbers as _numpy_numbers
from .values import profiled as _profiled
from .values import random_streams as _random_streams
from .values import scalars as _scalars
from .values import scripted as _scripted
from .values import tensor_hooks as _tensor_hooks
from .values import tensor_inputs as _tensor_inputs
from .values import threads as _threads
from .values import torch_function as _torch_function
from .values import weak_references as _weak_references

__all__ = ["MODULES"]

MODULES: tuple[ModuleType, ...] = (
    _autocast, _autograd_functions, _checkpointing, _checks, _clocks, _constructors, _containers,
    _copying, _counters, _differentiation, _distributions, _foreach, _functional_calls,
    _introspection, _iteration, _iterator_tools, _logs, _numbers, _objects, _operators, _ordering,
    _parameters,
    _impure_calls, _regular, _process_state, _seeds, _set_methods, _signatures, _statistics, _sums,
    _texts, _torch_calls, _transforms, _wrappers,
    _numpy_calls, _attributes, _calls, _comparisons, _container_opcodes, _control,
    _exception_opcodes, _function_opcodes, _imports, _intrinsics, _locals, _patterns, _stack,
    _with, _cached, _context_vars, _contexts, _deques, _dict_objects, _enums, _exceptions,
    _functions, _getters, _instances, _live_iterators, _made_modules, _namedtuples, _namespaces,
    _nn_module, _scalars, _tensor_hooks, _tensor_inputs, _torch_function, _gradients, _recurrent,
    _weak_references, _class_bodies, _class_statements, _attention, _optimizers, _threads,
    _torch_generators, _profiled, _random_streams, _scripted, _inference, _library_flags,
    _hook_handles, _exit_stacks, _deferred, _spectral, _numpy_numbers, _numpy_ints, _nested,
)  # fmt: skip
