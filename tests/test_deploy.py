"""What examples/deploy shows is what there is: settings, options, paths, times that fit each other.

Where systemd is, it is asked what it thinks of its units. No image is built here: what its file says is compared with
the tree and with the program.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from sbclient.broker.profile import STD_2021
from sbclient.cli.app import make_app
from sbclient.cli.common import Exit
from sbclient.cli.syphon import EXIT_GRACE_S
from sbclient.emulator import Emulator
from sbclient.emulator.config.config import read_config
from sbclient.emulator.sas import ROOT_KEY
from sbclient.worker.configuration import configure
from sbclient.worker.http_api import METHODS
from sbclient.worker.settings import SETTINGS
from sbclient.worker.settings_file import read_settings_file
from tests.commands import call
from tests.pages import worker_file
from tests.stage.emulators import emulator_process

ROOT: Final = Path(__file__).parents[1]
DEPLOY: Final = ROOT / "examples" / "deploy"
SYPHON_TOML: Final = DEPLOY / "syphon.toml"
UNITS: Final = sorted([*DEPLOY.glob("*.service"), *DEPLOY.glob("*.timer")])
SERVICES: Final = [path for path in UNITS if path.suffix == ".service"]
KUBERNETES: Final = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
CONTAINERFILE: Final = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
COMPOSE_FILE: Final = DEPLOY / "compose.yaml"
COMPOSE: Final = COMPOSE_FILE.read_text(encoding="utf-8")
LOST_PRIMARY_FILE: Final = DEPLOY / "compose-lost-primary.yaml"
LOST_PRIMARY: Final = LOST_PRIMARY_FILE.read_text(encoding="utf-8")
TARGETS: Final = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", CONTAINERFILE, re.M | re.S))
SECRETS: Final = {setting.variable: f"memory://{setting.name}" for setting in SETTINGS.values() if setting.is_secret}
END_S: Final = SETTINGS["shutdown_timeout"].default + EXIT_GRACE_S


def checked(*arguments: str, **variables: str) -> dict[str, tuple[str, str]]:
    """What `sbclient syphon --check-config` says of these options and variables: value and origin by setting."""
    words = ["syphon", *arguments, "--check-config", "--json"]
    result = call(*words, env=SECRETS | variables)
    return {one["name"]: (one["value"], one["from"]) for one in json.loads(result.stdout)["settings"]}


def is_variable(name: str) -> bool:
    return name in {setting.variable for setting in SETTINGS.values()}


# -- the settings ------------------------------------------------------------------------------------------------------


def test_the_file_of_settings_can_be_used_as_it_is() -> None:
    settings = checked("--config", str(SYPHON_TOML))
    set_there = {name: value for name, (value, origin) in settings.items() if origin.startswith("syphon.toml, line ")}
    assert set_there == {"http_port": "9464"}


def test_it_is_the_generated_one() -> None:
    assert SYPHON_TOML.read_text(encoding="utf-8") == worker_file.text(), "run python -m tests.pages"


def test_it_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    """What is commented out becomes a file of its own."""
    text = re.sub(r"^# (?=\w+ = )", "", SYPHON_TOML.read_text(encoding="utf-8"), flags=re.M)
    for name in ("primary", "secondary"):
        (tmp_path / f"{name}.secret").write_text(f"memory://{name}\n")
    (tmp_path / "full.toml").write_text(text)
    assert list(tomllib.loads(text)) == [setting.name for setting in SETTINGS.values() if not setting.is_secret]
    found = configure({}, {}, read_settings_file(tmp_path / "full.toml"))
    shown = {setting.name: setting.shown(getattr(found.settings, setting.name)) for setting in SETTINGS.values()}
    for setting in SETTINGS.values():
        if setting.default is not None and setting.name != "http_port":
            assert shown[setting.name] == setting.shown(setting.default), setting.name


def test_nothing_in_the_folder_holds_a_secret() -> None:
    for path in DEPLOY.iterdir():
        keys = set(re.findall(r"SharedAccessKey=([^;\s]*)", path.read_text(encoding="utf-8")))
        is_compose = path in (COMPOSE_FILE, LOST_PRIMARY_FILE)
        assert keys == ({ROOT_KEY} if is_compose else set()), "only the public key of the emulator is there"


# -- systemd -----------------------------------------------------------------------------------------------------------


def entries(path: Path) -> dict[str, list[str]]:
    """The values of each name in a unit, in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_runs_the_worker_with_options_that_there_are(path: Path) -> None:
    (command,) = entries(path)["ExecStart"]
    program, *words = shlex.split(command)
    assert (Path(program).name, words[0]) == ("sbclient", "syphon")
    at = words.index("--config")
    assert Path(words[at + 1]).name == SYPHON_TOML.name
    words[at + 1] = str(SYPHON_TOML)
    settings = checked(*words[1:])
    assert settings["until"][0] == ("empty" if "once" in path.name else "")


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_a_unit_gives_the_worker_more_time_to_end_than_it_takes(path: Path) -> None:
    assert int(entries(path)["TimeoutStopSec"][0]) > END_S


