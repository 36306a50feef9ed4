"""`create_model`: a model by name, with weights as they begin or from elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerastf.config import build_model, read_config


def create_model(
    id: str, *, config: "str | Path | Mapping[str, Any] | None" = None, weights: "str | Path | None" = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Builds a model. Later sources win: family defaults, preset, `config`, keywords.

    Args:
        id: A family (`"gpt"`) or a preset (`"gpt.nano"`).
        config: A TOML or JSON file with options, or a dict of them.
        weights: Where weights come from: a folder of Hugging Face, or `"hf:NAME"` to fetch one. Its own configuration
            says the sizes, and what was asked for must agree with it; its tokenizer comes along. For `word2vec`, a file
            of vectors. None for weights as they begin.
        **options: The family's options and slots; `kerastf info gpt` lists them.

    Returns:
        A `keras.Model`.

    Raises:
        ConfigError: Something in the configuration is wrong, or the weights do not fit it; all problems stand in the
            message.
        UnknownNameError: There is no such model, preset or block.
        PluginError: A block belongs to a plugin that is missing, broken, disabled or incompatible.
        FileFormatError: The weights cannot be read.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("gpt.nano", vocab_size=65, max_length=32, position="rotary", norm="rms")
        >>> model.count_params()
        87696
    """
    if weights is None:
        return build_model(id, config=config, **options)
    from kerastf import convert

    return convert.load(weights, id, **{**read_config(config), **options})
