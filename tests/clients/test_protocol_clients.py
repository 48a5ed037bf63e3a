"""The unmodified packages `anthropic`, `ollama` and `openai` (Responses) against a real service."""

import json
import unittest
from typing import Annotated, Literal

import anthropic
import ollama
import openai
from pydantic import BaseModel, Field

from service import Service

FACTS = (
    "The Varo company is led by Mira Tolen. It was founded in 1931. "
    "Its seat is in the city of Halden. "
)
QUESTION = [{"role": "user", "content": "Who leads the Varo company?"}]
# The package has no argument for the temperature.
GREEDY = {"temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"company": {"type": "string", "maxLength": 12}},
    "required": ["company"],
    "additionalProperties": False,
}


class AnthropicTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = cls.enterClassContext(Service())
        cls.client = anthropic.Anthropic(
            base_url=cls.service.url, api_key="unused", max_retries=0, timeout=120
        )

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def ask(self, messages=QUESTION, **options):
        given = {"model": "default", "max_tokens": 24, "extra_body": GREEDY} | options
        return self.client.messages.create(messages=messages, **given)

    def test_models(self):
        models = list(self.client.models.list())
        self.assertEqual([m.display_name for m in models], ["default"])
        type(models[0]).model_validate(models[0].to_dict())
        self.assertEqual(self.client.models.retrieve("default"), models[0])

    def test_a_message(self):
        message = self.ask()
        self.assertEqual(message.type, "message")
        self.assertIn(message.stop_reason, ("end_turn", "max_tokens"))
        self.assertTrue(message.content[0].text)
        counted = self.client.messages.count_tokens(model="default", messages=QUESTION)
        usage = message.usage
        self.assertEqual(
            counted.input_tokens,
            usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens,
        )

    def test_a_stream_says_the_same(self):
        with self.client.messages.stream(
            model="default", max_tokens=24, extra_body=GREEDY, messages=QUESTION
        ) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, self.ask().content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertGreater(final.usage.output_tokens, 0)

    def test_a_stop_sequence_is_named(self):
        text = self.ask().content[0].text
        stop = text[2:5]
        message = self.ask(stop_sequences=[stop])
        self.assertEqual(message.stop_reason, "stop_sequence")
        self.assertEqual(message.stop_sequence, stop)

    def test_an_answer_is_continued(self):
        message = self.ask([*QUESTION, {"role": "assistant", "content": "The leader is"}])
        self.assertEqual(message.role, "assistant")

    def test_a_tool_is_called_and_answered(self):
        tools = [{"name": "look_up", "description": "Looks up.", "input_schema": SCHEMA}]
        message = self.ask(
            tools=tools, tool_choice={"type": "tool", "name": "look_up"}, max_tokens=80
        )
        self.assertEqual(message.stop_reason, "tool_use")
        call = message.content[-1]
        self.assertEqual(
            (call.type, call.name, list(call.input)), ("tool_use", "look_up", ["company"])
        )
        after = [
            *QUESTION,
            {"role": "assistant", "content": message.content},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": FACTS}],
            },
        ]
        self.assertTrue(self.ask(after, tools=tools).content)
        with self.client.messages.stream(
            model="default",
            max_tokens=80,
            extra_body=GREEDY,
            messages=QUESTION,
            tools=tools,
            tool_choice={"type": "any"},
        ) as stream:
            final = stream.get_final_message()
        self.assertEqual(final.content[-1].input, call.input)

    def test_the_runner_of_tools_calls_them(self):
        companies = []

        @anthropic.beta_tool
        def look_up(company: Annotated[str, Field(max_length=8)]) -> str:
            """Looks up a company."""
            companies.append(company)
            return FACTS

        runner = self.client.beta.messages.tool_runner(
            model="default",
            max_tokens=80,
            extra_body=GREEDY,
            messages=QUESTION,
            tools=[look_up],
            tool_choice={"type": "any"},
            max_iterations=2,
        )
        replies = list(runner)
        self.assertEqual(replies[0].stop_reason, "tool_use")
        self.assertTrue(companies)

    def test_an_answer_is_parsed(self):
        class Company(BaseModel):
            name: Literal["Varo", "Acme"]
            listed: bool

        message = self.client.messages.parse(
            model="default",
            max_tokens=80,
            extra_body=GREEDY,
            messages=QUESTION,
            output_format=Company,
        )
        self.assertIsInstance(message.parsed_output, Company)

    def test_a_cached_document_is_read_from_the_cache(self):
        def turns(question):
            return [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "title": "Varo",
                            "source": {
                                "type": "text",
                                "media_type": "text/plain",
                                "data": FACTS * 12,
                            },
                            "cache_control": {"type": "ephemeral"},
                        },
                        {"type": "text", "text": question},
                    ],
                }
            ]

        first = self.ask(turns("Who leads the Varo company?")).usage
        second = self.ask(turns("Where is the seat of the Varo company?")).usage
        self.assertGreater(first.cache_creation_input_tokens, 100)
        self.assertEqual(second.cache_creation_input_tokens, 0)
        self.assertGreater(second.cache_read_input_tokens, 100)
        kept = self.service.get("/v1/documents")["data"]
        self.assertEqual(len([d for d in kept if d["id"].startswith("block-")]), 1)

    def test_errors_have_their_classes(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.ask(model="claude-opus-4")
        with self.assertRaises(anthropic.BadRequestError) as raised:
            self.ask(thinking={"type": "enabled", "budget_tokens": 1024})
        self.assertIn("thinking", str(raised.exception))


class OllamaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = cls.enterClassContext(Service())
        cls.client = ollama.Client(host=cls.service.url)
        cls.options = {"temperature": 0, "num_predict": 24}

    def test_models(self):
        models = self.client.list().models
        self.assertEqual([m.model for m in models], ["default"])
        shown = self.client.show("default")
        self.assertIn("tools", shown.capabilities)
        self.assertEqual([m.model for m in self.client.ps().models], ["default"])

    def test_chat_and_generate(self):
        whole = self.client.chat("default", QUESTION, options=self.options)
        self.assertTrue(whole.done)
        self.assertGreater(whole.eval_count, 0)
        pieces = list(self.client.chat("default", QUESTION, options=self.options, stream=True))
        self.assertEqual("".join(p.message.content or "" for p in pieces), whole.message.content)
        self.assertTrue(pieces[-1].done)
        answer = self.client.generate("default", QUESTION[0]["content"], options=self.options)
        self.assertEqual(answer.response, whole.message.content)

    def test_a_form(self):
        answer = self.client.chat("default", QUESTION, options={"temperature": 0}, format=SCHEMA)
        self.assertEqual(list(json.loads(answer.message.content)), ["company"])

    def test_tools(self):
        tools = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]
        turns = [
            *QUESTION,
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "look_up", "arguments": {"company": "Varo"}}}],
            },
            {"role": "tool", "tool_name": "look_up", "content": FACTS},
        ]
        answer = self.client.chat("default", turns, tools=tools, options=self.options)
        self.assertTrue(answer.message.content or answer.message.tool_calls)

    def test_embeddings(self):
        vectors = self.client.embed("default", ["one", "two"]).embeddings
        self.assertEqual(len(vectors), 2)
        self.assertAlmostEqual(sum(x * x for x in vectors[0]), 1, places=3)

    def test_errors(self):
        with self.assertRaises(ollama.ResponseError) as raised:
            self.client.chat("llama3.2", QUESTION)
        self.assertEqual(raised.exception.status_code, 404)
        with self.assertRaises(ollama.ResponseError) as raised:
            self.client.chat("default", QUESTION, options={"mirostat": 1})
        self.assertIn("mirostat", raised.exception.error)


class ResponsesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = cls.enterClassContext(Service())
        cls.client = openai.OpenAI(
            base_url=cls.service.url + "/v1", api_key="unused", max_retries=0, timeout=120
        )

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def ask(self, **options):
        given = {
            "model": "default",
            "input": QUESTION[0]["content"],
            "temperature": 0,
            "max_output_tokens": 24,
        } | options
        return self.client.responses.create(**given)

    def test_a_text(self):
        whole = self.ask()
        self.assertIn(whole.status, ("completed", "incomplete"))
        self.assertTrue(whole.output_text)
        self.assertEqual(
            whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens
        )
        # The package does not check replies by itself; members that it needs are all there.
        type(whole).model_validate(whole.to_dict())
        events = list(self.ask(stream=True))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual(events[-1].response.output_text, whole.output_text)
        deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
        self.assertEqual("".join(deltas), whole.output_text)

    def test_a_form(self):
        text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
        answer = self.ask(text=text, max_output_tokens=64).output_text
        self.assertEqual(list(json.loads(answer)), ["company"])

    def test_a_function_is_called_and_answered(self):
        tools = [{"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": True}]
        first = self.ask(tools=tools, tool_choice="required", max_output_tokens=80)
        call = next(item for item in first.output if item.type == "function_call")
        self.assertEqual((call.name, list(json.loads(call.arguments))), ("look_up", ["company"]))
        turns = [
            *QUESTION,
            call,
            {"type": "function_call_output", "call_id": call.call_id, "output": FACTS},
        ]
        self.assertTrue(self.ask(input=turns).output_text)

    def test_refusals(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.ask(previous_response_id="resp_1")
        self.assertEqual(raised.exception.param, "previous_response_id")


if __name__ == "__main__":
    unittest.main()
