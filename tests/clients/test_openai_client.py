"""The unmodified `openai` package against a real service."""

import hashlib
import json
import os
import tempfile
import unittest

import openai

from service import Service

FACTS = (
    "The Varo company is led by Mira Tolen. It was founded in 1931. "
    "Its seat is in the city of Halden."
)
QUESTION = [{"role": "user", "content": "Who leads the Varo company?"}]


class OpenAiClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = cls.enterClassContext(Service())
        cls.client = openai.OpenAI(
            base_url=cls.service.url + "/v1", api_key="unused", max_retries=0, timeout=120
        )
        cls.service.post(
            "/v1/documents?wait=true", {"id": "varo", "title": "Varo", "text": FACTS * 8}
        )

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def chat(self, **options):
        given = {
            "model": "default",
            "messages": QUESTION,
            "temperature": 0,
            "max_tokens": 24,
        } | options
        return self.client.chat.completions.create(**given)

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([m.id for m in models], ["default"])
        self.assertEqual(self.client.models.retrieve("default").object, "model")

    def test_chat(self):
        reply = self.chat()
        self.assertEqual(reply.object, "chat.completion")
        self.assertEqual(reply.choices[0].message.role, "assistant")
        self.assertIn(reply.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(
            reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens
        )
        self.assertTrue(reply.system_fingerprint.startswith("m-"))

    def test_tools_are_called_and_answered(self):
        function = {
            "name": "look_up",
            "description": "Looks up a company.",
            "parameters": {
                "type": "object",
                "properties": {"company": {"type": "string", "maxLength": 12}},
                "required": ["company"],
                "additionalProperties": False,
            },
        }
        options = {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": "required",
            "max_tokens": 96,
        }
        choice = self.chat(**options).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        call = choice.message.tool_calls[0]
        self.assertEqual(call.function.name, "look_up")
        self.assertEqual(list(json.loads(call.function.arguments)), ["company"])
        arguments = ""
        for chunk in self.chat(stream=True, **options):
            for piece in chunk.choices[0].delta.tool_calls or []:
                if piece.index == 0:
                    arguments += piece.function.arguments or ""
        self.assertEqual(arguments, call.function.arguments)
        turns = [
            *QUESTION,
            choice.message,
            *(
                {"role": "tool", "tool_call_id": c.id, "content": FACTS}
                for c in choice.message.tool_calls
            ),
        ]
        self.assertTrue(self.chat(messages=turns, tools=options["tools"]).choices[0].message)
        over = self.chat(messages=turns, extra_body={"document_ids": ["varo"]})
        self.assertGreater(over.usage.prompt_tokens, 100)

    def test_forms_of_answers(self):
        choice = self.chat(extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
        self.assertIn(choice.choices[0].message.content, ("yes", "no"))
        regex = self.chat(extra_body={"guided_regex": "[A-Z][a-z]{2,9} Tolen"})
        self.assertRegex(regex.choices[0].message.content, r"^[A-Z][a-z]{2,9} Tolen$")
        grammar = self.chat(extra_body={"grammar": 'root ::= [1-9] " and " [1-9]'})
        self.assertRegex(grammar.choices[0].message.content, r"^[1-9] and [1-9]$")

    def test_what_vllm_and_llama_cpp_add_has_its_effect(self):
        long = self.chat(max_tokens=60, extra_body={"ignore_eos": True})
        self.assertEqual(long.usage.completion_tokens, 60)
        least = self.chat(max_tokens=60, extra_body={"min_tokens": 40})
        self.assertGreaterEqual(least.usage.completion_tokens, 40)
        free = self.chat(max_tokens=40, extra_body={"ignore_eos": True}).choices[0].message.content
        held = self.chat(
            max_tokens=40, extra_body={"ignore_eos": True, "repetition_penalty": 2.0}
        ).choices[0]
        self.assertNotEqual(held.message.content, free)
        begun = [*QUESTION, {"role": "assistant", "content": "Mira"}]
        with self.assertRaises(openai.BadRequestError):
            self.chat(messages=begun)
        more = self.chat(messages=begun, extra_body={"continue_final_message": True})
        self.assertLess(more.usage.prompt_tokens, self.chat().usage.prompt_tokens + 8)
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(extra_body={"bad_words": ["x"]})
        self.assertEqual(raised.exception.param, "bad_words")

    def test_turns_are_part_of_the_prompt(self):
        turns = [
            *QUESTION,
            {"role": "assistant", "content": "Mira Tolen"},
            {"role": "user", "content": [{"type": "text", "text": "Since when?"}]},
        ]
        self.assertGreater(
            self.chat(messages=turns).usage.prompt_tokens, self.chat().usage.prompt_tokens
        )

    def test_stream_says_what_the_whole_reply_says(self):
        whole = self.chat(extra_body={"document_ids": ["varo"]}).choices[0]
        chunks = list(self.chat(stream=True, extra_body={"document_ids": ["varo"]}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertIn("strategy", chunks[0].cache)
        self.assertTrue(all(len(c.choices) == 1 and c.usage is None for c in chunks))
        self.assertEqual(
            "".join(c.choices[0].delta.content or "" for c in chunks), whole.message.content
        )
        self.assertEqual(chunks[-1].choices[0].finish_reason, whole.finish_reason)
        self.assertEqual(
            [c.choices[0].finish_reason for c in chunks[:-1]], [None] * (len(chunks) - 1)
        )

    def test_usage_chunk(self):
        *others, last = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(last.choices, [])
        self.assertEqual(last.usage.total_tokens, self.chat().usage.total_tokens)
        self.assertTrue(all(c.usage is None for c in others))

    def test_document_ids_reuse_the_cache(self):
        reply = self.chat(extra_body={"document_ids": ["varo"], "cache": {"strategy": "reuse"}})
        self.assertGreater(reply.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(reply.documents[0]["id"], "varo")
        self.assertEqual(reply.cache["strategy"], "reuse")
        inline = self.chat(extra_body={"documents": [{"title": "Varo", "text": FACTS}, "varo"]})
        self.assertEqual([d["id"] for d in inline.documents], [None, "varo"])

    def test_choices(self):
        reply = self.chat(n=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in reply.choices], [0, 1, 2])
        self.assertEqual(
            [c.message.content for c in reply.choices],
            [c.message.content for c in self.chat(n=3, temperature=1, seed=5).choices],
        )
        self.assertEqual(reply.usage.prompt_tokens, self.chat().usage.prompt_tokens)

    def test_logprobs(self):
        choice = self.chat(
            logprobs=True, top_logprobs=3, extra_body={"document_ids": ["varo"]}
        ).choices[0]
        tokens = choice.logprobs.content
        self.assertEqual(
            bytes(b for t in tokens for b in t.bytes).decode().strip(),
            choice.message.content.strip(),
        )
        for token in tokens:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual(token.top_logprobs[0].token, token.token)  # greedy

    def test_logit_bias_and_penalties(self):
        token = self.service.post("/tokenize", {"prompt": " tea", "add_special_tokens": False})[
            "tokens"
        ][-1]
        reply = self.chat(logit_bias={str(token): 100}, max_tokens=4, logprobs=True)
        self.assertEqual(len({t.token for t in reply.choices[0].logprobs.content}), 1)
        reply = self.chat(
            logit_bias={str(token): 100}, presence_penalty=2, frequency_penalty=2, max_tokens=4
        )
        self.assertEqual(reply.usage.completion_tokens, 4)

    def test_completion(self):
        reply = self.client.completions.create(
            model="default",
            prompt=["The city of", "The river"],
            max_tokens=6,
            temperature=0,
            logprobs=2,
        )
        self.assertEqual(len(reply.choices), 2)
        logprobs = reply.choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), len(logprobs.token_logprobs))
        self.assertEqual(logprobs.text_offset[0], 0)
        text = "".join(
            c.choices[0].text
            for c in self.client.completions.create(
                model="default", prompt="The city of", max_tokens=6, temperature=0, stream=True
            )
        )
        self.assertEqual(text, reply.choices[0].text)

    def test_json_schema(self):
        schema = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "founded": {"type": "integer"},
                "kind": {"enum": ["person", "company"]},
            },
            "required": ["name", "founded", "kind"],
            "additionalProperties": False,
        }
        for temperature in (0, 1):
            reply = self.chat(
                temperature=temperature,
                seed=3,
                max_tokens=200,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "company", "strict": True, "schema": schema},
                },
            )
            self.assertEqual(reply.choices[0].finish_reason, "stop")
            value = json.loads(reply.choices[0].message.content)
            self.assertEqual(set(value), {"name", "founded", "kind"})
            self.assertIsInstance(value["founded"], int)
            self.assertIn(value["kind"], ("person", "company"))
            self.assertLessEqual(len(value["name"]), 8)
        reply = self.chat(max_tokens=2, response_format={"type": "json_object"})
        self.assertEqual(reply.choices[0].finish_reason, "length")

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(model="gpt-7")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(modalities=["text", "audio"])
        self.assertEqual(
            (caught.exception.code, caught.exception.param), ("unsupported_parameter", "modalities")
        )
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "(?=a)"}},
                }
            )
        self.assertEqual(caught.exception.param, "response_format.json_schema.schema.pattern")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(messages=[{"role": "user", "content": "word " * 4000}])
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat(extra_body={"documents": ["varo", "nobody"]})
        self.assertEqual(
            (caught.exception.code, caught.exception.param), ("document_not_found", "documents[1]")
        )


