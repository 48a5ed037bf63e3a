// `quire ingest` over the files that people have: every one gets its fate, and a second run touches
// nothing.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <fstream>
#include <thread>

#include "server/http/http_message.h"
#include "tests/support/file_makers.h"
#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

namespace fs = std::filesystem;

class Ingest : public ServiceTest {
 protected:
  void SetUp() override {
    root_ = folder() / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(root_);
  }
  fs::path write(const std::string& name, const std::string& bytes) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << bytes;
    return root_ / name;
  }
  static ProcessResult ingest(std::vector<std::string> words, const std::string& input = {}) {
    std::vector<std::string> line = {QUIRE_BINARY, "ingest", "--server",
                                     "http://127.0.0.1:" + std::to_string(service->port())};
    line.insert(line.end(), words.begin(), words.end());
    return run_process(line, input);
  }
  static bool says(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
  static bool has(const std::string& id) {
    int status = 0;
    (void)service->json("GET", "/v1/documents/" + percent_encode(id), "", {}, &status);
    return status == 200;
  }
  fs::path root_;
};

TEST_F(Ingest, AFolderIsReadAndASecondRunTouchesNothing) {
  write("notes/plan.md", "# Plan\n\nBuild the bridge.\n");
  write("notes/deep/报告.txt", "The report is short.");
  write("page.html", "<html><body><nav>Menu</nav><h1>Title</h1><p>Body text.</p></body></html>");
  write("latin.txt", "caf\xe9 au lait, d\xe9j\xe0 vu, tr\xe8s bien, \xe0 bient\xf4t");
  write("empty.txt", "");
  write("picture.png", "\x89PNG\r\n\x1a\n....");
  write(".hidden/secret.txt", "Not for anyone.");
  auto r = ingest({root_.string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  for (const auto* line : {"created   notes:plan.md", "created   notes:deep:报告.txt",
                           "created   page.html", "created   latin.txt"})
    EXPECT_TRUE(says(r.out, line)) << line << "\n" << r.out;
  EXPECT_TRUE(says(r.out, "empty.txt: is empty")) << r.out;
  EXPECT_TRUE(says(r.out, "picture.png: is a PNG image")) << r.out;
  EXPECT_FALSE(says(r.out + r.err, "secret"));
  EXPECT_TRUE(says(r.err, "4 created, 2 skipped")) << r.err;
  EXPECT_TRUE(says(r.err, "tokens")) << "an estimate comes first: " << r.err;
  EXPECT_EQ(service->call("GET", "/v1/documents/page.html/content").body,
            "# Title\n\nBody text.\n");
  r = ingest({root_.string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(says(r.err, "4 unchanged, 2 skipped")) << r.err;
  EXPECT_FALSE(says(r.out, "created") || says(r.out, "updated")) << r.out;
}

TEST_F(Ingest, FilesAreReadBehindOthersThatTheirWordsFind) {
  write("mill.txt", "The old mill stands at the river. Its wheel turns in spring.");
  write("river.txt", "The river rises in the hills. An old mill uses its water.");
  auto r = ingest({root_.string(), "--kv", "lazy"});
  EXPECT_TRUE(says(r.err, "2 created")) << r.err;
  r = ingest({root_.string(), "--related-tokens", "200", "--lead-in"});
  EXPECT_TRUE(says(r.err, "2 updated")) << r.err;
  r = ingest({root_.string(), "--related-tokens", "200", "--lead-in"});
  EXPECT_TRUE(says(r.err, "2 unchanged")) << r.err;
  const std::string query =
      R"({"query": "Where does the mill stand?", "document_ids": ["mill.txt"], "max_tokens": 8,
          "cache": {"strategy": "reuse"}})";
  int status = 0;
  const auto reused = [&] {
    const auto reply = service->json("POST", "/v1/query", query, {}, &status);
    EXPECT_EQ(status, 200);
    return int_at(reply, "usage.prompt_tokens_details.cached_tokens");
  };
  (void)reused();  // what stands before the document is known from now on
  const auto whole = reused();
  EXPECT_GT(whole, 10);
  // A text that is gone is not used through the KV that saw it.
  EXPECT_EQ(service->call("DELETE", "/v1/documents/river.txt").status, 200);
  const auto tag = service->json("GET", "/v1/documents/mill.txt").at("version");
  EXPECT_LT(reused(), whole);
  for (int i = 0; i < 200 && reused() < whole; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(reused(), whole) << "it was made anew";
  EXPECT_NE(service->json("GET", "/v1/documents/mill.txt").at("version"), tag);
  r = ingest({root_.string(), "--related-tokens", "100000"});
  EXPECT_NE(r.exit_code, 0);
  EXPECT_TRUE(says(r.err, "--related-tokens")) << r.err;
}

/// Texts of people are not all alike: `n` makes each its own.
std::string sentence(int n) {
  return "Item " + std::to_string(n) + " weighs " + std::to_string(3 * n + 7) + " kilograms.";
}

std::string utf16(const std::string& ascii) {
  std::string out = "\xFF\xFE";
  for (const char c : ascii) out += {c, '\0'};
  return out;
}

/// A PDF that asks for a password, as its key fits no empty one.
std::string locked_pdf() {
  std::string out = pdf_of({"Nobody reads this."});
  const std::string trailer = "trailer << ";
  const std::string lock = "/Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <" +
                           std::string(64, '1') + "> /U <" + std::string(64, '2') +
                           "> >> /ID [<30> <30>] ";
  return out.insert(out.find(trailer) + trailer.size(), lock);
}

TEST_F(Ingest, TheLeadInIsTheServicesChoiceUnlessAFlagSaysIt) {
  const auto file = write("lead.txt", "A file that says when the ferry leaves.").string();
  const auto read_behind = [] {
    return text_at(service->json("GET", "/v1/documents/lead.txt"), "read_behind");
  };
  // This service has no certificate, so by default files are read alone.
  EXPECT_TRUE(says(ingest({file}).out, "created"));
  EXPECT_EQ(read_behind(), "nothing");
  EXPECT_TRUE(says(ingest({file, "--replace", "--lead-in"}).out, "updated"));
  EXPECT_EQ(read_behind(), "lead_in");
  (void)ingest({file, "--replace"});
  EXPECT_EQ(read_behind(), "lead_in") << "nobody asked for another reading";
  EXPECT_TRUE(says(ingest({file, "--replace", "--no-lead-in"}).out, "updated"));
  EXPECT_EQ(read_behind(), "nothing");
}

TEST_F(Ingest, ThreeHundredFilesOfAllKinds) {
  int good = 0, skipped = 0, failed = 0, n = 0;
  const auto add = [&](int count, const std::string& ending, int& fate, auto&& bytes) {
    for (int i = 0; i < count; ++i, ++n, ++fate)
      write((n % 3 == 0 ? "deep/er/" : "") + std::string("file") + std::to_string(n) + ending,
            bytes());
  };
  const auto html = [&] {
    return "<html><head><script>var x;</script></head><body><nav>Menu</nav><h1>Page</h1><p>" +
           sentence(n) + "</p></body></html>";
  };
  if (QUIRE_PDF) {
    add(40, ".pdf", good, [&] {
      return pdf_of({sentence(n), "The second page.", "The third."}, {"Item"});
    });
    add(5, ".pdf", failed, [] { return locked_pdf(); });
  } else {
    add(45, ".md", good, [&] { return sentence(n); });
  }
  add(40, ".html", good, html);
  add(40, ".docx", good,
      [&] { return docx_of("<w:p><w:r><w:t>" + sentence(n) + "</w:t></w:r></w:p>"); });
  add(60, ".md", good, [&] { return "# Notes\n\n" + sentence(n) + "\n"; });
  add(30, ".txt", good,
      [&] { return "Caf\xe9 au lait, d\xe9j\xe0 vu, bient\xf4t. " + sentence(n); });
  add(30, ".txt", good, [&] { return utf16(sentence(n)); });
  add(10, ".epub", good,
      [&] { return epub_of({"<html><body><p>" + sentence(n) + "</p></body></html>"}); });
  add(10, ".csv", good, [&] { return "name,weight\nitem " + std::to_string(n) + ",7\n"; });
  add(10, ".txt", skipped, [] { return std::string(); });
  add(5, ".pdf", failed, [] { return std::string("%PDF-1.4 and no more"); });
  add(5, ".docx", failed, [] { return std::string("PK\x03\x04 and no more"); });
  // Protected by a password, and lost to a disk.
  add(5, ".docx", failed,
      [] { return "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + std::string(600, '\0'); });
  add(5, ".xlsx", failed, [] { return std::string(600, '\0'); });
  add(5, ".doc", skipped,
      [] { return "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + std::string(600, '\0'); });
  add(5, ".bin", skipped, [] {
    return std::string(
        "\x7f"
        "ELF\x02\x01\x01\0\0\0",
        10);
  });
  for (const auto* name : {"a/readme.md", "b/readme.md", "报告 一.txt", "Ünïcode.md"}) {
    write(name, sentence(++n));
    ++good;
  }
  // Five megabytes are more tokens than a document may have.
  std::string large;
  while (large.size() < 5u << 20) large += sentence(static_cast<int>(large.size())) + "\n";
  write("large.txt", large);
  ++failed;

  auto r = ingest({root_.string()});
  EXPECT_EQ(r.exit_code, 1) << "some files failed";
  const std::string summary = std::to_string(good) + " created, " + std::to_string(skipped) +
                              " skipped, " + std::to_string(failed) + " failed";
  EXPECT_TRUE(says(r.err, summary)) << summary << "\n" << r.err.substr(r.err.size() / 2);
  EXPECT_TRUE(says(r.err, "large.txt")) << r.err;
  if (QUIRE_PDF) {
    EXPECT_TRUE(says(r.err, "password")) << r.err;
  }
  int fates = 0;
  for (const std::string& text : {r.out, r.err}) {
    for (const auto* word : {"created   ", "skipped   ", "failed    "})
      for (auto at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++fates;
  }
  EXPECT_EQ(fates, good + skipped + failed) << "every file's fate is said";
  EXPECT_TRUE(has("a:readme.md") && has("b:readme.md"));

  const auto stored = [] {
    std::string out, after;
    for (bool more = true; more;) {
      const auto page = service->json("GET", "/v1/documents?limit=100&status=ready" + after);
      for (const auto& document : at(page, "data").as_array())
        out += text_at(document, "id") + " " + text_at(document, "etag") + " " +
               text_at(document, "updated_at") + "\n";
      more = at(page, "has_more").as_bool();
      if (more) after = "&after=" + percent_encode(text_at(page, "last_id"));
    }
    return out;
  };
  const std::string before = stored();
  r = ingest({root_.string()});
  EXPECT_FALSE(says(r.out, "created") || says(r.out, "updated")) << r.out;
  EXPECT_TRUE(says(r.err, std::to_string(good) + " unchanged")) << r.err;
  EXPECT_GE(std::count(before.begin(), before.end(), '\n'), good);
  EXPECT_EQ(stored(), before) << "a second run touches nothing";

  const auto found = service->json("POST", "/v1/retrieve",
                                   R"({"query":"Item 7 weighs 28 kilograms","k":1})");
  EXPECT_TRUE(says(text_at(found, "data.0.text"), "Item 7 weighs 28"))
      << text_at(found, "data.0.text");
  if (QUIRE_PDF) {
    EXPECT_EQ(int_at(found, "data.0.page"), 1);
  }
}

TEST_F(Ingest, APdfOfThreeHundredPagesIsAskedByItsPages) {
  if (!QUIRE_PDF) GTEST_SKIP() << "built without Poppler";
  // As many words a page as a book has: together they are past the window many times.
  std::vector<std::string> pages, outline;
  for (int i = 1; i <= 300; ++i) {
    std::string page;
    if (i % 25 == 1) {
      outline.push_back("Chapter " + std::to_string(i / 25 + 1));
      page = outline.back() + "\n";
    }
    page += "The keeper of tower " + std::to_string(1000 + i) + " is called Oda" +
            std::to_string(i) + ".\n";
    const std::string other = sample_text(static_cast<unsigned>(i), 420);
    for (std::size_t at = 0; at < other.size(); at += 90) page += other.substr(at, 90) + "\n";
    pages.push_back(std::move(page));
  }
  write("book.pdf", pdf_of(pages, outline));
  // Neither its KV nor what the model knows is what this is about: the answer is given.
  const auto r = ingest({"--kv", "lazy", (root_ / "book.pdf").string()});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const auto document = service->json("GET", "/v1/documents/book.pdf");
  EXPECT_EQ(text_at(document, "metadata.pages"), "300");
  EXPECT_GT(int_at(document, "tokens"), 131'072);
  for (const int page : {1, 77, 150, 299}) {
    const auto reply = service->json(
        "POST", "/v1/query",
        R"({"document_ids":["book.pdf"],"max_tokens":32,"retrieve":{"unit":"chunks","k":2},)"
        R"("guided_choice":["The keeper is called Oda)" +
            std::to_string(page) + R"(."],)" + R"("query":"Who is the keeper of tower )" +
            std::to_string(1000 + page) + R"(?"})");
    ASSERT_FALSE(at(reply, "citations").as_array().empty()) << boost::json::serialize(reply);
    EXPECT_EQ(int_at(reply, "citations.0.page"), page) << boost::json::serialize(reply);
    EXPECT_EQ(text_at(reply, "citations.0.heading"), outline[(page - 1) / 25]);
    EXPECT_TRUE(says(text_at(reply, "citations.0.quote"), "Oda" + std::to_string(page)));
  }
}

TEST_F(Ingest, AddressesAreFetchedWithinTheRules) {
  service->json("POST", "/v1/documents?wait=true", R"({"id":"page","text":"# Alba\n\nA city."})");
  const std::string host = "127.0.0.1:" + std::to_string(service->port()),
                    url = "http://" + host + "/v1/documents/page/content",
                    id = "127.0.0.1:v1:documents:page:content";
  // From the command line, which asks by itself.
  auto r = ingest({url});
  EXPECT_EQ(r.exit_code, 0) << r.out << r.err;
  EXPECT_TRUE(says(r.out, "created   " + id)) << r.out;
  EXPECT_TRUE(says(ingest({url}).out, "unchanged"));
  r = ingest({"http://" + host + "/nothing"});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.err, "answered 404")) << r.err;

  // By the service, which asks nobody unless it is told to.
  const auto post = [](ServiceProcess& to, const std::string& address) {
    int status = 0;
    const auto reply = to.json("POST", "/v1/documents?wait=true", R"({"url":")" + address + R"("})",
                               {}, &status);
    return std::to_string(status) + " " + text_at(reply, "error.code") + " " +
           text_at(reply, "error.param");
  };
  EXPECT_EQ(post(*service, url), "400 unsupported_parameter url");
  TempFolder folder;
  ServiceProcess fetching;
  std::vector<std::string> flags = {"--fetch.hosts=" + host, "--fetch.max_bytes=2000"};
  fetching.start(folder.path() / "store", flags);
  EXPECT_EQ(post(fetching, url), "400 invalid_value url") << "the address is not public";
  EXPECT_EQ(fetching.stop(), 0);
  flags.push_back("--fetch.private_addresses=true");
  fetching.start(folder.path() / "store", flags);
  EXPECT_EQ(post(fetching, url).substr(0, 3), "200");
  EXPECT_EQ(post(fetching, "http://localhost:1/"), "400 invalid_value url");
  int status = 0;
  const auto gone = fetching.json(
      "POST", "/v1/documents",
      R"({"documents":[{"text":"x"},{"url":"http://)" + host + R"(/nothing"}]})", {}, &status);
  EXPECT_EQ(status, 502);
  EXPECT_EQ(text_at(gone, "error.code"), "fetch_failed");
  EXPECT_EQ(text_at(gone, "error.param"), "documents[1].url");
  EXPECT_EQ(post(fetching, "http://" + host + "/openapi.json"), "413 payload_too_large url");
  EXPECT_EQ(post(fetching, "file:///etc/passwd"), "400 invalid_value url");
  const auto stored = fetching.json("GET", "/v1/documents/" + percent_encode(id), {});
  EXPECT_EQ(text_at(stored, "metadata.source"), url);
  EXPECT_EQ(fetching.stop(), 0);
}

TEST_F(Ingest, AHostThatIsSilentHoldsNoOtherWorkUp) {
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(silent, 8), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string host = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  TempFolder folder;
  ServiceProcess fetching;
  fetching.start(folder.path() / "store",
                 {"--fetch.hosts=" + host, "--fetch.private_addresses=true"});
  std::atomic<int> answered = 0;
  std::vector<std::thread> posts;
  std::vector<int> waiting;
  constexpr int kReaders = 4, kPosts = 6;  // of one namespace; the last two wait for a reader
  for (int i = 0; i < kPosts; ++i) {
    posts.emplace_back([&, i] {
      (void)fetching.call("POST", "/v1/documents",
                          R"({"url":"http://)" + host + "/" + std::to_string(i) + "\"}");
      ++answered;
    });
    if (i >= kReaders) continue;
    waiting.push_back(::accept(silent, nullptr, nullptr));  // the service waits for its reply
    EXPECT_GE(waiting.back(), 0);
  }
  EXPECT_EQ(fetching.call("POST", "/v1/admin/cache/verify").status, 200);
  const std::string form =
      "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.html\"\r\n\r\n<p>A "
      "text.</p>\r\n--b--\r\n";
  EXPECT_EQ(fetching
                .call("POST", "/v1/documents?wait=true", form, {"X-Namespace: other"},
                      "multipart/form-data; boundary=b")
                .status,
            200);
  EXPECT_EQ(answered, 0) << "all still wait";
  ::close(silent);
  for (const int fd : waiting) ::close(fd);
  for (std::thread& one : posts) one.join();
  EXPECT_EQ(fetching.stop(), 0);
}

TEST_F(Ingest, ABadFileCostsOnlyItself) {
  write("good.txt", "A good text.");
  write("odd.pdf", "%PDF-1.4 and no more");
  write("bad.jsonl", "{\"text\":\"a\"}\n{\"text\":3}\n");
  const auto r = ingest({root_.string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.out, "created   good.txt")) << r.out;
  EXPECT_TRUE(says(r.err, "odd.pdf: ")) << r.err;
  EXPECT_TRUE(says(r.err, "bad.jsonl: line 2: ")) << r.err;
  EXPECT_TRUE(says(r.err, "quire: 2 files or documents were not cached")) << r.err;
  const auto none = write("list.jsonl", "{\"id\":\"named\",\"text\":\"a\"}\n{\"text\":\"b\"}\n");
  const auto would = ingest({"--dry-run", none.string()});
  EXPECT_TRUE(says(would.out, "created   named\ncreated   " + none.string())) << would.out;
  const auto did = ingest({none.string()});
  EXPECT_TRUE(says(did.out, "created   named  ") && says(did.out, ", 1 block\n")) << did.out;
  EXPECT_EQ(ingest({(root_ / "none.txt").string()}).exit_code, 1);
}

TEST_F(Ingest, AllBadLinesOfAFileAreToldAtOnce) {
  auto r = ingest({write("few.jsonl", "{\"text\":3}\n{\"text\":\"a\"}\n\nno JSON\n").string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.err, "few.jsonl: line 1: ")) << r.err;
  EXPECT_TRUE(says(r.err, "; line 4: ")) << r.err;
  EXPECT_FALSE(says(r.err, "line 2")) << r.err;
  std::string lines;
  for (int i = 0; i < 14; ++i) lines += "{\"text\":3}\n";
  r = ingest({write("many.jsonl", lines).string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.err, "; line 10: ")) << r.err;
  EXPECT_FALSE(says(r.err, "line 11: ")) << r.err;
  EXPECT_TRUE(says(r.err, "; and 4 more of its lines are wrong")) << r.err;
}

TEST_F(Ingest, TwoFilesNeverShareAnId) {
  const auto one = write("d1/readme.md", "# One\n\nFirst.\n"),
             two = write("d2/readme.md", "# Two\n\nSecond.\n");
  auto r = ingest({one.string(), two.string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.err, one.string()) && says(r.err, two.string())) << r.err;
  EXPECT_EQ(ingest({one.string()}).exit_code, 0);
  r = ingest({two.string()});
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_TRUE(says(r.err, "--replace")) << r.err;
  EXPECT_EQ(service->call("GET", "/v1/documents/readme.md/content").body, "# One\n\nFirst.\n");
  r = ingest({"--replace", two.string()});
  EXPECT_TRUE(says(r.out, "updated   readme.md")) << r.out << r.err;
}

TEST_F(Ingest, AFilesChunksDoNotDependOnOtherFiles) {
  const auto md = write("a.md", "# A\n\nText.\n\n# B\n\nMore text.\n");
  EXPECT_TRUE(says(ingest({md.string()}).out, "created   a.md"));
  write("b.txt", "Plain.");
  const auto r = ingest({root_.string()});
  EXPECT_TRUE(says(r.out, "unchanged") && says(r.out, "created   b.txt")) << r.out;
  EXPECT_FALSE(says(r.out, "updated")) << r.out;
  EXPECT_EQ(ingest({"--chunking", "markdown", "--overlap", "8", md.string()}).exit_code, 1);
}

TEST_F(Ingest, SyncFollowsChangesAndDeletesOnlyItsOwn) {
  write("keep.txt", "Stays.");
  const auto gone = write("gone.txt", "Goes."), changed = write("sub/changed.txt", "Before.");
  service->json("POST", "/v1/documents", R"({"id":"foreign","text":"Of somebody else."})",
                {"Prefer: wait=10"});
  EXPECT_EQ(ingest({root_.string()}).exit_code, 0);
  fs::remove(gone);
  std::ofstream(changed) << "After.";
  auto r = ingest({"--sync", "--dry-run", root_.string()});
  EXPECT_TRUE(says(r.out, "deleted   gone.txt")) << r.out;
  EXPECT_TRUE(has("gone.txt")) << "a dry run changes nothing";
  r = ingest({"--sync", root_.string()});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(says(r.out, "deleted   gone.txt")) << r.out;
  EXPECT_TRUE(says(r.out, "updated   sub:changed.txt")) << r.out;
  EXPECT_FALSE(has("gone.txt"));
  EXPECT_TRUE(has("keep.txt") && has("foreign"));
}

TEST_F(Ingest, SyncDeletesNothingThatAFileStillHas) {
  const auto sync = [&] {
    const auto r = ingest({"--sync", root_.string()});
    EXPECT_EQ(r.exit_code, 0) << r.err;
    return r.out;
  };
  // Lines with a source of their own.
  write("own.jsonl", R"({"id":"k1","text":"One.","metadata":{"source":"wiki"}})"
                     "\n"
                     R"({"id":"k2","text":"Two.","metadata":{"source":"wiki","source_root":"x"}})");
  EXPECT_TRUE(says(sync(), "created   k2"));
  EXPECT_FALSE(says(sync(), "deleted"));
  EXPECT_TRUE(has("k1") && has("k2"));
  const auto stored = service->json("GET", "/v1/documents/k1");
  EXPECT_EQ(text_at(stored, "metadata.source"), "wiki");
  EXPECT_EQ(text_at(stored, "metadata.source_file"), "own.jsonl");
  // Lines without an id, after one more has come.
  write("plain.jsonl", "{\"text\":\"Apples.\"}\n{\"text\":\"Pears.\"}\n");
  (void)sync();
  write("plain.jsonl", "{\"text\":\"Apples.\"}\n{\"text\":\"Pears.\"}\n{\"text\":\"Plums.\"}\n");
  EXPECT_FALSE(says(sync(), "deleted"));
  // One that is gone from the file goes.
  write("plain.jsonl", "{\"text\":\"Apples.\"}\n{\"text\":\"Plums.\"}\n");
  EXPECT_TRUE(says(sync(), "deleted"));
  EXPECT_TRUE(says(sync(), "unchanged"));
  const auto in_file = service->json("GET", "/v1/documents?metadata.source=plain.jsonl");
  EXPECT_EQ(at(in_file, "data").as_array().size(), 2U);
  // A file that has another name, and a line that is in another file.
  write("a.jsonl", "{\"id\":\"m1\",\"text\":\"First.\"}\n{\"id\":\"m2\",\"text\":\"Second.\"}\n");
  (void)sync();
  fs::rename(root_ / "a.jsonl", root_ / "b.jsonl");
  EXPECT_FALSE(says(sync(), "deleted"));
  write("a.jsonl", "{\"id\":\"m1\",\"text\":\"First.\"}\n");
  write("b.jsonl", "{\"id\":\"m2\",\"text\":\"Second.\"}\n");
  EXPECT_FALSE(says(sync(), "deleted"));
  EXPECT_FALSE(says(sync(), "deleted"));
  EXPECT_TRUE(has("m1") && has("m2"));
}

TEST_F(Ingest, AFileIsUnchangedOnceAllOfItIsThere) {
  const auto file = write("two.jsonl",
                          "{\"id\":\"t1\",\"text\":\"One.\"}\n{\"id\":\"t2\",\"text\":\"Two.\"}\n");
  EXPECT_EQ(ingest({file.string()}).exit_code, 0);
  auto r = ingest({root_.string()});
  EXPECT_TRUE(says(r.err, "1 unchanged")) << r.out << r.err;
  (void)service->json("DELETE", "/v1/documents/t2");
  r = ingest({root_.string()});
  EXPECT_TRUE(says(r.out, "created   t2")) << r.out << r.err;
}

TEST_F(Ingest, AnInterruptCancelsTheJobAndSaysSo) {
  for (unsigned i = 0; i < 12; ++i)
    write("long" + std::to_string(i) + ".txt", sample_text(40 + i, 20'000));
  // It signals the group as well, so that the signal comes twice.
  const auto r = run_process({"/bin/sh", "-c",
                              "exec timeout --preserve-status -s INT 3 \"$0\" \"$@\"", QUIRE_BINARY,
                              "ingest", root_.string(), "--server",
                              "http://127.0.0.1:" + std::to_string(service->port())});
  EXPECT_EQ(r.exit_code, 130) << r.out << r.err;
  EXPECT_TRUE(says(r.out + r.err, "cancelled")) << r.out << r.err;
  const auto jobs = service->json("GET", "/v1/jobs?limit=1");
  EXPECT_EQ(text_at(jobs, "data.0.status"), "cancelled");
}

TEST_F(Ingest, AnInterruptSaysWithANumberHowManyDocumentsItCancels) {
  std::string lines;
  for (unsigned i = 0; i < 400; ++i)
    lines += R"({"id":"many-)" + std::to_string(i) + R"(","text":)" +
             quoted(sample_text(400 + i, 1000)) + "}\n";
  const fs::path file = write("many.jsonl", lines);
  const auto r = run_process(
      {"/bin/sh", "-c", "exec timeout --preserve-status -s INT 3 \"$0\" \"$@\"", QUIRE_BINARY,
       "ingest", file.string(), "--server", "http://127.0.0.1:" + std::to_string(service->port())});
  EXPECT_EQ(r.exit_code, 130) << r.out << r.err;
  EXPECT_TRUE(says(r.err, " documents: not sent\n")) << r.err;
  EXPECT_FALSE(says(r.err, "many-399")) << r.err;
  EXPECT_TRUE(says(r.err, " cancelled\n")) << r.err;
}

TEST_F(Ingest, PatternsFiltersAndStandardInput) {
  write("a/one.md", "One.");
  write("a/b/two.md", "Two.");
  write("a/b/three.txt", "Three.");
  auto r = ingest({(root_ / "**/*.md").string(), "--exclude", "two*"});
  EXPECT_TRUE(says(r.err, "1 created")) << r.err;
  EXPECT_TRUE(has("a:one.md"));
  EXPECT_EQ(ingest({(root_ / "*.none").string()}).exit_code, 1);
  r = ingest({"-", "--name", "from pipe.txt"}, "Text of a pipe.");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_TRUE(says(r.out, "created   from-pipe.txt~")) << r.out;
}

}  // namespace
}  // namespace quire::testing
