"""The reasons for graph breaks, one class each, and the exception that carries them.

A handler or a value that cannot trace something raises `GraphBreak(reason)`, at any depth below
`Machine.run`. The machine then traces the frame again and ends before the root frame's instruction
during which it was raised. The failed attempt is thrown away, not rolled back, so raising is always
safe.

    raise GraphBreak(UnknownCFunction.of(name="numpy.dot"))

The other exceptions that leave a handler, `ObservedError` and `CannotRebuild`, are in
values/base.py.
"""

from __future__ import annotations

from typing import ClassVar, Self

from ..errors import UserLine
from .result import BreakReason

__all__ = [
    "ActiveMode",
    "BackwardRefused",
    "BodyRefused",
    "CachedCall",
    "CachedCast",
    "Construction",
    "DataDecidesSize",
    "DisabledFunction",
    "EscapingException",
    "FailedOperation",
    "FilledList",
    "Finalizer",
    "GraphBreak",
    "InlineTooDeep",
    "LoopIteration",
    "LoopIterator",
    "LoopOfBreaks",
    "ManyIterations",
    "MutatedGenerator",
    "MutatedInput",
    "NoMetaFunction",
    "NumpyCall",
    "OnlyUnsupportedTensors",
    "PlainCall",
    "PlainFunction",
    "PlainLoop",
    "PrintCall",
    "Reason",
    "RefusedTorchCall",
    "RolledLoop",
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
    "WeaklyReferenced",
    "WrappedModule",
]


class GraphBreak(Exception):
    """The instruction of the root frame being interpreted cannot be part of the graph."""

    def __init__(self, reason: BreakReason) -> None:
        super().__init__(reason.message)
        self.reason = reason
        self.where: UserLine | None = None  # set by the machine: the innermost user line
        self.mark = 0  # set by the machine: the number of guards before the instruction


class Reason(BreakReason):
    """A reason and its texts.

    `title` is the heading of its section in the docs, `template` says what happened, `explanation`
    why, and `advice` is a hint. `rests_on` says which facts must hold in a later call for the same
    break to happen there (`GuardBook.led_to`).
    """

    title: ClassVar[str]
    template: ClassVar[str]
    explanation: ClassVar[str]
    advice: ClassVar[str] = ""

    @classmethod
    def of(cls, **facts: object) -> Self:
        """Return the reason with its texts filled in."""
        return cls(cls.template.format(**facts), cls.advice.format(**facts))


class PrintCall(Reason):
    title = "Printing and other output"
    rests_on = "nothing"
    template = "{name}() writes output"
    explanation = "Output has to appear when the line runs, so the call runs as plain Python."
    advice = "move the output out of the compiled function, or accept the graph break"


class TensorItem(Reason):
    title = "Reading a number out of a tensor"
    template = "{what} turns tensor data into a Python value"
    explanation = "The value is known only when the kernels have run, so the graph ends before it."
    advice = "keep the value in a tensor (torch.where, tensor arithmetic)"


class NoMetaFunction(TensorItem):
    title = "An operation without a meta function"
    template = "{what} needs tensor data: torch has no meta function for it"
    explanation = (
        "A graph needs the shapes and dtypes of results before kernels run. Conversions to sparse, "
        "quantised and oneDNN tensors are of this kind."
    )
    advice = "call it outside of the compiled function, or accept the graph break"


class TensorBranch(Reason):
    title = "A branch that depends on tensor values"
    template = "a branch depends on tensor data ({what})"
    explanation = "The branch to take is known only when the kernels have run."
    advice = "use torch.where, or branch on shapes and Python values"


class DataDecidesSize(Reason):
    title = "A size that depends on tensor values"
    template = "this depends on a data-dependent size ({what}): {why}"
    explanation = "The size of a result of nonzero or x[mask] is known only when it has run."
    advice = "use torch.where or a padded size, or read the size outside of the function"


class UnbackedSize(Reason):
    title = "A decision about a size that is marked unbacked"
    template = "this depends on {size}, which is marked unbacked: {why}"
    explanation = "No branch or shape may depend on a dimension that mark_unbacked names."
    advice = "use jitmagic.mark_dynamic, which guards such decisions, or keep the branch outside"


class UnknownCFunction(Reason):
    title = "A function written in C"
    template = "{name} is implemented in C and jitmagic does not know it"
    explanation = "The reads and writes of a C function cannot be seen in bytecode."
    advice = "call it outside the compiled function, or accept the graph break"


class StatefulCall(Reason):
    title = "A function whose result differs at each call"
    rests_on = "nothing"
    template = "{name}() has a result that differs from call to call"
    explanation = "Addresses, clocks, random numbers and frames cannot be baked into a trace."
    advice = "compute it outside and pass it in"


class UnknownObject(Reason):
    title = "An object of an unknown type"
    template = "{what} of an object of type {type}"
    explanation = "The type is written in C, or overrides Python protocols in an unsupported way."
    advice = "read the values you need from it before the call"


