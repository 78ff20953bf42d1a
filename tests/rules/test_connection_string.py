from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.errors import InvalidOperationError
from sbclient.rules.connection_string import ConnectionString, namespace_name, parse_connection_string
from tests.blanks import AROUND_A_LINE

ENDPOINT = "Endpoint=sb://contoso.servicebus.windows.net/"
KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0LWtleS1vZi1tYW55LWNoYXJhY3RlcnM="
SECRET = "c2VjcmV0LWtleS1vZi1tYW55LWNoYXJhY3RlcnM="
SIGNATURE = "SharedAccessSignature=SharedAccessSignature sr=a&sig=SECRETSIG%3D&se=1&skn=root"


def test_a_connection_string_of_the_service_is_read() -> None:
    parsed = parse_connection_string(f"{ENDPOINT};{KEY};EntityPath=orders")
    assert parsed == ConnectionString(
        "contoso.servicebus.windows.net", key_name="root", key=SECRET, entity_path="orders"
    )
    assert parsed.namespace == "contoso.servicebus.windows.net"


@pytest.mark.parametrize(
    "text",
    [
        f"  {ENDPOINT};{KEY};;\n",
        f"{KEY};{ENDPOINT}",
        f"endpoint=sb://CONTOSO.servicebus.windows.net;{KEY};EntityPath=",
        f"Endpoint = contoso.servicebus.windows.net ; {KEY}",
        f"Endpoint=amqps://contoso.servicebus.windows.net;{KEY};UseDevelopmentEmulator=False",
    ],
)
def test_order_case_and_spaces_do_not_matter(text: str) -> None:
    assert parse_connection_string(text) == parse_connection_string(f"{ENDPOINT};{KEY}")


def test_the_emulator_is_spoken_to_at_its_port() -> None:
    parsed = parse_connection_string(f"Endpoint=sb://localhost:5672;{KEY};UseDevelopmentEmulator=true;")
    assert (parsed.host, parsed.port, parsed.use_development_emulator) == ("localhost", 5672, True)
    assert parsed.namespace == "localhost:5672"
    assert not parsed.is_memory


def test_a_signature_stands_for_a_key() -> None:
    parsed = parse_connection_string(f"{ENDPOINT};{SIGNATURE}")
    assert parsed.signature == SIGNATURE.partition("=")[2]
    assert (parsed.key_name, parsed.key) == (None, None)


@pytest.mark.parametrize("text", ["memory://contoso", " Memory://Contoso/ ", "MEMORY://CONTOSO"])
def test_memory_names_a_broker_of_this_process(text: str) -> None:
    parsed = parse_connection_string(text)
    assert parsed == ConnectionString("contoso", is_memory=True)
    assert parsed.namespace == "memory://contoso"


@pytest.mark.parametrize("text", ["memory://", "memory://a b", "memory://a/b", "memory://-a", "memory://a_b"])
def test_memory_needs_a_name(text: str) -> None:
    with pytest.raises(InvalidOperationError):
        parse_connection_string(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "contoso",
        KEY,
        ENDPOINT,
        f"{ENDPOINT};SharedAccessKeyName=root",
        f"{ENDPOINT};SharedAccessKey={SECRET}",
        f"{ENDPOINT};{KEY};{SIGNATURE}",
        f"{ENDPOINT};{ENDPOINT};{KEY}",
        f"{ENDPOINT};{KEY};UseDevelopmentEmulator=perhaps",
        f"{ENDPOINT};{KEY};SharedAccesKeyName=red",
        f"{ENDPOINT};{KEY};abc+/d=e",
        f"{ENDPOINT};SharedAccessKeyName=root;{SECRET}",
        f"Endpoint=;{KEY}",
        f"Endpoint=sb:///;{KEY}",
        f"Endpoint=ftp://contoso;{KEY}",
        f"Endpoint=sb://contoso:99999;{KEY}",
        f"Endpoint=sb://contoso:http;{KEY}",
        f"Endpoint=sb://root:{SECRET}@contoso;{KEY}",
    ],
)
def test_parse_error_does_not_repeat_a_secret(text: str) -> None:
    with pytest.raises(InvalidOperationError) as caught:
        parse_connection_string(text)
    assert SECRET.rstrip("=") not in str(caught.value)
    assert "SECRETSIG" not in str(caught.value)


def test_a_secret_is_never_shown() -> None:
    for text in (f"{ENDPOINT};{KEY}", f"{ENDPOINT};{SIGNATURE}"):
        assert "contoso" in repr(parse_connection_string(text))
        assert SECRET not in repr(parse_connection_string(text))
        assert "SECRETSIG" not in repr(parse_connection_string(text))


def test_parts_for_other_clients_are_ignored_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="TransportType, StsEndpoint; remove") as warned:
        found = parse_connection_string(f"{ENDPOINT};TransportType=Amqp; {KEY} ; ;StsEndpoint=https://x:1/")
    assert (len(warned), found.key) == (1, SECRET)


