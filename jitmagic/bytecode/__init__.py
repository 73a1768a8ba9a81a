"""bytecode: CPython 3.11-3.13 bytecode as data that can be read, analysed, edited and assembled.

    code --decode--> Body(instructions, regions) --flow, edits, build--> Body --assemble--> code

Pure Python, independent of torch.

    instruction               the model: Instruction, ExceptionRegion, Body
    decode, assemble          a code object to a Body and back
    build                     emits instructions for the running Python
    versions/                 everything that differs between CPython versions, as tables

    flow, loops               control flow, stack depths, liveness; natural loops
    suspension                pieces of generators and coroutines between suspension points
    line_table                encodes and parses co_linetable
    exceptions_table          encodes and parses co_exceptiontable
    snapshot, stub            a call about to begin; the code that forwards a call to a dispatcher
    show                      readable listings
    user_signature            the user's signature on frames of generated code in tracebacks
"""

from __future__ import annotations

from . import build
from .assemble import assemble
from .decode import decode
from .flow import (
    Block,
    basic_blocks,
    drop_unreachable,
    live_locals,
    liveness,
    reachable,
    secure_loads,
    stack_depths,
    successors,
)
from .instruction import Body, ExceptionRegion, Instruction, Intrinsic, Position
from .loops import loops_in
from .show import show
from .snapshot import FrameSnapshot
from .stub import call_stub
from .user_signature import in_users_order, shown_as, with_signature
from .versions import RUNNING, Kind, VersionTable

__all__ = [
    "RUNNING",
    "Block",
    "Body",
    "ExceptionRegion",
    "FrameSnapshot",
    "Instruction",
    "Intrinsic",
    "Kind",
    "Position",
    "VersionTable",
    "assemble",
    "basic_blocks",
    "build",
    "call_stub",
    "decode",
    "drop_unreachable",
    "in_users_order",
    "live_locals",
    "liveness",
    "loops_in",
    "reachable",
    "secure_loads",
    "show",
    "shown_as",
    "stack_depths",
    "successors",
    "with_signature",
]
