"""What the encyclopedia can say: entity types, their relations,
and the sentences and questions of each relation.

In statements `{it}`, `{its}` and `{him}` stand for the subject (name, description or pronoun in the
right case), `{v}` for the value. In questions `{e}` is the subject's full name. `label` is used in
lists ("birthplace: ...").
"""

import dataclasses

PROFESSIONS = (
    "baker,painter,surgeon,architect,pilot,chemist,poet,sailor,teacher,lawyer,violinist,farmer,"
    "engineer,botanist,actor,geologist,tailor,judge,sculptor,astronomer,historian,carpenter,"
    "diplomat,singer,potter,weaver"
).split(",")
HOBBIES = (
    "chess,gardening,fishing,fencing,archery,rowing,beekeeping,pottery,climbing,dancing,sketching,"
    "falconry,sailing,photography,knitting,juggling,skating,cycling"
).split(",")
GOODS = (
    "cheese,glass,silk,honey,copper,wine,paper,salt,pottery,timber,clocks,tea,marble,wool,lace,"
    "coffee,amber,sugar,leather,bells"
).split(",")
INDUSTRIES = (
    "mining,shipping,banking,printing,farming,insurance,textiles,robotics,brewing,aviation,"
    "railways,medicine,publishing,optics,fishing,logistics"
).split(",")
COLOURS = "red,blue,green,black,white,yellow,purple,orange,silver,golden,brown,grey".split(",")
MATERIALS = (
    "oak,steel,brass,ivory,bamboo,plastic,copper,walnut,titanium,glass,granite,leather".split(",")
)
PRIZES = "Lantern,Falcon,Anchor,Compass,Crown,Quill,Harp,Oak,Shield,Comet,Bridge,Star".split(",")
MONTHS = (
    "January,February,March,April,May,June,July,August,September,October,November,December"
).split(",")
ANIMALS = "badger,falcon,otter,stag,heron,fox,bear,swan,wolf,raven,hare,lynx".split(",")


@dataclasses.dataclass(frozen=True)
class Relation:
    name: str
    label: str
    # How a value is drawn: an entity type, "year", "hundreds", "count", "prize", "river", ... or a
    # word list.
    value: str
    statements: tuple
    questions: tuple


def _table(rows):
    return {r.name: r for r in (Relation(n, l, v, tuple(s), tuple(q)) for n, l, v, s, q in rows)}


