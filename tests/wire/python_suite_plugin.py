"""What the tests of azure-servicebus import from tools that are not published, and from Azure; a plugin of pytest.

The tests create namespaces, entities and authorization rules with Azure Resource Manager, which is replaced by the
administration client on the emulator. Names of hosts in Azure resolve to the emulator. Each worker of pytest has a
namespace of its own, because tests delete all entities of theirs.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import wraps
from random import choices
from string import ascii_lowercase
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Final

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus.management import AuthorizationRule, ServiceBusAdministrationClient

from sbclient.emulator.sas import ROOT_KEY_NAME
from tests.wire.python_suite import DOMAIN, PORTS, RULES

_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORT: Final = json.loads(os.environ[PORTS])[_WORKER]
_NAMESPACE: Final = f"worker{_WORKER}"
_HOST: Final = f"{_NAMESPACE}{DOMAIN}"
_OWN_KEY: Final = base64.b64encode(b"the key of the rule of one queue").decode()

# ---------------------------------------------------------------------- the hosts of Azure

_getaddrinfo: Final = socket.getaddrinfo


def _resolve(host: Any, port: Any, *others: Any, **named: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else host
    if name == _HOST:
        return _getaddrinfo("127.0.0.1", _PORT, *others, **named)
    if isinstance(name, str) and name.endswith(DOMAIN):
        raise socket.gaierror(socket.EAI_NONAME, f"there is no host {name}")
    return _getaddrinfo(host, port, *others, **named)


socket.getaddrinfo = _resolve


def _connection_string(key_name: str = ROOT_KEY_NAME, key: str = RULES[ROOT_KEY_NAME][0], entity: str = "") -> str:
    text = f"Endpoint=sb://{_HOST}/;SharedAccessKeyName={key_name};SharedAccessKey={key}"
    return f"{text};EntityPath={entity}" if entity else text


# ---------------------------------------------------------------------- Azure Resource Manager


class _Operations:
    """The operations of a kind of resource: each takes a resource group and a namespace before its own arguments."""

    _keys: ClassVar = {ROOT_KEY_NAME: (ROOT_KEY_NAME, RULES[ROOT_KEY_NAME][0])}

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def create_or_update(self, group: str, namespace: str, *names_and_model: Any) -> SimpleNamespace:
        *names, model = names_and_model
        getattr(self._client(), f"create_{self._kind}")(*names, **vars(model) if model else {})
        return SimpleNamespace(name=names[-1])

    def delete(self, group: str, namespace: str, *names: str) -> None:
        getattr(self._client(), f"delete_{self._kind}")(*names)

    def create_or_update_authorization_rule(self, group: str, namespace: str, *names_and_model: Any) -> SimpleNamespace:
        *entity, name, model = names_and_model
        if not entity:  # the emulator takes those of a namespace at its start
            key_name = next(each for each, (_, rights) in RULES.items() if set(rights) == set(model.rights))
            self._keys[name] = key_name, RULES[key_name][0]
            return SimpleNamespace(name=name)
        self._keys[name] = name, _OWN_KEY
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=model.rights,
            key_name=name,
            primary_key=_OWN_KEY,
            secondary_key=_OWN_KEY,
        )
        queue = self._client().get_queue(entity[0])
        queue.authorization_rules = [rule]
        self._client().update_queue(queue)
        return SimpleNamespace(name=name)

    def delete_authorization_rule(self, *names: str) -> None: ...

    def list_keys(self, group: str, namespace: str, *names: str) -> SimpleNamespace:
        *entity, name = names
        key_name, key = self._keys[name]
        text = _connection_string(key_name, key, *entity)
        return SimpleNamespace(primary_connection_string=text, key_name=key_name, primary_key=key)

    def begin_create_or_update(self, group: str, name: str, _: object) -> SimpleNamespace:
        return SimpleNamespace(result=lambda: SimpleNamespace(name=_NAMESPACE))

    @staticmethod
    def _client() -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(_connection_string())


class _Namespaces(_Operations):
    def delete(self, group: str, namespace: str, *names: str) -> None: ...


class _ManagementClient:
    def __init__(self) -> None:
        self.namespaces = _Namespaces("namespace")
        self.queues, self.topics = _Operations("queue"), _Operations("topic")
        self.subscriptions = _Operations("subscription")
        self.resource_groups = SimpleNamespace(
            create_or_update=lambda name, _: SimpleNamespace(name=name),
            begin_delete=lambda name, polling: SimpleNamespace(result=lambda: None),
        )


# ---------------------------------------------------------------------- the tools of the tests


def _name(prefix: str, length: int) -> str:
    return (prefix + "".join(choices(ascii_lowercase, k=length)))[:length]


def _run(test: Callable[..., Any], test_class: object, arguments: Mapping[str, Any]) -> None:
    """Run a test, which may be a coroutine function, with those arguments that it takes."""
    parameters = inspect.signature(test, follow_wrapped=False).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    result = test(test_class, **{key: value for key, value in arguments.items() if takes_all or key in parameters})
    if inspect.iscoroutine(result):
        asyncio.run(result)


class _Preparer:
    """A decorator of a test that creates a resource before it, and deletes it afterwards.

    None is shared by tests, although some ask for it: those of the administration delete all entities of a namespace.
    """

    is_live = True

    def __init__(self, name_prefix: str = "", name_len: int = 24, **options: Any) -> None:
        self.name_prefix, self.name_len = name_prefix, name_len
        self.random_name_enabled = options.get("random_name_enabled", False)
        self.resource: Any = None
        self.resource_random_name = ""
        self.moniker = ""

    def set_cache(self, enabled: bool, *key: object) -> None: ...

    def create_mgmt_client(self, kind: object, **_: object) -> _ManagementClient:
        return _ManagementClient()

    def create_resource(self, name: str, **arguments: Any) -> dict[str, Any]:
        raise NotImplementedError

    def remove_resource(self, name: str, **arguments: Any) -> None:
        raise NotImplementedError

    def __call__(self, test: Callable[..., Any]) -> Callable[..., None]:
        @wraps(test)
        def prepared(test_class: object, **arguments: Any) -> None:
            name = self.moniker = _name(self.name_prefix, self.name_len)
            self.test_class_instance = SimpleNamespace(scrubber=SimpleNamespace(register_name_pair=lambda *_: None))
            arguments |= self.create_resource(name, **arguments)
            try:
                _run(test, test_class, arguments)
            finally:
                self.remove_resource(name, **arguments)

        return prepared


class _PowerShellPreparer:
    """A decorator of a test that passes values of environment variables, which a script of deployment sets."""

    def __init__(self, folder: str, **fakes: str) -> None:
        key, _ = RULES[ROOT_KEY_NAME]
        known = {
            "servicebus_connection_str": _connection_string(),
            "servicebus_fully_qualified_namespace": _HOST,
            "servicebus_sas_policy": ROOT_KEY_NAME,
            "servicebus_sas_key": key,
        }
        self.values = fakes | known

    def __call__(self, test: Callable[..., Any]) -> Callable[..., None]:
        def prepared(test_class: object) -> None:
            _run(test, test_class, self.values)

        prepared.__dict__.update(test.__dict__)
        return prepared


def _token() -> AccessToken:
    expires = int(time.time()) + 3600
    parts = (b'{"alg":"none","typ":"JWT"}', json.dumps({"exp": expires}).encode(), b"unsigned")
    return AccessToken(".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), expires)


class _Credential:
    def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return _token()


class _AsyncCredential:
    async def get_token(self, *scopes: str, **options: object) -> AccessToken:
        return _token()

    async def close(self) -> None: ...

    async def __aenter__(self) -> _AsyncCredential:
        return self

    async def __aexit__(self, *error: object) -> None: ...


class _TestCase:
    is_live = True

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., None]:
        @wraps(test)
        def prepared(test_class: object, **arguments: Any) -> None:
            _run(test, test_class, arguments)

        return prepared


def _nothing(*arguments: object, **named: object) -> None: ...


def _unchanged(test: Any) -> Any:
    return test


def _decorator(*arguments: object, **named: object) -> Callable[[Any], Any]:
    return _unchanged


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """Stands for the process that records requests."""


def _module(name: str, **members: object) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


_sanitizers: Final = {
    "add_general_regex_sanitizer": _nothing,
    "add_oauth_response_sanitizer": _nothing,
    "add_remove_header_sanitizer": _nothing,
    "set_custom_default_matcher": _nothing,
}
_module(
    "devtools_testutils",
    **_sanitizers,
    AzureMgmtRecordedTestCase=_TestCase,
    AzureRecordedTestCase=_TestCase,
    AzureMgmtPreparer=_Preparer,
    AzureTestError=Exception,
    CachedResourceGroupPreparer=_decorator,
    FakeResource=SimpleNamespace,
    PowerShellPreparer=_PowerShellPreparer,
    RandomNameResourceGroupPreparer=_decorator,
    ReservedResourceNameError=Exception,
    get_credential=lambda is_async=False: _AsyncCredential() if is_async else _Credential(),
    get_region_override=_unchanged,
    recorded_by_proxy=_unchanged,
)
_module("devtools_testutils.aio", recorded_by_proxy_async=_unchanged)
_module("devtools_testutils.resource_testcase", RESOURCE_GROUP_PARAM="resource_group")
_module("devtools_testutils.sanitizers", **_sanitizers)
_module("azure.mgmt.resource", ResourceManagementClient=None)
_module("azure.mgmt.servicebus", ServiceBusManagementClient=None)
_module(
    "azure.mgmt.servicebus.models",
    AccessRights=SimpleNamespace(manage="Manage", send="Send", listen="Listen"),
    SBAuthorizationRule=SimpleNamespace,
    SBQueue=SimpleNamespace,
    SBSubscription=SimpleNamespace,
)
