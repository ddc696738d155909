"""Parses a yes-or-no question: which object it names, and which phrases of the vocabulary it may contain.

The form of a question ("does it have ...", "is it made of ...") selects the frame. The rest must be a whole phrase of
the vocabulary; nothing is guessed from single words.
"""

import re
from dataclasses import dataclass

from tasks.environments.twenty_questions.vocabulary import Frame

_FILLER = re.compile(
    r"(?:(?:ok|okay|so|well|then|now|hmm|great|alright|right|next question|question|final guess|guess)\b[,:.!]*\s+)+"
)
_THING = r"(?:object|thing|item|answer|word)"
_SUBJECT = (
    rf"(?:the (?:secret |mystery |hidden )?{_THING}(?: (?:that )?you(?: are|re)? think(?:ing)? (?:of|about))?"
    rf"|(?:this|that|your|these|those)(?: secret)? {_THING}s?|what you are thinking of|this|that|they|these|those|it)"
)
_ADVERB = (
    "usually|typically|often|commonly|generally|normally|mostly|mainly|primarily|ever|sometimes|also|just|probably|"
    "really|actually|frequently|regularly|maybe|perhaps|possibly|most"
)
_PEOPLE = r"(?:(?:many |some )?people|one|humans|we|i|someone|somebody|a person|a human|anyone|everyone|you)"
_MAY = "(?:do|does|can|could|would|will|should|might|may)"
_AUXILIARY = {"are": "is", "do": "does", "have": "has", "was": "is", "were": "is"}
_INSIDE = "(?:in|inside|inside of|at|on|around|near|within|under)"
_FOUND = "(?:found|kept|located|stored|seen|placed|living|grown|sold|worn|bought|used|native to|common)"

_MADE = "(?:made|built|constructed|composed|manufactured|produced)"
_MEANT = "(?:used|meant|intended|designed|made|needed|useful|good|helpful)"
_FIND = "(?:find|see|keep|store|put|buy|get|have|spot|expect to find|own)"
_SIDE = "((?:in|out)(?:side|doors))"

_FORMS: tuple[tuple[str, tuple[Frame, ...]], ...] = (
    (rf"is it {_MADE}(?: up| out)? (?:of|from|with|using) (.+)", ("made",)),
    (rf"is it {_MADE} (by .+)", ("made",)),
    (rf"is it {_MEANT} (?:for|to|as|when|while) (.+)", ("used",)),
    (r"do you use it (?:for|to|as|when|while) (.+)", ("used",)),
    (r"is it for (.+)", ("used", "is")),
    (r"is it used (by .+)", ("used",)),
    (r"(?:is it used|do you use it) (?:in|at|on|inside|around) (.+)", ("in", "used")),
    (rf"(?:is it used|do you use it) {_SIDE}", ("in",)),
    (rf"is it (?:{_FOUND} )?{_INSIDE} (.+)", ("in",)),
    (rf"is it (?:{_FOUND} )?{_SIDE}", ("in",)),
    (rf"does it (?:live|grow|belong|exist|stay|go|be {_FOUND}) {_INSIDE} (.+)", ("in",)),
    (rf"do you {_FIND} (?:it|one) {_INSIDE} (.+)", ("in",)),
    (rf"do you {_FIND} (?:it|one) {_SIDE}", ("in",)),
    (r"does it (?:have|contain|possess|include|feature|come with) (.+)", ("has",)),
    (r"has it(?: got)? (.+)", ("has",)),
    (r"is it covered (?:in|with|by) (.+)", ("has",)),
    (r"do you (.+)", ("you",)),
    (r"do you (.+) (?:with|from|on|in|using) it", ("used",)),
    (r"does it (.+)", ("does",)),
    (r"(?:is it|are you thinking (?:of|about)) (.+)", ("is",)),
)
_COMPILED = tuple((re.compile(form), frames) for form, frames in _FORMS)
_KIND_OF = re.compile(
    r"(?:an? |the |some )?(?:type|kind|sort|form|piece|example|member|variety|species|breed)s? of "
)
_NAMING = re.compile(
    r"(?:is it|is its name|are you thinking (?:of|about)|(?:could|might|would|can) it be|it is|its"
    r"|i (?:guess|think)(?: its| it is)?|(?:my guess|the answer) is) (?:called |named |known as )?(?P<name>.+)"
)
_COMPARING = re.compile(r"is it (?P<more>bigger|larger|smaller)(?: in size)? than (?P<other>.+)")
_ARTICLE = re.compile(r"(?:an?|the|some) ")


