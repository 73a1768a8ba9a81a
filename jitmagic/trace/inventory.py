"""Imports every module that registers values, builtins or opcodes.

A new module of values/, builtins/ or opcodes/ gets its line here, and no other registration.
"""

from __future__ import annotations

from types import ModuleType

from .builtins.python import clocks as _clocks
from .builtins.python import constructors as _constructors
from .builtins.python import containers as _containers
from .builtins.python import copying as _copying
from .builtins.python import counters as _counters
from .builtins.python import exit_stacks as _exit_stacks
from .builtins.python import impure_calls as _impure_calls
from .builtins.python import introspection as _introspection
from .builtins.python import iteration as _iteration
from .builtins.python import iterator_tools as _iterator_tools
from .builtins.python import logs as _logs
from .builtins.python import numbers as _numbers
from .builtins.python import objects as _objects
from .builtins.python import operators as _operators
from .builtins.python import ordering as _ordering
from .builtins.python import patterns as _regular
from .builtins.python import set_methods as _set_methods
from .builtins.python import signatures as _signatures
from .builtins.python import sums as _sums
from .builtins.python import texts as _texts
from .builtins.python import wrappers as _wrappers
from .builtins.pytorch import attention as _attention
from .builtins.pytorch import autocast as _autocast
from .builtins.pytorch import autograd_functions as _autograd_functions
from .builtins.pytorch import checkpointing as _checkpointing
from .builtins.pytorch import checks as _checks
from .builtins.pytorch import differentiation as _differentiation
from .builtins.pytorch import distributions as _distributions
from .builtins.pytorch import foreach as _foreach
from .builtins.pytorch import functional_calls as _functional_calls
from .builtins.pytorch import generators as _torch_generators
from .builtins.pytorch import gradients as _gradients
from .builtins.pytorch import nested as _nested
from .builtins.pytorch import numpy_calls as _numpy_calls
from .builtins.pytorch import optimizers as _optimizers
from .builtins.pytorch import parameters as _parameters
from .builtins.pytorch import process_state as _process_state
from .builtins.pytorch import recurrent as _recurrent
from .builtins.pytorch import seeds as _seeds
from .builtins.pytorch import spectral as _spectral
from .builtins.pytorch import statistics as _statistics
from .builtins.pytorch import torch_calls as _torch_calls
from .builtins.pytorch import transforms as _transforms
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
from .values.containers import deques as _deques
from .values.containers import dict_objects as _dict_objects
from .values.containers import getters as _getters
from .values.containers import live_iterators as _live_iterators
from .values.containers import namedtuples as _namedtuples
from .values.contexts import context_vars as _context_vars
from .values.contexts import contexts as _contexts
from .values.contexts import inference as _inference
from .values.contexts import random_streams as _random_streams
from .values.contexts import threads as _threads
from .values.contexts import torch_contexts as _torch_contexts
from .values.modules import hook_handles as _hook_handles
from .values.modules import new_modules as _made_modules
from .values.modules import nn_module as _nn_module
from .values.numbers import number as _number
from .values.numbers import residual_calls as _residual_calls
from .values.numpy import floats as _numpy_numbers
from .values.objects import class_statements as _class_statements
from .values.objects import enums as _enums
from .values.objects import exceptions as _exceptions
from .values.objects import functions as _functions
from .values.objects import instances as _instances
from .values.objects import lru_cache as _lru_cache
from .values.objects import namespaces as _namespaces
from .values.objects import torchscript as _torchscript
from .values.objects import weak_references as _weak_references
from .values.tensors import tensor_hooks as _tensor_hooks
from .values.tensors import tensor_inputs as _tensor_inputs
from .values.tensors import torch_function as _torch_function

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
    _with, _lru_cache, _context_vars, _contexts, _deques, _dict_objects, _enums, _exceptions,
    _functions, _getters, _instances, _live_iterators, _made_modules, _namedtuples, _namespaces,
    _nn_module, _number, _tensor_hooks, _tensor_inputs, _torch_function, _gradients, _recurrent,
    _weak_references, _class_bodies, _class_statements, _attention, _optimizers, _threads,
    _torch_generators, _random_streams, _torchscript, _inference, _torch_contexts,
    _hook_handles, _exit_stacks, _residual_calls, _spectral, _numpy_numbers, _nested,
)  # fmt: skip
