"""Scores: of generated texts, of found entities, of answers to questions; and perplexity."""

from kerastf.metrics.answers import answer_scores, normalize_answer
from kerastf.metrics.entities import entities, entity_scores
from kerastf.metrics.perplexity import Perplexity
from kerastf.metrics.texts import chrf, corpus_bleu, edit_distance, error_rate, exact_match

__all__ = ["Perplexity", "answer_scores", "chrf", "corpus_bleu", "edit_distance", "entities", "entity_scores",
           "error_rate", "exact_match", "normalize_answer"]  # fmt: skip
