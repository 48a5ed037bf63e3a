"""python -m unittest discover -s tests   (from models/; needs requirements.txt)"""
import itertools
import random
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from quire_model import heldout, hf_folder, mixture, muon, names, scoring
from quire_model.encyclopedia import Encyclopedia, Style
from quire_model.network import LanguageModel, ModelConfig, rope_table
from quire_model.prompt import Codec

TOKENIZER = Path(__file__).resolve().parents[1] / "demo" / "tokenizer.model"
TINY = ModelConfig(vocab_size=4096, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
                   num_key_value_heads=1)


def some_contexts(count, style=Style(), held_out=False):
    return [Encyclopedia(random.Random(f"test/{i}"), 5, style, held_out).build() for i in range(count)]


class GeneratorTest(unittest.TestCase):
    def test_answers_stand_in_a_supporting_document(self):
        for context in some_contexts(100):
            for question in context.questions:
                support = [d.title if question.kind == "comparison" else d.text for d in question.support]
                for part in question.answer.split(", "):
                    self.assertTrue(any(part in text for text in support), (question, support))

    def test_continuation_document_does_not_name_its_subject(self):
        found = 0
        for context in some_contexts(100):
            for question in (q for q in context.questions if q.kind == "continuation"):
                found += 1
                first, chunk = question.support
                subject = first.title
                sentence = [s for s in chunk.sentences if question.answer in s]
                self.assertFalse(any(s.startswith(subject) for s in sentence), (subject, sentence))
        self.assertGreater(found, 100)

    def test_same_seed_same_context(self):
        a, b = (Encyclopedia(random.Random(5), 6, Style()).build() for _ in range(2))
        self.assertEqual([d.text for d in a.documents], [d.text for d in b.documents])
        self.assertEqual([q.text for q in a.questions], [q.text for q in b.questions])

    def test_training_and_held_out_names_share_no_word(self):
        def words(held_out):
            namer = names.Namer(random.Random(1), held_out)
            return {w for _ in range(3000) for w in (namer.person(True) + " " + namer.city()).split()}
        self.assertFalse(words(True) & words(False))

    def test_held_out_contexts_keep_their_limits(self):
        codec = Codec(TOKENIZER)
        for context in itertools.islice(heldout.contexts(3, codec), 5):
            self.assertTrue(4 <= len(context.documents) <= 12)
            ids, _ = codec.documents(d.text for d in context.documents)
            self.assertLessEqual(len(ids), 2000)


class BatchTest(unittest.TestCase):
    def test_targets_are_the_next_tokens_and_answers_are_whole(self):
        codec = Codec(TOKENIZER)
        batch = mixture.make_batch("seed", 2, 512, codec)
        flat = batch.ids.reshape(-1)
        self.assertTrue((flat[batch.wanted + 1] == batch.targets).all())
        self.assertAlmostEqual(float(batch.weights[:batch.num_answer].sum()), 1.0, places=4)
        for start, end in batch.answers:
            self.assertEqual(flat[batch.wanted[start]], codec.answer)
            self.assertEqual(batch.targets[end - 1], codec.end)


class NetworkTest(unittest.TestCase):
    def test_orthogonalised_update_has_singular_values_near_one(self):
        torch.manual_seed(0)
        for shape in ((32, 64), (64, 32)):
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

    def test_one_document_gives_the_same_cache_under_reuse(self):
        torch.manual_seed(2)
        model = LanguageModel(TINY)
        scorer = scoring.Scorer(model, Codec(TOKENIZER), rope_table(TINY, 64))
        ids = list(range(20, 50))
        full, apart = (scorer.prefill(ids, [1], m) for m in scoring.METHODS)
        self.assertTrue(torch.allclose(full[-1][0], apart[-1][0], atol=1e-5))
        two = scorer.prefill(ids, [1, 15], "reuse")
        self.assertTrue(torch.allclose(full[-1][0][:, :, :15], two[-1][0][:, :, :15], atol=1e-5))
        self.assertFalse(torch.allclose(full[-1][0][:, :, 15:], two[-1][0][:, :, 15:], atol=1e-3))

    def test_scorer_agrees_with_the_training_forward(self):
        torch.manual_seed(3)
        model = LanguageModel(TINY)
        cos, sin = rope_table(TINY, 64)
        codec = Codec(TOKENIZER)
        scorer = scoring.Scorer(model, codec, (cos, sin))
        documents, question = list(range(10, 40)), [codec.question, 99, codec.answer]
        with torch.no_grad():
            ids = documents + question
            first = int(model(torch.tensor([ids]), torch.tensor([len(ids) - 1]), cos[:len(ids)], sin[:len(ids)]).argmax())
        cache = scorer.prefill(documents, [1], "recompute")
        self.assertTrue(scorer.judge(cache, question, [first])[0])
        self.assertFalse(scorer.judge(cache, question, [first + 1])[0])


if __name__ == "__main__":
    unittest.main()
