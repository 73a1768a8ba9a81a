"""Records tensor operations and runs them later as one compiled graph: `with jitmagic.lazy():`.

For code that cannot be tagged. Operations inside the block are recorded; when a value is needed,
they are written as a Python function, which is tagged and called. So they are compiled by
jitmagic's own stages, once for each record: the second time nothing is traced or compiled, nor in
the next process, which finds it on disk.

**How an operation is seen.** Inside the block the dispatch key `Fake` is on in this thread. torch
registers nothing under it, and it is below autograd and above all kernels, so one C++ fallback
(`extensions/lazy/`) gets every ATen call, of forward and backward alike: autograd's own nodes hold
pending tensors, and `loss.backward()` is recorded like any other code. An operation costs 1.0 to
1.7 us, recording, looking up and launching included: between 0.7 and 1.7 times eager's own call
(`python -m tests.bench.lazy`). A TorchDispatchMode would take 10 us.

**What a pending tensor is.** A plain torch.Tensor whose shape, strides, dtype and device are known
and whose storage has no bytes yet. All code reaches memory through two virtual functions of its C++
class: `storage`, and `has_storage`, which every data pointer asks first. Both compute the tensor
before they answer. So numpy(), tolist(), data_ptr(), untyped_storage(), pickle and extensions work,
also outside of the block and in other threads. A computed tensor is ordinary in all respects.

**Shapes** are inferred by the rules for traced calls (inference.py), cached by operator, arguments
and layouts. If eager's kernel would raise, the call runs at once on real tensors, so that errors
are eager's, on the line that made them.

**Numbers and sizes.** Records that differ only in Python numbers, or in sizes and strides, share a
function. The first graph has all numbers as constants. If a record with other ones comes, these
become arguments of a second function (compiled.cpp), and the machinery of tagged functions does the
rest: floats are inputs with the type promotion of numbers, sizes and ints are constants until they
differ again, and symbols from then on. Bounds: 8 functions for a record, 8 variants of each; beyond
those, operations run one by one. After 32 records that never came again, a record is compiled at
its second run.

**What is recorded.** Operators of ATen that return new tensors, views of pending tensors, and
writes to pending tensors. The record has them in the order of the program, with writes and views;
the joint graph makes that functional. The outputs of the graph are the final contents of each
memory that is still referenced, so views and aliases need nothing more. Inputs are never written.

**What runs at once**, after what it needs has been computed:

- what needs values: `item`, `bool`, control flow, `nonzero`, printing
- writes to memory that exists already (parameters, buffers, an optimizer's state): other code may
  see it at any time. What is recorded and still reads that memory is computed before.
- random operations, in the order of the program: seeding is no operation, so a draw that waits
  could use another seed. Masks of dropout are inputs of the graph.
- views of real tensors, which cost nothing; `empty`, which allocates
- transfers between devices, complex numbers, tensor subclasses, operators outside of ATen
- reads of memory that is shared with NumPy or other processes: they are recorded, and everything
  is computed right after

Everything is computed when the block ends, also if it ends by an exception, by
`jitmagic.lazy.flush()`, and after 1,024 operations. A tagged function that is called in a block is
recorded with the rest. Memory that code writes behind torch's back (through a raw address, while an
operation that reads it is pending) is the one thing that cannot be noticed.

**Errors.** What only the data decide (an index out of range) is raised where the values are
computed. The operations then run one by one, so results before the faulty one are there, and the
message names the line that recorded it. Results after it raise the same error when they are read.

    block      the context manager and its state
    inference  shapes of a call's results
    program    a recorded batch as a Python function
    compiling  the tagged function of a batch, and its compiles
"""

from .block import Counts, PendingCall, PendingCalls, lazy

__all__ = ["Counts", "PendingCall", "PendingCalls", "lazy"]
