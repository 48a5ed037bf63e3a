"""How questions that need more than one fact are worded:
chains of relations, comparisons, counts and lists."""

from .relations import RELATIONS

# (type, relation) -> the phrase that stands for the value, an entity of the type after it.
PHRASES = {
    ("person", "birthplace"): ("the city where {e} was born", "city"),
    ("person", "residence"): ("the city where {e} lived", "city"),
    ("person", "employer"): ("the employer of {e}", "company"),
    ("person", "spouse"): ("the spouse of {e}", "person"),
    ("person", "teacher"): ("the teacher of {e}", "person"),
    ("city", "country"): ("the country where {e} lies", "country"),
    ("city", "mayor"): ("the mayor of {e}", "person"),
    ("city", "twin"): ("the twin city of {e}", "city"),
    ("country", "capital"): ("the capital of {e}", "city"),
    ("country", "president"): ("the president of {e}", "person"),
    ("company", "seat"): ("the city where {e} is based", "city"),
    ("company", "founder"): ("the founder of {e}", "person"),
    ("company", "director"): ("the director of {e}", "person"),
    ("company", "rival"): ("the main rival of {e}", "company"),
    ("product", "maker"): ("the maker of the {e}", "company"),
    ("product", "designer"): ("the designer of the {e}", "person"),
    ("event", "place"): ("the host city of the {e}", "city"),
    ("event", "winner"): ("the winner of the {e}", "person"),
    ("event", "sponsor"): ("the sponsor of the {e}", "company"),
    ("society", "seat"): ("the home city of the {e}", "city"),
    ("society", "founder"): ("the founder of the {e}", "person"),
    ("society", "patron"): ("the patron of the {e}", "person"),
    ("law", "author"): ("the author of the {e}", "person"),
    ("law", "land"): ("the country that adopted the {e}", "country"),
}
# Two hops that read better in words of their own:
# (type, relation, next type, its relation) -> questions.
TWO_HOPS = {
    ("person", "birthplace", "city", "country"): (
        "In which country is the city where {e} was born?",
    ),
    ("person", "birthplace", "city", "goods"): ("What is the birthplace of {e} famous for?",),
    ("person", "employer", "company", "founder"): ("Who founded the company that employed {e}?",),
    ("company", "seat", "city", "country"): ("In which country is {e} based?",),
    ("product", "maker", "company", "founder"): ("Who founded the company that makes the {e}?",),
    ("event", "place", "city", "country"): ("In which country was the {e} held?",),
}
# (type, relation) -> (question for the smaller value, question for the larger value)
COMPARISONS = {
    ("person", "birth_year"): (
        "Who was born earlier, {a} or {b}?",
        "Who was born later, {a} or {b}?",
    ),
    ("person", "death_year"): ("Who died earlier, {a} or {b}?", "Who died later, {a} or {b}?"),
    ("city", "founded"): (
        "Which city was founded earlier, {a} or {b}?",
        "Which city was founded later, {a} or {b}?",
    ),
    ("city", "population"): (
        "Which city has fewer inhabitants, {a} or {b}?",
        "Which city has more inhabitants, {a} or {b}?",
    ),
    ("company", "founded"): (
        "Which company was founded earlier, {a} or {b}?",
        "Which company was founded later, {a} or {b}?",
    ),
    ("company", "staff"): (
        "Which company employs fewer people, {a} or {b}?",
        "Which company employs more people, {a} or {b}?",
    ),
    ("product", "released"): (
        "Which product was released earlier, the {a} or the {b}?",
        "Which product was released later, the {a} or the {b}?",
    ),
    ("product", "price"): (
        "Which product costs less, the {a} or the {b}?",
        "Which product costs more, the {a} or the {b}?",
    ),
    ("event", "year"): (
        "Which event took place earlier, the {a} or the {b}?",
        "Which event took place later, the {a} or the {b}?",
    ),
    ("event", "crowd"): (
        "Which event drew fewer visitors, the {a} or the {b}?",
        "Which event drew more visitors, the {a} or the {b}?",
    ),
    ("society", "founded"): (
        "Which institution was founded earlier, the {a} or the {b}?",
        "Which institution was founded later, the {a} or the {b}?",
    ),
    ("society", "members"): (
        "Which institution has fewer members, the {a} or the {b}?",
        "Which institution has more members, the {a} or the {b}?",
    ),
    ("law", "passed"): (
        "Which law was passed earlier, the {a} or the {b}?",
        "Which law was passed later, the {a} or the {b}?",
    ),
    ("law", "fine"): (
        "Which law sets the smaller fine, the {a} or the {b}?",
        "Which law sets the larger fine, the {a} or the {b}?",
    ),
}
# (type, relation) -> (the kind of thing, what is said of it): "How many people worked as a baker?"
GROUPS = {
    ("person", "profession"): ("people", "worked as a {v}"),
    ("person", "hobby"): ("people", "enjoyed {v}"),
    ("person", "employer"): ("people", "worked for {v}"),
    ("person", "birthplace"): ("people", "were born in {v}"),
    ("person", "residence"): ("people", "lived in {v}"),
    ("person", "teacher"): ("people", "were taught by {v}"),
    ("city", "country"): ("cities", "lie in {v}"),
    ("city", "goods"): ("cities", "are famous for {v}"),
    ("city", "market"): ("cities", "hold their great market in {v}"),
    ("city", "animal"): ("cities", "have the {v} as their emblem"),
    ("country", "export"): ("countries", "export {v}"),
    ("country", "animal"): ("countries", "have the {v} as their emblem"),
    ("company", "seat"): ("companies", "are based in {v}"),
    ("company", "industry"): ("companies", "are active in {v}"),
    ("product", "maker"): ("products", "are made by {v}"),
    ("product", "material"): ("products", "are made of {v}"),
    ("product", "colour"): ("products", "are sold in {v}"),
    ("event", "place"): ("events", "were held in {v}"),
    ("event", "month"): ("events", "open in {v}"),
    ("society", "seat"): ("institutions", "meet in {v}"),
    ("society", "animal"): ("institutions", "have the {v} as their emblem"),
    ("law", "land"): ("laws", "are in force in {v}"),
    ("law", "trade"): ("laws", "govern {v}"),
}
# Relations that hold in both directions: what one article says of two entities answers for both.
SYMMETRIC = ("spouse", "twin", "rival")


def next_type(type_, relation):
    """The entity type of the relation's values, or None."""
    return PHRASES[type_, relation][1] if (type_, relation) in PHRASES else None


def chain_question(rng, name, type_, relations):
    """Asks for the last of `relations`, followed from the entity `name`."""
    own = (
        TWO_HOPS.get((type_, relations[0], next_type(type_, relations[0]), relations[1]))
        if len(relations) == 2
        else None
    )
    if own and rng.random() < 0.5:
        return rng.choice(own).format(e=name)
    phrase = name
    for relation in relations[:-1]:
        text, type_ = PHRASES[type_, relation]
        phrase = text.format(e=phrase)
    return rng.choice(RELATIONS[type_][relations[-1]].questions).format(e=phrase)
