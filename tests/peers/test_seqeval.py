"""Entity scores beside seqeval's."""

import random

import pytest

from kerastf import metrics

pytestmark = pytest.mark.peers
TAGS = ["O", "O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-PER", "S-PER", "E-LOC", "S-LOC", "B-PER-x"]


@pytest.mark.filterwarnings("ignore")
def test_entity_scores_are_seqevals():
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    rng = random.Random(0)
    for _ in range(500):
        right = [[rng.choice(TAGS) for _ in range(rng.randint(1, 9))] for _ in range(3)]
        made = [[t if rng.random() < 0.7 else rng.choice(TAGS) for t in row] for row in right]
        for row in made:
            assert metrics.entities(row) == labeling.get_entities(row)
        found = metrics.entity_scores(made, right)
        assert found["precision"] == pytest.approx(labeling.precision_score(right, made))
        assert found["recall"] == pytest.approx(labeling.recall_score(right, made))
        assert found["f1"] == pytest.approx(labeling.f1_score(right, made))
