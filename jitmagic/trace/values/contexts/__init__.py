"""Context managers, thread state and random streams."""
