"""Every scalar operation has a line in every renderer, and one that is registered at run time gets
its lines from its expressions.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import torch

from jitmagic.codegen import cpp_text, numba_ops, render, triton_ops
from jitmagic.errors import UsageError
from jitmagic.loops.interp import run
from jitmagic.loops.lower import lower
from jitmagic.loops.registry import LOWERINGS, pointwise
from jitmagic.loops.values import compute
from jitmagic.operators import SCALARS
from jitmagic.operators.scalar import CannotRender, ScalarOperation, register, unregister
from jitmagic.options import Options
from jitmagic.schedule import schedule
from jitmagic.target import Target, find_target
from tests.kernel.building import CXX, INCLUDE
from tests.loops.recording import record