def test_the_service_is_restarted_except_where_that_does_not_help() -> None:
    unit = entries(DEPLOY / "sbclient-syphon.service")
    assert unit["Type"] == ["notify"]
    assert int(unit["WatchdogSec"][0]) > 0
    assert unit["Restart"] == ["on-failure"], "a worker that fails ends with another status than 0"
    hopeless = {int(number) for number in unit["RestartPreventExitStatus"][0].split()}
    assert hopeless == {Exit.BAD_INPUT, Exit.NOT_ALLOWED, Exit.NOT_FOUND}


def test_the_variables_of_a_unit_are_settings() -> None:
    for path in UNITS:
        named = set(re.findall(r"\bS(?:ERVICEBUS|BCLIENT)_[A-Z_]+", path.read_text(encoding="utf-8")))
        assert all(map(is_variable, named)), path.name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        there = re.sub(r"(?<=^ExecStart=)\S+", sys.executable, path.read_text(encoding="utf-8"), flags=re.M)
        (tmp_path / path.name).write_text(there)
    run = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / path.name) for path in UNITS)],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (run.returncode, [line for line in run.stderr.splitlines() if "sbclient" in line]) == (0, [])


# -- the image ---------------------------------------------------------------------------------------------------------


def instructions(name: str, target: str = "syphon") -> list[str]:
    """The values of an instruction in one target, or in the one that all are made from."""
    found = re.findall(rf"^{name}\s+(.+?)\s*$", TARGETS[target], re.M)
    return found or (instructions(name, "base") if target != "base" else [])


def variables_of_the_image() -> dict[str, str]:
    (line,) = instructions("ENV")
    given = dict(word.split("=", 1) for word in shlex.split(line))
    return {name: value for name, value in given.items() if name != "PATH"}


