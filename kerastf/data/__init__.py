"""Data: text and images to batches, and embedded sets that need no network."""

from kerastf.data.drawings import shapes
from kerastf.data.embedded import sources
from kerastf.data.feeds import Feed, Found
from kerastf.data.generated import analogies, dates, reversals, stories
from kerastf.data.images import ImageBatches, read_images
from kerastf.data.labels import labelled, tagged, word_tags
from kerastf.data.language import corpus, next_token
from kerastf.data.loading import load
from kerastf.data.masking import mask_tokens, pack
from kerastf.data.neighbours import keep_probabilities, windows
from kerastf.data.opinions import sentiment
from kerastf.data.parallel import pairs, read_pairs, split
from kerastf.data.pretraining import masked_text, sentence_pairs
from kerastf.data.puzzles import strings
from kerastf.data.sentences import TAGS, tagged_sentences, two_senses
from kerastf.data.spans import answers, questions, read_squad

__all__ = ["TAGS", "Feed", "Found", "ImageBatches", "analogies", "answers", "corpus", "dates", "keep_probabilities",
           "labelled", "load", "mask_tokens", "masked_text", "next_token", "pack", "pairs", "questions", "read_images",
           "read_pairs", "read_squad", "reversals", "sentence_pairs", "sentiment", "shapes", "sources", "split",
           "stories", "strings", "tagged", "tagged_sentences", "two_senses", "windows", "word_tags"]  # fmt: skip
