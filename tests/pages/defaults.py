"""What the documents say in sentences about the defaults of options, compared with the declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tests.pages.table import COMMAND

NOT_WRITTEN: Final = re.compile(rf"```.*?```|<!-- (.+): {COMMAND} -->.*?<!-- end of \1 -->", re.S)
WORDS: Final = {
    r"\s+": " ",
    r"\bminutes?\b": "min",
    r"\bseconds?\b": "s",
    r"\bhours?\b": "h",
    r"\b(a|an|one) (?=min|h )": "1 ",
}
OPTION: Final = r"`(?P<name>-{0,2}\w[\w-]*)"
VALUE: Final = r"(?P<value>\d[\d.]*(?: (?:s|min|h|d|KiB|MiB)\b)?)"
FORMS: Final = (
    rf"{OPTION}`[ ,(]*(?:is )?(?:default )?{VALUE}",
    rf"{VALUE} \({OPTION}`",
    rf"{OPTION}[= ](?P<value>[\w.-]+)`,? \(?the default",
)
"""`--wait` (default 5 s), `--count` is 100, after 24 hours (`missing_entity_grace`), `mode=peek`, the default."""


def wrong_defaults(text: str, defaults: Mapping[str, str]) -> Iterator[str]:
    """Yield what a text says of defaults of options that have others.

    Args:
        defaults: of each option, as text; a number has the unit of the text.
    """
    plain = NOT_WRITTEN.sub("", text)
    for word, unit in WORDS.items():
        plain = re.sub(word, unit, plain)
    for found in (found for form in FORMS for found in re.finditer(form, plain)):
        default, value = defaults.get(found["name"]), found["value"]
        if default is not None and default not in (value, value.partition(" ")[0]):
            yield f"the default of {found['name']} is {default}, not as in {found[0]}"
