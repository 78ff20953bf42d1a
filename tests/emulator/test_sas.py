"""Who may do what: tokens, keys and modes."""

from __future__ import annotations

import base64
import hmac
import json
import math
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbclient.emulator.sas import (
    ALL_RIGHTS,
    EVERYTHING,
    AuthorizationMode,
    Authorizer,
    Grant,
    is_at_or_below,
    root_rule,
)
from sbclient.entities import AccessRights, AuthorizationRule
from sbclient.errors import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from sbclient.rules.shared_access_signature import sign

ROOT_KEY_NAME = "RootManageSharedAccessKey"
ROOT_KEY = "SAS_KEY_VALUE"

NOW = 1_700_000_000.0
SEND_ONLY = AuthorizationRule(
    key_name="sender", rights=[AccessRights.SEND], primary_key="first", secondary_key="second"
)


def authorizer(mode: AuthorizationMode = AuthorizationMode.SAS) -> Authorizer:
    rules = {"orders": [SEND_ONLY], "prices": [SEND_ONLY]}
    return Authorizer(mode, entity_rules=rules.get)


def token(uri: str, key_name: str = ROOT_KEY_NAME, key: str = ROOT_KEY, expires_at: float = NOW + 60) -> str:
    return sign(uri, key_name, key, expires_at)


def refusal(text: str, mode: AuthorizationMode = AuthorizationMode.SAS) -> str:
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        authorizer(mode).authenticate(text, NOW)
    return caught.value.message


class TestSignatures:
    @pytest.mark.deviation("emulator.token-hosts")
    def test_root_key_grants_everything_in_the_scope_of_its_token(self) -> None:
        grant = authorizer().authenticate(token("sb://localhost:5672/orders"), NOW)
        assert grant == Grant("orders", ALL_RIGHTS, NOW + 60, entity="orders")

    def test_token_without_path_counts_for_the_namespace(self) -> None:
        assert authorizer().authenticate(token("https://localhost:5672"), NOW).path == ""

    def test_bearer_before_it_is_skipped(self) -> None:
        assert authorizer().authenticate(f"Bearer {token('sb://h/q')}", NOW).path == "q"

    def test_host_alone_is_the_namespace(self) -> None:
        """So the client for Go signs it."""
        assert authorizer().authenticate(token("contoso.example"), NOW).path == ""

    @pytest.mark.deviation("emulator.token-hosts")
    def test_lower_case_escapes_are_verified_as_they_stand(self) -> None:
        """Other SDKs write %3a where this one writes %3A; the signature is over what stands there."""
        resource, expiry = "sb%3a%2f%2fhost%2forders", str(int(NOW) + 60)
        proof = base64.b64encode(hmac.digest(ROOT_KEY.encode(), f"{resource}\n{expiry}".encode(), "sha256"))
        text = f"SharedAccessSignature sr={resource}&sig={quote_plus(proof)}&se={expiry}&skn={ROOT_KEY_NAME}"
        assert authorizer().authenticate(text, NOW).path == "orders"

    def test_wrong_key_is_refused(self) -> None:
        assert "is not signed" in refusal(token("sb://h/q", key="another"))

    def test_error_names_the_owner_of_the_key_once(self) -> None:
        assert " of 'q' or the namespace: " in refusal(token("sb://h/q", key="another"))
        assert "RootManageSharedAccessKey' of the namespace: " in refusal(token("sb://h/", key="another"))

    def test_unknown_key_name_is_refused(self) -> None:
        assert "is not signed" in refusal(token("sb://h/q", key_name="unknown"))

    def test_token_ends_at_its_second(self) -> None:
        text = token("sb://h/q", expires_at=NOW)
        authorizer().authenticate(text, NOW - 0.5)
        assert refusal(text).startswith("ExpiredToken: The token is expired. Expiration time: '2023-11-14 22:1")

    def test_expiry_cannot_be_moved_without_the_key(self) -> None:
        text = token("sb://h/q", expires_at=NOW - 1).replace(str(int(NOW) - 1), str(int(NOW) + 99))
        assert "is not signed" in refusal(text)

    def test_scope_cannot_be_widened_without_the_key(self) -> None:
        assert "is not signed" in refusal(token("sb://h/q").replace("%2Fq", "%2F"))

    @pytest.mark.parametrize(
        "text",
        [
            "SharedAccessSignature",
            "SharedAccessSignature ",
            "SharedAccessSignature sr=a",
            "SharedAccessSignature sr=sb%3A%2F%2Fh&sig=x&se=1e3&skn=RootManageSharedAccessKey",
            "SharedAccessSignature sr=sb%3A%2F%2Fh&sig=x&se=%s&skn=k&sr=b",
            "SharedAccessSignature sr=orders&sig=x&se=1&skn=RootManageSharedAccessKey",
            "SharedAccessSignature sr=sb%3A%2F%2F&sig=x&se=1&skn=RootManageSharedAccessKey",
            "Basic abc",
            "",
            "Bearer ",
            "x" * 70_000,
            token("sb://h/" + "a/" * 1_100),
        ],
    )
    def test_an_invalid_token_is_rejected(self, text: str) -> None:
        refusal(text)

    @given(st.text(max_size=60))
    def test_no_random_text_is_accepted_or_raises_another_error(self, text: str) -> None:
        for attempt in (text, f"SharedAccessSignature {text}", f"SharedAccessSignature sr={text}&sig=a&se=1&skn=b"):
            with pytest.raises(ServiceBusAuthenticationError):
                authorizer(AuthorizationMode.ANY_JWT).authenticate(attempt, NOW)

    def test_no_secret_is_in_an_error(self) -> None:
        for text in (token("sb://h/q", key="another"), token("sb://h/q", expires_at=NOW - 5)):
            signature = text.partition("sig=")[2].partition("&")[0]
            assert signature not in refusal(text)
            assert ROOT_KEY not in refusal(text)


