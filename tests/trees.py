"""What Keras and TensorFlow know of a layer."""


def tracked(layer):
    """The tree of a layer's parts, weights and seeds, and of what TensorFlow would save of it."""
    own = {k: type(v).__name__ for k, v in layer._trackable_children().items() if not k.startswith("_")}
    parts = {p.name: tracked(p) for p in layer._layers}
    held = [(v.path, tuple(v.shape), v.dtype, v.trainable) for v in layer._trainable_variables]
    return own, held, layer.path, [s.state.path for s in layer._seed_generators], parts
