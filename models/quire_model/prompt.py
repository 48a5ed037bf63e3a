"""The prompt format and the tokenizer.

    <s> (<doc> document-tokens)* <q> question-tokens <a> answer-tokens </a>

Every part is encoded on its own, so a document's tokens never depend on its neighbours.
"""

import sentencepiece

BOS, PAD = 1, 3


class Codec:
    """Encodes contexts and questions. Safe to share between threads."""

    def __init__(self, tokenizer_file):
        self._sp = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_file))
        self.doc, self.question, self.answer, self.end = (
            self._sp.piece_to_id(p) for p in ("<doc>", "<q>", "<a>", "</a>")
        )
        if min(self.doc, self.question, self.answer, self.end) <= 3:
            raise ValueError(
                f"{tokenizer_file}: the pieces <doc>, <q>, <a>, </a> are missing; "
                "train the tokenizer with train_tokenizer.py"
            )

    def documents(self, texts):
        """(ids, starts): the ids from <s> on, and the offset of every document's <doc>."""
        ids, starts = [BOS], []
        for tokens in self._sp.encode(list(texts), num_threads=1):
            starts.append(len(ids))
            ids += [self.doc] + tokens
        return ids, starts

    def questions(self, questions):
        """For each Question: (ids from <q> to <a>, ids of the answer with its </a>)."""
        asked = self._sp.encode([q.text for q in questions], num_threads=1)
        answers = self._sp.encode([q.answer for q in questions], num_threads=1)
        return [
            ([self.question] + q + [self.answer], a + [self.end]) for q, a in zip(asked, answers)
        ]

    def decode(self, ids):
        return self._sp.decode([i for i in ids if i != self.end])
