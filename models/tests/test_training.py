"""python -m unittest discover -s models/tests   (skipped without requirements.txt's packages)"""

import contextlib
import importlib.util
import io
import itertools
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

MISSING = [
    m
    for m in ("numpy", "safetensors", "sentencepiece", "torch")
    if importlib.util.find_spec(m) is None
]
if MISSING:
    raise unittest.SkipTest(f"not installed: {', '.join(MISSING)} (models/requirements.txt)")

import torch
from safetensors.torch import load_file

import evaluate
from quire_model import cpu_attention, heldout, hf_folder, mixture, muon, retrieval_head, scoring
from quire_model.network import PRESETS, LanguageModel, attend, question_mask, rope_table
from quire_model.prompt import Codec
from quire_model.trainer import Trainer, TrainOptions

TOKENIZER = Path(__file__).resolve().parents[1] / "demo" / "tokenizer.model"
TINY = PRESETS["tiny"]
SHORT = mixture.Part(0.0, {192: 1.0}, 0.3)


def forward(model, batch):
    arrays = (
        torch.from_numpy(x).long()
        for x in (batch.ids, batch.positions, batch.segments, batch.documents, batch.wanted)
    )
    return model(*arrays, *rope_table(model.config, 4096))


class HeldOutTest(unittest.TestCase):
    def test_contexts_keep_their_length(self):
        codec = Codec(TOKENIZER)
        for length in (1500, 6000):
            for context in itertools.islice(heldout.contexts(3, codec, length), 3):
                size = len(codec.documents(d.text for d in context.documents)[0])
                self.assertTrue(0.85 * length <= size <= length)


class AttentionTest(unittest.TestCase):
    """The kernels for CPUs against masks in float32: values, gradients, filling."""

    def setUp(self):
        if cpu_attention.kernels() is None:
            self.skipTest("needs AVX-512 BF16, a C++ compiler and ninja")

    def masked(self, q, k, v, segments, documents):
        split = q.shape[1] - segments.shape[1]
        mask = question_mask(segments, documents, q.shape[1])
        return torch.cat(
            [attend(q[:, :split], k[:, :split], v[:, :split]), attend(q[:, split:], k, v, mask)], 1
        )

    def compare(self, length, room, documents, questions, heads, kv_heads):
        """documents[row]: tokens; questions[row]: sizes."""
        torch.manual_seed(length)
        rows, split = len(documents), length - room
        segments = torch.full((rows, room), -1)
        real = torch.zeros(rows, length, 1)
        for row, (size, asked) in enumerate(zip(documents, questions)):
            numbers = [n for n, count in enumerate(asked) for _ in range(count)]
            segments[row, : len(numbers)] = torch.tensor(numbers)
            real[row, :size] = real[row, split : split + len(numbers)] = 1.0
        q, k, v = (torch.randn(rows, length, n, 64).bfloat16() for n in (heads, kv_heads, kv_heads))
        gradient = (torch.randn(rows, length, heads * 64) * real).bfloat16()

        def results(function, dtype):
            given = [t.to(dtype).clone().requires_grad_() for t in (q, k, v)]
            y = function(*given, segments, torch.tensor(documents))
            y.backward(gradient.to(dtype))
            return [y.detach().float()] + [t.grad.float() for t in given]

        wanted, got = (
            results(self.masked, torch.float32),
            results(cpu_attention.attend_rows, torch.bfloat16),
        )
        self.assertTrue((got[0] * (1 - real) == 0).all())
        for a, b in zip([wanted[0] * real] + wanted[1:], got):
            self.assertLess(float((a - b).norm() / a.norm()), 0.006)

    def test_as_masks_on_odd_sizes(self):
        self.compare(96, 40, [56, 1, 33], [[40], [7, 3, 11], [1, 1]], 2, 1)
        self.compare(193, 65, [127, 65], [[64, 1], [13, 13, 13, 13]], 4, 2)
        self.compare(331, 130, [200], [[63, 2, 65]], 3, 3)

    def test_training_takes_it(self):
        batch = mixture.make_batch("seed", 2, 192, Codec(TOKENIZER), SHORT)
        losses = []
        for training in (True, False):
            torch.manual_seed(0)
            model = LanguageModel(TINY, torch.bfloat16).train(training)
            losses.append(
                torch.nn.functional.cross_entropy(
                    forward(model, batch), torch.from_numpy(batch.targets)
                )
            )
        self.assertAlmostEqual(losses[0].item(), losses[1].item(), delta=0.01)
        names = {f.name().split("Backward")[0] for f in ancestors(losses[0].grad_fn)}
        self.assertIn("_Attention", names)


