"""Facts about operators: shapes, dtypes, layouts and what their kernels refuse."""
