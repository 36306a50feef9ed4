"""Blocks: one file per kind. They are reached by name through the registry, or imported from their file."""