class RetryTest(unittest.TestCase):
    def keys_file(self, **limits):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = os.path.join(folder, "keys.toml")
        with open(path, "w") as out:
            for name, limit in limits.items():
                digest = hashlib.sha256(f"secret-{name}".encode()).hexdigest()
                out.write(
                    f'[[keys]]\nname = "{name}"\nsha256 = "{digest}"\n'
                    'scopes = ["query", "read"]\nnamespaces = ["default"]\n'
                    f"requests_per_minute = {limit}\n"
                )
        return path

    def test_the_client_waits_for_a_service_that_is_loading(self):
        with Service(until_ready=False) as service:
            client = openai.OpenAI(base_url=service.url + "/v1", api_key="unused", max_retries=60)
            reply = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=4)
            self.assertEqual(len(reply.choices), 1)
            client.close()

    def test_a_limit_is_an_error_with_the_time_to_wait(self):
        with Service("--auth.keys_file=" + self.keys_file(once=1, often=60)) as service:
            once = openai.OpenAI(base_url=service.url + "/v1", api_key="secret-once", max_retries=0)
            once.models.list()
            with self.assertRaises(openai.RateLimitError) as caught:
                once.models.list()
            self.assertGreater(int(caught.exception.response.headers["retry-after-ms"]), 0)
            self.assertGreaterEqual(int(caught.exception.response.headers["retry-after"]), 1)
            often = openai.OpenAI(
                base_url=service.url + "/v1", api_key="secret-often", max_retries=0
            )
            with self.assertRaises(openai.RateLimitError):
                for _ in range(5000):  # more than the bucket holds and fills
                    often.models.list()
            patient = often.with_options(max_retries=8)
            self.assertEqual(
                len(
                    patient.chat.completions.create(
                        model="default", messages=QUESTION, max_tokens=4
                    ).choices
                ),
                1,
            )
            wrong = openai.OpenAI(base_url=service.url + "/v1", api_key="wrong", max_retries=0)
            with self.assertRaises(openai.AuthenticationError):
                wrong.models.list()
            for client in (once, often, wrong):
                client.close()


if __name__ == "__main__":
    unittest.main()
