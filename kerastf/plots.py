"""Pictures. matplotlib is imported when a picture is drawn: `pip install kerastf[plots]`."""

import json
from pathlib import Path

import numpy as np

from kerastf.checkpoint import atomic
from kerastf.errors import InputError


def _subplots(rows=1, columns=1, *, squeeze=True, **options):
    """A figure and its axes, as pyplot gives them; but pyplot, and where it shows figures, is left to the user."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("Pictures need matplotlib: pip install 'kerastf[plots]'") from None
    figure = Figure(**options)
    return figure, figure.subplots(rows, columns, squeeze=squeeze)


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
    heads = weights.shape[0]
    columns = min(heads, 2 if heads <= 4 else 3)  # on a page of usual width the labels can still be read
    rows = -(-heads // columns)
    side = max(2.6, 0.2 * max(len(queries), len(keys)))
    longest = max(len(visible(t)) for t in (*queries, *keys))
    room = 0.06 * longest  # for labels of many letters: words stand upright under a map, and beside it
    figure, axes = _subplots(
        rows, columns, figsize=((side + room) * columns + 1, (side + room) * rows + 0.7), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for head, axis in enumerate(axes.flat):
        if head >= heads:
            axis.axis("off")
            continue
        picture = axis.imshow(weights[head], vmin=0, vmax=1, cmap="viridis", aspect="auto")
        labels = {"fontsize": 8, "family": "monospace", "rotation": 90 if any(len(str(k)) > 2 for k in keys) else 0}
        axis.set_xticks(range(len(keys)), [visible(k) for k in keys], **labels)
        axis.set_yticks(range(len(queries)), [visible(q) for q in queries], fontsize=8, family="monospace")
        axis.set_xlabel("looks at")
        axis.set_ylabel("token" if head % columns == 0 else "")
        if heads > 1:
            axis.set_title(f"head {head}", fontsize=9)
    figure.colorbar(picture, ax=axes, shrink=0.8, label="weight")
    figure.suptitle(title)
    return _finish(figure, path)


def attention_data(layers, queries, keys=None, *, path, title="Attention", start=(0, 0, 0)):
    """Writes the attention weights of all layers and heads to a JSON file, in thousandths.

    The map on the site's pages, where one points at a token to see what it looks at, reads such a file.

    Args:
        layers: One `(H, T, S)` per layer.
        queries: The T tokens that attend, as text.
        keys: The S tokens attended to; by default the queries.
        path: Where to write.
        title: The map's name.
        start: The layer, head and query that the map opens with.

    Returns:
        What was written, as a dict.
    """
    keys = queries if keys is None else keys
    layers = [np.asarray(w, dtype="float32") for w in layers]
    if not layers or any(w.ndim != 3 or w.shape[1:] != (len(queries), len(keys)) for w in layers):
        raise InputError(
            f"`layers` must be one (H, T, S) per layer for {len(queries)} queries and {len(keys)} keys. "
            f"Received: shapes {[w.shape for w in layers]}"
        )
    found = {
        "title": title,
        "queries": [str(q) for q in queries],
        "keys": [str(k) for k in keys],
        "start": [int(n) for n in start],
        "layers": [np.rint(w * 1000).astype(int).tolist() for w in layers],
    }
    with atomic(Path(path)) as temporary:
        temporary.write_text(json.dumps(found, separators=(",", ":"), ensure_ascii=False), "utf-8")
    return found


def position_map(codes, *, path=None, title="Positions", across="channel"):
    """Draws position codes as a heat map: positions down, channels across.

    Args:
        codes: `(T, C)`, such as `functional.sinusoids(ops.arange(64), 32)`.
        path: Where to write a PNG, or None.
        across: What stands across, where it is not channels.
        title: Stands above.

    Returns:
        The matplotlib figure.
    """
    codes = np.asarray(codes, dtype="float32")
    if codes.ndim != 2:
        raise InputError(f"`codes` must be (positions, channels). Received: shape {codes.shape}")
    figure, axis = _subplots(figsize=(7, 4.5), layout="constrained")
    bound = max(float(np.abs(codes).max()), 1e-6)
    picture = axis.imshow(codes, cmap="RdBu", vmin=-bound, vmax=bound, aspect="auto", interpolation="nearest")
    axis.set(xlabel=across, ylabel="position", title=title)
    figure.colorbar(picture, ax=axis, label="value")
    return _finish(figure, path)


def position_similarity(table, grid, *, path=None, title="Similarity of positions"):
    """Draws how alike the positions on a grid are: for each place a small map of its cosine with all others.

    In a trained ViT rows and columns appear: a position is like those of its own row and column.

    Args:
        table: `(rows * columns, C)`, row by row: the learned positions, less those of tokens without a place, such as
            `model.position.table[1:]` with a class token.
        grid: Rows and columns.
        path: Where to write a PNG, or None.
        title: Stands above.

    Returns:
        The matplotlib figure.

    References:
        - [Dosovitskiy et al., 2020](https://arxiv.org/abs/2010.11929), figure 7
    """
    table = np.asarray(table, dtype="float64")
    rows, columns = grid
    if table.ndim != 2 or len(table) != rows * columns:
        raise InputError(
            f"`table` must hold one vector for each of {rows} x {columns} places. Received: shape {table.shape}"
        )
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    maps = (unit @ unit.T).reshape(rows, columns, rows, columns)
    # One picture of all maps, with a gap of one place after each: hundreds of axes would take minutes.
    whole = np.full((rows, rows + 1, columns, columns + 1), np.nan)
    whole[:, :rows, :, :columns] = maps.transpose(0, 2, 1, 3)
    whole = whole.reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]
    side = 6.5 / max(rows, columns)
    figure, axis = _subplots(figsize=(max(side * columns, 2.5) + 1.5, max(side * rows, 2) + 1), layout="constrained")
    picture = axis.imshow(whole, vmin=-1, vmax=1, cmap="viridis", interpolation="nearest")
    axis.set_xticks([(columns - 1) / 2 + i * (columns + 1) for i in range(columns)], range(1, columns + 1))
    axis.set_yticks([(rows - 1) / 2 + i * (rows + 1) for i in range(rows)], range(1, rows + 1))
    axis.set(xlabel="column of the patch", ylabel="row of the patch", title=title)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    figure.colorbar(picture, ax=axis, shrink=0.8, label="cosine")
    return _finish(figure, path)


def rollout(images, maps, *, labels=None, path=None, title="Attention rollout"):
    """Draws images, and under each how much of every patch goes into the answer.

    Args:
        images: `(B, H, W, D)` with 1 or 3 channels; bytes, or numbers that are scaled to the range of colours.
        maps: `(B, rows, columns)`, such as `model.rollout(images)` gives.
        labels: What to write above each image, or None.
        path: Where to write a PNG, or None.
        title: Stands above.

    Returns:
        The matplotlib figure.

    References:
        - [Abnar and Zuidema, 2020](https://arxiv.org/abs/2005.00928)
    """
    images, maps = np.asarray(images), np.asarray(maps, dtype="float64")
    fits = images.ndim == 4 and images.shape[-1] in (1, 3) and maps.ndim == 3 and len(images) == len(maps) > 0
    if not fits or (labels is not None and len(labels) != len(images)):
        raise InputError(
            f"`images` must be (B, H, W, 1 or 3), `maps` (B, rows, columns), and `labels` B of them or None. "
            f"Received: shapes {images.shape} and {maps.shape}, labels={labels!r}"
        )
    count, height, width = images.shape[:3]
    figure, axes = _subplots(
        2, count, figsize=(1.7 * count + 1, 4.2), squeeze=False, layout="constrained"
    )  # fmt: skip
    for i, (image, weights) in enumerate(zip(images, maps, strict=True)):
        shown = image.astype("float64") - image.min()
        shown = np.broadcast_to(shown / max(shown.max(), 1e-12), (height, width, 3))
        relative = weights / max(weights.max(), 1e-12)
        place = {"extent": (0, width, height, 0), "interpolation": "nearest"}
        picture = axes[1, i].imshow(relative, cmap="viridis", vmin=0, vmax=1, **place)
        for axis, alpha in ((axes[0, i], 1.0), (axes[1, i], 0.3)):
            axis.imshow(shown, alpha=alpha, **place)
            axis.set_xticks([])
            axis.set_yticks([])
        axes[0, i].set_title("" if labels is None else str(labels[i]).replace("$", r"\$"), fontsize=9)
    axes[0, 0].set_ylabel("image")
    axes[1, 0].set_ylabel("looked at")
    figure.colorbar(picture, ax=axes, shrink=0.8, label="share of the largest")
    figure.suptitle(title)
    return _finish(figure, path)


def curve(history, *, path=None, title="Training", across="epoch", first=1):
    """Draws one line per metric of a `History.history` over the epochs.

    Args:
        history: By name: the values.
        path: Where to write a PNG, or None.
        title: Stands above.
        across: What stands across, where it is not epochs.
        first: Number of the first value.

    Returns:
        The matplotlib figure.
    """
    figure, axis = _subplots(figsize=(6, 4), layout="constrained")
    for name, values in history.items():
        marker = "o" if len(values) <= 24 else None  # more would be a thick line
        axis.plot(range(first, first + len(values)), values, marker=marker, label=name)
    axis.set(xlabel=across, title=title)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(alpha=0.3)
    axis.legend()
    return _finish(figure, path)


def run_curves(rows, *, path=None, title="Training"):
    """Draws the metrics of a run over its steps: a panel per metric, training and validation together.

    Args:
        rows: Dicts with `step` and metrics, such as the lines of a run's `metrics.jsonl`.
        path: Where to write a PNG, or None.
        title: Stands above.
    """
    names = list(dict.fromkeys(k.removeprefix("val_") for row in rows for k in row if k not in ("step", "seconds")))
    if not names:
        raise InputError(f"There is nothing to draw. Received: {len(rows)} rows")
    figure, axes = _subplots(1, len(names), figsize=(4 * len(names) + 0.5, 3.4), squeeze=False, layout="constrained")
    for name, axis in zip(names, axes[0], strict=True):
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            points = [(row["step"], row[key]) for row in rows if key in row]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
        axis.set(xlabel="step", title=name)
        axis.grid(alpha=0.3)
        if len(axis.lines) > 1:
            axis.legend()
    figure.suptitle(title)
    return _finish(figure, path)


def rival_curves(rows, *, path=None, title="Rivals", along=("step", "loss")):
    """Draws the mean of several runs of each rival over the steps, with the range of the runs around it.

    Args:
        rows: By name of the rival: its runs, each a list of pairs (step, value).
        path: Where to write a PNG, or None.
        title: Stands above.
        along: What stands across, and what stands upward.
    """
    figure, axis = _subplots(figsize=(7, 4.2), layout="constrained")
    for name, runs in rows.items():
        values = {}
        for step, value in (pair for run in runs for pair in run):
            values.setdefault(step, []).append(value)
        steps = sorted(values)
        line = axis.plot(steps, [np.mean(values[s]) for s in steps], marker="o", markersize=3, label=name)[0]
        low, high = ([edge(values[s]) for s in steps] for edge in (min, max))
        axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
    axis.set(xlabel=along[0], ylabel=along[1], title=title)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
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
    figure, axis = _subplots(figsize=(6, 4), layout="constrained")
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
    figure, axis = _subplots(figsize=(7, 4.5), layout="constrained")
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
    return figure


def visible(token):
    """A token that can be seen: white space becomes a sign, what matplotlib would read as mathematics is escaped."""
    text = str(token).replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    return text.replace("$", r"\$")