class UnsupportedAttribute(Reason):
    title = "An attribute that is not supported"
    template = "attribute {name!r} of {type} is not supported"
    explanation = "Its descriptor is implemented in C and jitmagic does not know what it reads."
    advice = "read the attribute outside the compiled function"


class UnsupportedOperation(Reason):
    title = "An operation that is not supported for these types"
    template = "{what} is not supported for {types}"
    explanation = "No rule defines the result of this operation for these operands."


class UnsupportedArguments(Reason):
    title = "A call that is not supported with these arguments"
    rests_on = "values"
    template = "{name}() with these arguments is not supported: {what}"
    explanation = "The call is known in general but not in this form."


class UnsupportedOpcode(Reason):
    title = "A statement that is not compiled"
    rests_on = "nothing"
    template = "{opcode}: {why}"
    explanation = "The tracer has no handler for this instruction."
    advice = "move this statement out of the compiled function"


class UnsupportedTensor(Reason):
    title = "A kind of tensor that graphs do not take"
    template = "a tensor that cannot be a graph input: {what}"
    explanation = (
        "Sparse, quantized, nested and functorch-wrapped tensors run as eager, and so do "
        "subclasses that cannot be taken apart."
    )


class OnlyUnsupportedTensors(UnsupportedTensor):
    title = "A call whose tensors are all of an unsupported kind"
    spreads = True
    explanation = (
        "All tensors that the function was called with are of a kind that graphs do not take, so "
        "it runs as eager. Functions that it calls with other tensors are compiled."
    )


class TorchCallFailed(Reason):
    title = "A torch call that raises"
    expected = True
    rests_on = "values"
    template = "{name} would raise {error}"
    explanation = "The call runs as plain Python, so that the error comes with its own traceback."


class CachedCast(Reason):
    title = "A cast that autocast has cached"
    whole_frame = True  # after a cut, the casts that eager has cached by then would be missing
    rests_on = "values"
    template = "{name}() computes with a cast that autocast has cached: {what}"
    explanation = "Eager caches the cast of a leaf until the outermost block of autocast ends."
    advice = "leave torch.autocast before its dtype, or the leaf, changes"


class TransformedTensor(Reason):
    title = "A dual tensor from outside"
    whole_frame = True
    template = "it is called with a tensor of a level that the caller has entered: {what}"
    explanation = "Graphs do not know the tangents of such a tensor, so torch runs the call."
    advice = "enter the level in the tagged function, or apply torch.func.jvp to it"


class Finalizer(Reason):
    title = "An object with a finalizer"
    template = "an object made here has a finalizer: {what}"
    explanation = "Python makes it and drops it, so that the finalizer runs when it does in eager."
    advice = "make the object outside of the compiled function"


class WeaklyReferenced(Finalizer):
    title = "A weak reference to a new object"
    whole_frame = True  # a graph may drop the object that is referred to, which eager makes
    explanation = "A graph would not make the object, or would keep it alive across a graph break."


class ActiveMode(Reason):
    title = "A torch function or dispatch mode"
    rests_on = "nothing"  # the GlobalState guard covers it
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
    template = "{name}() stores its results in a cache, and {why}"
    explanation = "The function is traced where its result cannot differ from that in the cache."
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
    explanation = "A half-consumed generator cannot be rebuilt, so plain Python makes it."
    advice = "use a list or tuple there"


class LoopIterator(Reason):
    title = "A loop over an iterator made earlier"
    template = "the loop runs over an iterator made before this graph ({type})"
    explanation = "Only Python can advance it; every iteration is compiled by itself."
    advice = "avoid the graph break inside the loop, and the loop becomes one graph"


class RolledLoop(Reason):
    title = "A loop whose length changes"
    rests_on = "nothing"
    # No guards on the facts that led here: they would fix the trip count.
    template = "the trip count of this loop varies ({what})"
    explanation = "Python runs the loop, and one compiled iteration serves any number of them."
    advice = "write it without a loop over that, or pad to one length; fullgraph=True unrolls it"


class LoopIteration(RolledLoop):
    title = "One iteration of a loop that Python runs"
    expected = True  # the break that rolled the loop has been reported
    template = "Python runs this loop: one compiled iteration serves any number of them"
    explanation = "The code before and after the loop is compiled as well."
    advice = ""


class PlainLoop(Reason):
    title = "A long loop without tensor work"
    rests_on = "nothing"
    whole_loop = True
    hooks_callees = False  # a hooked call costs more, and compiling the callees would gain nothing
    template = "this loop has many iterations without tensor work"
    explanation = "Python runs the whole loop; the code before and after it is compiled."
    advice = "compute it outside of the compiled function; fullgraph=True unrolls it"


class LoopOfBreaks(PlainLoop):
    title = "A loop of graph breaks"
    hooks_callees = True
    template = "the iterations of this loop record nothing between their graph breaks"
    explanation = "Python runs the whole loop; its callees and the code after it are compiled."


