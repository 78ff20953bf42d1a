"""The files of the page: all are there, and nothing in them is loaded from elsewhere, or run from text."""

from __future__ import annotations

import re

from sbclient.emulator.page.files import FOLDER, HEADERS, INDEX, page_file
from sbclient.entities import SETTINGS, EntityKind
from sbclient.formats.entity_settings import described, settings_text, value_text

FILES = {path: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}
LIBRARIES = {FOLDER / "preact.js", FOLDER / "htm.js"}
OWN = {path: text for path, text in FILES.items() if path not in LIBRARIES}


def test_each_file_is_served_with_its_type_and_the_policy() -> None:
    for path in FILES:
        answer = page_file(path.name)
        assert (answer.status, answer.body) == (200, path.read_bytes())
        assert answer.content_type.startswith(("text/html", "text/css", "text/javascript", "image/svg+xml"))
        assert answer.headers == HEADERS


def test_nothing_else_is_served() -> None:
    for name in ("", "nothing.js", "../front.py", "/etc/passwd", ".", "page_files.py", "main.js/"):
        assert page_file(name).status == 404


def test_nothing_is_loaded_from_elsewhere_and_no_text_becomes_markup() -> None:
    for path, text in FILES.items():
        assert not re.search(r"https?://(?!\$\{|localhost|www\.w3\.org/)", text), path
        assert not re.search(r"eval\(|new Function|document\.write|DOMParser|import\(", text), path
    for path, text in OWN.items():
        assert not re.search(r"[iI]nnerHTML|outerHTML|insertAdjacent", text), path
        assert not re.search(r"<[^>]+\s(on\w+|style)=(?!\$\{)", text), path


def test_every_file_that_is_named_is_there_and_every_one_there_is_named() -> None:
    named = {INDEX}
    for text in FILES.values():
        named |= set(re.findall(r'from "\./([\w.]+)"', text)) | set(re.findall(r'"/\$page/([\w.]+)"', text))
    assert named == {path.name for path in FILES}


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"


def test_the_page_knows_the_key_that_every_emulator_has() -> None:
    text = (FOLDER / "access.js").read_text(encoding="utf-8")
    assert '"RootManageSharedAccessKey"' in text
    assert '"SAS_KEY_VALUE"' in text


def test_imports_of_scripts_exist_and_are_used() -> None:
    for path, text in OWN.items():
        rest = re.sub(r"^import .*?;$", "", text, flags=re.M | re.S)
        for names, source in re.findall(r'^import \{([^}]+)\} from "\./([\w.]+)";', text, re.M):
            for name in re.findall(r"\w+", names):
                exported = rf"^export (async )?(function|const|class) {name}\b|\bas {name}[,}}]"
                assert re.search(exported, FILES[FOLDER / source], re.M), (path, name, source)
                assert re.search(rf"\b{name}\b", rest), (path, name)


KINDS = {"QUEUE": EntityKind.QUEUE, "TOPIC": EntityKind.TOPIC, "SUBSCRIPTION": EntityKind.SUBSCRIPTION}
NOT_IN_FORMS = {
    "dead_lettering_on_filter_evaluation_exceptions",
    "enable_batched_operations",
    "enable_express",
    "filtering_messages_before_publishing",
    "max_message_size_in_kilobytes",
    "support_ordering",
}


def test_forms_have_the_settings_of_each_kind_with_their_defaults() -> None:
    text = FILES[FOLDER / "entity_form.js"]
    groups = dict(re.findall(r"const (BOTH|ALL) = \[(.*)\];", text))
    row = r'\{ name: "(\w+)".* kinds: (?:\[(.*?)\]|(\w+)), (?:isCheck: (true)|hint: "(.*)"|choices: STATUSES) \}'
    rows = re.findall(row, text)
    for word, kind in KINDS.items():
        shown = {name for name, some, group, *_ in rows if word in (some or groups[group]).split(", ")}
        wanted = settings_text(described(kind, "x", [])).keys() - NOT_IN_FORMS
        assert shown == wanted, f"SETTINGS in entity_form.js, or NOT_IN_FORMS, lacks settings of a {kind}"
    for name, _, _, is_check, hint in rows:
        default = SETTINGS[name].default
        assert isinstance(default, bool) == bool(is_check), name
        if hint and name != "max_size_in_megabytes":  # that of a topic or a queue that is not partitioned
            assert hint == ("none" if default is None else value_text(default)), name


def test_lines_have_the_maximum_length_of_the_project() -> None:
    texts = (text for path, text in OWN.items() if path.suffix != ".svg")
    assert [line for text in texts for line in text.splitlines() if len(line) > 120] == []
