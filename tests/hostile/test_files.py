"""Files that the commands read and write are safe beside other users of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbclient.certificate import Certificate
from sbclient.cli.failed_file import FailedFile
from sbclient.errors import InvalidOperationError
from sbclient.worker.settings_file import read_secret, read_settings_file
from tests.fresh_process import output_of
from tests.hostile.files import ENDLESS, run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")


@pytest.mark.promise("commands.failed-file")
@pytest.mark.parametrize("is_there", [False, True])
def test_file_of_failed_messages_is_readable_by_its_owner_only(tmp_path: Path, is_there: bool) -> None:
    path = tmp_path / "failed.jsonl"
    if is_there:
        path.touch(mode=0o644)
    with FailedFile(path) as failed:
        failed.write("a line")

    assert path.stat().st_mode & 0o777 == 0o600


def test_permissions_of_a_device_or_pipe_for_failed_messages_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    path.chmod(0o644)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with FailedFile(path) as failed:
        failed.write("a line")

    assert path.stat().st_mode & 0o777 == 0o644
    assert os.read(reader, 100) == b"a line\n"
    os.close(reader)


def test_directory_is_not_a_file_for_failed_messages(tmp_path: Path) -> None:
    with pytest.raises(InvalidOperationError, match=r"cannot be written \(Is a directory\)"):
        FailedFile(tmp_path)


def test_file_of_failed_messages_may_be_removed_while_it_is_open(tmp_path: Path) -> None:
    with FailedFile(tmp_path / "failed.jsonl") as failed:
        failed.path.unlink()

    assert not failed.path.exists()


@pytest.mark.promise("commands.failed-file")
def test_file_of_failed_messages_follows_no_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "failed.jsonl"
    target.touch()
    link.symlink_to(target)

    with pytest.raises(InvalidOperationError, match="cannot be written"):
        FailedFile(link)


@pytest.mark.promise("commands.settings-files")
def test_file_with_a_connection_string_has_at_most_64_kib(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b" " * 65_537)

    with pytest.raises(InvalidOperationError, match="more than 65536 bytes"):
        read_secret("primary_file", "secret", tmp_path)
    with pytest.raises(InvalidOperationError, match="more than 65536 bytes"):
        read_settings_file(tmp_path / "secret")


@pytest.mark.promise("commands.settings-files")
def test_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(InvalidOperationError, match="more than 65536 bytes"):
        read_secret("primary_file", "/dev/zero", Path("/"))


@pytest.mark.promise("emulator.certificate")
@pytest.mark.slow
def test_certificate_that_others_may_change_is_not_used(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    certificate.make()
    certificate.make()
    certificate.path.parent.chmod(0o777)

    with pytest.raises(PermissionError, match="other users"):
        certificate.make()


@pytest.mark.promise("emulator.certificate")
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs the right to give files away")
def test_certificate_of_another_user_is_ignored(tmp_path: Path) -> None:
    certificate = Certificate(tmp_path)
    certificate.make()
    os.chown(certificate.path, 12_345, 12_345)

    with pytest.raises(PermissionError, match="another user"):
        certificate.make()


def test_version_imports_neither_commands_nor_libraries() -> None:
    code = (
        "import sys; sys.argv = ['sbclient', '--version']; from sbclient.cli import main; main(); print(*sys.modules)"
    )
    version, loaded = output_of(code).splitlines()

    assert version[0].isdigit()
    assert not {"typer", "rich", "h11", "azure.core", "sbclient.client.client"} & set(loaded.split())


@pytest.mark.promise("commands.input")
@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="there is no /dev/zero")
@pytest.mark.parametrize("arguments", ENDLESS, ids=" ".join)
def test_endless_file_is_one_line_of_error(arguments: tuple[str, ...]) -> None:
    ended = run(arguments)
    assert ended.is_right, ended