@dataclass(frozen=True)
class Question:
    """A parsed question.

    Attributes:
        readings: possible pairs of frame and phrase, the likelier first.
        named: the object that it may name ("a hot dog").
        compared: what the object's size is compared with.
        bigger: whether it asks for bigger rather than smaller than that.
    """

    readings: tuple[tuple[Frame, str], ...]
    named: str | None = None
    compared: str | None = None
    bigger: bool = True

    @property
    def has_article(self) -> bool:
        """Whether the name has an article: 'an orange' is a thing, 'orange' a colour."""
        return self.named is not None and _ARTICLE.match(self.named) is not None


def read_question(text: str) -> Question:
    """Parse a question; one of unknown form has no readings and names nothing."""
    plain = _plain(text)
    if (compared := _COMPARING.fullmatch(plain)) is not None:
        return Question((), compared=compared["other"], bigger=compared["more"] != "smaller")
    naming = _NAMING.fullmatch(plain)
    plain = re.sub(r"^(?:can|could|will|would|might|may) it (?:be able to )?", "does it ", plain)
    readings: list[tuple[Frame, str]] = []
    for form, frames in _COMPILED:
        if (match := form.fullmatch(plain)) is not None:
            readings += [(frame, _KIND_OF.sub("", match[1], count=1)) for frame in frames]
    return Question(tuple(readings), named=naming["name"] if naming else None)


def _plain(text: str) -> str:
    """The question in a normal form: lower case, without fillers, the object as 'it' and people as 'you'."""
    plain = (
        " ".join(re.sub(r"[’']", "", text.casefold()).replace(",", " ").split()).rstrip(' ?.!"').lstrip(' "')
    )
    plain = _FILLER.sub("", plain) if _FILLER.match(plain) else plain
    plain = re.sub(rf"\b(?:{_ADVERB}) ", "", plain)
    begun = re.match(
        rf"(?P<verb>is|are|was|were|do|does|has|have|can|could|will|would|might|may) {_SUBJECT}\b", plain
    )
    if begun is not None:
        verb = _AUXILIARY.get(begun["verb"], begun["verb"])
        plain = f"{verb} it{plain[begun.end() :]}"
    plain = re.sub(r"\b(?:this|that|the) (?:object|thing|item)\b|\bthem\b", "it", plain)
    plain = re.sub(rf"^{_MAY} {_PEOPLE} ", "do you ", plain)
    plain = re.sub(
        r"^is it considered (?:to be |as )?|^is it (?:classified|categorized|known) as ", "is it ", plain
    )
    return _without_something(plain)


_SOMETHING = re.compile(
    r"^is it (?:something|a thing|an object|an item|one)(?: (?:that|which))? "
    rf"(?:(?P<you>{_PEOPLE}) (?:can |could |would |might )?|(?P<is>is |are )|(?P<has>has |have )|(?P<can>can )|)"
    r"(?P<rest>.+)"
)


def _without_something(plain: str) -> str:
    """'Is it something that has wings' as 'does it have wings', and the like."""
    match = _SOMETHING.fullmatch(plain)
    if match is None:
        return plain
    rest = match["rest"]
    if match["you"]:
        return "do you " + re.sub(rf"^{_FIND} (?={_INSIDE} |{_SIDE})", r"\g<0>it ", rest)
    if match["has"]:
        return f"does it have {rest}"
    if match["can"]:
        return f"does it {rest}"
    verbless = match["is"] or re.match(
        r"(?:made|used|found|kept|worn|with|in|on|for|alive|edible|living)\b", rest
    )
    return f"is it {rest}" if verbless else f"does it {rest}"
