"""Describes types of devices by rows, which every stage asks instead of comparing names.

device      the row, the table of them, and `Target`: the facts of one machine that kernels need
cpu         the CPU, and the search for C++ compilers
cuda        NVIDIA GPUs
processors  those that `save` compiles for on another machine

`extend.register_device` adds a row for the device that a package gives to torch (PrivateUse1).
"""

from .cpu import CPU_ROW
from .cuda import CUDA_ROW
from .device import (
    AttentionFacts,
    Device,
    Target,
    add,
    all_rows,
    find_target,
    is_compiled,
    remove,
    row_of,
    weaker_target,
)
from .processors import GPUS, PROCESSORS, Gpu, Processor, compiling_for, counted_device

__all__ = [
    "CPU_ROW",
    "CUDA_ROW",
    "GPUS",
    "PROCESSORS",
    "AttentionFacts",
    "Device",
    "Gpu",
    "Processor",
    "Target",
    "add",
    "all_rows",
    "compiling_for",
    "counted_device",
    "find_target",
    "is_compiled",
    "remove",
    "row_of",
    "weaker_target",
]