class TestScope:
    @pytest.mark.parametrize(
        ("path", "scope"),
        [
            ("q1", "q1"),
            ("Q1", "q1"),
            ("q1/$DeadLetterQueue", "q1"),
            ("q1/$management", "q1"),
            ("t/Subscriptions/s", "t"),
            ("anything", ""),
            ("", ""),
            ("a\\b", "a/b"),
        ],
    )
    def test_covers_the_entity_and_its_parts(self, path: str, scope: str) -> None:
        assert is_at_or_below(path, scope)

    @pytest.mark.parametrize(("path", "scope"), [("q10", "q1"), ("q1", "q10"), ("q", "q/a"), ("", "q"), ("x/q1", "q1")])
    def test_covers_no_other_entity(self, path: str, scope: str) -> None:
        assert not is_at_or_below(path, scope)

    @given(st.text("abq/", max_size=8), st.text("abq/", max_size=8))
    def test_is_by_whole_segments(self, path: str, scope: str) -> None:
        def segments(text: str) -> list[str]:
            return text.strip("/").split("/") if text.strip("/") else []

        expected = segments(path)[: len(segments(scope))] == segments(scope)
        assert is_at_or_below(path, scope) is expected

    def test_check_names_the_scope_and_the_path(self) -> None:
        grant = authorizer().authenticate(token("sb://h/q1"), NOW)
        with pytest.raises(ServiceBusAuthorizationError, match="'q1' and does not cover 'q10'"):
            grant.check("q10", AccessRights.SEND)


