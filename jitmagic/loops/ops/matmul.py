"""matmul."""
