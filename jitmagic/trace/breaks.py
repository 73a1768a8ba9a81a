"""Why a trace ends: one class per reason, and the exceptions that carry a way out of the machine.

Comes in: whatever a handler or a value found it cannot follow.  Goes out: `GraphBreak(reason)`,
raised anywhere below `Machine.run`; the machine restarts the trace and ends it before the
instruction of the root frame that led there. Nothing needs to be rolled back, so raising is always
safe.

    raise GraphBreak(UnknownCFunction.of(name="numpy.dot"))

The other ways out of a handler, `ObservedError` and `Unrestorable`, are about values:
values/base.py.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from ..errors import UserLine
from .result import BreakReason

__all__ = [
    "ActiveMode",
    "BackwardRefused",
    "CachedCall",
    "Construction",
    "DataDecidesSize",
    "DisabledFunction",
    "EscapingException",
    "FailedOperation",
    "FilledList",
    "GraphBreak",
    "InlineTooDeep",
    "KeptCast",
    "LoopIterator",
    "LoopOfBreaks",
    "ManyRounds",
    "Mortal",
    "MutatedGenerator",
    "MutatedInput",
    "NumpyCall",
    "OnlyUnsupportedTensors",
    "PlainCall",
    "PlainFunction",
    "PlainLoop",
    "PrintCall",
    "Reason",
    "ReferredWeakly",
    "RefusedTorchCall",
    "RolledLoop",
    "RoundOfLoop",
    "SharedNamespace",
    "StateSet",
    "StatefulCall",
    "TensorBranch",
    "TensorItem",
    "TooManyInstructions",
    "TooManyItems",
    "TooManyResults",
    "TorchCallFailed",
    "TrainingLoop",
    "TransformRefused",
    "TransformedTensor",
    "UnbackedSize",
    "UncertainStrides",
    "UnknownCFunction",
    "UnknownObject",
    "UnsupportedArguments",
    "UnsupportedAttribute",
    "UnsupportedOpcode",
    "UnsupportedOperation",
    "UnsupportedTensor",
    "UserGraphBreak",
]


class GraphBreak(Exception):
    """The instruction of the root frame being interpreted cannot be part of the graph."""

    def __init__(self, reason: BreakReason) -> None:
        super().__init__(reason.message)
        self.reason = reason
        self.where: UserLine | None = None  # set by the machine: the innermost user line
        self.mark = 0  # and how many guards there were before the instruction


class Reason(BreakReason):
    """A reason with its sentences: `title` (the heading of its section in the docs), `template`
    (what happened), `explanation` (why), `advice` (a hint), and with what a later call has to share
    to meet the same break (machine.py `_because`).
    """

    title: ClassVar[str]
    template: ClassVar[str]
    explanation: ClassVar[str]
    advice: ClassVar[str] = ""

    @classmethod
    def of(cls, **facts: Any) -> Self:
        """The reason with its sentences filled in."""
        return cls(cls.template.format(**facts), cls.advice.format(**facts))


class PrintCall(Reason):
    title = "Printing and other output"
    rests_on = "nothing"
    template = "{name}() writes to the outside"
    explanation = "Output has to appear when the line runs, so the call runs as plain Python."
    advice = "move the output out of the compiled function, or accept the graph break"


class TensorItem(Reason):
    title = "Reading a number out of a tensor"
    template = "{what} turns tensor data into a Python value"
    explanation = "The value is known only when the kernels have run, so the graph ends before it."
    advice = "keep the value in a tensor (torch.where, tensor arithmetic)"


class TensorBranch(Reason):
    title = "A branch that depends on tensor values"
    template = "a branch depends on tensor data ({what})"
    explanation = "Which way to go is known only when the kernels have run."
    advice = "use torch.where, or branch on shapes and Python values"


class DataDecidesSize(Reason):
    title = "A size that depends on tensor values"
    template = "this depends on a size that data decide ({what}): {why}"
    explanation = "How large a result of nonzero or x[mask] is, is known only when it has run."
    advice = "use torch.where or a padded size, or keep what asks for the size out of the function"


class UnbackedSize(Reason):
    title = "A decision about a size that is marked unbacked"
    template = "this depends on {size}, which is marked unbacked: {why}"
    explanation = "Nothing is decided by a dimension that mark_unbacked names."
    advice = "use jitmagic.mark_dynamic, which guards what is decided, or keep the branch outside"


class UnknownCFunction(Reason):
    title = "A function written in C"
    template = "{name} is implemented in C and jitmagic does not know it"
    explanation = "What a C function reads and changes cannot be seen in bytecode."
    advice = "call it outside the compiled function, or accept the graph break"


class StatefulCall(Reason):
    title = "A function with another result at each call"
    rests_on = "nothing"
    template = "{name}() has a result that differs from call to call"
    explanation = "Addresses, clocks, random numbers and frames cannot be baked into a trace."
    advice = "compute it outside and pass it in"


class SharedNamespace(Reason):
    title = "A dictionary that also holds attributes or globals"
    rests_on = "nothing"
    template = "a dictionary is changed that also holds attributes or globals which are used"
    explanation = "Changes made through a dictionary are not seen by reads of attributes, nor back."
    advice = "use getattr and setattr, or the dictionary alone"


class UnknownObject(Reason):
    title = "An object of an unknown type"
    template = "{what} of an object of type {type}"
    explanation = (
        "The type is implemented in C or overrides Python protocols in a way not modelled."
    )
    advice = "unpack what you need from it before the call"


class UnsupportedAttribute(Reason):
    title = "An attribute that is not followed"
    template = "attribute {name!r} of {type} is not followed"
    explanation = "Its descriptor is implemented in C and jitmagic does not know what it reads."
    advice = "read the attribute outside the compiled function"


class UnsupportedOperation(Reason):
    title = "An operation between these types"
    template = "{what} is not followed for {types}"
    explanation = "No rule says what this operation gives for these operands."


class UnsupportedArguments(Reason):
    title = "A call with these arguments"
    rests_on = "values"
    template = "{name}() with these arguments is not followed: {what}"
    explanation = "The call is known in general but not in this form."


class UnsupportedOpcode(Reason):
    title = "A statement that is not compiled"
    rests_on = "nothing"
    template = "{opcode}: {why}"
    explanation = "The instruction has no symbolic meaning here."
    advice = "move this statement out of the compiled function"


class UnsupportedTensor(Reason):
    title = "A kind of tensor that graphs do not take"
    template = "a tensor that cannot be a graph input: {what}"
    explanation = "Sparse, quantized, functorch-wrapped and subclassed tensors run as eager."


class OnlyUnsupportedTensors(UnsupportedTensor):
    title = "A call whose tensors are all of such a kind"
    spreads = True
    explanation = (
        "All tensors that the function was called with are of such a kind, and so is what it "
        "computes from them: it runs as eager, what it calls with other tensors is compiled."
    )


class TorchCallFailed(Reason):
    title = "A torch call that raises"
    expected = True
    rests_on = "values"
    template = "{name} would raise {error}"
    explanation = "The call runs as plain Python, so that the error comes with its own traceback."


class KeptCast(Reason):
    title = "A cast that autocast has cached"
    whole_frame = True  # behind a cut the casts that eager has by then would be missing
    rests_on = "values"
    template = "{name}() computes with a cast that autocast has kept: {what}"
    explanation = "Eager keeps the cast of a leaf until the outermost block of autocast ends."
    advice = "leave torch.autocast before its dtype, or the leaf, changes"


class TransformedTensor(Reason):
    title = "A call under vmap, grad or jvp"
    whole_frame = True
    template = "it is called under a function transform or forward-mode differentiation: {what}"
    explanation = "Graphs know neither vmap's batches nor the tangents of jvp, so torch runs it."
    advice = "tag what calls no transform; plain calls of this function are compiled"


class Mortal(Reason):
    title = "An object with a finalizer"
    template = "an object made here tells when it dies: {what}"
    explanation = "Python makes it, and lets go of it where the program does."
    advice = "make the object outside of the compiled function"


class ReferredWeakly(Mortal):
    title = "A weak reference to a new object"
    whole_frame = True  # not only its own end is seen: what a graph need not make was never there
    explanation = "Objects that a graph needs no more are not made, those at a graph break live on."


class ActiveMode(Reason):
    title = "A torch function or dispatch mode"
    rests_on = "nothing"  # the guard of torch's state says it
    whole_frame = True
    template = "a torch function mode or dispatch mode is active"
    explanation = "A mode has to see every operation of the program, one by one."
    advice = "calls without the mode are compiled"


class UserGraphBreak(Reason):
    title = "A graph break that you asked for"
    expected = True
    rests_on = "nothing"
    template = "jitmagic.graph_break() was called"
    explanation = "The program asked for it."


class CachedCall(Reason):
    title = "A function with functools.lru_cache"
    template = "{name}() keeps its results in a cache, and {why}"
    explanation = (
        "The function is followed where its result cannot differ from what is in the cache."
    )
    advice = "call it outside the compiled function, or accept the graph break"


class DisabledFunction(Reason):
    title = "A function excluded from compilation"
    expected = True
    rests_on = "nothing"
    template = "{name} is excluded from compilation by {by}.disable{because}"
    explanation = "The program asked for it to run as plain Python."


class MutatedGenerator(Reason):
    title = "A generator in use at a break"
    rests_on = "nothing"
    template = "{what} is alive at a graph break{cause}"
    explanation = (
        "A half-consumed generator or iterator cannot be rebuilt, so it is made by plain Python."
    )
    advice = "use a list or tuple there"


class LoopIterator(Reason):
    title = "A loop over an iterator made earlier"
    template = "the loop runs over an iterator made before this graph ({type})"
    explanation = "Only Python can advance it; every iteration is compiled by itself."
    advice = "avoid the graph break inside the loop, and the loop becomes one graph"


class RolledLoop(Reason):
    title = "A loop whose length changes"
    rests_on = "nothing"
    template = "how often this loop runs varies ({what})"
    explanation = (
        "Python runs the loop, and one round of it is compiled, which serves any number of them."
    )
    advice = "write it without a loop over that, or pad to one length; fullgraph=True unrolls it"


class RoundOfLoop(RolledLoop):
    title = "One round of a loop that Python runs"
    expected = True  # the break that rolled the loop has been reported
    template = "Python runs this loop: one compiled round of it serves any number of them"
    explanation = "What comes before the loop and behind it is compiled as well."
    advice = ""


class PlainLoop(Reason):
    title = "A long loop without tensor work"
    rests_on = "nothing"
    whole_loop = True
    hooks_callees = False  # a hooked call costs more, and the rounds seen would not gain by it
    template = "the rounds of this loop are plain Python, and they are many"
    explanation = "Python runs the whole loop; what comes before it and behind it is compiled."
    advice = "compute it outside of the compiled function; fullgraph=True unrolls it"


class LoopOfBreaks(PlainLoop):
    title = "A loop of graph breaks"
    hooks_callees = True
    template = "the rounds of this loop record nothing between their graph breaks"
    explanation = "Python runs the whole loop, what it calls is compiled; so is what follows."


class PlainCall(Reason):
    title = "A call that runs for long without tensor work"
    rests_on = "nothing"
    template = "a part of {name}() runs for long without tensor work"
    explanation = "It is not inlined, but compiled by itself, and that part is left to Python."
    advice = "call it outside of the compiled function, or accept the graph break"


class PlainFunction(PlainCall):
    title = "A recursive function without tensor work"
    hooks_callees = False
    template = "{name}() runs for long without tensor work"
    explanation = "Calls are inlined to be part of a graph; Python runs what would add nothing."


class TrainingLoop(RolledLoop):
    title = "A training loop"
    expected = True
    template = "Python runs this loop: each round computes gradients"
    explanation = "One compiled round serves all rounds. Unrolled, each would have its own kernels."
    advice = ""


class FilledList(Reason):
    title = "A list filled by a loop whose length changes"
    rests_on = "nothing"
    template = "how many items this list has varies: a loop of varying length filled it"
    explanation = "Plain Python reads it, and what is computed of its items is compiled again."
    advice = "write to a tensor made before the loop, instead of to a list"


class EscapingException(Reason):
    title = "An exception that leaves the function"
    expected = True
    rests_on = "values"
    template = "{error} is raised here and leaves the function"
    explanation = "It is raised by plain Python, so that it comes with its own traceback."


class TooManyInstructions(Reason):
    title = "A trace that is too long"
    rests_on = "nothing"
    template = "more than {limit} instructions in one trace"
    explanation = "Loops are unrolled; a very long one would give a huge graph."
    advice = "raise unroll_limit, or vectorise the loop"


class ManyRounds(Reason):
    title = "A long loop of small operations"
    rests_on = "nothing"
    template = "a loop of many small rounds is run by Python, which calls one compiled round"
    explanation = "Loops are unrolled; compiling this one would take longer than 2 s."
    advice = "compute it on whole tensors, or accept the graph break"


class TooManyResults(Reason):
    title = "A call with very many results"
    whole_frame = True
    template = "{name} gives {count} tensors"
    explanation = "Each is a node of the graph, and a later graph would guard each of them."
    advice = "compute with the whole tensor, or raise unroll_limit"


class TooManyItems(Reason):
    title = "Containers too large to rebuild"
    whole_frame = plain_rest = True
    template = "the containers that the frame leaves behind have more than {limit} items"
    explanation = "Compiled code makes and fills containers item by item."
    advice = "use a tensor or an array, or raise unroll_limit"


class InlineTooDeep(Reason):
    title = "Calls nested too deep"
    rests_on = "nothing"
    template = "calls nest deeper than {limit} levels"
    explanation = "Calls are inlined; recursion this deep would give a huge graph."
    advice = "raise inline_depth, or compile the inner function by itself"


class Construction(Reason):
    title = "Making modules and parameters"
    expected = True
    template = "{what}: such modules and parameters are made outside of graphs"
    explanation = "Plain Python makes them; what computes with them behind that is compiled."
    advice = "make it once, outside of what is called often"


class RefusedTorchCall(Reason):
    title = "A torch call that stays outside of graphs"
    template = "{name}() stays outside of graphs: {why}"
    explanation = "Only operations on tensors and plain values are recorded; this one does more."
    advice = "call it outside the compiled function, or accept the graph break"


class NumpyCall(Reason):
    title = "A numpy call that stays outside of graphs"
    template = "{name} stays outside of graphs: {why}"
    explanation = "numpy is followed where torch's emulation of it was seen to give the same."
    advice = "use the function of torch, or accept the graph break"


class StateSet(Reason):
    title = "Changing the state of the process"
    rests_on = "nothing"
    template = "{name} is set, which changes the state of the process"
    explanation = "What was read of it before, and operations that depend on it, are in the graph."
    advice = "set it outside the compiled function, or accept the graph break"


class BackwardRefused(Reason):
    title = "A backward that is not followed"
    template = "the backward of {name} is not followed: {why}"
    explanation = "A call of an autograd function is one node, whose backward is a graph as well."
    advice = "compute it from the gradients and saved tensors alone"


class TransformRefused(Reason):
    title = "A function under a transform that is not followed"
    template = "the function under {name} is not followed: {why}"
    explanation = "A transform of torch.func is one node over the graph of the function."
    advice = "compute it from the arguments alone and return what it gives"


class FailedOperation(Reason):
    title = "An operation that could not be compiled"
    rests_on = "nothing"
    template = "{name}() could not be compiled: {why}"
    explanation = "A stage behind the trace refuses it, so it runs as plain Python."
    advice = "write it with other operations, or accept the graph break"


class MutatedInput(Reason):
    title = "A write to a tensor from outside"
    template = "an in-place write to a tensor from outside that cannot be replayed: {why}"
    explanation = "Such a write changes autograd or aliasing beyond the values of one tensor."
    advice = "write to a tensor made inside, or return the new value"


class UncertainStrides(Reason):
    title = "A layout that only the kernel knows"
    template = "{what} of a tensor whose layout the kernel chooses"
    explanation = "Convolution, attention and linear algebra kernels choose the strides of results."
    advice = "call .contiguous() first"