class TestEntityKeys:
    @pytest.mark.parametrize("key", ["first", "second"])
    def test_either_key_proves_a_token(self, key: str) -> None:
        grant = authorizer().authenticate(token("sb://h/orders", "sender", key), NOW)
        assert grant == Grant("orders", frozenset({AccessRights.SEND}), NOW + 60, entity="orders")

    def test_key_of_an_entity_counts_below_it(self) -> None:
        grant = authorizer().authenticate(token("sb://h/prices/Subscriptions/eu", "sender", "first"), NOW)
        assert grant.path == "prices/Subscriptions/eu"

    def test_key_of_an_entity_proves_nothing_elsewhere(self) -> None:
        for uri in ("sb://h/", "sb://h/other", "sb://h/orders2", "sb://h/orders/x", "sb://h/orders/Subscriptions"):
            assert "is not signed" in refusal(token(uri, "sender", "first"))

    @pytest.mark.deviation("emulator.token-scope")
    def test_token_for_an_entity_counts_for_its_parts_and_for_no_entity_below(self) -> None:
        grant = authorizer().authenticate(token("sb://h/orders"), NOW)
        assert [grant.covers(path) for path in ("Orders", "orders/$DeadLetterQueue", "orders/Subscriptions/a")] == [
            True
        ] * 3
        assert not grant.covers("orders/x")

    @pytest.mark.deviation("emulator.token-scope")
    def test_token_for_a_path_of_no_entity_covers_everything_below(self) -> None:
        grant = authorizer().authenticate(token("sb://h/folder"), NOW)
        assert [grant.covers(path) for path in ("folder/a", "folder/a/$management", "folders/a")] == [True, True, False]

    def test_missing_right_is_named(self) -> None:
        grant = authorizer().authenticate(token("sb://h/orders", "sender", "first"), NOW)
        grant.check("orders", AccessRights.SEND)
        with pytest.raises(ServiceBusAuthorizationError, match="Listen is needed"):
            grant.check("orders", AccessRights.LISTEN)

    def test_manage_includes_the_other_rights(self) -> None:
        rule = AuthorizationRule(key_name="admin", rights=[AccessRights.MANAGE], primary_key="k")
        grant = Authorizer(rules=[rule]).authenticate(token("sb://h", "admin", "k"), NOW)
        assert grant.rights == ALL_RIGHTS

    def test_rule_without_keys_proves_nothing(self) -> None:
        bare = Authorizer(rules=[AuthorizationRule(key_name="bare", rights=[AccessRights.SEND])])
        with pytest.raises(ServiceBusAuthenticationError):
            bare.authenticate(token("sb://h", "bare", ""), NOW)


class TestKeysThemselves:
    def test_key_of_the_namespace_is_accepted(self) -> None:
        assert authorizer().authenticate_key(ROOT_KEY_NAME, ROOT_KEY).rights == ALL_RIGHTS
        assert Authorizer(rules=[root_rule("other")]).authenticate_key(ROOT_KEY_NAME, "other").path == ""

    @pytest.mark.parametrize(("name", "key"), [(ROOT_KEY_NAME, "x"), ("sender", "first"), ("", "")])
    def test_any_other_is_refused_without_being_shown(self, name: str, key: str) -> None:
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            authorizer().authenticate_key(name, key)
        assert not key or f"'{key}'" not in caught.value.message


def web_token(claims: object, header: object = None) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256"} if header is None else header, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), "c2ln"])


class TestModes:
    def test_mode_none_requires_no_token(self) -> None:
        unprotected = authorizer(AuthorizationMode.NONE)
        assert unprotected.authenticate("", NOW) == EVERYTHING == unprotected.authenticate_key("", "")

    @pytest.mark.deviation("emulator.entra")
    def test_web_tokens_are_rejected_by_default(self) -> None:
        assert "--auth sas" in refusal(web_token({"exp": NOW + 1}))

    @pytest.mark.deviation("emulator.entra")
    def test_any_web_token_is_accepted_in_its_mode(self) -> None:
        any_token = authorizer(AuthorizationMode.ANY_JWT)
        assert any_token.authenticate(f"Bearer {web_token({'exp': NOW + 9})}", NOW).expires_at == NOW + 9
        assert any_token.authenticate(web_token({}), NOW).expires_at == math.inf
        assert any_token.authenticate(web_token({"exp": 10**400}), NOW).expires_at == math.inf

    @pytest.mark.parametrize(
        "text",
        [
            web_token({"exp": NOW}),
            web_token({"exp": "soon"}),
            web_token({"exp": True}),
            web_token({"exp": float("nan")}),
            web_token({"exp": -(10**400)}),
            web_token([]),
            web_token({}, header={}),
            "a.b.c",
            "a.b",
            "..",
        ],
    )
    def test_invalid_web_token_is_rejected_in_its_mode(self, text: str) -> None:
        refusal(text, AuthorizationMode.ANY_JWT)

    def test_signatures_are_still_checked_where_any_web_token_is_accepted(self) -> None:
        assert "is not signed" in refusal(token("sb://h", key="x"), AuthorizationMode.ANY_JWT)