def ancestors(node):
    """All nodes of an autograd graph."""
    found, left = set(), [node]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found.add(node)
            left += [n for n, _ in node.next_functions]
    return found


class BatchTest(unittest.TestCase):
    def setUp(self):
        self.codec = Codec(TOKENIZER)

    def test_targets_are_the_next_tokens_and_answers_are_whole(self):
        for length in (96, 512, 1024):
            batch = mixture.make_batch("seed", 4, length, self.codec, mixture.part_at("full", 0.4))
            flat = batch.ids.reshape(-1)
            self.assertTrue((flat[batch.wanted + 1] == batch.targets).all())
            self.assertAlmostEqual(float(batch.weights[: batch.num_answer].sum()), 1.0, places=4)
            self.assertTrue(batch.answers)
            for start, end, kind in batch.answers:
                self.assertIn(kind, mixture.WEIGHTS)
                self.assertEqual(flat[batch.wanted[start]], self.codec.answer)
                self.assertEqual(batch.targets[end - 1], self.codec.end)

    def test_positions_of_a_question_follow_its_documents(self):
        batch = mixture.make_batch("seed", 4, 512, self.codec, SHORT)
        for row in range(4):
            for number in range(batch.segments[row].max() + 1):
                inside = (batch.segments[row] == number).nonzero()[0] + 512 - batch.room
                self.assertEqual(batch.ids[row, inside[0]], self.codec.question)
                self.assertEqual(
                    list(batch.positions[row, inside]),
                    list(range(batch.documents[row], batch.documents[row] + len(inside))),
                )

    def test_lengths_and_parts_cover_the_whole_schedule(self):
        for name, parts in mixture.CURRICULA.items():
            self.assertEqual(parts[0].start, 0.0)
            self.assertEqual(sorted(p.start for p in parts), [p.start for p in parts])
            self.assertIs(mixture.part_at(name, 1.0), parts[-1])

    def test_kinds_are_asked_by_weight_however_many_there_are(self):
        import random
        from quire_model.pages import Question

        many = [Question("single", str(i), "", []) for i in range(300)] + [
            Question("two_hop", "x", "", [])
        ]
        first = (
            sum(mixture.balanced(random.Random(i), many)[0].kind == "two_hop" for i in range(300))
            / 300
        )
        wanted = mixture.WEIGHTS["two_hop"] / (
            mixture.WEIGHTS["two_hop"] + mixture.WEIGHTS["single"]
        )
        self.assertAlmostEqual(first, wanted, delta=0.12)


