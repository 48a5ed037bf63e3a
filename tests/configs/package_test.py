"""The systemd unit, and the scripts of the Debian package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "configs" / "quire.service"


class UnitTest(unittest.TestCase):
    def test_readers_may_shut_themselves_in(self) -> None:
        """Without Landlock a reader may open no file at all, poppler's tables included."""
        sandbox = (ROOT / "readers/child/sandbox.cc").read_text()
        needed = set(re.findall(r"SYS_(landlock_\w+)", sandbox)) | {"seccomp"}
        self.assertEqual(len(needed), 4)
        filters = re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE)
        self.assertLessEqual(needed, {call for line in filters for call in line.split()})

    def test_its_exposure_is_under_3(self) -> None:
        if shutil.which("systemd-analyze") is None:
            self.skipTest("there is no systemd-analyze in PATH")
        command = ["systemd-analyze", "security", "--offline=true", "--threshold=29", UNIT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-500:] + done.stderr)


class MaintainerScriptsTest(unittest.TestCase):
    """The scripts run as dpkg runs them, with a systemctl that notes what it is asked."""

    def run_script(self, name: str, *arguments: str, answers: str = "") -> tuple[list[str], str]:
        """Runs a script where systemd runs; `answers`: lines of sh that decide about `$1` and the
        like of systemctl. Returns the calls of systemctl, and what the script says."""
        with tempfile.TemporaryDirectory() as name_of_folder:
            folder = Path(name_of_folder)
            text = (ROOT / "packaging/deb" / name).read_text()
            self.assertIn("/run/systemd/system", text)
            (folder / "script").write_text(text.replace("/run/systemd/system", name_of_folder))
            for program in ("systemctl", "adduser"):
                stub = folder / program
                stub.write_text(f'#!/bin/sh\necho "$*" >>{folder}/{program}.log\n{answers}\n')
                stub.chmod(0o755)
            done = subprocess.run(
                ["sh", folder / "script", *arguments],
                env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            log = folder / "systemctl.log"
            calls = log.read_text().splitlines() if log.exists() else []
            return [call for call in calls if call != "daemon-reload"], done.stderr

    ENABLE, ASK = "enable --quiet quire.service", "is-enabled --quiet quire.service"
    RESTART = "restart quire.service"

    def test_a_first_installation_starts_the_service(self) -> None:
        calls, _ = self.run_script("postinst", "configure", "")
        self.assertEqual(calls, [self.ENABLE, self.ASK, self.RESTART])

    def test_an_upgrade_leaves_a_service_off_that_was_switched_off(self) -> None:
        off = '[ "$1" != is-enabled ]'
        self.assertEqual(
            self.run_script("postinst", "configure", "0.1.0", answers=off)[0], [self.ASK]
        )
        calls, _ = self.run_script("postinst", "configure", "0.1.0")
        self.assertEqual(calls, [self.ASK, self.RESTART])

    def test_a_service_that_does_not_start_is_no_broken_package(self) -> None:
        _, said = self.run_script("postinst", "configure", "", answers='[ "$1" != restart ]')
        self.assertIn("does not start", said)

    def test_a_package_that_is_removed_keeps_what_was_chosen(self) -> None:
        calls, _ = self.run_script("prerm", "remove")
        self.assertEqual(calls, ["stop quire.service"])


class ImageTest(unittest.TestCase):
    def test_what_git_ignores_is_not_sent_to_the_image(self) -> None:
        """A build of the checkout does not fit the image's folders, and stores hold documents."""
        ignored = (ROOT / ".gitignore").read_text().split()
        sent = (ROOT / ".dockerignore").read_text().splitlines()
        for pattern in ignored:
            name = pattern.strip("/")
            self.assertIn(name if pattern.startswith("/") else f"**/{name}", sent)
