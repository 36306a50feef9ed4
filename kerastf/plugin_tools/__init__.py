"""A plugin's life: a new package, what is wrong with it, what is wrong with those installed, and stubs for editors."""
