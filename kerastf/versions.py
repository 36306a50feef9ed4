"""Which versions of Keras and TensorFlow were tried by what goes through their private parts."""

import functools
import warnings

TRIED = {"keras": "3.15", "tensorflow": "2.21"}


@functools.cache
def tried() -> bool:
    """Whether these versions run here. If not, shortcuts are left out: training takes longer and comes out the same."""
    import keras

    here = {"keras": keras.__version__}
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        here["tensorflow"] = tf.__version__
    other = {name: version for name, version in here.items() if version.rpartition(".")[0] != TRIED[name]}
    if other:
        warnings.warn(
            f"Shortcuts were tried with {' and '.join(f'{n} {TRIED[n]}' for n in other)}; this is "
            f"{' and '.join(f'{n} {v}' for n, v in other.items())}. They are left out: training takes longer.",
            stacklevel=2,
        )
    return not other
