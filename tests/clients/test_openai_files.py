"""Files and vector stores by the unmodified `openai` package."""

import io
import unittest

import openai

from service import Service

HALDEN = "The lighthouse of Halden was built in 1802 by Mira Tolen."
VARO = "The lighthouse of Varo was built in 1911. It is made of red brick."


class OpenAiFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = cls.enterClassContext(Service())
        cls.client = openai.OpenAI(
            base_url=cls.service.url + "/v1", api_key="unused", max_retries=0, timeout=120
        )

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def upload(self, name, text, **options):
        return self.client.files.create(
            file=(name, io.BytesIO(text.encode())), purpose="assistants", **options
        )

    def test_a_file_is_kept_listed_read_and_deleted(self):
        file = self.upload(
            "halden.txt", HALDEN, expires_after={"anchor": "created_at", "seconds": 7200}
        )
        self.assertEqual((file.filename, file.status), ("halden.txt", "processed"))
        self.assertEqual(file.expires_at, file.created_at + 7200)
        self.assertEqual(self.client.files.retrieve(file.id).bytes, len(HALDEN))
        self.assertIn(file.id, [f.id for f in self.client.files.list(limit=1)])
        self.assertEqual(self.client.files.content(file.id).text, HALDEN)
        self.assertTrue(self.client.files.wait_for_processing(file.id))
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(file.id)

    def test_other_purposes_and_empty_files_are_refused(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
        self.assertEqual(raised.exception.param, "purpose")
        with self.assertRaises(openai.UnprocessableEntityError):
            self.upload("empty.txt", " ")

    def test_a_vector_store_finds_what_it_holds(self):
        stores = self.client.vector_stores
        store = stores.create(name="towers", metadata={"team": "a"})
        self.assertEqual(store.file_counts.total, 0)
        files = [self.upload("halden.txt", HALDEN), self.upload("varo.txt", VARO)]
        for file, year in zip(files, (1802, 1911), strict=True):
            attached = stores.files.create_and_poll(
                file.id, vector_store_id=store.id, attributes={"year": year}
            )
            self.assertEqual((attached.status, attached.last_error), ("completed", None))
        self.assertEqual(stores.retrieve(store.id).file_counts.completed, 2)
        self.assertEqual({f.id for f in stores.files.list(store.id)}, {f.id for f in files})
        texts = [p.text for p in stores.files.content(files[0].id, vector_store_id=store.id)]
        self.assertEqual("".join(texts), self.client.files.content(files[0].id).text)

        found = stores.search(store.id, query="Which lighthouse is made of brick?").data
        self.assertEqual(found[0].filename, "varo.txt")
        self.assertIn("brick", found[0].content[0].text)
        early = stores.search(
            store.id,
            query="lighthouse",
            filters={"type": "lt", "key": "year", "value": 1900},
            max_num_results=5,
            ranking_options={"ranker": "auto", "score_threshold": 0},
        ).data
        self.assertEqual([r.file_id for r in early], [files[0].id])

        changed = stores.files.update(
            files[0].id, vector_store_id=store.id, attributes={"place": "Halden"}
        )
        self.assertEqual(changed.attributes, {"place": "Halden"})
        self.assertEqual(stores.update(store.id, name="old towers").name, "old towers")
        stores.files.delete(files[1].id, vector_store_id=store.id)
        self.assertEqual([f.id for f in stores.files.list(store.id)], [files[0].id])
        with self.assertRaises(openai.NotFoundError):
            stores.files.content(files[1].id, vector_store_id=store.id)
        self.assertTrue(stores.delete(store.id).deleted)
        self.assertEqual(self.client.files.retrieve(files[0].id).status, "processed")

    def test_upload_and_poll_and_files_given_at_once(self):
        stores = self.client.vector_stores
        first = self.upload("halden.txt", HALDEN)
        store = stores.create(name="given", file_ids=[first.id])
        self.assertEqual(store.file_counts.completed, 1)
        second = stores.files.upload_and_poll(
            vector_store_id=store.id, file=("varo.txt", VARO.encode())
        )
        self.assertEqual(second.status, "completed")
        self.assertEqual(stores.retrieve(store.id).file_counts.completed, 2)

    def test_a_vector_store_whose_files_cannot_be_attached_is_not_made(self):
        stores = self.client.vector_stores
        document = {"id": "salted", "text": HALDEN * 3, "cache_salt": "a secret salt"}
        self.service.post("/v1/documents?wait=true", document)
        before = {s.id for s in stores.list()}
        static = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}
        with self.assertRaises(openai.BadRequestError) as raised:
            stores.create(
                name="half",
                file_ids=[self.upload("varo.txt", VARO).id, "salted"],
                chunking_strategy={"type": "static", "static": static},
            )
        self.assertEqual(raised.exception.param, "file_ids")
        self.assertEqual({s.id for s in stores.list()}, before)

    def test_a_batch_is_made_polled_and_listed(self):
        batches = self.client.vector_stores.file_batches
        store = self.client.vector_stores.create(name="batched")
        files = [self.upload("halden.txt", HALDEN), self.upload("varo.txt", VARO)]
        batch = batches.create_and_poll(
            store.id, file_ids=[f.id for f in files], attributes={"kind": "tower"}
        )
        self.assertEqual((batch.status, batch.file_counts.completed), ("completed", 2))
        self.assertEqual(batch.file_counts.total, 2)
        self.assertEqual(batches.retrieve(batch.id, vector_store_id=store.id), batch)
        listed = batches.list_files(batch.id, vector_store_id=store.id, order="asc")
        self.assertEqual([f.id for f in listed], [f.id for f in files])
        self.assertEqual({f.status for f in listed}, {"completed"})
        self.assertEqual(listed.data[0].attributes["kind"], "tower")
        pages = batches.list_files(batch.id, vector_store_id=store.id, limit=1)
        self.assertEqual([f.id for f in pages], [f.id for f in reversed(files)])
        before = batches.list_files(
            batch.id, vector_store_id=store.id, order="asc", before=files[1].id
        )
        self.assertEqual([f.id for f in before], [files[0].id])
        none = batches.list_files(batch.id, vector_store_id=store.id, filter="failed")
        self.assertEqual(none.data, [])
        cancelled = batches.cancel(batch.id, vector_store_id=store.id)
        self.assertEqual(cancelled.status, "completed")
        found = self.client.vector_stores.search(store.id, query="Which lighthouse is of brick?")
        self.assertEqual(found.data[0].filename, "varo.txt")

    def test_a_batch_uploads_files_and_cuts_them(self):
        batches = self.client.vector_stores.file_batches
        store = self.client.vector_stores.create(name="uploaded")
        static = {
            "type": "static",
            "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50},
        }
        first = self.upload("first.txt", HALDEN)
        batch = batches.upload_and_poll(
            store.id,
            files=[("long.txt", (VARO + " ").encode() * 40), ("short.txt", VARO.encode())],
            file_ids=[first.id],
            chunking_strategy=static,
        )
        self.assertEqual((batch.status, batch.file_counts.completed), ("completed", 3))
        for file in batches.list_files(batch.id, vector_store_id=store.id):
            self.assertEqual(file.chunking_strategy.type, "static")
            self.assertEqual(file.chunking_strategy.static.max_chunk_size_tokens, 100)
            self.assertEqual(file.chunking_strategy.static.chunk_overlap_tokens, 50)
        self.assertEqual(self.client.vector_stores.retrieve(store.id).file_counts.completed, 3)

    def test_files_of_a_batch_have_attributes_and_chunking_of_their_own(self):
        store = self.client.vector_stores.create(name="own")
        files = [self.upload("halden.txt", HALDEN), self.upload("varo.txt", VARO)]
        static = {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 0}
        self.client.vector_stores.file_batches.create_and_poll(
            store.id,
            files=[
                {"file_id": files[0].id, "attributes": {"year": 1802}},
                {
                    "file_id": files[1].id,
                    "chunking_strategy": {"type": "static", "static": static},
                },
            ],
        )
        retrieve = self.client.vector_stores.files.retrieve
        one, two = (retrieve(f.id, vector_store_id=store.id) for f in files)
        self.assertEqual(one.attributes["year"], 1802)
        self.assertNotIn("year", two.attributes)
        self.assertEqual(two.chunking_strategy.static.model_dump(), static)

    def test_a_batch_names_what_is_wrong(self):
        batches = self.client.vector_stores.file_batches
        store = self.client.vector_stores.create(name="strict")
        file = self.upload("halden.txt", HALDEN)
        for wrong, param in (
            ({"file_ids": []}, "file_ids"),
            ({"file_ids": [file.id], "files": [{"file_id": file.id}]}, "file_ids"),
            ({"file_ids": [file.id, file.id]}, "file_ids"),
        ):
            with self.assertRaises(openai.BadRequestError) as raised:
                batches.create(store.id, **wrong)
            self.assertEqual(raised.exception.param, param)
        with self.assertRaises(openai.NotFoundError) as raised:
            batches.create(store.id, file_ids=["file-none"])
        self.assertEqual(raised.exception.param, "file_ids")
        with self.assertRaises(openai.NotFoundError):
            batches.retrieve("vsfb_none", vector_store_id=store.id)

    def test_responses_search_files(self):
        facts = "The Varo company is led by Mira Tolen. It was founded in 1931. "
        file = self.upload("company.txt", facts * 8)
        store = self.client.vector_stores.create(name="companies", file_ids=[file.id])
        given = {
            "model": "default",
            "input": "Who leads the Varo company?",
            "temperature": 0,
            "max_output_tokens": 24,
            "tools": [{"type": "file_search", "vector_store_ids": [store.id]}],
        }
        reply = self.client.responses.create(**given)
        search, message = reply.output
        self.assertEqual((search.type, search.status), ("file_search_call", "completed"))
        self.assertEqual(search.queries, ["Who leads the Varo company?"])
        self.assertGreater(reply.usage.input_tokens, 100)
        self.assertIn("Mira Tolen", reply.output_text)
        citations = message.content[0].annotations
        self.assertEqual({c.filename for c in citations}, {"company.txt"})
        self.assertEqual({c.file_id for c in citations}, {file.id})

        events = list(self.client.responses.create(stream=True, **given))
        types = [e.type for e in events]
        self.assertLess(
            types.index("response.file_search_call.completed"),
            types.index("response.output_text.delta"),
        )
        self.assertEqual(types.count("response.output_text.annotation.added"), len(citations))
        self.assertEqual(events[-1].response.output[1].content[0].annotations, citations)

        turns = [{"role": "user", "content": given["input"]}, *reply.output]
        more = given | {"input": [*turns, {"role": "user", "content": "Since when?"}]}
        self.assertEqual(self.client.responses.create(**more).status, "completed")
        without = self.client.responses.create(**given, tool_choice="none")
        self.assertEqual([o.type for o in without.output], ["message"])
        self.assertLess(without.usage.input_tokens, 60)
        given["tools"][0]["vector_store_ids"] = ["vs_none"]
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(**given)
        given["tools"][0] = {"type": "web_search"}
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.responses.create(**given)
        self.assertEqual(raised.exception.param, "tools[0].type")

    def test_what_is_not_done_is_refused_by_name(self):
        stores = self.client.vector_stores
        store = stores.create(name="strict")
        static = {
            "type": "static",
            "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51},
        }
        overlap = "chunking_strategy.static.chunk_overlap_tokens"
        cases = [
            (lambda: stores.create(chunking_strategy=static), overlap),
            (
                lambda: stores.create(expires_after={"anchor": "last_active_at", "days": 1}),
                "expires_after",
            ),
            (lambda: stores.search(store.id, query="q", rewrite_query=True), "rewrite_query"),
            (lambda: stores.create(extra_body={"colour": "red"}), "colour"),
        ]
        for call, param in cases:
            with self.assertRaises(openai.BadRequestError) as raised:
                call()
            self.assertEqual(raised.exception.param, param)
        with self.assertRaises(openai.NotFoundError):
            stores.retrieve("vs_none")


if __name__ == "__main__":
    unittest.main()
