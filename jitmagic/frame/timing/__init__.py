"""Times compiled code against eager during a variant's first calls and keeps the faster."""
