"""Every operator of torch's own database of samples (OpInfo), eager and compiled, compared.

    python -m tests.operators --samples 16 --dtypes float32,bfloat16,int64 --ways call,errors

runs as much of it as wanted; test_operators.py a part of each operator.
"""
