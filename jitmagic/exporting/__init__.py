"""Exports what jitmagic captures: torch.export.ExportedProgram of a call, and back.

    export           the public function: example arguments -> ExportedProgram
      call             flat arguments, their names, what varies in them
      capture          trace and functional ATen graph, by the stages of a compile
        decompositions   the few operations that are replaced in it
      program          inputs, outputs and signature in torch's conventions
        graph            nodes with torch's fake tensors, and sizes as torch's symbols
        state            names of parameters, buffers and constants
        outputs          what the program returns, and the buffers that it assigns

torch.export itself, Dynamo and AOTAutograd trace nothing here: only the classes of the result are
torch's (compat/export.py, which alone imports them).
"""
