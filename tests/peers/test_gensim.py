"""The exported file in gensim: the same vectors, neighbours and analogies."""

import keras
import numpy as np
import pytest

import kerastf
from kerastf import data, text

gensim_models = pytest.importorskip("gensim.models")
pytestmark = pytest.mark.peers


@pytest.mark.parametrize("binary", [False, True])
def test_gensim_reads_what_we_write(tmp_path, binary):
    keras.utils.set_random_seed(0)
    sentences, _ = data.analogies(1500)
    tokenizer = text.train("word", sentences, special_tokens=("unknown",))
    model = kerastf.create_model("word2vec", tokenizer=tokenizer, dim=16)
    model.compile()
    model.fit(data.windows(sentences, tokenizer, subsample=0, batch_size=16), epochs=6, verbose=0)
    path = tmp_path / "words"
    model.save_word2vec(path, binary=binary)
    theirs = gensim_models.KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert theirs.index_to_key == tokenizer.words
    np.testing.assert_array_equal(theirs.vectors, model.vectors)
    for word in ("paris", "cheese", "thai"):
        want = theirs.most_similar(word, topn=8)
        got = model.nearest(word, k=8)
        assert [w for w, _ in got] == [w for w, _ in want]
        np.testing.assert_allclose([c for _, c in got], [c for _, c in want], atol=1e-5)
    want = theirs.most_similar(positive=["paris", "norway"], negative=["france"], topn=5)
    assert [w for w, _ in model.analogy("france", "paris", "norway", k=5)] == [w for w, _ in want]