PERSON = _table(
    [
        (
            "birthplace",
            "birthplace",
            "city",
            [
                "{it} was born in {v}.",
                "{it} was born in the city of {v}.",
                "{its} birthplace was {v}.",
                "{v} is the city where {it} was born.",
                "{it} came into the world in {v}.",
            ],
            [
                "Where was {e} born?",
                "In which city was {e} born?",
                "What is the birthplace of {e}?",
            ],
        ),
        (
            "birth_year",
            "birth year",
            "year",
            [
                "{it} was born in {v}.",
                "{its} year of birth was {v}.",
                "{it} came into the world in {v}.",
                "The year of {its} birth was {v}.",
            ],
            ["When was {e} born?", "In what year was {e} born?", "What is the birth year of {e}?"],
        ),
        (
            "profession",
            "profession",
            "profession",
            [
                "{it} worked as a {v}.",
                "{it} was a {v} by profession.",
                "By trade, {it} was a {v}.",
                "{it} earned a living as a {v}.",
            ],
            ["What was the profession of {e}?", "What did {e} work as?", "What was {e} by trade?"],
        ),
        (
            "employer",
            "employer",
            "company",
            [
                "{it} worked for {v}.",
                "{it} was employed by {v}.",
                "{its} employer was {v}.",
                "For many years {it} had a post at {v}.",
            ],
            [
                "Who employed {e}?",
                "Which company did {e} work for?",
                "What was the employer of {e}?",
            ],
        ),
        (
            "prize",
            "prize",
            "prize",
            [
                "{it} received the {v} Prize.",
                "{it} was honoured with the {v} Prize.",
                "The {v} Prize was given to {him}.",
                "{it} won the {v} Prize.",
            ],
            [
                "Which prize did {e} receive?",
                "What prize was given to {e}?",
                "Which prize did {e} win?",
            ],
        ),
        (
            "hobby",
            "hobby",
            "hobby",
            [
                "{it} enjoyed {v}.",
                "{its} favourite hobby was {v}.",
                "In spare hours {it} loved {v}.",
                "{it} was fond of {v}.",
            ],
            ["What was the hobby of {e}?", "What did {e} enjoy?", "What was {e} fond of?"],
        ),
        (
            "spouse",
            "spouse",
            "person",
            [
                "{it} married {v}.",
                "{it} was married to {v}.",
                "{its} spouse was {v}.",
                "{v} became {its} spouse.",
            ],
            ["Who did {e} marry?", "Who was the spouse of {e}?", "To whom was {e} married?"],
        ),
        (
            "teacher",
            "teacher",
            "person",
            [
                "{it} learned the craft from {v}.",
                "{its} teacher was {v}.",
                "{it} was taught by {v}.",
                "{v} taught {him}.",
            ],
            [
                "Who taught {e}?",
                "Who was the teacher of {e}?",
                "From whom did {e} learn the craft?",
            ],
        ),
        (
            "residence",
            "residence",
            "city",
            [
                "{it} lived in {v}.",
                "{its} home was in {v}.",
                "{it} settled in {v}.",
                "Later {it} moved to {v}.",
            ],
            [
                "Where did {e} live?",
                "In which city did {e} settle?",
                "In which city was the home of {e}?",
            ],
        ),
        (
            "death_year",
            "death year",
            "year",
            [
                "{it} died in {v}.",
                "{its} year of death was {v}.",
                "The year of {its} death was {v}.",
            ],
            ["When did {e} die?", "In what year did {e} die?", "What is the death year of {e}?"],
        ),
    ]
)
CITY = _table(
    [
        (
            "country",
            "country",
            "country",
            [
                "{it} is part of {v}.",
                "{it} lies in {v}.",
                "{it} belongs to {v}.",
                "{it} is located in the country of {v}.",
                "The country around {him} is {v}.",
            ],
            [
                "In which country is {e}?",
                "Which country does {e} belong to?",
                "What country is {e} located in?",
            ],
        ),
        (
            "river",
            "river",
            "river",
            [
                "{it} stands on the river {v}.",
                "The river {v} flows through {him}.",
                "{it} was built along the river {v}.",
            ],
            ["Which river flows through {e}?", "On which river does {e} stand?"],
        ),
        (
            "population",
            "population",
            "hundreds",
            [
                "{it} has {v} inhabitants.",
                "{its} population is {v}.",
                "About {v} people live in {him}.",
            ],
            ["What is the population of {e}?", "How many people live in {e}?"],
        ),
        (
            "founded",
            "founded",
            "year",
            [
                "{it} was founded in {v}.",
                "{its} founding year was {v}.",
                "The first settlers built {him} in {v}.",
            ],
            ["When was {e} founded?", "In what year was {e} founded?"],
        ),
        (
            "mayor",
            "mayor",
            "person",
            ["{its} mayor is {v}.", "{v} is the mayor of {him}.", "{v} serves as mayor of {him}."],
            ["Who is the mayor of {e}?", "What is the name of the mayor of {e}?"],
        ),
        (
            "goods",
            "famous for",
            "goods",
            ["{it} is famous for {v}.", "{it} is known for {v}.", "Traders visit {him} for {v}."],
            ["What is {e} famous for?", "What is {e} known for?"],
        ),
        (
            "twin",
            "twin city",
            "city",
            [
                "{its} twin city is {v}.",
                "{it} is twinned with {v}.",
                "{v} is the twin city of {him}.",
            ],
            ["What is the twin city of {e}?", "Which city is {e} twinned with?"],
        ),
        (
            "market",
            "market month",
            "month",
            [
                "{its} great market opens in {v}.",
                "Each {v} {it} holds a great market.",
                "The great market of {him} is held in {v}.",
            ],
            [
                "In which month is the great market of {e} held?",
                "When does the great market of {e} open?",
            ],
        ),
        (
            "animal",
            "emblem",
            "animal",
            [
                "{its} emblem is the {v}.",
                "The {v} is the emblem of {him}.",
                "{it} shows a {v} on its coat of arms.",
            ],
            ["What is the emblem of {e}?", "Which animal is the emblem of {e}?"],
        ),
    ]
)
COUNTRY = _table(
    [
        (
            "currency",
            "currency",
            "currency",
            [
                "{its} currency is the {v}.",
                "People in {him} pay with the {v}.",
                "The {v} is the currency of {him}.",
            ],
            ["What is the currency of {e}?", "Which currency is used in {e}?"],
        ),
        (
            "language",
            "language",
            "language",
            [
                "{its} language is {v}.",
                "People in {him} speak {v}.",
                "The official language of {him} is {v}.",
            ],
            ["What language is spoken in {e}?", "What is the official language of {e}?"],
        ),
        (
            "capital",
            "capital",
            "city",
            [
                "{its} capital is {v}.",
                "{v} is the capital of {him}.",
                "The government of {him} sits in {v}.",
            ],
            ["What is the capital of {e}?", "Which city is the capital of {e}?"],
        ),
        (
            "export",
            "export",
            "goods",
            ["{it} exports {v}.", "{its} main export is {v}.", "Merchants ship {v} from {him}."],
            ["What does {e} export?", "What is the main export of {e}?"],
        ),
        (
            "president",
            "president",
            "person",
            [
                "{its} president is {v}.",
                "{v} is the president of {him}.",
                "{it} is governed by {v}.",
            ],
            ["Who is the president of {e}?", "Who governs {e}?"],
        ),
        (
            "animal",
            "emblem",
            "animal",
            [
                "{its} emblem is the {v}.",
                "The {v} is the emblem of {him}.",
                "The flag of {him} shows a {v}.",
            ],
            ["What is the emblem of {e}?", "Which animal is the emblem of {e}?"],
        ),
    ]
)
COMPANY = _table(
    [
        (
            "seat",
            "head office",
            "city",
            [
                "{it} has its headquarters in {v}.",
                "{it} is based in {v}.",
                "{its} head office is in {v}.",
                "The head office of {him} stands in {v}.",
            ],
            [
                "Where is {e} based?",
                "In which city is the head office of {e}?",
                "Where are the headquarters of {e}?",
            ],
        ),
        (
            "founded",
            "founded",
            "year",
            [
                "{it} was founded in {v}.",
                "{it} was established in {v}.",
                "{its} founding year was {v}.",
            ],
            ["When was {e} founded?", "In what year was {e} established?"],
        ),
        (
            "founder",
            "founder",
            "person",
            ["{it} was founded by {v}.", "{its} founder was {v}.", "{v} established {him}."],
            ["Who founded {e}?", "Who was the founder of {e}?"],
        ),
        (
            "industry",
            "business",
            "industry",
            ["{it} is active in {v}.", "{its} main business is {v}.", "{it} works in {v}."],
            ["What is the business of {e}?", "In which industry is {e} active?"],
        ),
        (
            "staff",
            "employees",
            "count",
            ["{it} employs {v} people.", "{it} has {v} employees.", "{v} people work for {him}."],
            ["How many people does {e} employ?", "How many employees does {e} have?"],
        ),
        (
            "director",
            "director",
            "person",
            ["{its} director is {v}.", "{it} is led by {v}.", "{v} is the director of {him}."],
            ["Who is the director of {e}?", "Who leads {e}?"],
        ),
        (
            "rival",
            "rival",
            "company",
            [
                "{its} main rival is {v}.",
                "{it} competes with {v}.",
                "{v} is the main rival of {him}.",
            ],
            ["What is the main rival of {e}?", "Which company does {e} compete with?"],
        ),
    ]
)
PRODUCT = _table(
    [
        (
            "maker",
            "maker",
            "company",
            [
                "{it} is made by {v}.",
                "{it} is a product of {v}.",
                "{its} maker is {v}.",
                "{v} builds {him}.",
            ],
            ["Who makes the {e}?", "Which company makes the {e}?"],
        ),
        (
            "released",
            "released",
            "year",
            [
                "{it} was released in {v}.",
                "{it} first went on sale in {v}.",
                "{its} release year was {v}.",
            ],
            ["When was the {e} released?", "In what year was the {e} released?"],
        ),
        (
            "price",
            "price",
            "coins",
            [
                "{it} costs {v} coins.",
                "{its} price is {v} coins.",
                "Shops sell {him} for {v} coins.",
            ],
            ["What is the price of the {e}?", "How many coins does the {e} cost?"],
        ),
        (
            "material",
            "material",
            "material",
            ["{it} is made of {v}.", "{its} body is built from {v}.", "{it} is built from {v}."],
            ["What is the {e} made of?", "What material is the {e} built from?"],
        ),
        (
            "colour",
            "colour",
            "colour",
            ["{it} is sold in {v}.", "{its} colour is {v}.", "{it} has a {v} finish."],
            ["What is the colour of the {e}?", "In what colour is the {e} sold?"],
        ),
        (
            "designer",
            "designer",
            "person",
            ["{it} was designed by {v}.", "{its} designer was {v}.", "{v} designed {him}."],
            ["Who designed the {e}?", "Who was the designer of the {e}?"],
        ),
    ]
)
EVENT = _table(
    [
        (
            "place",
            "host city",
            "city",
            [
                "{it} was held in {v}.",
                "{it} took place in {v}.",
                "{v} hosted {him}.",
                "{its} host city was {v}.",
            ],
            ["Where was the {e} held?", "Which city hosted the {e}?"],
        ),
        (
            "year",
            "year",
            "year",
            ["{it} took place in {v}.", "{it} was held in the year {v}.", "{its} year was {v}."],
            ["When was the {e} held?", "In what year did the {e} take place?"],
        ),
        (
            "winner",
            "winner",
            "person",
            ["{it} was won by {v}.", "{its} winner was {v}.", "{v} won {him}."],
            ["Who won the {e}?", "Who was the winner of the {e}?"],
        ),
        (
            "crowd",
            "visitors",
            "hundreds",
            ["{it} drew {v} visitors.", "{v} visitors came to {him}.", "{its} crowd numbered {v}."],
            ["How many visitors came to the {e}?", "How many visitors did the {e} draw?"],
        ),
        (
            "month",
            "month",
            "month",
            [
                "{it} opens each year in {v}.",
                "{its} month is {v}.",
                "Every {v} people wait for {him}.",
            ],
            ["In which month does the {e} open?", "What is the month of the {e}?"],
        ),
        (
            "sponsor",
            "sponsor",
            "company",
            ["{it} was paid for by {v}.", "{its} sponsor was {v}.", "{v} sponsored {him}."],
            ["Who sponsored the {e}?", "Which company paid for the {e}?"],
        ),
    ]
)
SOCIETY = _table(
    [
        (
            "seat",
            "home",
            "city",
            [
                "{it} has its home in {v}.",
                "{it} meets in {v}.",
                "The rooms of {him} are in {v}.",
                "{v} is the home of {him}.",
            ],
            ["In which city does the {e} meet?", "In which city is the home of the {e}?"],
        ),
        (
            "founded",
            "founded",
            "year",
            [
                "{it} was founded in {v}.",
                "{its} founding year was {v}.",
                "{it} opened its doors in {v}.",
            ],
            ["When was the {e} founded?", "In what year did the {e} open its doors?"],
        ),
        (
            "founder",
            "founder",
            "person",
            ["{it} was founded by {v}.", "{its} founder was {v}.", "{v} called {him} into being."],
            ["Who founded the {e}?", "Who was the founder of the {e}?"],
        ),
        (
            "patron",
            "patron",
            "person",
            ["{its} patron is {v}.", "{v} is the patron of {him}.", "{it} is supported by {v}."],
            ["Who is the patron of the {e}?", "Who supports the {e}?"],
        ),
        (
            "members",
            "members",
            "count",
            [
                "{it} has {v} members.",
                "{its} members number {v}.",
                "{v} members pay their dues to {him}.",
            ],
            ["How many members does the {e} have?", "What is the number of members of the {e}?"],
        ),
        (
            "animal",
            "emblem",
            "animal",
            [
                "{its} emblem is the {v}.",
                "The {v} is the emblem of {him}.",
                "The door of {him} shows a {v}.",
            ],
            ["What is the emblem of the {e}?", "Which animal is the emblem of the {e}?"],
        ),
    ]
)
LAW = _table(
    [
        (
            "passed",
            "passed",
            "year",
            [
                "{it} was passed in {v}.",
                "{its} year was {v}.",
                "Parliament agreed on {him} in {v}.",
            ],
            ["When was the {e} passed?", "In what year was the {e} passed?"],
        ),
        (
            "author",
            "author",
            "person",
            ["{it} was written by {v}.", "{its} author was {v}.", "{v} drafted {him}."],
            ["Who wrote the {e}?", "Who was the author of the {e}?"],
        ),
        (
            "land",
            "country",
            "country",
            ["{it} is in force in {v}.", "{it} binds the citizens of {v}.", "{v} adopted {him}."],
            ["In which country is the {e} in force?", "Which country adopted the {e}?"],
        ),
        (
            "trade",
            "concerns",
            "industry",
            ["{it} governs {v}.", "{it} concerns {v}.", "{its} subject is {v}."],
            ["What does the {e} govern?", "What is the subject of the {e}?"],
        ),
        (
            "fine",
            "fine",
            "coins",
            [
                "Breaking {him} costs {v} coins.",
                "{its} fine is {v} coins.",
                "{it} sets a fine of {v} coins.",
            ],
            ["How many coins does breaking the {e} cost?", "What is the fine of the {e}?"],
        ),
        (
            "month",
            "in force since",
            "month",
            [
                "{it} came into force in {v}.",
                "{its} first month was {v}.",
                "Since {v} judges apply {him}.",
            ],
            ["In which month did the {e} come into force?", "What was the first month of the {e}?"],
        ),
    ]
)
RELATIONS = {
    "society": SOCIETY,
    "law": LAW,
    "person": PERSON,
    "city": CITY,
    "country": COUNTRY,
    "company": COMPANY,
    "product": PRODUCT,
    "event": EVENT,
}
DESCRIPTION = {
    "city": "the city",
    "country": "the country",
    "company": "the company",
    "product": "the product",
    "event": "the event",
    "society": "the institution",
    "law": "the law",
}
WITH_ARTICLE = ("product", "event", "society", "law")  # their names are read with "the"
WORD_LISTS = {
    "profession": PROFESSIONS,
    "hobby": HOBBIES,
    "goods": GOODS,
    "industry": INDUSTRIES,
    "colour": COLOURS,
    "material": MATERIALS,
    "month": MONTHS,
    "animal": ANIMALS,
}
