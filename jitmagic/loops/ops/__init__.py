"""Lowerings by family; a module is imported when one of its operators is lowered."""
