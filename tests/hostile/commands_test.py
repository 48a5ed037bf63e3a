"""Models whose files lie, given to `quire` on the command line: an error in words that name the
file, in a moment and with little memory."""

import os
import resource
import sys
import tempfile
import threading
import unittest

import model_files

MOST_MIB = 300  # of resident memory; the largest file here has 7 MB
MOST_CPU_S = 10
PATIENCE_S = 60
TEXT = b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab " * 200


class Done:
    """What became of a command."""

    def __init__(self, words, text=b""):
        out, err, given = (tempfile.TemporaryFile() for _ in range(3))
        given.write(text)
        given.seek(0)
        process = os.posix_spawn(
            words[0], words, dict(os.environ, OMP_NUM_THREADS="1"),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, given.fileno(), 0), (os.POSIX_SPAWN_DUP2, out.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, err.fileno(), 2),
            ],
        )  # fmt: skip
        timer = threading.Timer(PATIENCE_S, os.kill, (process, 9))
        timer.start()
        _, status, used = os.wait4(process, 0)
        timer.cancel()
        self.code = os.waitstatus_to_exitcode(status)
        self.cpu_s = used.ru_utime + used.ru_stime
        self.most_mib = used.ru_maxrss / 1024
        out.seek(0)
        err.seek(0)
        self.out, self.err = out.read().decode(), err.read().decode(errors="replace")

    def __str__(self):
        return f"{self.code} after {self.cpu_s:.1f} s, {self.most_mib:.0f} MiB: {self.err[:500]}"


class HostileFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.quire, cls.demo = os.environ["QUIRE_BINARY"], os.environ["QUIRE_MODEL"]
        # Whoever runs this may have no core files of what is found here.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def setUp(self):
        self.work = tempfile.TemporaryDirectory(prefix="quire-files-")
        self.addCleanup(self.work.cleanup)

    def path(self, name):
        return os.path.join(self.work.name, name)

    def write(self, name, data):
        with open(self.path(name), "wb") as out:
            out.write(data)
        return self.path(name)

    def run_quire(self, *words, text=b""):
        done = Done([self.quire, *words], text)
        self.assertLess(done.cpu_s, MOST_CPU_S, done)
        self.assertLess(done.most_mib, MOST_MIB, done)
        return done

    def expect_refused(self, done, *names):
        self.assertEqual(done.code, 1, done)
        self.assertTrue(done.err.startswith("quire: "), done)
        self.assertTrue(any(name in done.err for name in names), done)
        self.assertLess(len(done.err), 2000, done)

    def test_gguf(self):
        for number, (name, data) in enumerate(model_files.ggufs()):
            file = self.write(f"{number}.gguf", data)
            for words in (["model", "info", "-m", file], ["tokenize", "-m", file]):
                with self.subTest(name, command=words[0]):
                    done = self.run_quire(*words, text=TEXT)
                    # A vocabulary may be read without its weights.
                    if words[0] == "model" or done.code != 0:
                        self.expect_refused(done, f"{number}.gguf")

    def test_safetensors(self):
        for number, (name, data) in enumerate(model_files.weights()):
            with self.subTest(name):
                folder = model_files.folder_with(
                    self.demo, self.path(str(number)), "model.safetensors", data
                )
                self.expect_refused(self.run_quire(
                    "generate", "-m", folder, "-p", "a", "-n", "1"
                ), "safetensors")  # fmt: skip

    def test_a_list_of_weights(self):
        for number, (name, data) in enumerate((
            ("a file elsewhere", b'{"weight_map":{"a":"../../../../etc/passwd"}}'),
            ("a file from the root", b'{"weight_map":{"a":"/etc/passwd"}}'),
            ("200,000 levels", b'{"weight_map":' + b'{"a":' * 200000 + b"1" + b"}" * 200001),
            ("100,000 files", b'{"weight_map":{' + b",".join(
                b'"t%d":"%d.safetensors"' % (i, i) for i in range(100000)) + b"}}"),
        )):  # fmt: skip
            with self.subTest(name):
                folder = model_files.folder_with(
                    self.demo, self.path(str(number)), "model.safetensors.index.json", data
                )
                os.remove(os.path.join(folder, "model.safetensors"))
                done = self.run_quire("generate", "-m", folder, "-p", "a", "-n", "1")
                self.expect_refused(done, "safetensors")
                self.assertNotIn("root:", done.err)

    def test_tokenizers(self):
        for number, (name, file, data) in enumerate(model_files.tokenizers()):
            with self.subTest(name):
                folder = model_files.folder_with(self.demo, self.path(str(number)), file, data)
                done = self.run_quire("tokenize", "-m", folder, text=TEXT)
                # Some are odd and can be used all the same.
                self.assertTrue(done.code == 0 or name != "nothing odd", done)
                if done.code != 0:
                    self.expect_refused(done, file, "tokenizer")
                else:
                    self.assertTrue(done.out.startswith("["), done)

    def test_configurations(self):
        for number, (name, data) in enumerate((
            ("200,000 levels", b'{"a":' * 200000 + b"1" + b"}" * 200000),
            ("no object", b"[" * 1000),
            ("layers of 2^62", b'{"model_type":"llama","architectures":["LlamaForCausalLM"],'
             b'"num_hidden_layers":4611686018427387904,"hidden_size":256,"vocab_size":4096,'
             b'"num_attention_heads":4,"intermediate_size":512}'),
            ("a vocabulary of 2^31", b'{"model_type":"llama","architectures":["LlamaForCausalLM"],'
             b'"num_hidden_layers":6,"hidden_size":256,"vocab_size":2147483647,'
             b'"num_attention_heads":4,"intermediate_size":512}'),
            ("1e308", b'{"model_type":"llama","architectures":["LlamaForCausalLM"],'
             b'"num_hidden_layers":6,"hidden_size":1e308,"vocab_size":4096,"rope_theta":1e999,'
             b'"num_attention_heads":4,"intermediate_size":512}'),
        )):  # fmt: skip
            with self.subTest(name):
                folder = model_files.folder_with(
                    self.demo, self.path(str(number)), "config.json", data
                )
                done = self.run_quire("generate", "-m", folder, "-p", "a", "-n", "1")
                self.expect_refused(done, "config", "safetensors", "model")


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
