"""bytecode: CPython 3.11-3.13 bytecode as data that can be read, analysed, edited and assembled.

    code --decode--> Body(instructions, regions) --flow, edits, build--> Body --assemble--> code

`instruction` defines the model, `versions` holds all differences between Pythons, `build` emits
instructions for the running one, `flow` and `loops` are the analyses, and `snapshot` and `stub` are
the frame hook's input and output. Pure Python, independent of torch.
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
from .instruction import Body, ExceptionRegion, Instruction, Position
from .loops import loops_in
from .show import show
from .shown import in_users_order, shown_as, with_signature
from .snapshot import FrameSnapshot
from .stub import call_stub
from .versions import RUNNING, Kind, VersionTable

__all__ = [
    "RUNNING",
    "Block",
    "Body",
    "ExceptionRegion",
    "FrameSnapshot",
    "Instruction",
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
