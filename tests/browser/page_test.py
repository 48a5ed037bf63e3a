"""Drives every view of the web page in headless Chromium against a live `quire serve`.

Screenshots go to QUIRE_SCREENSHOTS. Without Chromium and its driver it says so and is skipped.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "clients"))

from service import Service  # noqa: E402
from webdriver import Browser  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")
SCREENSHOTS = pathlib.Path(os.environ.get("QUIRE_SCREENSHOTS", tempfile.gettempdir()))
LOOKS = HERE / "looks.json"
FAR = 0.02  # a view that looks so different is to be looked at; an empty one is past 0.04
STEADY = "ask documents blocks compare fidelity requests docs".split()  # no charts of times
VIEWS = "ask documents blocks time worth compare fidelity requests docs".split()
QUESTION = "Who governs Jaland?"  # the embedded model knows, and finds the place
ANSWER = "Zaiwouo Grilman"
KEYS = """
[[keys]]
name = "team-a"
sha256 = "17deecb4fb6ddf81b6dbc0f4d17bb5584f3294bdbffc26829193fd6e8dbbf866"
scopes = ["read", "write", "query"]
namespaces = ["team-a"]
[[keys]]
name = "operator"
sha256 = "ced592937d4b17f87e6ec765d706bc16fdc9051d3d7f0ef83d9625567c397c5a"
scopes = ["admin"]
namespaces = ["default", "*"]
"""  # those of configs/keys.example.toml, whose secrets it says


def sample_documents():
    with open(ROOT / "models/demo/sample/corpus.jsonl", encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            yield {name: entry[name] for name in ("id", "title", "text")}


def difference(look, other):
    """Mean difference of two looks, in parts of the range from black to white."""
    cells = [abs(int(a, 16) - int(b, 16)) for x, y in zip(look, other) for a, b in zip(x, y)]
    return sum(cells) / len(cells) / 15


def smollm2():
    given = os.environ.get("QUIRE_SMOLLM2")
    found = [given] if given else sorted((ROOT / "models/smollm2").glob("*.gguf"))
    return str(found[0]) if found else None


class PageTest(unittest.TestCase):
    """What all suites share: after each test nothing may have gone wrong unseen."""

    allowed = ()  # statuses that a test provokes

    @classmethod
    def enter(cls, context):
        value = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        return value

    def tearDown(self):
        for entry in self.browser.log("browser"):
            text = entry["message"]
            expected = any(f"status of {status} " in text for status in self.allowed)
            self.assertTrue(expected or entry["level"] not in ("SEVERE", "WARNING"), text)
        self.allowed = ()
        for address in self.browser.addresses():
            ours = address.startswith((self.service.url + "/", "data:"))
            self.assertTrue(ours or address.startswith(("about:", "chrome:")), address)

    def go(self, view):
        """Opens a view as a person with a bookmark does."""
        self.browser.open("about:blank")
        self.browser.open(f"{self.service.url}/#/{view}")
        self.browser.find("h1")

    def settled(self, selector, seconds=20):
        """Waits for what a view shows; says what it shows instead."""
        try:
            return self.browser.find(selector, seconds)
        except AssertionError as e:
            raise AssertionError(f"{e}; errors: {self.texts('.error')}") from None

    def picture(self, name):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.browser.screenshot(SCREENSHOTS / f"{name}.png")

    def looks_like(self, name):
        """Holds the view against what was looked at by eye. QUIRE_LOOKS=write records it anew;
        look at the screenshots before you commit that."""
        looks = json.loads(LOOKS.read_text()) if LOOKS.exists() else {}
        now = self.browser.look()
        if os.environ.get("QUIRE_LOOKS") == "write":
            looks[name] = now
            LOOKS.write_text(json.dumps(looks, indent=1, sort_keys=True) + "\n")
        self.assertIn(name, looks)
        self.assertLess(difference(now, looks[name]), FAR, f"{name}:\n" + "\n".join(now))

    def count(self, selector):
        return len(self.browser.all(selector))

    def texts(self, selector):
        return self.browser.run(
            "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)",
            selector,
        )

    def ask(self, question):
        self.go("ask")
        self.browser.type(".ask textarea", question)
        self.browser.click(".ask button[type=submit]")
        self.settled(".why", 120)


class Views(PageTest):
    """Every view, with the embedded model and a few documents."""

    @classmethod
    def setUpClass(cls):
        # Without probes while idle, so that `auto` stays what it is.
        cls.service = cls.enter(Service("--policy.evidence=false"))
        cls.browser = cls.enter(Browser(DRIVER, CHROMIUM))
        cls.service.post("/v1/documents?wait=true", {"documents": list(sample_documents())})
        body = {"query": QUESTION, "document_ids": ["jaland", "jaland-part-2", "fomville"]}
        for strategy in ("recompute", "reuse", "samkv"):
            cache = {"strategy": strategy}
            if strategy == "samkv":
                cache["options"] = {"score": "keys"}
            cls.service.post("/v1/query", body | {"cache": cache, "citations": True})

    def test_what_modules_compute(self):
        self.go("fidelity")
        self.assertEqual(self.browser.run((HERE / "modules.js").read_text()), [])

    def test_ask_and_see_the_source(self):
        self.ask(QUESTION)
        answer = self.browser.text(".answer")
        self.assertIn(ANSWER, answer)
        self.browser.click(".cite")
        self.settled("mark")
        marked = self.browser.text("mark")
        source = self.browser.text(".sourcecard h3")
        text = next(d["text"] for d in sample_documents() if d["id"] in source.split())
        self.assertIn(marked, text)
        self.assertEqual(self.browser.run("return document.activeElement.tagName"), "H3")
        self.assertIn("First token after", self.browser.text(".why"))
        self.picture("ask")
        self.browser.run("location.hash = '#/time'")
        self.settled(".plot")
        self.browser.run("location.hash = '#/ask'")  # the answer is still there
        self.assertIn(ANSWER, self.browser.text(".answer"))

    def stream_instead(self, *pieces):
        """The next questions are answered by these events, and then by nothing."""
        self.browser.run(
            """const real = fetch;
            globalThis.fetch = (address, options) => {
              if (!String(address).startsWith('v1/query')) return real(address, options);
              const stream = new ReadableStream({start(to) {
                for (const piece of arguments[0]) to.enqueue(new TextEncoder().encode(piece));
                options.signal.addEventListener('abort',
                  () => to.error(new DOMException('stopped', 'AbortError')));
              }});
              return Promise.resolve(new Response(stream));
            }""".replace("arguments[0]", json.dumps(pieces))
        )

    def test_an_answer_is_stopped(self):
        self.go("ask")
        self.stream_instead('event: delta\ndata: {"text": "Half an ans"}\n\n')
        self.browser.type(".ask textarea", QUESTION)
        self.browser.click(".ask button[type=submit]")
        self.browser.wait(lambda: "Half an ans" in "".join(self.texts(".answer")), "its beginning")
        self.assertEqual(self.count(".reply[aria-busy=true]"), 1)
        self.browser.click(".ask .row button:not([type=submit])")
        self.browser.wait(lambda: "Stopped after 11" in self.browser.text(), "the end")
        self.assertEqual(self.count(".ask button[type=submit]:disabled"), 0)
        self.assertEqual(self.count(".reply[aria-busy]"), 0)

    def test_an_answer_that_fails_says_why(self):
        self.go("ask")
        problem = {"title": "The service is overloaded", "detail": "Ask again.", "status": 503}
        problem |= {"request_id": "req_1", "error": {"param": None, "code": "overloaded"}}
        self.stream_instead(
            'event: delta\ndata: {"text": "Half"}\n\n',
            f"event: error\ndata: {json.dumps(problem)}\n\n",
        )
        self.browser.type(".ask textarea", QUESTION)
        self.browser.click(".ask button[type=submit]")
        self.browser.wait(lambda: self.count(".error") == 1, "the error")
        for part in ("The service is overloaded", "Ask again.", "status 503", "req_1"):
            self.assertIn(part, self.browser.text(".error"))

    def test_ask_chosen_documents(self):
        self.go("ask")
        self.browser.run("document.querySelector('.seg input[value=some]').click()")
        self.browser.type(".ask input[type=search]", "fomville")
        self.browser.wait(lambda: self.count(".picks li") == 2, "the two documents of that name")
        self.browser.run(
            """[...document.querySelectorAll('.picks label')]
              .find((l) => l.querySelector('code').textContent === 'fomville').click()"""
        )
        self.browser.find(".chip")
        self.browser.type(".ask textarea", "On which river does Fomville stand?")
        self.browser.click(".ask button[type=submit]")
        self.settled(".why")
        self.assertEqual(len(self.texts("ol.plain li")), 1)
        self.assertIn("Junbroa", self.browser.text(".answer"))

    def test_a_document_beyond_those_listed_is_found_by_its_id(self):
        self.allowed = (404,)
        self.go("documents")
        self.settled("table")
        # Five pages of a hundred others, as of a service with many documents.
        self.browser.run(
            """const real = fetch;
            let at = 0;
            globalThis.fetch = (address, options) => {
              if (!/^v1.documents[?]/.test(String(address))) return real(address, options);
              const data = Array.from({length: 100}, () => ({id: `other-${++at}`, tokens: 1}));
              const page = {data, has_more: true, last_id: data.at(-1).id};
              return Promise.resolve(new Response(
                JSON.stringify(page), {headers: {'Content-Type': 'application/json'}}));
            };
            location.hash = '#/ask'"""
        )
        self.settled(".seg")
        self.browser.run("document.querySelector('.seg input[value=some]').click()")
        self.browser.wait(lambda: "500 shown; there are more" in self.browser.text(), "the hint")
        self.browser.type(".ask input[type=search]", "fomville")
        self.browser.wait(lambda: "fomville" in self.texts(".picks code"), "the document")

    def test_asking_over_no_document_says_what_to_do(self):
        self.go("ask")
        self.browser.run("document.querySelector('.seg input[value=some]').click()")
        self.browser.type(".ask textarea", QUESTION)
        self.browser.click(".ask button[type=submit]")
        self.assertIn("Choose at least one document", self.browser.text(".error"))

    def test_a_document_is_dropped_pinned_and_deleted(self):
        self.go("documents")
        self.settled("table")
        self.browser.run(
            """const data = new DataTransfer();
            data.items.add(new File(["# Geese\\n\\nThe goose is called Berta."], "geese.md"));
            document.querySelector(".drop").dispatchEvent(
              new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));"""
        )
        self.browser.wait(lambda: "ready" in "".join(self.texts(".uploads li")), "the upload")
        self.settled('[aria-label="Pin geese.md"]')
        self.picture("documents")
        self.browser.click('[aria-label="Pin geese.md"]')
        self.settled('[aria-label="Pin geese.md"][aria-pressed=true]')
        self.browser.click('a[href="./#/documents/geese.md"]')
        self.browser.wait(lambda: "Berta" in "".join(self.texts("pre.tall")), "the text")
        self.browser.click('[aria-label="Delete geese.md"]')
        self.browser.click("dialog button.danger")
        self.browser.wait(lambda: not self.count('[aria-label="Pin geese.md"]'), "its end")

    def test_many_files_at_once(self):
        self.go("documents")
        self.settled("table")
        self.browser.run(
            """const data = new DataTransfer();
            for (let i = 0; i < 9; ++i)
              data.items.add(new File([`Note ${i} of the many.`], `many-${i}.txt`));
            document.querySelector(".drop").dispatchEvent(
              new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));"""
        )
        self.browser.wait(
            lambda: sum("ready" in t for t in self.texts(".uploads li")) == 9, "nine uploads"
        )
        for i in range(9):
            self.browser.click(f'[aria-label="Delete many-{i}.txt"]')
            self.browser.click("dialog button.danger")
            gone = f'[aria-label="Delete many-{i}.txt"]'
            self.browser.wait(lambda sel=gone: not self.count(sel), "its end")

    def test_a_file_of_several_jobs(self):
        # A plain mail and one in HTML: the latter is cut at its headings, by a job of its own.
        head = "From a@b.example Mon Jan  1 00:00:00 2024\nFrom: a@b.example\nMIME-Version: 1.0\n"
        plain = head + "Subject: One\n\n" + "Berta is a goose of many words. " * 20 + "\n\n"
        marked = head + "Subject: Two\nContent-Type: text/html\n\n"
        marked += "<html><body><h1>Geese</h1><p>Berta</p><h2>More</h2><p>Clara</p></html>\n\n"
        self.go("documents")
        self.settled("table")
        self.browser.run(
            """const data = new DataTransfer();
            data.items.add(new File([arguments[0]], "geese.mbox"));
            document.querySelector(".drop").dispatchEvent(
              new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));""",
            plain + marked,
        )
        self.browser.wait(lambda: "ready" in "".join(self.texts(".uploads li")), "the upload")
        ids = [d["id"] for d in self.service.get("/v1/documents?limit=100")["data"]]
        mails = [name for name in ids if name.startswith("geese.mbox")]
        self.assertEqual(len(mails), 2)
        tokens = sum(self.service.get(f"/v1/documents/{name}")["tokens"] for name in mails)
        self.assertIn(f"{tokens} tokens cached", "".join(self.texts(".uploads li")))
        for name in mails:
            self.browser.click(f'[aria-label="Delete {name}"]')
            self.browser.click("dialog button.danger")
            gone = f'[aria-label="Delete {name}"]'
            self.browser.wait(lambda sel=gone: not self.count(sel), "its end")

    def test_an_upload_that_is_cancelled_is_not_ready(self):
        self.go("documents")
        self.settled("table")
        job = {"id": "job_1", "status": "cancelled", "progress": None, "usage": {"tokens": 0}}
        job["results"] = [{"index": 0, "id": "a", "result": "cancelled", "status": "failed"}]
        self.browser.run(
            """const real = fetch;
            const [job] = arguments;
            globalThis.fetch = (address, options) => {
              if (options?.method === 'POST' && String(address).startsWith('v1/documents'))
                return Promise.resolve(new Response(
                  JSON.stringify({job_ids: [job.id], status: 'queued', results: []}),
                  {status: 202, headers: {'Content-Type': 'application/json'}}));
              if (String(address).startsWith('v1/jobs/'))
                return Promise.resolve(new Response(
                  `event: done\\ndata: ${JSON.stringify(job)}\\n\\n`,
                  {headers: {'Content-Type': 'text/event-stream'}}));
              return real(address, options);
            };""",
            job,
        )
        self.browser.click("details summary")
        self.browser.type("form textarea", "A text that nobody reads.")
        self.browser.click("form button[type=submit]")
        self.browser.wait(lambda: self.count(".uploads .error") == 1, "the error")
        self.assertIn("1 of 1 document cancelled", "".join(self.texts(".uploads li")))

    def test_a_source_that_was_replaced_is_not_lit_up(self):
        self.ask(QUESTION)
        self.browser.run(
            """globalThis.real = fetch;
            globalThis.fetch = (address, options) => String(address).endsWith('/content') ?
              Promise.resolve(new Response('Nothing is said here. '.repeat(99))) :
              real(address, options);"""
        )
        self.browser.click(".cite")
        self.settled(".sourcecard .note")
        quote = self.browser.text("mark")
        source = self.browser.text(".sourcecard h3")
        text = next(d["text"] for d in sample_documents() if d["id"] in source.split())
        self.assertIn(quote, text)
        self.browser.run("globalThis.fetch = real")  # the text that was cited is there again
        self.browser.click(".cite")
        self.browser.wait(lambda: not self.count(".sourcecard .note"), "the source")
        self.settled("mark")
        self.assertEqual(self.browser.text("mark"), quote)

    def test_the_list_is_the_one_asked_for_last(self):
        self.go("documents")
        self.settled("table")
        number = self.count("tbody tr")
        # Replies come when the test lets them, and each promises another page, which is the first.
        self.browser.run(
            """const real = fetch;
            globalThis.held = [];
            globalThis.fetch = async (address, options) => {
              if (!String(address).startsWith('v1/documents?')) return real(address, options);
              const first = String(address).replace(/&after=[^&]*/, '');
              const body = await (await real(first, options)).json();
              body.has_more = true;
              await new Promise((go) => held.push(go));
              return new Response(JSON.stringify(body),
                {headers: {'Content-Type': 'application/json'}});
            };
            globalThis.choose = (state) => {
              const s = document.querySelector('section[aria-label=Documents] select');
              s.value = state; s.dispatchEvent(new Event('change'));
            };"""
        )

        def held(count):
            self.browser.wait(lambda: self.browser.run("return held.length") == count, "requests")

        def release(at):
            self.browser.run(
                "held[arguments[0]](); await new Promise((go) => setTimeout(go, 100))", at
            )

        self.browser.run("choose('failed')")
        held(1)
        self.browser.run("choose('')")
        held(2)
        release(1)
        self.assertEqual(self.count("tbody tr"), number)
        release(0)
        self.assertEqual(self.count("tbody tr"), number, "an earlier request came later")
        self.browser.run(
            """const more = [...document.querySelectorAll('main button')]
              .find((b) => b.textContent === 'Show more');
            more.click();
            more.click();"""
        )
        held(3)
        release(2)
        self.browser.run("held.slice(3).forEach((go) => go())")
        release(2)
        self.assertEqual(self.count("tbody tr"), 2 * number)

    def test_a_refused_document_names_the_field(self):
        self.allowed = (400,)
        self.go("documents")
        self.browser.click("details summary")
        self.browser.type("form textarea", "A text")
        self.browser.type('form input[placeholder^="made by"]', "no/slashes")
        self.browser.click("form button[type=submit]")
        self.assertIn("Field: id", self.browser.text(".uploads .error"))

    def test_what_documents_hold_stays_text(self):
        evil = '<img src="http://elsewhere.example/x" onerror="document.title=1"><script>1</script>'
        body = {"id": "evil", "title": evil, "text": f"{evil} The zebra of the market is striped."}
        self.service.post("/v1/documents?wait=true", body)
        self.go("documents/evil")
        self.browser.wait(lambda: evil in "".join(self.texts("pre.tall")), "the text")
        self.assertIn(evil, self.texts("tbody a"))
        self.ask("What is the zebra of the market?")
        self.browser.click(".cite")
        self.settled("mark")
        self.go("blocks")
        self.settled(".cell")
        self.assertEqual(self.count("main img, main script"), 0)
        self.go("documents")
        self.browser.click('[aria-label="Delete evil"]')
        self.browser.click("dialog button.danger")
        self.browser.wait(lambda: not self.count('[aria-label="Delete evil"]'), "its end")

    def test_block_map(self):
        self.go("blocks")
        self.settled(".cell")
        ids = self.browser.run("return document.querySelector('main select').options.length")
        self.assertGreaterEqual(ids, 3)
        sparse = self.browser.run(
            """const list = await (await fetch('v1/queries?limit=100')).json();
            const id = list.data.find((q) => q.cache.strategy === 'samkv').id;
            const map = await (await fetch(`v1/queries/${id}/explain?include=text`)).json();
            location.hash = `#/blocks/${id}`;
            return map"""
        )
        self.browser.wait(
            lambda: self.count(".cell") == len(sparse["blocks"]), "a cell for each block"
        )
        for action in ("reused", "recomputed", "dropped"):
            number = sum(b["action"] == action for b in sparse["blocks"])
            self.assertEqual(self.count(f".cell.k-{action}"), number, action)
        self.browser.run("document.querySelector('.cell').focus()")
        self.browser.keys("\ue014")  # arrow right
        self.assertIn(sparse["blocks"][1]["text"].strip(), self.browser.text(".blockcard"))
        self.assertIn("score", self.browser.text(".blockcard"))
        self.picture("blocks")
        self.browser.run(
            """const s = [...document.querySelectorAll('main select')][1];
            s.value = 'tier'; s.dispatchEvent(new Event('change'))"""
        )
        self.assertEqual(self.count(".cell.k-tier-dram"), len(sparse["blocks"]))
        # One layer at a time: what that layer keeps.
        choose = """const s = [...document.querySelectorAll('main select')][arguments[0]];
            s.value = arguments[1]; s.dispatchEvent(new Event('change'))"""
        self.browser.run(choose, 1, "fate")
        partial = [b for b in sparse["blocks"] if "layers" in b]
        self.assertTrue(partial)
        for layer in range(sparse["layers"]):
            kept = sum(
                any(begin <= layer < end for begin, end in b["layers"])
                if "layers" in b
                else b["kept_layers"] > 0
                for b in sparse["blocks"]
            )
            self.browser.run(choose, 2, str(layer))
            self.assertEqual(self.count(".cell:not(.k-dropped)"), kept, f"layer {layer}")

    def test_time(self):
        self.go("time")
        self.settled(".plot .bar")
        names = self.texts(".plot .label")
        for name in ("queue", "lookup", "prefill", "decode"):
            self.assertIn(name, names)
        kinds = self.texts("tbody th")
        self.assertIn("hit", kinds)
        self.assertIn("full prefill asked for", kinds)
        self.picture("time")

    def test_worth_is_live(self):
        self.go("worth")
        self.settled(".figure")
        figure = int(self.texts(".figure")[0].split()[0].replace(",", ""))
        self.assertGreater(figure, 0)
        before = self.browser.text("main .hint")
        self.browser.wait(lambda: self.browser.text("main .hint") != before, "the next numbers")
        self.picture("worth")
        self.service.post("/v1/documents?wait=true", {"id": "news", "text": "Something new."})
        self.browser.wait(lambda: any("job" in t for t in self.texts(".log li")), "an event")

    def test_worth_comes_back_with_the_service(self):
        self.allowed = (503,)
        self.go("documents")
        self.settled("table")
        self.browser.run(
            """const real = fetch;
            globalThis.refusals = 0;
            globalThis.fetch = (address, options) => {
              if (!String(address).startsWith('v1/admin/events') || globalThis.refusals > 1)
                return real(address, options);
              ++globalThis.refusals;
              return Promise.resolve(new Response(
                JSON.stringify({title: 'Loading', detail: 'The model is being loaded.'}),
                {status: 503, headers: {'Content-Type': 'application/problem+json'}}));
            };
            location.hash = '#/worth'"""
        )
        self.settled(".figure")
        self.assertEqual(self.browser.run("return globalThis.refusals"), 2)

    def test_compare(self):
        self.go("compare")
        self.browser.type(".ask textarea", QUESTION)
        self.browser.click(".ask .row button")  # one more strategy
        self.browser.click(".ask button[type=submit]")
        self.browser.wait(lambda: self.count("tbody tr") == 3, "three strategies", 60)
        self.browser.wait(lambda: self.count("button[type=submit]:disabled") == 0, "the end", 60)
        rows = self.texts("tbody tr")
        self.assertTrue(rows[0].startswith("recompute") and rows[1].startswith("reuse"), rows)
        self.assertTrue(all("%" in row for row in rows), rows)
        self.assertEqual(self.count(".beside .tokens"), 3)
        self.picture("compare")

    def test_fidelity(self):
        self.go("fidelity")
        self.settled(".card h2")
        self.assertIn("Nothing has been measured yet", self.browser.text())
        # What a service has after days of probes is put into its reply here.
        self.go("ask")
        self.browser.run(
            """const real = fetch;
            globalThis.fetch = async (address, options) => {
              const reply = await real(address, options);
              if (!String(address).startsWith('v1/info')) return reply;
              const body = await reply.json();
              Object.assign(body.fidelity, arguments[0]);
              return new Response(JSON.stringify(body),
                {headers: {'Content-Type': 'application/json'}});
            };
            location.hash = '#/fidelity'""",
            json.loads((HERE / "fidelity.json").read_text()),
        )
        self.settled(".plot .front")
        self.assertEqual(self.count(".plot .dot"), 5)
        self.assertEqual(self.texts("tbody th"), ["epic:k=16", "reuse", "reuse", "prophetkv"])
        self.assertIn("not passed", self.browser.text())
        self.picture("fidelity")

    def test_requests(self):
        self.go("requests")
        self.settled("textarea")
        self.browser.click("form button[type=submit]")
        self.browser.wait(lambda: self.texts(".status.c2") == ["200"], "the reply")
        self.assertIn('"object": "query.result"', self.browser.text("pre.tall"))
        self.picture("requests")
        self.browser.run("location.hash = '#/requests/get_admin_events'")
        self.browser.wait(lambda: not self.count("textarea"), "the other route")
        self.browser.click("form button[type=submit]")
        self.browser.wait(lambda: "event: stats" in "".join(self.texts("pre.tall")), "events")
        self.browser.click("form button:not([type=submit])")  # stop
        self.browser.wait(lambda: "Stopped" in self.browser.text(), "the end of the stream")

    def test_a_request_with_a_file(self):
        self.go("requests/post_files")
        self.settled("input[type=file]")
        self.browser.run(
            """const data = new DataTransfer();
            data.items.add(new File(["A note about swans."], "swans.txt"));
            const input = document.querySelector("input[type=file]");
            input.files = data.files;
            input.dispatchEvent(new Event("input", {bubbles: true}));
            document.querySelector("form select").value = "assistants";"""
        )
        self.browser.click("form button[type=submit]")
        self.browser.wait(lambda: self.texts(".status.c2") == ["200"], "the reply")
        self.assertIn('"filename": "swans.txt"', self.browser.text("pre.tall"))
        self.assertIn("-F 'file=@swans.txt'", "".join(self.texts("pre.curl")))
        name = json.loads(self.browser.text("pre.tall"))["id"]
        self.go("documents")
        self.settled("table")
        self.browser.click(f'[aria-label="Delete {name}"]')
        self.browser.click("dialog button.danger")
        self.browser.wait(lambda: not self.count(f'[aria-label="Delete {name}"]'), "its end")

    def test_a_wrong_request_shows_its_status(self):
        self.allowed = (400,)
        self.go("requests")
        self.settled("textarea")
        self.browser.run(
            "document.querySelector('textarea').value = arguments[0]",
            json.dumps({"query": "x", "qery": 1}),
        )
        self.browser.click("form button[type=submit]")
        self.browser.wait(lambda: self.texts(".status.c4") == ["400"], "the refusal")
        self.assertIn("unknown field 'qery'", self.browser.text("pre.tall"))

    def test_docs_describe_every_route(self):
        self.browser.open(self.service.url + "/docs")
        self.settled(".op")
        number = self.browser.run(
            """const api = await (await fetch('openapi.json')).json();
            return Object.values(api.paths).flatMap(Object.keys).length"""
        )
        self.assertEqual(self.count(".op"), number)
        self.browser.click("#op-post_query summary")
        self.assertIn("document_ids", self.browser.text("#op-post_query"))
        self.browser.click("#nav a")
        self.browser.wait(lambda: self.browser.text("h1") == "Ask", "the first view")
        self.browser.run("location.hash = '#/time/%zz'")  # no escape at all
        self.browser.wait(lambda: self.browser.text("h1") == "Time", "the view")
        self.picture("docs")

    def test_every_view_in_every_dress(self):
        checks = (HERE / "checks.js").read_text()
        for scheme, width in (("light", 1280), ("dark", 400), ("dark", 1280), ("light", 400)):
            self.browser.colours(scheme)
            self.browser.resize(width, 900)
            for view in VIEWS:
                with self.subTest(view=view, scheme=scheme, width=width):
                    self.go(view)
                    self.settled(".view .card")
                    self.assertEqual(self.browser.run(checks), [])
                    if width == 400:
                        self.picture(f"{view}-{scheme}-narrow")
                    if view in STEADY and scheme == "dark":
                        self.looks_like(f"{view}-{scheme}-{width}")
        self.browser.colours("light")
        self.browser.resize(1280, 900)

    def test_a_spoilt_view_is_seen(self):
        looks = json.loads(LOOKS.read_text())
        self.browser.colours("dark")
        self.browser.resize(400, 900)
        for spoil in (
            "document.querySelector('link[rel=stylesheet]').disabled = true",
            "document.querySelector('.view').replaceChildren()",
        ):
            self.go("ask")
            self.settled(".view .card")
            self.assertLess(difference(self.browser.look(), looks["ask-dark-400"]), FAR)
            self.browser.run(spoil)
            self.assertGreater(difference(self.browser.look(), looks["ask-dark-400"]), FAR)
        self.browser.colours("light")
        self.browser.resize(1280, 900)

    def test_controls_have_names(self):
        for view in VIEWS:
            self.go(view)
            self.settled(".view .card")
            for control in self.browser.all("button, input, select, textarea, summary, a"):
                if self.browser.shown(control):
                    self.assertTrue(self.browser.label(control), f"{view}: a control has no name")

    def test_views_are_reached_by_keyboard(self):
        self.go("ask")
        self.browser.run("document.querySelector('#nav a[data-view=time]').focus()")
        self.browser.keys("\ue007")  # Enter
        self.browser.wait(lambda: self.browser.text("h1") == "Time", "the view")
        self.assertEqual(self.browser.run("return document.activeElement.tagName"), "H1")

    def test_light_and_dark(self):
        self.go("ask")
        colour = "return getComputedStyle(document.body).backgroundColor"
        light = self.browser.run(colour)
        switch = """const s = document.querySelector('.top select');
            s.value = arguments[0]; s.dispatchEvent(new Event('change'))"""
        self.browser.run(switch, "dark")
        self.assertNotEqual(self.browser.run(colour), light)
        self.go("ask")  # it is remembered
        self.assertNotEqual(self.browser.run(colour), light)
        self.browser.run(switch, "auto")
        self.assertEqual(self.browser.run(colour), light)


class Keys(PageTest):
    """A service with keys: the page asks for one."""

    @classmethod
    def setUpClass(cls):
        folder = cls.enter(tempfile.TemporaryDirectory(prefix="quire-keys-"))
        keys = pathlib.Path(folder) / "keys.toml"
        keys.write_text(KEYS)
        cls.service = cls.enter(Service(f"--auth.keys_file={keys}"))
        cls.browser = cls.enter(Browser(DRIVER, CHROMIUM))

    def give(self, key):
        self.browser.type("dialog input", key)
        self.browser.click("dialog button[type=submit]")

    def test_key_and_namespace(self):
        self.allowed = (401,)
        self.go("documents")
        self.give("wrong")
        self.browser.wait(lambda: "not known" in "".join(self.texts("dialog")), "another dialog")
        self.give("example-key-of-the-operator")
        self.settled(".drop")
        self.browser.wait(lambda: "default" in self.texts(".top button")[0], "the namespace")
        self.go("documents")  # the key stays with the tab
        self.settled(".drop")
        self.assertEqual(self.count("dialog"), 0)
        self.browser.click(".top button")
        self.browser.type("dialog input:not([type=password])", "team-b")
        self.picture("access")
        self.browser.click("dialog button[type=submit]")
        self.browser.wait(lambda: "team-b" in self.texts(".top button")[0], "the namespace")
        self.browser.click("details summary")
        self.browser.type("form textarea", "A text of team b.")
        self.browser.click("form button[type=submit]")
        self.browser.wait(lambda: self.count("tbody tr") == 1, "the document in its namespace")

    def test_an_answer_stays_with_its_namespace(self):
        self.allowed = (401,)
        self.addCleanup(self.browser.run, "sessionStorage.clear()")
        self.go("documents")
        self.give("example-key-of-the-operator")
        self.settled(".drop")
        self.browser.click("details summary")
        self.browser.type("form textarea", "Jaland is governed by Zaiwouo Grilman.")
        self.browser.click("form button[type=submit]")
        self.browser.wait(lambda: self.count("tbody tr") == 1, "the document")
        self.ask(QUESTION)
        self.assertEqual(self.count(".answer"), 1)
        self.browser.click(".top button")
        self.browser.type("dialog input:not([type=password])", "team-c")
        self.browser.click("dialog button[type=submit]")
        self.browser.wait(lambda: "team-c" in self.texts(".top button")[0], "the namespace")
        self.browser.wait(lambda: self.count(".answer") == 0, "a view without the answer")
        question = "return document.querySelector('.ask textarea').value"
        self.assertEqual(self.browser.run(question), "")


class RealModel(PageTest):
    """A real model over real documents."""

    @classmethod
    def setUpClass(cls):
        model = smollm2()
        if not model:
            raise unittest.SkipTest("SmolLM2 is not here: scripts/get_model.sh smollm2 brings it")
        cls.service = cls.enter(Service("--policy.evidence=false", model=model))
        cls.browser = cls.enter(Browser(DRIVER, CHROMIUM, width=1120, height=800))
        documents = [
            {"id": path.name, "text": path.read_text(encoding="utf-8")}
            for path in sorted((ROOT / "examples/garden").glob("*.md"))
        ]
        cls.service.post("/v1/documents?wait=true", {"documents": documents})
        for question in ("When was the borehole drilled?", "When is the open day?"):
            for strategy in ("recompute", "reuse"):
                body = {"query": question, "retrieve": {}, "max_tokens": 24}
                cls.service.post("/v1/query", body | {"cache": {"strategy": strategy}})

    def test_ask_then_see_blocks_and_times(self):
        self.ask("How heavy was the heaviest marrow?")
        self.assertTrue(self.browser.text(".answer"))
        self.browser.click(".cite")
        self.settled("mark")
        self.browser.run("scrollTo(0, 0)")
        self.picture("real-ask")
        self.browser.run("location.hash = '#/time'")
        self.settled(".plot .bar")
        kinds = self.texts("tbody th")
        self.assertIn("hit", kinds)
        self.assertIn("full prefill asked for", kinds)
        self.picture("real-time")
        body = {"query": "How heavy was the heaviest marrow?", "retrieve": {}, "max_tokens": 24}
        body["cache"] = {"strategy": "samkv", "options": {"score": "keys"}}
        made = self.service.post("/v1/query", body)
        self.browser.run("location.hash = `#/blocks/${arguments[0]}`", made["id"])
        self.settled(".cell.k-dropped")
        self.browser.run("document.querySelectorAll('.cell')[4].focus()")
        self.settled(".blockcard pre")
        self.picture("real-blocks")

    def test_the_other_views(self):
        self.go("documents")
        self.settled("tbody tr")
        self.assertIn("ready", self.browser.text("tbody"))
        self.go("worth")
        self.settled(".figure")
        self.assertGreater(int(self.texts(".figure")[0].split()[0].replace(",", "")), 0)
        self.go("compare")
        self.browser.type(".ask textarea", "When was the borehole drilled?")
        self.browser.click(".ask button[type=submit]")
        self.browser.wait(lambda: self.count("tbody tr") == 2, "two strategies", 120)
        self.browser.wait(lambda: self.count("button[type=submit]:disabled") == 0, "the end", 120)
        self.assertTrue(all("%" in row for row in self.texts("tbody tr")))
        self.picture("real-compare")
        self.go("fidelity")
        self.settled(".card h2")
        # The model's card brings certificates, those passed among them.
        self.assertIn("prophetkv", self.browser.text("main"))
        self.picture("real-fidelity")
        self.go("requests")
        self.settled("textarea")
        self.browser.click("form button[type=submit]")
        self.browser.wait(lambda: self.count(".status.c2") == 1, "the reply", 120)
        self.browser.open(self.service.url + "/docs")
        self.settled(".op")


if __name__ == "__main__":
    if not CHROMIUM or not DRIVER:
        print("skipped: no Chromium or no chromedriver (packages chromium, chromium-driver)")
        sys.exit(0)
    unittest.main(verbosity=2)
