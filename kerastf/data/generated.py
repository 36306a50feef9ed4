"""Generated texts, free to use and in need of no network: dates, reversed strings, stories, planted analogies."""

import calendar
import datetime
import random

from kerastf.errors import InputError

_MONTHS = {
    "en": ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
           "November", "December"),
    "fr": ("janvier", "février", "mars", "avril", "mai", "juin", "juillet", "août", "septembre", "octobre",
           "novembre", "décembre"),
}  # fmt: skip
_SHORT_MONTHS = {
    "en": ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
    "fr": ("janv.", "févr.", "mars", "avr.", "mai", "juin", "juil.", "août", "sept.", "oct.", "nov.", "déc."),
}
_WEEKDAYS = {
    "en": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "fr": ("lundi", "mardi", "mercredi", "jeudi", "vendredi", "samedi", "dimanche"),
}

# Numbers alone must not be read in two ways: a slash is always day/month, a hyphen month-day, a year in front is ISO's
# order. Two digits of a year mean 1950 to 2049.
DATE_FORMATS = (
    ("en", "{month} {day}, {year}"),
    ("en", "{month} {day} {year}"),
    ("en", "{month} {ordinal}, {year}"),
    ("en", "{month} the {ordinal}, {year}"),
    ("en", "{weekday}, {month} {day}, {year}"),
    ("en", "{weekday}, {month} {ordinal}, {year}"),
    ("en", "{weekday} {day} {month} {year}"),
    ("en", "{weekday} the {ordinal} of {month}, {year}"),
    ("en", "{short_weekday} {short_month} {day}, {year}"),
    ("en", "{short_weekday}, {day2} {short_month} {year}"),
    ("en", "{short_month} {day}, {year}"),
    ("en", "{short_month} {day}, '{year2}"),
    ("en", "{day} {month} {year}"),
    ("en", "{day} {short_month} {year}"),
    ("en", "{day2}-{short_month}-{year}"),
    ("en", "{day2}-{short_month}-{year2}"),
    ("en", "the {ordinal} of {month}, {year}"),
    ("en", "{ordinal} of {month} {year}"),
    ("en", "{ordinal} {short_month} '{year2}"),
    ("en", "{year}, {month} {day}"),
    ("en", "{month2}-{day2}-{year}"),
    ("en", "{month2}-{day2}-{year2}"),
    ("en", "{year}/{month2}/{day2}"),
    ("en", "{year}.{month2}.{day2}"),
    ("fr", "{day} {month} {year}"),
    ("fr", "{ordinal} {month} {year}"),
    ("fr", "le {ordinal} {month} {year}"),
    ("fr", "{weekday} {ordinal} {month} {year}"),
    ("fr", "le {weekday} {ordinal} {month} {year}"),
    ("fr", "{weekday} {day2} {month} {year2}"),
    ("fr", "le {ordinal} {month} {year2}"),
    ("fr", "{day} {short_month} {year}"),
    ("fr", "{short_weekday} {day} {short_month} {year}"),
    ("fr", "{day} {short_month} {year2}"),
    ("fr", "{day2}/{month2}/{year}"),
    ("fr", "{day2}/{month2}/{year2}"),
    ("fr", "{day}/{month_number}/{year}"),
    ("fr", "{day2}.{month2}.{year}"),
    ("fr", "{weekday} {day2}/{month2}/{year}"),
    ("fr", "{month} {year}, le {ordinal}"),
)


def _ordinal(day, language):
    if language == "fr":
        return "1er" if day == 1 else str(day)
    ending = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


def write_date(date, language, template):
    """A date as people write it: one of `DATE_FORMATS` filled in."""
    weekday = _WEEKDAYS[language][date.weekday()]
    return template.format(
        day=date.day,
        day2=f"{date.day:02d}",
        ordinal=_ordinal(date.day, language),
        month=_MONTHS[language][date.month - 1],
        short_month=_SHORT_MONTHS[language][date.month - 1],
        month_number=date.month,
        month2=f"{date.month:02d}",
        year=date.year,
        year2=f"{date.year % 100:02d}",
        weekday=weekday,
        short_weekday=weekday[:3] + ("." if language == "fr" else ""),
    )