def test_what_is_copied_into_the_image_exists_and_is_all_that_is_installed() -> None:
    copied = [word for line in instructions("COPY", "build") for word in line.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copied_whole = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    licenses = {name for name in project["project"]["license-files"] if not name.startswith(tuple(copied_whole))}
    needed = {*copied_whole, "pyproject.toml", "hatch_build.py", "README.md", *licenses}
    assert set(copied) == needed
    (extras, packages) = instructions("ARG", "build")
    chosen = {extras.removeprefix("EXTRAS="), *re.findall(r"EXTRAS: (\w+)", COMPOSE)}
    assert chosen == {"cli,metrics", "emulator", "cli"}
    assert set(",".join(chosen).split(",")) <= project["project"]["optional-dependencies"].keys()
    assert packages == "PACKAGES="
    assert any('".[$EXTRAS]" $PACKAGES' in line for line in instructions("RUN", "build"))


def test_the_image_runs_the_worker_itself_so_that_signals_arrive() -> None:
    (entry,) = map(json.loads, instructions("ENTRYPOINT"))
    assert entry == ["sbclient", "syphon"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    variables = variables_of_the_image()
    assert all(map(is_variable, variables))
    settings = checked(**variables)
    assert (settings["http_port"][0], settings["http_host"][0]) == ("9464", "0.0.0.0")


@pytest.mark.parametrize("target", ["syphon", "emulator", "app"])
def test_the_image_does_not_run_as_root(target: str) -> None:
    assert [int(number) for number in instructions("USER", target)[0].split(":")] == [10001, 10001]


def test_the_syphon_is_what_is_built_unless_another_target_is_named() -> None:
    assert [*TARGETS][-1] == "syphon"


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="there is no hadolint here")
def test_hadolint_finds_nothing_wrong_with_the_file() -> None:
    run = subprocess.run(["hadolint", DEPLOY / "Containerfile"], capture_output=True, encoding="utf-8", check=False)
    assert (run.returncode, run.stdout) == (0, "")


def test_its_health_is_asked_where_the_worker_answers() -> None:
    (line,) = instructions("HEALTHCHECK")
    _, _, code = json.loads(line[line.index("[") :])
    compile(code, "HEALTHCHECK", "exec")
    (port, path) = re.findall(r"http://127\.0\.0\.1:(\d+)/(\w+)", code)[0]
    assert f"/{path}" in METHODS
    assert [port] == instructions("EXPOSE") == [variables_of_the_image()["SBCLIENT_SYPHON_HTTP_PORT"]]


# -- compose -----------------------------------------------------------------------------------------------------------


def test_each_service_is_built_from_its_target_and_waits_for_a_healthy_emulator() -> None:
    services = dict(re.findall(r"^  (\w+):\n    build:(.*?)(?=^  \w+:\n|^\w|\Z)", COMPOSE, re.M | re.S))
    assert services.keys() == {"emulator", "syphon", "app"}
    for name, service in services.items():
        assert f"      target: {name}\n" in service
        assert instructions("HEALTHCHECK", name)
        waits = "depends_on: {emulator: {condition: service_healthy}}" in service
        assert waits is (name != "emulator")
        ports = re.findall(r'ports: \["127\.0\.0\.1:(\d+):\1"\]', service)
        assert set(ports) <= set(instructions("EXPOSE", name)[0].split()), name
    grace = re.findall(r"stop_grace_period: (\d+)s", services["syphon"])
    assert int(grace[0]) > END_S


def served_by(compose: str, directory: Path) -> Emulator:
    """The emulator of a compose file, whose port and certificate are checked."""
    (image,) = map(json.loads, instructions("ENTRYPOINT", "emulator"))
    (words,) = re.findall(r"command: \[(--config.*)\]", compose)
    options = [*image[1:], *words.split(", ")]
    command: Any = get_command(make_app(["emulator"]))
    given = command.commands["emulator"].make_context("emulator", options[1:], resilient_parsing=True).params
    assert Path(given["config"]).name == "Config.json"
    assert given["http_port"] == 5300
    emulator = Emulator(
        config=DEPLOY / "Config.json",
        host=given["host"],
        allow_public_key=given["allow_public_key"],
        certificate_names=tuple(given["tls_name"]),
        certificate_directory=directory / "sbclient",
    )
    (inside,) = {line.split("=")[1] for line in instructions("ENV", "emulator")}
    (trusted,) = re.findall(r"SSL_CERT_FILE: (\S+)", compose)
    assert emulator.certificate_path == directory / Path(trusted).relative_to(inside)
    return emulator


def test_the_emulator_of_compose_has_the_namespaces_and_the_certificate_that_the_others_name(
    tmp_path: Path,
) -> None:
    served_by(COMPOSE, tmp_path)
    config = read_config((DEPLOY / "Config.json").read_text(encoding="utf-8"), "Config.json", STD_2021)
    ports = re.findall(r"Endpoint=sb://emulator:(\d+);", COMPOSE)
    assert [str(each.port) for each in config] == ports
    assert set(instructions("EXPOSE", "emulator")[0].split()) == {*ports, "5300"}
    queues = [entity.address.names[-1] for entity in config[0].entities]
    assert queues == re.findall(r'^QUEUE = "(\w+)"', (ROOT / "examples/web/orders_api.py").read_text("utf-8"), re.M)


@pytest.mark.slow
def test_compose_of_a_lost_primary_delivers_every_message(tmp_path: Path) -> None:
    """Its commands run here as processes: two emulators, of which the named one is killed, and the application."""
    served_by(LOST_PRIMARY, tmp_path)
    (started,) = re.findall(r"^#   docker compose .* up --build --detach (.*)$", LOST_PRIMARY, re.M)
    (number, killed) = re.findall(r"^#   docker compose .* kill --signal (\w+) (\w+)$", LOST_PRIMARY, re.M)[0]
    (words,) = re.findall(r"command: \[(--config.*)\]", LOST_PRIMARY)
    options = words.replace("/etc/sbclient", str(DEPLOY)).split(", ")
    options += ["--http-port", "0", "--namespace", "contoso:0", "--namespace", "contoso-backup:0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    with ExitStack() as stack:
        emulators = {name: stack.enter_context(emulator_process(*options, env=environment)) for name in started.split()}
        ports = {
            name: dict(zip(("5672", "5673"), facts["ports"].values(), strict=True))
            for name, (_, facts) in emulators.items()
        }
        process, _ = emulators[killed]
        process.send_signal(signal.Signals[number])
        process.wait()
        for name, host, port, rest in re.findall(
            r"^      (SERVICEBUS_\w+):\n +Endpoint=sb://(\w+):(\d+);(.*)$", LOST_PRIMARY, re.M
        ):
            environment[name] = f"Endpoint=sb://127.0.0.1:{ports[host][port]};{rest}"
        (script,) = re.findall(r'"\.\./(\w+\.py):/app/\1:ro"', LOST_PRIMARY)
        assert f"entrypoint: [python, /app/{script}]" in LOST_PRIMARY
        app = [sys.executable, str(ROOT / "examples" / script)]
        run = subprocess.run(app, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (run.returncode, run.stdout.splitlines()) == (
        0,
        ["20 orders are accepted, 'orders' is failed_over", "20 orders are received, from the secondary"],
    ), run.stderr


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def value(name: str) -> str:
    """The one value of a name in the file."""
    (found,) = re.findall(rf"^\s*(?:- )?{name}: *(\S.*)$", KUBERNETES, re.M)
    return str(found)


def test_each_probe_asks_for_a_path_that_there_is() -> None:
    probes = dict(re.findall(r"(\w+)Probe:\n\s+httpGet: \{path: /(\w+), port: http\}", KUBERNETES))
    assert probes == {"liveness": "healthz", "startup": "healthz", "readiness": "readyz"}
    assert set(probes.values()) <= {path.removeprefix("/") for path in METHODS}
    assert value("prometheus.io/path") in METHODS


def test_a_pod_runs_the_worker_with_options_and_variables_that_there_are() -> None:
    settings = checked(*json.loads(value("args")))
    port = settings["http_port"][0]
    assert settings["http_host"][0] == "0.0.0.0"
    assert f"{{name: http, containerPort: {port}}}" in KUBERNETES
    assert json.loads(value("prometheus.io/port")) == port
    variables = re.findall(r"^\s+- name: ([A-Z_]+)$", KUBERNETES, re.M)
    assert set(variables) == set(SECRETS)
    assert KUBERNETES.count("secretKeyRef") == len(variables)


def test_a_pod_has_more_time_to_end_than_the_worker_takes() -> None:
    assert int(value("terminationGracePeriodSeconds")) > END_S


def test_one_of_two_stays_while_nodes_are_emptied() -> None:
    assert (int(value("replicas")), int(value("minAvailable"))) == (2, 1)
    assert len(set(re.findall(r"matchLabels: (\{.*\})", KUBERNETES))) == 1


# -- all of it ---------------------------------------------------------------------------------------------------------


def mentioned() -> Iterator[Any]:
    command: Any = get_command(make_app(["syphon"]))
    options = {name for parameter in command.commands["syphon"].params for name in parameter.opts}
    for path in sorted(DEPLOY.iterdir()):
        for line in path.read_text(encoding="utf-8").splitlines():
            for words in re.findall(r"sbclient syphon((?: --[a-z-]+(?: [a-z.]+)?)+)", line):
                yield path.name, set(re.findall(r"--[a-z-]+", words)) - options


def test_every_option_that_is_mentioned_exists() -> None:
    found = list(mentioned())
    assert len(found) >= 2
    assert [each for each in found if each[1]] == []


def test_a_signal_is_sent_by_the_shell_since_the_image_has_no_other_kill() -> None:
    page = (ROOT / "docs" / "syphon.md").read_text(encoding="utf-8")
    for text in (KUBERNETES, page):
        assert re.findall(r"kubectl exec POD -- (\w+)", text) == ["sh"]
