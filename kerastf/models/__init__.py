"""Models: one file per family, each a functional `keras.Model` whose constructor arguments are its configuration."""
