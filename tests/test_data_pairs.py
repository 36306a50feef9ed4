"""Pairs of texts: reading, splitting, batching, and the generated ones."""

import datetime
import gzip
import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import told

from kerastf import data, text
from kerastf.data.generated import DATE_FORMATS, write_date
from kerastf.errors import ConfigError, FileFormatError, InputError

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = text.CharacterTokenizer(LETTERS, special_tokens=("pad", "start", "end"))
PAD, START, END = TOKENIZER.pad_id, TOKENIZER.start_id, TOKENIZER.end_id


def batches(items, **options):
    options = {"batch_size": 4, **options}
    return list(data.pairs(items, None, TOKENIZER, TOKENIZER, **options).as_numpy_iterator())


def read_back(made):
    """The pairs of batches, read from what a model would see."""
    found = []
    for x, label in made:
        for source, target, wanted in zip(x["source"], x["target"], label, strict=True):
            n = int((target != PAD).sum())
            assert target[0] == START and wanted[n - 1] == END
            assert target[1:n].tolist() == wanted[: n - 1].tolist()
            assert set(target[n:]) | set(wanted[n:]) <= {PAD}
            found.append((TOKENIZER.decode(source), TOKENIZER.decode(wanted)))
    return found


WORD = st.text(alphabet=LETTERS, min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(
    items=st.lists(st.tuples(WORD, WORD), min_size=1, max_size=30),
    size=st.integers(1, 7), bucket=st.booleans(), shuffle=st.booleans(), seed=st.integers(0, 5),
)  # fmt: skip
def test_every_pair_comes_once(items, size, bucket, shuffle, seed):
    dataset = data.pairs(items, None, TOKENIZER, TOKENIZER, batch_size=size, bucket=bucket, shuffle=shuffle, seed=seed)
    made = list(dataset.as_numpy_iterator())
    assert sorted(read_back(made)) == sorted(items)
    assert len(made) == int(dataset.cardinality()) == -(-len(items) // size)
    assert sum(len(y) < size for _, y in made) <= 1
    shapes = {(x["source"].shape[1], x["target"].shape[1]) for x, _ in made}
    assert all(s % 8 == 0 and t % 8 == 0 for s, t in shapes)
    assert len(shapes) <= (4 if bucket else 1)
    assert all(a.dtype == np.int32 for x, y in made for a in (*x.values(), y))


def test_order_without_shuffling_is_the_given():
    items = data.reversals(50, length=20)
    assert read_back(batches(items, shuffle=False, bucket=False)) == items


def test_buckets_save_padding():
    items = data.reversals(400, length=40)
    cells = {b: sum(y.size for _, y in batches(items, bucket=b)) for b in (False, True)}
    assert cells[True] < 0.8 * cells[False]


def test_order_is_a_function_of_seed_and_epoch():
    items = data.reversals(60, length=20)
    make = lambda **options: data.pairs(items, None, TOKENIZER, TOKENIZER, batch_size=4, **options)  # noqa: E731
    dataset = make(seed=3)
    first, second = ([y.tolist() for _, y in dataset.as_numpy_iterator()] for _ in range(2))
    assert first != second
    again = make(seed=3)
    assert [[y.tolist() for _, y in again.as_numpy_iterator()] for _ in range(2)] == [first, second]
    assert [y.tolist() for _, y in make(seed=3, first_epoch=1).as_numpy_iterator()] == second
    assert [y.tolist() for _, y in make(seed=3, first_epoch=1).skip(5).as_numpy_iterator()] == second[5:]
    assert [y.tolist() for _, y in make(seed=4).as_numpy_iterator()] != first


def test_the_remainder_can_be_dropped():
    made = batches(data.reversals(30, length=20), batch_size=8, drop_remainder=True)
    assert [len(y) for _, y in made] == [8, 8, 8]
    one = data.pairs(["ab"] * 3, ["ba"] * 3, TOKENIZER, TOKENIZER, batch_size=2, drop_remainder=True)
    assert one.element_spec[1].shape.as_list() == [2, 8]


def test_long_and_empty_pairs_are_left_out_and_counted():
    items = [("abc", "cba"), ("a" * 9, "b"), ("b", "a" * 8), ("", "a"), ("a", "")]
    with pytest.warns(UserWarning) as warned:
        made = batches(items, max_length=8)
    assert [str(w.message) for w in warned] == [
        "4 of 5 pairs are left out: 2 are longer than max_length=(8, 8) and 2 have an empty side. "
        "Longer pairs are kept in part with too_long='cut'."
    ]
    assert read_back(made) == [("abc", "cba")]


def test_long_pairs_are_cut():
    x, label = batches([("abcdefghij", "abcdefghij")], max_length=(8, 4), too_long="cut", multiple=4)[0]
    assert TOKENIZER.decode(x["source"][0]) == "abcdefgh"
    assert x["target"][0].tolist() == [START, 0, 1, 2]
    assert label[0].tolist() == [0, 1, 2, 3]  # no end: the target goes on


def test_a_pair_of_exactly_the_length_is_kept():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_back(batches([("a" * 8, "b" * 7)], max_length=8)) == [("a" * 8, "b" * 7)]


def test_files(tmp_path):
    items = [("ab", "ba"), ("c", "c"), ("", "x")]
    (tmp_path / "a.txt").write_text("ab\nc\n\n")
    (tmp_path / "b.txt").write_text("ba\r\nc\r\nx\r\n")
    (tmp_path / "both.tsv").write_text("ab\tba\tmore\nc\tc\n\tx\n")
    (tmp_path / "both.tsv.gz").write_bytes(gzip.compress((tmp_path / "both.tsv").read_bytes()))
    assert data.read_pairs(tmp_path / "a.txt", tmp_path / "b.txt") == items
    assert data.read_pairs(tmp_path / "both.tsv") == data.read_pairs(str(tmp_path / "both.tsv.gz")) == items
    for given_files in ((tmp_path / "a.txt", tmp_path / "b.txt"), (tmp_path / "both.tsv.gz", None)):
        with pytest.warns(UserWarning, match="1 of 3 pairs are left out: 0 are longer .* and 1 have an empty side.$"):
            dataset = data.pairs(*given_files, TOKENIZER, TOKENIZER, batch_size=2, shuffle=False)
        assert read_back(dataset.as_numpy_iterator()) == items[:2]


def test_a_line_without_two_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\nc\n")
    with pytest.raises(FileFormatError, match="^a.tsv, line 2: there is no second column. Received: 'c'$"):
        data.read_pairs(tmp_path / "a.tsv")
    (tmp_path / "b.txt").write_text("x\n")
    with pytest.raises(
        FileFormatError, match="^Two parallel files have as many lines as each other. Received: 2 in a.tsv, 1 in b.txt$"
    ):
        data.read_pairs(tmp_path / "a.tsv", tmp_path / "b.txt")


@given(count=st.integers(0, 50), fraction=st.floats(0, 1), seed=st.integers(0, 9))
def test_split_parts(count, fraction, seed):
    items = list(range(count))
    train, held = data.split(items, fraction, seed)
    assert sorted(train + held) == items and train == sorted(train) and held == sorted(held)
    assert len(held) == round(fraction * count)
    assert data.split(items, fraction, seed) == (train, held)


def test_split_keeps_the_same_key_together():
    items = [(f"s{i % 20}", f"t{i}") for i in range(100)]
    train, held = data.split(items, 0.25, seed=2, key=lambda pair: pair[0])
    assert len(held) == 25 and not {s for s, _ in train} & {s for s, _ in held}


# --- generated pairs, read by rules of their own

MONTHS = {
    "en": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "fr": ["jan", "fév", "mar", "avr", "mai", "juin", "juil", "aoû", "sep", "oct", "nov", "déc"],
}
FIELDS = {
    "day": r"([1-9]|[12]\d|3[01])", "day2": r"(\d\d)", "month_number": r"([1-9]|1[0-2])", "month2": r"(\d\d)",
    "ordinal": r"(\d+)(?:st|nd|rd|th|er)?", "year": r"(\d{4})", "year2": r"(\d\d)", "month": r"([A-Za-zéû]+)",
    "short_month": r"([A-Za-zéû]{3,5}\.?)", "weekday": r"([A-Za-z]{5,})", "short_weekday": r"([A-Za-z]{3}\.?)",
}  # fmt: skip
DAYS = {
    "en": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
    "fr": ["lun", "mar", "mer", "jeu", "ven", "sam", "dim"],
}


def month_number(name, language):
    """Which month begins so; an English name and a French one differ in their first letters or in their length."""
    name = name.lower().rstrip(".")
    found = [i for i, start in enumerate(MONTHS[language], 1) if name.startswith(start)]
    return found[0] if len(found) == 1 else None


def readings(written):
    """Every date that some format of the table reads in a text, with the format."""
    for language, template in DATE_FORMATS:
        names = re.findall(r"{(\w+)}", template)
        match = re.fullmatch(re.sub(r"\\{(\w+)\\}", lambda m: FIELDS[m[1]], re.escape(template)), written)
        if not match:
            continue
        values = dict(zip(names, match.groups(), strict=True))
        value = lambda *keys: next(values[k] for k in keys if k in values)  # noqa: B023, E731
        year = int(value("year", "year2"))
        year += 0 if year > 99 else 1900 if year >= 50 else 2000
        month = value("month", "short_month", "month2", "month_number")
        month = int(month) if month.isdigit() else month_number(month, language)
        if month is None:
            continue
        date = datetime.date(year, month, int(value("day", "day2", "ordinal")))
        weekday = values.get("weekday", values.get("short_weekday"))
        if weekday is None or weekday.lower().startswith(DAYS[language][date.weekday()]):
            yield date.isoformat(), (language, template)


def test_every_date_reads_as_its_iso_form_and_no_other():
    seen = set()
    for written, iso in data.dates(3000, seed=7):
        found = list(readings(written))
        assert {date for date, _ in found} == {iso}, written
        seen |= {form for _, form in found}
    assert len(seen) == len(DATE_FORMATS) == len(set(DATE_FORMATS)) >= 30
    assert {language for language, _ in seen} == {"en", "fr"}


def test_no_text_is_two_dates():
    meaning = {}
    for ordinal in range(datetime.date(1950, 1, 1).toordinal(), datetime.date(2050, 1, 1).toordinal(), 3):
        date = datetime.date.fromordinal(ordinal)
        for language, template in DATE_FORMATS:
            assert meaning.setdefault(write_date(date, language, template), date) == date


def test_dates_by_value():
    day = datetime.date(2001, 8, 1)
    assert write_date(day, "en", "{weekday} the {ordinal} of {month}, {year}") == "Wednesday the 1st of August, 2001"
    assert write_date(day, "fr", "le {weekday} {ordinal} {month} {year}") == "le mercredi 1er août 2001"
    assert write_date(day, "fr", "{short_weekday} {day} {short_month} {year2}") == "mer. 1 août 01"
    endings = {
        d: write_date(datetime.date(2001, 1, d), "en", "{ordinal}") for d in (2, 3, 4, 11, 12, 13, 21, 22, 23, 31)
    }
    assert list(endings.values()) == ["2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "22nd", "23rd", "31st"]


def test_generated_pairs_follow_their_seed():
    assert data.dates(20, seed=1) == data.dates(20, seed=1) != data.dates(20, seed=2)
    assert data.reversals(20, seed=1) == data.reversals(20, seed=1) != data.reversals(20, seed=2)
    assert all(a == b[::-1] and 1 <= len(a) <= 5 for a, b in data.reversals(200, length=5))


BARE = text.CharacterTokenizer("ab")
MISTAKES = [
    (lambda: batches([]), InputError, "No pair is left to make batches of. Received: 0 pairs, max_length=(64, 64)"),
    (lambda: batches([("a",)]), InputError, "A pair is two strings, source and target. Received: ('a',)"),
    (lambda: batches([("a", 1)]), InputError, "A pair is two strings, source and target. Received: ('a', 1)"),
    (lambda: batches([("a", "b")], batch_size=0), InputError, "`batch_size` must be at least 1. Received: batch_size=0"),
    (lambda: batches([("a", "b")], too_long="trim"), InputError, "`too_long` must be 'drop' or 'cut'. Received: too_long='trim'"),
    (lambda: batches([("a", "b")], max_length=0), InputError, "`max_length` must be a number of at least 1, or one for sources and one for targets. Received: max_length=0"),
    (lambda: data.pairs(["a"], ["b", "c"], TOKENIZER, TOKENIZER, batch_size=1), InputError, "Each source has one target. Received: 1 sources, 2 targets"),
    (lambda: data.pairs("a.tsv", ["b"], TOKENIZER, TOKENIZER, batch_size=1), InputError, "`sources` is a file, so `targets` is a file, too, or None for a .tsv of both."),
    (lambda: data.pairs(["a"], ["b"], BARE, TOKENIZER, batch_size=1), ConfigError, "`source_tokenizer` needs the special tokens pad. Make it with special_tokens=('pad',). Received: special_tokens=()"),
    (lambda: data.pairs(["a"], ["b"], TOKENIZER, BARE, batch_size=1), ConfigError, "`target_tokenizer` needs the special tokens pad, start, end. Make it with special_tokens=('pad', 'start', 'end'). Received: special_tokens=()"),
    (lambda: data.pairs(["a"], ["b"], None, BARE, batch_size=1), ConfigError, "`source_tokenizer` is needed. Received: source_tokenizer=None"),
    (lambda: data.split([1], 2), InputError, "`fraction` must be in [0, 1]. Received: fraction=2"),
    (lambda: data.dates(-1), InputError, "`count` must not be negative. Received: count=-1"),
    (lambda: data.reversals(1, length=0), InputError, "`count` must not be negative, and `length` at least 1. Received: count=1, length=0"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number):
    act, kind, message = MISTAKES[number]
    assert told(kind, act) == message