class NetworkTest(unittest.TestCase):
    def test_orthogonalised_update_has_singular_values_near_one(self):
        torch.manual_seed(0)
        for shape in ((32, 64), (64, 32), (3, 32, 64)):
            values = torch.linalg.svdvals(muon.orthogonalised(torch.randn(shape)))
            self.assertLess(values.max(), 1.4)
            self.assertGreater(values.min(), 0.4)

    def test_folder_round_trip_keeps_bf16_weights(self):
        torch.manual_seed(1)
        model = LanguageModel(TINY)
        with tempfile.TemporaryDirectory() as folder:
            hf_folder.write_folder(folder, TINY, model.state_dict(), TOKENIZER, 128)
            again = hf_folder.load_model(folder)
        self.assertEqual(again.config, TINY)
        for a, b in zip(model.state_dict().values(), again.state_dict().values()):
            self.assertTrue(torch.equal(a.bfloat16().float(), b))

    def test_a_sharded_folder_reads_like_a_whole_one(self):
        torch.manual_seed(1)
        model = LanguageModel(TINY)
        with tempfile.TemporaryDirectory() as folder:
            hf_folder.write_folder(
                folder, TINY, model.state_dict(), TOKENIZER, 128, max_shard_bytes=300000
            )
            self.assertGreater(len(list(Path(folder).glob("model-*.safetensors"))), 1)
            self.assertTrue(
                all(f.stat().st_size < 600000 for f in Path(folder).glob("model-*.safetensors"))
            )
            again = hf_folder.load_model(folder)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value.bfloat16().float(), again.state_dict()[name]))

    def test_one_document_gives_the_same_cache_under_reuse(self):
        torch.manual_seed(2)
        scorer = scoring.Scorer(LanguageModel(TINY), Codec(TOKENIZER), rope_table(TINY, 64))
        ids = list(range(20, 50))
        full, apart = (scorer.prefill(ids, [1], m) for m in scoring.METHODS)
        self.assertTrue(torch.allclose(full[-1][0], apart[-1][0], atol=1e-5))
        two = scorer.prefill(ids, [1, 15], "reuse")
        self.assertTrue(torch.allclose(full[-1][0][:, :15], two[-1][0][:, :15], atol=1e-5))
        self.assertFalse(torch.allclose(full[-1][0][:, 15:], two[-1][0][:, 15:], atol=1e-3))

    def test_training_sees_what_a_question_asked_alone_sees(self):
        """Logits of a packed row with several questions against one causal pass
        for each question."""
        torch.manual_seed(3)
        model, codec = LanguageModel(TINY), Codec(TOKENIZER)
        batch = mixture.make_batch("alone", 2, 512, codec, SHORT)
        with torch.no_grad():
            packed = forward(model, batch)
        scorer = scoring.Scorer(model, codec, rope_table(TINY, 1024))
        for start, end, _ in batch.answers[:6]:
            row, first = divmod(int(batch.wanted[start]), 512)
            number = batch.segments[row, first - 512 + batch.room]
            own = (batch.segments[row] == number).nonzero()[0] + 512 - batch.room
            ids = batch.ids[row, : batch.documents[row]].tolist() + batch.ids[row, own].tolist()
            with torch.no_grad():
                x, _ = scorer._layers(ids, range(len(ids)), None, scoring.attend)
                alone = model.logits(x)[-(end - start) - 1 : -1]
            self.assertTrue(
                torch.allclose(packed[start:end], alone, atol=1e-3),
                (packed[start:end] - alone).abs().max(),
            )

    def test_questions_judged_together_are_judged_as_alone(self):
        torch.manual_seed(4)
        model, codec = LanguageModel(TINY), Codec(TOKENIZER)
        scorer = scoring.Scorer(model, codec, rope_table(TINY, 256))
        cache = scorer.prefill(list(range(10, 60)), [1, 30], "recompute")
        pairs = [
            ([codec.question, 99, codec.answer], [50, codec.end]),
            ([codec.question, 7, 8, codec.answer], [51, 52, codec.end]),
        ]
        together, alone = scorer.judge_all(cache, pairs), [scorer.judge(cache, *p) for p in pairs]
        for (a, p), (b, r) in zip(together, alone):
            self.assertEqual(a, b)
            self.assertAlmostEqual(p, r, places=5)


