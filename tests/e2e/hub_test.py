"""`quire model get`, `list` and `rm` against a hub of our own (fake_hub.py).

Usage: hub_test.py PATH_OF_QUIRE MODEL_FOLDER
"""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

from fake_hub import TOKEN, FakeHub

QUIRE, DEMO = sys.argv[1], pathlib.Path(sys.argv[2])
BIG = random.Random(7).randbytes(3_000_000)


def folder_files():
    """The embedded model as a repository, with things a model does not need."""
    files = {
        p.name: p.read_bytes()
        for p in DEMO.iterdir()
        if p.is_file() and p.suffix in (".json", ".safetensors", ".model", ".txt", ".jinja")
    }
    return files | {
        "README.md": b"# About\n",
        "LICENSE": b"free\n",
        "pytorch_model.bin": b"x" * 5000,
        "onnx/model.onnx": b"y" * 5000,
        "consolidated.safetensors": b"z" * 5000,
    }


class HubTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.hub = FakeHub(
            self.folder,
            {
                "org/folder": {
                    "main": folder_files(),
                    "v1": {"config.json": b"{}", "model.safetensors": b"old weights"},
                    "pr/1": {"config.json": b"{}", "model.safetensors": b"of a branch"},
                },
                "org/gguf": {
                    "main": {
                        "m-Q8_0.gguf": BIG + b"8",
                        "m-Q4_K_M.gguf": BIG,
                        "m-IQ2_M.gguf": b"i" * 2000,
                        "mmproj-F16.gguf": b"p" * 2000,
                        "README.md": b"x",
                    }
                },
                "org/parts": {
                    "main": {
                        "Q5/m-00001-of-00002.gguf": b"1" * 300_000,
                        "Q5/m-00002-of-00002.gguf": b"2" * 300_000,
                        "Q8/n.gguf": b"8" * 2000,
                    }
                },
                "org/many": {"main": {"a-IQ1_S.gguf": b"a" * 2000, "b-IQ1_S.gguf": b"b" * 2000}},
                "org/none": {"main": {"README.md": b"nothing"}},
                "org/secret": {"main": {"m.gguf": b"s" * 2000, "small.gguf": b"small"}},
            },
        )
        self.addCleanup(self.hub.close)
        self.hub.gated.add("org/secret")
        self.cache = self.folder / "cache"
        self.env = {
            k: v
            for k, v in os.environ.items()
            if not k.lower().endswith("_proxy") and not k.startswith(("HF_", "QUIRE_"))
        } | {
            "HF_ENDPOINT": self.hub.hub,
            "SSL_CERT_FILE": self.hub.ca,
            "QUIRE_CACHE": str(self.cache),
        }

    def quire(self, *args, code=0, **env):
        result = subprocess.run(
            [QUIRE, *args], capture_output=True, text=True, env=self.env | env, timeout=120
        )
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return result.stdout.strip() if code == 0 else result.stderr

    def test_a_folder_is_fetched_and_runs(self):
        path = pathlib.Path(self.quire("model", "get", "hf:org/folder"))
        self.assertEqual(path, self.cache / "org--folder" / "main")
        got = {p.name for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")}
        self.assertIn("LICENSE", got)
        self.assertTrue(
            got.isdisjoint(
                {"README.md", "pytorch_model.bin", "model.onnx", "consolidated.safetensors"}
            ),
            got,
        )
        for name in got:
            self.assertEqual((path / name).read_bytes(), self.hub.repos["org/folder"]["main"][name])
        self.assertIn("vocabulary", self.quire("model", "info", "-m", "hf:org/folder"))
        # Once it is there no network is needed; and a name that works for get works elsewhere too.
        self.hub.close()
        self.quire("model", "info", "-m", "hf:org/folder", HF_ENDPOINT="https://localhost:1")

    def test_fetched_where_a_model_is_asked_for(self):
        self.assertIn("vocabulary", self.quire("model", "info", "-m", "hf:org/folder"))
        self.assertTrue((self.cache / "org--folder/main/config.json").exists())

    def test_only_what_changed_is_fetched_again(self):
        self.quire("model", "get", "hf:org/folder")
        self.hub.log.clear()
        self.quire("model", "get", "hf:org/folder")
        self.assertEqual(len(self.hub.log), 1, self.hub.log)
        self.hub.repos["org/folder"]["main"]["LICENSE"] = b"freer\n"
        self.quire("model", "get", "hf:org/folder")
        self.assertEqual(
            [p for _, p, _ in self.hub.log if "resolve" in p], ["/org/folder/resolve/main/LICENSE"]
        )
        self.assertEqual((self.cache / "org--folder/main/LICENSE").read_bytes(), b"freer\n")

    def test_revisions_stand_side_by_side(self):
        old = pathlib.Path(self.quire("model", "get", "hf:org/folder@v1"))
        self.assertEqual((old / "model.safetensors").read_bytes(), b"old weights")
        branch = pathlib.Path(self.quire("model", "get", "hf:org/folder@pr/1"))
        self.assertEqual((branch / "model.safetensors").read_bytes(), b"of a branch")
        self.assertIn("no revision 'v9'", self.quire("model", "get", "hf:org/folder@v9", code=1))

    def test_gguf_by_rule_by_quantisation_and_by_name(self):
        path = pathlib.Path(self.quire("model", "get", "hf:org/gguf"))
        self.assertEqual(path.name, "m-Q4_K_M.gguf")
        self.assertEqual(path.read_bytes(), BIG)
        self.assertTrue(self.quire("model", "get", "hf:org/gguf:q8_0").endswith("m-Q8_0.gguf"))
        self.assertTrue(
            self.quire("model", "get", "hf:org/gguf:m-IQ2_M.gguf").endswith("m-IQ2_M.gguf")
        )
        self.assertTrue(
            self.quire("model", "get", "hf:org/parts:Q5").endswith("m-00001-of-00002.gguf")
        )
        self.assertTrue((self.cache / "org--parts/main/Q5/m-00002-of-00002.gguf").exists())
        error = self.quire("model", "get", "hf:org/gguf:Q3_K_L", code=1)
        self.assertIn("Q3_K_L", error)
        self.assertIn("m-Q8_0.gguf", error)
        error = self.quire("model", "get", "hf:org/many", code=1)
        self.assertIn("b-IQ1_S.gguf", error)
        self.assertIn("fits several", self.quire("model", "get", "hf:org/many:IQ1_S", code=1))
        self.assertIn("holds no model", self.quire("model", "get", "hf:org/none", code=1))

    def test_a_cut_connection_goes_on_where_it_broke(self):
        self.hub.cut_after["m-Q4_K_M.gguf"] = [1_000_000, 500_000]
        path = pathlib.Path(self.quire("model", "get", "hf:org/gguf"))
        self.assertEqual(path.read_bytes(), BIG)
        ranges = [h.get("Range") for s, _, h in self.hub.log if s == "store"]
        self.assertEqual(ranges[0], None)
        self.assertEqual(len(ranges), 3, ranges)
        begins = [int(r[6:-1]) for r in ranges[1:]]
        self.assertTrue(0 < begins[0] <= 1_000_000 and begins[0] < begins[1] <= 1_500_000, ranges)
        self.assertTrue(
            all(h.get("If-Range") for s, _, h in self.hub.log if s == "store" and h.get("Range"))
        )
        self.assertFalse(list(self.cache.rglob("*.part*")))

    def test_another_process_goes_on_where_one_was_killed(self):
        self.hub.cut_after["m-Q4_K_M.gguf"] = [900_000]
        process = subprocess.Popen(
            [QUIRE, "model", "get", "hf:org/gguf"],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for line in process.stderr:
            if "trying again" in line:
                break
        process.kill()
        process.communicate()
        self.hub.log.clear()
        self.quire("model", "get", "hf:org/gguf")
        first = next(h for s, _, h in self.hub.log if s == "store")
        self.assertGreater(int(first["Range"][6:-1]), 0)

    def test_a_hub_without_ranges_sends_all_again(self):
        self.hub.cut_after["m-Q4_K_M.gguf"] = [900_000]
        self.hub.no_range = True
        self.assertEqual(pathlib.Path(self.quire("model", "get", "hf:org/gguf")).read_bytes(), BIG)

    def test_checksums(self):
        self.hub.wrong["m-Q4_K_M.gguf"] = 1
        self.assertEqual(pathlib.Path(self.quire("model", "get", "hf:org/gguf")).read_bytes(), BIG)
        shutil.rmtree(self.cache)
        for path in ("m-Q4_K_M.gguf",):
            self.hub.wrong[path] = 9
            self.assertIn(
                "not what the hub promises", self.quire("model", "get", "hf:org/gguf", code=1)
            )
        self.assertFalse((self.cache / "org--gguf/main/m-Q4_K_M.gguf").exists())
        self.hub.wrong["LICENSE"] = 9  # a small file: git's hash
        self.assertIn("LICENSE is not what", self.quire("model", "get", "hf:org/folder", code=1))

    def test_the_token_stays_with_the_hub(self):
        error = self.quire("model", "get", "hf:org/secret:m.gguf", code=1)
        self.assertIn("HF_TOKEN", error)
        self.assertIn("org/secret", error)
        self.assertIn(
            "may not read",
            self.quire("model", "get", "hf:org/secret:m.gguf", code=1, HF_TOKEN="hf_other"),
        )
        self.quire("model", "get", "hf:org/secret:m.gguf", HF_TOKEN=TOKEN)
        for server, _, headers in self.hub.log:
            self.assertFalse(server == "store" and "Authorization" in headers, headers)
        self.assertTrue(
            any(headers.get("Authorization") == f"Bearer {TOKEN}" for _, _, headers in self.hub.log)
        )

    def test_what_is_not_on_device(self):
        self.assertIn(
            "there is no model hf:org/nobody", self.quire("model", "get", "hf:org/nobody", code=1)
        )
        self.assertIn("hf:org/repo", self.quire("model", "get", "hf:", code=1))
        self.assertIn(
            "did you mean hf:org/folder?", self.quire("model", "info", "-m", "org/folder", code=1)
        )
        for name in ("hf:../x", "hf:a/b/c", "hf:a/..", "hf:a/b:../../x", "hf:a/b@", "hf:a/b:"):
            self.assertIn("are named", self.quire("model", "get", name, code=1))

    def test_no_network_and_no_trust(self):
        error = self.quire(
            "model", "info", "-m", "hf:org/folder", code=1, HF_ENDPOINT="https://localhost:1"
        )
        self.assertIn("cannot reach localhost:1", error)
        self.assertIn(
            "not trusted",
            self.quire(
                "model",
                "get",
                "hf:org/folder",
                code=1,
                SSL_CERT_FILE="/etc/ssl/certs/ca-certificates.crt",
            ),
        )

    def test_a_busy_hub_is_asked_again(self):
        self.hub.statuses = [503, 429]
        self.quire("model", "get", "hf:org/parts:Q5")

    def test_many_pages_of_files(self):
        self.hub.page = 2
        self.quire("model", "get", "hf:org/folder")

    def test_two_processes_fetch_once(self):
        results = []
        threads = [
            threading.Thread(
                target=lambda: results.append(self.quire("model", "get", "hf:org/gguf"))
            )
            for _ in range(3)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(len(set(results)), 1)
        self.assertEqual(sum(s == "store" for s, _, _ in self.hub.log), 1)

    def test_a_fetch_that_was_cut_short_is_listed_and_can_be_removed(self):
        self.hub.cut_after["m-Q4_K_M.gguf"] = [900_000] * 9
        process = subprocess.Popen(
            [QUIRE, "model", "get", "hf:org/gguf"], env=self.env, stderr=subprocess.PIPE, text=True
        )
        for line in process.stderr:
            if "trying again" in line:
                break
        process.kill()
        process.communicate()
        self.assertRegex(self.quire("model", "list"), r"hf:org/gguf +0\.9 MiB .*\(not whole\)")
        self.assertIn("0.9 MiB", self.quire("model", "rm", "hf:org/gguf"))
        self.assertEqual(self.quire("model", "list"), "")

    def test_half_of_an_update_is_no_model(self):
        self.quire("model", "get", "hf:org/folder")
        files = self.hub.repos["org/folder"]["main"]
        files["LICENSE"] = b"freer\n"  # comes first
        files["config.json"] += b"\n"
        self.hub.wrong["config.json"] = 9
        self.quire("model", "get", "hf:org/folder", code=1)
        away = {"HF_ENDPOINT": "https://localhost:1"}
        self.assertEqual((self.cache / "org--folder/main/LICENSE").read_bytes(), b"freer\n")
        self.quire("model", "info", "-m", "hf:org/folder", code=1, **away)
        self.assertIn("not whole", self.quire("model", "list"))
        self.hub.wrong.clear()
        self.quire("model", "info", "-m", "hf:org/folder")
        self.quire("model", "info", "-m", "hf:org/folder", **away)

    def test_files_that_a_repository_no_longer_has_go(self):
        revision = self.hub.repos["org/folder"]["v1"]
        folder = pathlib.Path(self.quire("model", "get", "hf:org/folder@v1"))
        (folder / "quire-card.json").write_text("{}")  # of this machine
        del revision["model.safetensors"]
        parts = {"model.safetensors.index.json": b"{}", "model-00001-of-00001.safetensors": b"new"}
        revision.update(parts)
        self.quire("model", "get", "hf:org/folder@v1")
        names = {p.name for p in folder.iterdir() if not p.name.startswith(".")}
        self.assertEqual(names, {"config.json", "quire-card.json", *parts})

    def test_list_and_rm(self):
        self.assertEqual(self.quire("model", "list"), "")
        self.quire("model", "get", "hf:org/gguf:Q8_0")
        self.quire("model", "get", "hf:org/gguf:m-IQ2_M.gguf")
        self.quire("model", "get", "hf:org/folder@v1")
        listed = self.quire("model", "list")
        for name in ("hf:org/gguf:Q8_0", "hf:org/gguf:m-IQ2_M.gguf", "hf:org/folder@v1"):
            self.assertIn(name, listed)
        self.assertIn("removed", self.quire("model", "rm", "hf:org/gguf:Q8_0"))
        self.assertFalse((self.cache / "org--gguf/main/m-Q8_0.gguf").exists())
        self.assertTrue((self.cache / "org--gguf/main/m-IQ2_M.gguf").exists())
        self.quire("model", "rm", "hf:org/folder@v1")
        self.assertNotIn("folder", self.quire("model", "list"))
        self.assertIn("there is no", self.quire("model", "rm", "hf:org/folder@v1", code=1))

    def test_a_model_in_parts_is_one(self):
        self.quire("model", "get", "hf:org/parts:Q5")
        other = pathlib.Path(self.quire("model", "get", "hf:org/parts:Q8/n.gguf"))
        row = next(r for r in self.quire("model", "list").splitlines() if "parts:Q5" in r)
        self.assertIn(" 0.6 MiB", row)
        # Another model of the repository that is gone is not this one's trouble.
        other.unlink()
        self.hub.log.clear()
        self.quire("model", "info", "-m", "hf:org/parts:Q5", code=1)
        self.assertEqual(self.hub.log, [])
        self.quire("model", "get", "hf:org/parts:Q8/n.gguf")
        self.quire("model", "rm", "hf:org/parts:Q5")
        self.assertEqual([p.name for p in self.cache.rglob("*.gguf")], ["n.gguf"])

    def test_a_copied_binary_brings_its_model(self):
        copy = self.folder / "elsewhere" / "quire"
        copy.parent.mkdir()
        shutil.copy2(QUIRE, copy)
        for _ in range(2):
            info = subprocess.run(
                [copy, "model", "info"], capture_output=True, text=True, env=self.env, timeout=120
            )
            self.assertEqual(info.returncode, 0, info.stderr)
            self.assertIn(str(self.cache / "embedded"), info.stdout)
        unpacked = next((self.cache / "embedded").iterdir())
        for file in DEMO.rglob("*"):
            if file.is_file():
                self.assertEqual(
                    (unpacked / file.relative_to(DEMO)).read_bytes(), file.read_bytes()
                )
        (unpacked / "config.json").write_bytes(b"cut")  # damaged: unpacked again
        subprocess.run(
            [copy, "model", "info"], check=True, capture_output=True, env=self.env, timeout=120
        )
        self.assertEqual(
            (unpacked / "config.json").read_bytes(), (DEMO / "config.json").read_bytes()
        )

    def test_hints_of_the_command_line(self):
        self.assertIn("did you mean 'quire ingest'?", self.quire("ingets", "x", code=2))
        self.assertIn("did you mean 'quire model get'?", self.quire("model", "gte", code=2))
        self.assertIn("did you mean --server.port?", self.quire("serve", "--port", "9000", code=2))
        self.assertIn("usage", self.quire("help", "ingest").lower())
        shown = self.quire(
            "serve", "--server.port", "9100", "-m", "hf:org/folder", "--print-config"
        )
        self.assertIn("port = 9100", shown)
        self.assertIn('path = "hf:org/folder"', shown)
        self.quire("serve", "--model", "hf:org/folder", "--check-config")
        self.assertEqual(self.hub.log, [])  # checking settings fetches nothing

    def test_a_full_disk(self):
        if not os.path.isdir("/dev/full") and os.geteuid() != 0:
            self.skipTest("needs a small file system")
        small = self.folder / "small"
        small.mkdir()
        if (
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True
            ).returncode
            != 0
        ):
            self.skipTest("cannot mount a small file system")
        self.addCleanup(subprocess.run, ["umount", str(small)], capture_output=True)
        self.assertIn(
            "disk is full",
            self.quire("model", "get", "hf:org/gguf", code=1, QUIRE_CACHE=str(small)),
        )


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