@pytest.mark.parametrize("typed", ["SharedAccessKeyNam", "SharedAccesKey", "EntityPaht", "UseDevelopmentEmulatr"])
def test_a_misspelt_part_is_explained(typed: str) -> None:
    with pytest.raises(InvalidOperationError, match="did you mean"):
        parse_connection_string(f"{ENDPOINT};{KEY};{typed}=true")


@pytest.mark.filterwarnings("ignore:parts of the connection string")
@given(st.text("abEndpoint=;:/sb 0@", max_size=40), st.text(max_size=40))
def test_every_text_is_read_or_refused(endpoint: str, part: str) -> None:
    for text in (endpoint, part, f"Endpoint=sb://{endpoint};{KEY}", f"{ENDPOINT};{KEY};{part}"):
        refusal = ""
        try:
            assert parse_connection_string(text).host
        except InvalidOperationError as error:
            refusal = str(error)
        assert SECRET not in refusal


@pytest.mark.parametrize("endpoint", ["sb://[x", "sb://user:SECRET@h:99999", "sb://user:SECRET@h", "sb://h:port"])
def test_an_illegal_endpoint_is_refused_without_repeating_it(endpoint: str) -> None:
    with pytest.raises(InvalidOperationError) as refused:
        parse_connection_string(f"Endpoint={endpoint};SharedAccessKeyName=n;SharedAccessKey=k")
    assert "SECRET" not in str(refused.value)
    assert refused.value.__cause__ is None


KEY_LINE = "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=SECRET"
FILE_LINE = "Endpoint=sb://h/;CredentialFile=/run/key"
SIGNATURE_LINE = "Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x&sig=SECRET"


@pytest.mark.parametrize(
    ("line", "content", "found"),
    [
        (FILE_LINE, KEY_LINE, ("n", "SECRET", None)),
        (FILE_LINE, "SharedAccessSignature sig=SECRET", (None, None, "SharedAccessSignature sig=SECRET")),
        (FILE_LINE + ";SharedAccessKeyName=m", "SECRET=", ("m", "SECRET=", None)),
        (FILE_LINE + ";SharedAccessKeyName=m", KEY_LINE, ("n", "SECRET", None)),
        (FILE_LINE + ";SharedAccessKeyName=m", SIGNATURE_LINE, (None, None, "SharedAccessSignature sr=x&sig=SECRET")),
        (FILE_LINE, "SECRET", None),
        (FILE_LINE, " \n", None),
        (FILE_LINE, KEY_LINE + "\n" + KEY_LINE, None),
        (FILE_LINE, KEY_LINE.replace("//h", "//other"), None),
        (FILE_LINE, FILE_LINE, None),
    ],
)
def test_a_credential_comes_from_its_file(line: str, content: str, found: tuple[str | None, ...] | None) -> None:
    connection = parse_connection_string(line)
    if found is None:
        with pytest.raises(InvalidOperationError) as caught:
            connection.with_credential(content)
        assert "SECRET" not in str(caught.value)
    else:
        for before, after in AROUND_A_LINE:
            complete = connection.with_credential(before.strip("\ufeff") + content + after)
            assert (complete.key_name, complete.key, complete.signature) == found


@pytest.mark.parametrize(
    "line", [KEY_LINE, KEY_LINE.replace("//h", "//[::1]:99") + ";EntityPath=q;UseDevelopmentEmulator=true"]
)
def test_a_line_without_its_credential_means_the_same_namespace(line: str) -> None:
    connection = parse_connection_string(line)
    again = parse_connection_string(connection.without_credential("/run/key"))
    for name in ("namespace", "endpoint", "entity_path", "use_development_emulator"):
        assert getattr(again, name) == getattr(connection, name)
    assert (again.credential_file, again.key) == ("/run/key", None)
    with pytest.raises(InvalidOperationError):
        connection.without_credential("/run/a;b")


@pytest.mark.parametrize(
    "wrong",
    [
        FILE_LINE + ";SharedAccessKey=x",
        KEY_LINE.replace("=n", "=a=b"),
        KEY_LINE.replace("=SECRET", "="),
        "Endpoint=sb://h;SharedAccessSignature=",
        "Endpoint=sb://h;SharedAccessSignature= ; CredentialFile=",
    ],
)
def test_a_credential_of_two_kinds_or_none_or_a_malformed_name_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidOperationError):
        parse_connection_string(wrong)


@pytest.mark.parametrize(
    ("given", "name"),
    [("h.example", "h.example"), (" https://h:443/ ", "h"), ("sb://h:5672/", "h:5672"), ("", None), ("h/q", None)],
)
def test_a_namespace_is_named_by_its_host_or_url(given: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(InvalidOperationError):
            namespace_name(given)
    else:
        assert namespace_name(given) == name