class TrainerTest(unittest.TestCase):
    def setUp(self):
        quiet = contextlib.redirect_stdout(io.StringIO())
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)

    def options(self, folder, **changes):
        return TrainOptions(
            **{
                **dict(
                    out=folder,
                    tokenizer=str(TOKENIZER),
                    config=TINY,
                    tokens=8 * 1024,
                    step_tokens=1024,
                    max_length=256,
                    log_steps=2,
                    probe_tokens=4096,
                    probe_rows=1,
                ),
                **changes,
            }
        )

    def weights(self, folder):
        return torch.load(Path(folder) / "checkpoint.pt", weights_only=True)

    def test_a_resumed_run_equals_an_uninterrupted_one(self):
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
            self.assertTrue(Trainer(self.options(whole), 0).run())
            first = Trainer(self.options(parts, stop_minutes=1e-9), 0)
            self.assertFalse(first.run())
            self.assertEqual(first.step, 1)
            self.assertFalse(Trainer(self.options(parts, stop_minutes=1e-9, workers=2), 0).run())
            self.assertTrue(Trainer(self.options(parts, workers=2), 0).run())
            a, b = self.weights(whole), self.weights(parts)
            self.assertEqual((a["step"], a["tokens"]), (b["step"], b["tokens"]))
            for name in a["model"]:
                self.assertTrue(torch.equal(a["model"][name], b["model"][name]), name)
            lines = [
                json.loads(line) for line in (Path(whole) / "log.jsonl").read_text().splitlines()
            ]
            self.assertTrue(any("binding@512" in x or "cards@192" in x for x in lines))
            self.assertIn("#", (Path(whole) / "curve.txt").read_text() + "#")

    def test_a_schedule_can_be_entered_late(self):
        with tempfile.TemporaryDirectory() as folder:
            run = Trainer(self.options(folder, start_tokens=4096), 0)
            self.assertEqual((run.step, run.tokens), (4, 4096))
            self.assertTrue(run.run())
            self.assertEqual(run.step, 8)

    def test_sigterm_stops_with_a_checkpoint(self):
        import os
        import signal

        with tempfile.TemporaryDirectory() as folder:
            run, old = Trainer(self.options(folder), 0), signal.getsignal(signal.SIGTERM)
            inner = run._train_step

            def step():
                inner()
                os.kill(os.getpid(), signal.SIGTERM)

            run._train_step = step
            try:
                self.assertFalse(run.run())
            finally:
                signal.signal(signal.SIGTERM, old)
            self.assertEqual(self.weights(folder)["step"], 1)

    def test_another_schedule_does_not_resume(self):
        with tempfile.TemporaryDirectory() as folder:
            Trainer(self.options(folder, stop_minutes=1e-9), 0).run()
            with self.assertRaises(SystemExit):
                Trainer(self.options(folder, tokens=9 * 1024), 0)

    def test_a_draft_learns_from_a_teacher(self):
        torch.manual_seed(5)
        with tempfile.TemporaryDirectory() as folder:
            teacher = LanguageModel(TINY)
            with torch.no_grad():
                teacher.model.norm.weight.mul_(30.0)  # a teacher that is sure of its answers
            hf_folder.write_folder(
                Path(folder) / "teacher", TINY, teacher.state_dict(), TOKENIZER, 256
            )
            run = Trainer(
                self.options(
                    folder, teacher=str(Path(folder) / "teacher"), tokens=10**9, other_lr=0.01
                ),
                0,
            )
            batch = run.make_batch(0)
            inputs, _, _ = run.tensors(batch)

            def distance():
                with torch.no_grad():
                    return float(
                        run._imitation(
                            inputs,
                            run.model(*inputs, *run.rope)[: batch.num_answer],
                            batch.num_answer,
                        )
                    )

            run.batches._make = lambda step: batch
            before = distance()
            for _ in range(6):
                run._train_step()
            self.assertLess(distance(), before)


class RetrievalHeadTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(6)
        self.target = LanguageModel(TINY)
        self.head = retrieval_head.RetrievalHead(TINY, retrieval_head.HeadConfig.for_target(TINY))

    def test_export_has_the_tensors_of_an_eagle3_layer(self):
        with tempfile.TemporaryDirectory() as folder:
            retrieval_head.write_folder(folder, self.head)
            tensors = load_file(Path(folder) / "model.safetensors")
            d, c = TINY.hidden_size, self.head.config
            self.assertEqual(
                {k: tuple(v.shape) for k, v in tensors.items()},
                {
                    "midlayer.input_layernorm.weight": (d,),
                    "midlayer.hidden_norm.weight": (d,),
                    "midlayer.self_attn.q_proj.weight": (c.num_attention_heads * c.head_dim, 2 * d),
                    "midlayer.self_attn.k_proj.weight": (c.num_key_value_heads * c.head_dim, 2 * d),
                    "fc.weight": (d, 3 * d),
                },
            )
            again = retrieval_head.load_folder(folder, TINY)
            self.assertEqual(again.config, c)

    def test_a_score_at_t_depends_on_features_before_t_only(self):
        ids = torch.arange(20, 40)
        _, features = retrieval_head.target_pass(
            self.target,
            ids,
            torch.arange(20),
            rope_table(TINY, 64),
            self.head.config.feature_layers,
        )
        embedding = self.target.model.embed_tokens.weight

        def keys(features):
            return self.head.project(embedding[ids], features, torch.arange(20))[1]

        changed = features.clone()
        changed[10] += 1.0
        a, b = keys(features), keys(changed)
        same = (a == b).flatten(1).all(1)
        self.assertTrue(same[:11].all())
        self.assertFalse(same[11])
        self.assertTrue(same[12:].all())

    def test_the_packed_row_of_an_example_is_seen_as_in_training(self):
        codec = Codec(TOKENIZER)
        example = retrieval_head.to_device(
            retrieval_head.make_example("y", 512, codec, SHORT), "cpu"
        )
        n = example.num_document_tokens
        starts = (example.ids == codec.question).nonzero().flatten()
        self.assertGreater(len(starts), 1)
        self.assertTrue((example.previous[starts] == n - 1).all())
        self.assertTrue((example.positions[starts] == n).all())
        second = int(starts[1])
        self.assertFalse(example.mask[second, n:second].any())
        self.assertTrue(example.mask[second, :n].all())
        self.assertTrue((example.queries >= n).all())

    def test_attention_wanted_is_a_distribution_over_document_tokens(self):
        codec = Codec(TOKENIZER)
        example = retrieval_head.to_device(
            retrieval_head.make_example("x", 512, codec, SHORT), "cpu"
        )
        wanted = retrieval_head.attention_wanted(
            self.target, example, rope_table(TINY, 1024), TINY.num_key_value_heads
        )
        self.assertEqual(
            wanted.shape,
            (len(example.queries), TINY.num_key_value_heads, example.num_document_tokens),
        )
        self.assertTrue(torch.allclose(wanted.sum(-1), torch.ones(wanted.shape[:2]), atol=1e-4))
        self.assertEqual(float(wanted[..., 0].max()), 0.0)  # <s> is no token of a document

    def test_training_brings_the_head_closer(self):
        codec = Codec(TOKENIZER)
        before, after = retrieval_head.train(
            self.target,
            self.head,
            codec,
            steps=12,
            length=256,
            part=SHORT,
            seed=1,
            lr=3e-3,
            log=lambda line: None,
        )
        self.assertLess(after["kl"], before["kl"])

    def test_a_checkpoint_of_its_optimiser_can_be_read_again(self):
        optimiser = torch.optim.AdamW(self.head.parameters(), lr=1e-3)
        retrieval_head.train(
            self.target,
            self.head,
            Codec(TOKENIZER),
            steps=2,
            length=256,
            part=SHORT,
            seed=1,
            log=lambda line: None,
            optimiser=optimiser,
        )
        saved = io.BytesIO()
        torch.save(optimiser.state_dict(), saved)
        saved.seek(0)
        self.assertEqual(
            torch.load(saved, weights_only=True)["param_groups"][0]["lr"],
            optimiser.param_groups[0]["lr"],
        )


class EvaluateTest(unittest.TestCase):
    def test_bars_are_judged_against_the_table(self):
        def row(exact):
            return {
                k: {"n": 10, "exact": exact}
                for k in ("single", "continuation", "needles", "two_hop", "comparison", "absent")
            }

        rows = {2048: {"recompute": row(0.96), "reuse": row(0.5)}, 8192: {"recompute": row(0.94)}}
        found = {text: holds for text, _, holds in evaluate.verdicts(rows)}
        self.assertTrue(found["single at 2048: at least 95.0 %"])
        self.assertTrue(found["single at 8192: at least 93.0 %"])
        self.assertFalse(found["needles at 2048: at least 98.0 %"])
        self.assertFalse(found["needles at 8192: at least 95.0 %"])
        self.assertTrue(found["continuation at 2048: reuse at least 40 points below recompute"])


if __name__ == "__main__":
    unittest.main()
