"""Learning of vocabularies, by the libraries that do it best; each is imported when it is used."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path


def keras_nlp_pieces(texts: Sequence[str], size: int) -> list[str]:
    """Word pieces by keras-nlp, at most `size`."""
    import keras_nlp

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.txt"  # files, because a data set would need TensorFlow here
        file.write_text("\n".join(texts), encoding="utf-8")
        return keras_nlp.tokenizers.compute_word_piece_vocabulary([str(file)], size, reserved_tokens=[])


def tokenizers_pieces(texts: Sequence[str], size: int) -> list[str]:
    """Word pieces by Hugging Face's tokenizers, at most `size`, cut as BERT cuts words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # The trainer numbers `##` signs as a hash table has them and breaks ties by number: given first, they are fixed.
    words = {word for text in texts for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)}
    inner = sorted({f"##{sign}" for word in words for sign in word[1:]})
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=2, show_progress=False, special_tokens=inner
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)[:size]


def tokenizers_merges(texts: Sequence[str], size: int, min_count: int) -> list[str]:
    """Merges by Hugging Face's tokenizers, for at most `size` tokens, within GPT-2's words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=min_count, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return [m if isinstance(m, str) else " ".join(m) for m in json.loads(tokenizer.to_str())["model"]["merges"]]