class PlainCall(Reason):
    title = "A call that runs for long without tensor work"
    rests_on = "nothing"
    template = "a part of {name}() runs for long without tensor work"
    explanation = "It is compiled by itself instead of inlined, and that part is left to Python."
    advice = "call it outside of the compiled function, or accept the graph break"


class PlainFunction(PlainCall):
    title = "A recursive function without tensor work"
    hooks_callees = False
    template = "{name}() runs for long without tensor work"
    explanation = "Python runs calls that would add nothing to the graph."


class TrainingLoop(RolledLoop):
    title = "A training loop"
    expected = True
    template = "Python runs this loop: each iteration computes gradients"
    explanation = "One compiled iteration serves all. Unrolled, each would have its own kernels."
    advice = ""


class FilledList(Reason):
    title = "A list filled by a loop whose length changes"
    rests_on = "nothing"
    template = "the length of this list varies: a loop of varying length filled it"
    explanation = "Plain Python reads it, and computations on its items are compiled again."
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
    explanation = "Loops are unrolled; a very long one would make a huge graph."
    advice = "raise unroll_limit, or vectorise the loop"


class ManyIterations(Reason):
    title = "A long loop of small operations"
    rests_on = "nothing"
    template = "Python runs this loop of many small iterations, one compiled iteration at a time"
    explanation = "Unrolling it into a graph would take longer than 2 s to compile."
    advice = "compute it on whole tensors, or accept the graph break"


class TooManyResults(Reason):
    title = "A call with very many results"
    whole_frame = True
    template = "{name} returns {count} tensors"
    # 52,001 rows of a column did not compile in two minutes: a result takes 1 to 2 ms.
    explanation = "Each is a node of the graph, and a later graph would guard each of them."
    advice = "compute with the whole tensor, or raise unroll_limit"


class TooManyItems(Reason):
    title = "Containers too large to rebuild"
    whole_frame = plain_rest = True
    template = "the containers that outlive the frame have more than {limit} items"
    explanation = "Compiled code makes and fills containers item by item."
    advice = "use a tensor or an array, or raise unroll_limit"


class InlineTooDeep(Reason):
    title = "Calls nested too deep"
    rests_on = "nothing"
    template = "calls nest deeper than {limit} levels"
    explanation = "Calls are inlined; recursion this deep would make a huge graph."
    advice = "raise inline_depth, or compile the inner function by itself"


class Construction(Reason):
    title = "Making modules and parameters"
    expected = True
    template = "{what}: such modules and parameters are made outside of graphs"
    explanation = "Plain Python makes them; later computations with them are compiled."
    advice = "make it once, outside of code that is called often"


class RefusedTorchCall(Reason):
    title = "A torch call that stays outside of graphs"
    template = "{name}() stays outside of graphs: {why}"
    explanation = "Only operations on tensors and plain values are recorded; this one does more."
    advice = "call it outside the compiled function, or accept the graph break"


class WrappedModule(RefusedTorchCall):
    title = "A module that communicates around another"
    expected = True
    template = "{name}.forward() stays outside of graphs; the module that it wraps is compiled"
    explanation = "It starts communication, and prepares the backward to."
    advice = ""


class NumpyCall(Reason):
    title = "A numpy call that stays outside of graphs"
    template = "{name} stays outside of graphs: {why}"
    explanation = "numpy is compiled where torch's emulation was verified to give the same results."
    advice = "use the function of torch, or accept the graph break"


class StateSet(Reason):
    title = "Changing the state of the process"
    rests_on = "nothing"
    template = "{name} is set, which changes the state of the process"
    explanation = "Earlier reads of it, and operations that depend on it, are in the graph."
    advice = "set it outside the compiled function, or accept the graph break"


class BackwardRefused(Reason):
    title = "A backward that is not supported"
    template = "the backward of {name} is not supported: {why}"
    explanation = "A call of an autograd function is one node, whose backward is a graph as well."
    advice = "compute it from the gradients and saved tensors alone"


class TransformRefused(Reason):
    title = "A function under a transform that is not supported"
    template = "the function under {name} is not supported: {why}"
    explanation = "A transform of torch.func is one node over the graph of the function."
    advice = "compute it from the arguments alone and return the result"


class BodyRefused(Reason):
    title = "A branch or loop body that is not supported"
    hooks_callees = False  # torch.compile compiles them there
    template = "a function that {name} takes is not supported: {why}"
    explanation = "A control-flow operator of torch is one node over the graphs of its functions."
    advice = "compute new tensors of the same shapes and dtypes from its arguments alone"


class FailedOperation(Reason):
    title = "An operation that could not be compiled"
    rests_on = "nothing"
    template = "{name}() could not be compiled: {why}"
    explanation = "A later stage refuses it, so it runs as plain Python."
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
