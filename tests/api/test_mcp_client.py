"""The service's tools by the unmodified `mcp` package, over HTTP and over standard input."""

import os
import sys
import unittest

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients"))

from service import Service  # noqa: E402

FACTS = "The Varo company is led by Mira Tolen. It was founded in 1931. " * 8


class McpClientTest(unittest.IsolatedAsyncioTestCase):
    @classmethod
    def setUpClass(cls):
        cls.service = cls.enterClassContext(Service())

    async def use(self, session, name):
        """Does what an agent does: begins, looks for tools and calls each."""
        begun = await session.initialize()
        self.assertEqual(begun.server_info.name, "quire")
        self.assertIsNotNone(begun.capabilities.tools)
        listed = (await session.list_tools()).tools
        self.assertEqual([t.name for t in listed], ["search", "ask", "ingest"])
        self.assertEqual(listed[0].input_schema["required"], ["query"])
        await session.send_ping()

        stored = await session.call_tool("ingest", {"text": FACTS, "id": name, "title": "Varo"})
        self.assertFalse(stored.is_error, stored.content)
        found = await session.call_tool(
            "search", {"query": "Who leads the Varo company?", "document_ids": [name]}
        )
        self.assertFalse(found.is_error, found.content)
        self.assertIn(f"[{name}] Varo\n", found.content[0].text)
        self.assertIn("Mira Tolen", found.content[0].text)
        answer = await session.call_tool(
            "ask",
            {
                "question": "Who leads the Varo company?",
                "max_tokens": 24,
                "document_ids": [name],
            },
        )
        self.assertFalse(answer.is_error, answer.content)
        self.assertIn("Mira Tolen", answer.content[0].text)

        missing = await session.call_tool("ask", {"question": "Who?", "document_ids": ["none"]})
        self.assertTrue(missing.is_error)
        self.assertIn("'none'", missing.content[0].text)
        wrong = await session.call_tool("search", {"k": 3})
        self.assertTrue(wrong.is_error)
        self.assertIn("query", wrong.content[0].text)
        with self.assertRaisesRegex(Exception, "no tool 'fly'"):
            await session.call_tool("fly", {})

    async def test_over_http(self):
        async with (
            streamable_http_client(self.service.url + "/mcp") as (read, write, *_),
            ClientSession(read, write) as session,
        ):
            await self.use(session, "over-http")

    async def test_over_standard_input(self):
        server = StdioServerParameters(
            command=os.environ["QUIRE_BINARY"], args=["mcp", "--server", self.service.url]
        )
        async with (
            stdio_client(server) as (read, write),
            ClientSession(read, write) as session,
        ):
            await self.use(session, "over-stdio")


if __name__ == "__main__":
    unittest.main()
