"""Programs whose state changes between calls: nothing that a trace read may go stale."""
