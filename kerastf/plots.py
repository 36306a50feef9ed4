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


def vector_map(vectors, labels, *, groups=None, path=None, title="Word vectors"):
    """Draws vectors in the plane of their two main directions (principal components).

    Args:
        vectors: `(N, C)`.
        labels: N words.
        groups: N names or numbers; equal ones have one colour. None for one colour.
        path: Where to write a PNG, or None.
        title: Stands above.

    Returns:
        The matplotlib figure.
    """
    vectors = np.asarray(vectors, dtype="float64")
    if vectors.ndim != 2 or len(vectors) != len(labels) or len(vectors) < 2:
        raise InputError(
            f"`vectors` must be two or more (words, channels), with a label each. "
            f"Received: shape {vectors.shape}, {len(labels)} labels"
        )
    centred = vectors - vectors.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    points = centred @ directions[:2].T  # (N, 2)
    groups = [""] * len(labels) if groups is None else list(groups)
    pyplot = _pyplot()
    figure, axis = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for group in dict.fromkeys(groups):
        axis.scatter(*points[[g == group for g in groups]].T, s=18)
    for (x, y), label in zip(points, labels, strict=True):
        axis.annotate(visible(label), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=8)
    axis.set(xlabel="first direction", ylabel="second direction", title=title)
    axis.margins(x=0.12)
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
