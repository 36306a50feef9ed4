"""Pictures. matplotlib is imported when a picture is drawn: `pip install kerastf[plots]`."""

from pathlib import Path

import numpy as np

from kerastf.checkpoint import atomic
from kerastf.errors import InputError


def _pyplot():
    try:
        import matplotlib
    except ImportError:
        raise ImportError("Pictures need matplotlib: pip install 'kerastf[plots]'") from None
    matplotlib.use("Agg", force=False)
    from matplotlib import pyplot

    return pyplot


def attention_map(weights, queries, keys=None, *, path=None, title="Attention"):
    """Draws attention weights as heat maps, one per head, with the tokens on both axes.

    Args:
        weights: `(T, S)` for one map, or `(H, T, S)` for one per head.
        queries: The T tokens that attend, as text; they stand on the vertical axis.
        keys: The S tokens attended to; by default the queries.
        path: Where to write a PNG, or None.
        title: Stands above.

    Returns:
        The matplotlib figure.
    """
    weights = np.asarray(weights, dtype="float32")
    weights = weights[None] if weights.ndim == 2 else weights
    keys = queries if keys is None else keys
    if weights.ndim != 3 or weights.shape[1:] != (len(queries), len(keys)):
        raise InputError(
            f"`weights` must be (T, S) or (H, T, S) for {len(queries)} queries and {len(keys)} keys. "
            f"Received: shape {weights.shape}"
        )
    pyplot = _pyplot()
    heads = weights.shape[0]
    columns = min(heads, 4)
    rows = -(-heads // columns)
    side = max(2.6, 0.2 * max(len(queries), len(keys)))
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(side * columns + 1, side * rows + 0.7), squeeze=False, layout="constrained"
    )
    for head, axis in enumerate(axes.flat):
        if head >= heads:
            axis.axis("off")
            continue
        picture = axis.imshow(weights[head], vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axis.set_xticks(range(len(keys)), [visible(k) for k in keys], fontsize=7, family="monospace")
        axis.set_yticks(range(len(queries)), [visible(q) for q in queries], fontsize=7, family="monospace")
        axis.set_xlabel("looks at")
        axis.set_ylabel("token" if head % columns == 0 else "")
        if heads > 1:
            axis.set_title(f"head {head}", fontsize=9)
    figure.colorbar(picture, ax=axes, shrink=0.8, label="weight")
    figure.suptitle(title)
    return _finish(figure, path)


def position_map(codes, *, path=None, title="Positions"):
    """Draws position codes as a heat map: positions down, channels across.

    Args:
        codes: `(T, C)`, such as `functional.sinusoids(ops.arange(64), 32)`.
        path: Where to write a PNG, or None.
        title: Stands above.

    Returns:
        The matplotlib figure.
    """
    codes = np.asarray(codes, dtype="float32")
    if codes.ndim != 2:
        raise InputError(f"`codes` must be (positions, channels). Received: shape {codes.shape}")
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    bound = max(float(np.abs(codes).max()), 1e-6)
    picture = axis.imshow(codes, cmap="RdBu", vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest")
    axis.set(xlabel="channel", ylabel="position", title=title)
    figure.colorbar(picture, ax=axis, label="value")
    return _finish(figure, path)


def curve(history, *, path=None, title="Training"):
    """Draws one line per metric of a `History.history` over the epochs."""
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, values in history.items():
        axis.plot(range(1, len(values) + 1), values, marker="o", label=name)
    axis.set(xlabel="epoch", title=title)
    axis.grid(alpha=0.3)
    axis.legend()
    return _finish(figure, path)


def gradient_by_distance(curves, *, path=None, title="How far back the gradient reaches"):
    """Draws the norm of the gradient of the last output by the distance of the input, one line per cell.

    Args:
        curves: By name: norms by distance, as `kerastf.blocks.recurrent.gradient_by_distance` gives them.
        path: Where to write a PNG, or None.
        title: Stands above.

    Returns:
        The matplotlib figure.
    """
    if not curves:
        raise InputError(f"`curves` needs at least one cell. Received: curves={curves!r}")
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for name, norms in curves.items():
        norms = np.asarray(norms, dtype="float64")
        axis.plot(np.where(norms > 0, norms, np.nan), label=name)  # a logarithm has no zero
    axis.set(xlabel="distance T - t", ylabel="norm of d h_T / d x_t", title=title, yscale="log")
    axis.grid(alpha=0.3)
    axis.legend()
    return _finish(figure, path)


def projection(vectors, groups, *, labels=None, path=None, title="Vectors in two dimensions"):
    """Draws vectors as points in the plane of their two widest directions (principal components), coloured by group.

    Args:
        vectors: `(N, C)`.
        groups: The group of each vector, as text; each has its own colour and sign.
        labels: A text beside each point, or None.
        path: Where to write a PNG, or None.
        title: Stands above.

    Returns:
        The matplotlib figure.
    """
    vectors = np.asarray(vectors, dtype="float64")
    groups = [str(g) for g in groups]
    if vectors.ndim != 2 or len(vectors) < 2 or len(vectors) != len(groups):
        raise InputError(
            f"`vectors` must be (N, channels), N at least 2, with a group each. "
            f"Received: shape {vectors.shape}, {len(groups)} groups"
        )
    if labels is not None and len(labels) != len(vectors):
        raise InputError(f"There must be a label for each vector. Received: {len(labels)} labels")
    centred = vectors - vectors.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : len(directions[:2])] = centred @ directions[:2].T
    share = sizes[:2] ** 2 / max(float(np.sum(sizes**2)), 1e-12)
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for number, group in enumerate(dict.fromkeys(groups)):
        mine = [i for i, g in enumerate(groups) if g == group]
        axis.scatter(*points[mine].T, label=visible(group), marker="os^vD*"[number % 6], alpha=0.7)
    for point, label in zip(points, labels or (), strict=False):
        axis.annotate(visible(label), point, fontsize=7, xytext=(3, 3), textcoords="offset points")
    along = [f"component {i + 1} ({share[i]:.0%} of the variance)" if i < len(share) else "" for i in range(2)]
    axis.set(xlabel=along[0], ylabel=along[1], title=title)
    axis.grid(alpha=0.3)
    axis.legend()
    return _finish(figure, path)


def _finish(figure, path):
    if path is not None:
        with atomic(Path(path)) as temporary:
            figure.savefig(temporary, dpi=130)
        _pyplot().close(figure)
    return figure


def visible(token):
    """A token that can be seen: white space becomes a sign, what matplotlib would read as mathematics is escaped."""
    text = str(token).replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    return text.replace("$", r"\$")