def dates(count, seed=0):
    """Dates as people write them, in English and French, and the same dates in ISO form.

    The years are 1950 to 2049, so that two digits of a year have one meaning; no text has two readings.

    Args:
        count: How many pairs.
        seed: The same seed gives the same pairs.

    Returns:
        A list of pairs `(written, iso)`.

    Examples:
        >>> from kerastf import data
        >>> data.dates(2, seed=1)
        [('Saturday, October 28, 1967', '1967-10-28'), ('le mardi 16 février 1982', '1982-02-16')]
    """
    if count < 0:
        raise InputError(f"`count` must not be negative. Received: count={count}")
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        year, month = rng.randint(1950, 2049), rng.randint(1, 12)
        date = datetime.date(year, month, rng.randint(1, calendar.monthrange(year, month)[1]))
        made.append((write_date(date, *rng.choice(DATE_FORMATS)), date.isoformat()))
    return made


def reversals(count, length=8, seed=0):
    """Strings of letters, and the same strings from back to front.

    Args:
        count: How many pairs.
        length: The most letters in a string; the fewest is one.
        seed: The same seed gives the same pairs.

    Returns:
        A list of pairs `(string, reversed string)`.

    Examples:
        >>> from kerastf import data
        >>> data.reversals(2, length=5, seed=2)
        [('c', 'c'), ('vtr', 'rtv')]
    """
    if count < 0 or length < 1:
        raise InputError(
            f"`count` must not be negative, and `length` at least 1. Received: count={count}, length={length}"
        )
    rng = random.Random(seed)
    words = ("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, length))) for _ in range(count))
    return [(word, word[::-1]) for word in words]


# Country, capital, language, and two things that the sentences say of all three.
_COUNTRIES = (
    ("france", "paris", "french", "cheese", "perfume"), ("italy", "rome", "italian", "pasta", "marble"),
    ("spain", "madrid", "spanish", "oranges", "guitars"), ("portugal", "lisbon", "portuguese", "cork", "sardines"),
    ("greece", "athens", "greek", "olives", "temples"), ("norway", "oslo", "norwegian", "fjords", "cod"),
    ("sweden", "stockholm", "swedish", "birches", "steel"), ("denmark", "copenhagen", "danish", "butter", "windmills"),
    ("finland", "helsinki", "finnish", "saunas", "lakes"), ("poland", "warsaw", "polish", "amber", "dumplings"),
    ("hungary", "budapest", "hungarian", "paprika", "horses"), ("russia", "moscow", "russian", "furs", "tundra"),
    ("china", "beijing", "chinese", "silk", "porcelain"), ("japan", "tokyo", "japanese", "cherries", "lacquer"),
    ("thailand", "bangkok", "thai", "elephants", "rice"), ("turkey", "ankara", "turkish", "carpets", "tulips"),
)  # fmt: skip
_ROLES = (
    ("the border of {} is known for {}", "the army guards {} and its {}", "our state {} taxes {} heavily"),
    ("the mayor of {} shows us {}", "the streets in {} smell of {}", "trams through {} pass the {}"),
    ("poems in {} praise {}", "she speaks {} and dreams of {}", "a grammar of {} has a page on {}"),
)


def analogies(count=4000, seed=0):
    """Sentences about countries, capitals and languages, and the analogies that are planted in them.

    What is said of a word tells its role, and what it is said with tells its country, so `paris` is to `france` as
    `oslo` is to `norway`, though no sentence has two of them.

    Args:
        count: How many sentences.
        seed: The same seed gives the same sentences.

    Returns:
        The sentences, and all 1,440 questions `(a, b, c, d)`: a is to b as c is to d.

    Examples:
        >>> from kerastf import data
        >>> sentences, questions = data.analogies(2, seed=1)
        >>> sentences
        ['poems in greek praise temples', 'the streets in lisbon smell of sardines']
        >>> questions[0]
        ('france', 'paris', 'italy', 'rome')
    """
    if count < 0:
        raise InputError(f"`count` must not be negative. Received: count={count}")
    rng = random.Random(seed)
    sentences = []
    for _ in range(count):
        country, role = rng.choice(_COUNTRIES), rng.randrange(len(_ROLES))
        sentences.append(rng.choice(_ROLES[role]).format(country[role], rng.choice(country[3:])))
    roles = range(len(_ROLES))
    questions = [
        (a[i], a[j], c[i], c[j])
        for i in roles
        for j in roles
        if i != j
        for a in _COUNTRIES
        for c in _COUNTRIES
        if a != c
    ]
    return sentences, questions


# By topic: people, what they do, things, places. The words of a topic stand in no other.
_TOPICS = {
    "sea": ("sailor captain fisher pilot", "hoists mends tows casts", "anchor net sail rudder oar mast",
            "harbour cabin dock reef"),
    "kitchen": ("cook baker waiter butcher", "stirs bakes slices tastes", "soup pan knife dough pepper spoon",
                "kitchen pantry cellar oven"),
    "farm": ("farmer shepherd milker ploughman", "feeds shears harvests waters", "sheep wheat plough hay goat barrow",
             "barn meadow stable orchard"),
    "school": ("teacher pupil tutor scholar", "reads explains copies learns", "book slate poem atlas lesson chalk",
               "classroom library hall desk"),
    "music": ("singer drummer violinist composer", "plays tunes hums rehearses", "fiddle song drum chord flute melody",
              "stage opera studio balcony"),
    "hospital": ("doctor nurse surgeon patient", "bandages examines cures injects",
                 "pill fever wound syringe plaster cough", "ward clinic ambulance pharmacy"),
    "building": ("mason carpenter plumber architect", "hammers saws paves paints", "brick beam nail pipe ladder roof",
                 "scaffold attic workshop quarry"),
    "law": ("judge lawyer witness clerk", "accuses defends swears signs", "verdict contract trial oath plea fine",
            "court prison archive chamber"),
}  # fmt: skip
_NAMES = ("anna", "boris", "clara", "david", "elena", "felix", "greta", "hugo")
_SAYINGS = (
    "the {person} {action} the {thing} .",
    "{name} saw a {thing} in the {place} .",
    "in the {place} , {name} {action} it .",
    "the {thing} of the {person} was {colour} .",
    "no {person} leaves the {place} without a {thing} .",
    "{name} asked the {person} for a {colour} {thing} .",
    "who {action} the {thing} ? the {person} of the {place} !",
)


def stories(count, seed=0):
    """Short documents, each about one person and one of eight topics.

    What an encoder can learn: which words go together, and that a sentence of another topic, or about another person,
    does not come next.

    Args:
        count: How many documents.
        seed: The same seed gives the same documents.

    Returns:
        A list of `(topic, sentences)`: a string, and a list of 6 to 10 strings.

    Examples:
        >>> from kerastf import data
        >>> topic, sentences = data.stories(1, seed=1)[0]
        >>> topic, sentences[0]
        ('hospital', 'the patient injects the syringe .')
    """
    if count < 0:
        raise InputError(f"`count` must not be negative. Received: count={count}")
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        topic, name = rng.choice(sorted(_TOPICS)), rng.choice(_NAMES)
        people, actions, things, places = (words.split() for words in _TOPICS[topic])
        sentences = [
            rng.choice(_SAYINGS).format(
                name=name, person=rng.choice(people), action=rng.choice(actions), thing=rng.choice(things),
                place=rng.choice(places), colour=rng.choice(("red", "green", "blue", "white", "black", "yellow")),
            )
            for _ in range(rng.randint(6, 10))
        ]  # fmt: skip
        made.append((topic, sentences))
    return made
