#include <set>

#include "ingest/document/job_record.h"
#include "ingest/document/metadata.h"
#include "ingest/document/utf8.h"
#include "ingest/names.h"
#include "ingest/prepared_text.h"
#include "tests/support/harness/ingest_fixture.h"

namespace quire {
namespace {

using test::doc;

TEST(Utf8Test, NamesTheFirstBrokenByte) {
  EXPECT_FALSE(find_invalid_utf8("plain text, \xC3\xA9, \xE4\xB8\xAD, \xF0\x9F\x98\x80"));
  EXPECT_EQ(find_invalid_utf8("abc\xFF"), 3u);
  EXPECT_EQ(find_invalid_utf8("12345678901234567\x80x"), 17u);
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0u) << "overlong";
  EXPECT_EQ(find_invalid_utf8("\xE0\x80\xAF"), 0u);
  EXPECT_EQ(find_invalid_utf8("a\xED\xA0\x80"), 1u) << "surrogate";
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u) << "above U+10FFFF";
  EXPECT_EQ(find_invalid_utf8("ab\xE4\xB8"), 2u) << "cut short";
}

TEST(Utf8Test, CountsCodePointsAndBlanks) {
  EXPECT_EQ(count_code_points("a\xC3\xA9\xF0\x9F\x98\x80"), 3u);
  EXPECT_TRUE(is_blank(" \t\r\n\v\f\xC2\xA0\xE3\x80\x80\xEF\xBB\xBF"));
  EXPECT_FALSE(is_blank(" x"));
  CodePointCounter counter("\xC3\xA9x\xC3\xA9");
  EXPECT_EQ(counter.at(2), 1u);
  EXPECT_EQ(counter.at(5), 3u);
  EXPECT_EQ(counter.at(3), 2u) << "going back";
}

TEST(Utf8Test, CountingBackALittleReadsALittle) {
  std::string text;
  for (int i = 0; i < (1 << 20); ++i) text += "a\xC3\xA9";
  CodePointCounter counter(text);
  EXPECT_EQ(counter.at(text.size()), 2u << 20);
  // Counted from the beginning each time, these were hundreds of gigabytes.
  for (std::size_t i = text.size() / 3; i > (7u << 17); --i) {
    ASSERT_EQ(counter.at(3 * i - 3), 2 * i - 2);
    ASSERT_EQ(counter.at(3 * i), 2 * i);
  }
  EXPECT_EQ(counter.at(3), 2u) << "nearer to the beginning";
  EXPECT_EQ(counter.at(0), 0u);
}

TEST(MetadataTest, KeepsObjectsOnly) {
  EXPECT_EQ(*normalize_metadata("", 100), "{}");
  EXPECT_EQ(*normalize_metadata(R"( { "a" : 1 } )", 100), R"({"a":1})");
  for (const char* bad : {"[]", "1", "{", "{\"a\":}", "{\"a\":\"\xFF\"}", "{} x"}) {
    const auto r = normalize_metadata(bad, 100);
    EXPECT_EQ(r.code(), Code::kInvalidArgument) << bad;
    EXPECT_EQ(r.status().field(), "metadata");
  }
  EXPECT_FALSE(normalize_metadata(R"({"a":"0123456789"})", 10).ok());
  EXPECT_FALSE(
      normalize_metadata("{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}", 1000).ok());
}

TEST(MetadataTest, MergesAsJsonMergePatch) {
  EXPECT_EQ(*merge_metadata(R"({"a":1,"b":{"c":2,"d":3}})",
                            R"({"a":null,"b":{"c":null,"e":4},"f":[null]})", 100),
            R"({"b":{"d":3,"e":4},"f":[null]})");
  EXPECT_EQ(*merge_metadata(R"({"a":1})", R"({"a":{"b":null,"c":2}})", 100), R"({"a":{"c":2}})");
}

TEST(NamesTest, IdsAndNamespaces) {
  for (const char* good : {"a", "handbook-7", "A.b_c:d-9~0", "\xC3\xA9"})
    EXPECT_TRUE(check_document_id(good).ok()) << good;
  for (const std::string& bad : {std::string(), std::string("-a"), std::string("a b"),
                                 std::string("a/b"), std::string(201, 'a'), std::string("\xC3")}) {
    EXPECT_FALSE(check_document_id(bad).ok()) << bad;
  }
  EXPECT_TRUE(check_namespace("team-a").ok());
  EXPECT_FALSE(check_namespace("").ok());
  EXPECT_FALSE(check_namespace("a/b").ok());
  EXPECT_FALSE(check_salt("short").ok());
  EXPECT_TRUE(check_salt("long enough").ok());
  EXPECT_NE(salt_digest_of("long enough"), salt_digest_of("long enougg"));
  EXPECT_TRUE(salt_digest_of("").is_zero());
}

TEST(NamesTest, ContentHashTellsTitleTextAndBordersApart) {
  DocumentInput chunks;
  chunks.chunks = {"ab", "c"};
  DocumentInput other = chunks;
  other.chunks = {"a", "bc"};
  EXPECT_NE(content_hash(chunks), content_hash(other));
  EXPECT_NE(content_hash(doc("", "abc")), content_hash(chunks));
  EXPECT_NE(content_hash(doc("", "abc")), content_hash(doc("", "abc", "", "title")));
  EXPECT_EQ(content_hash(doc("x", "abc", "{\"a\":1}")), content_hash(doc("y", "abc")));
  EXPECT_EQ(id_from_hash(content_hash(doc("", "abc"))).size(), 36u);
}

TEST(NamesTest, JobIdsAscend) {
  std::string last;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = make_job_id(1000 - i, last);  // the clock goes back
    EXPECT_EQ(id.size(), 30u);
    EXPECT_GT(id, last);
    last = id;
  }
}

TEST(NamesTest, ReplicasThatKnowTheSameLastJobGiveDifferentIds) {
  const std::string last = make_job_id(1000, "");
  std::set<std::string> drawn;
  for (int i = 0; i < 1000; ++i) drawn.insert(make_job_id(900, last));
  EXPECT_EQ(drawn.size(), 1000u);
  EXPECT_GT(*drawn.begin(), last);
  const std::string ends("job_0000000ZZZZZZZZZZZZZZZZZZZ");
  ASSERT_EQ(ends.size(), last.size());
  EXPECT_GT(make_job_id(0, ends), ends) << "the sum goes on into the digits of the time";
}

TEST(NamesTest, ErrorsNameTheirPlace) {
  const IngestOptions options;
  const auto param = [&](DocumentInput d) {
    const auto e = check_document(d, options, "documents[1]");
    return e ? e->code + " " + e->param : std::string("fine");
  };
  EXPECT_EQ(param(doc("a", "text")), "fine");
  EXPECT_EQ(param(doc("a b", "text")), "invalid_value documents[1].id");
  EXPECT_EQ(param(doc("a", " \n")), "empty_document documents[1].text");
  EXPECT_EQ(param(doc("a", "x\xFF")), "invalid_value documents[1].text");
  EXPECT_EQ(param(doc("a", "x", "[]")), "invalid_value documents[1].metadata");
  EXPECT_EQ(param(doc("a", "x", "{\"k\":\"" + std::string(17000, 'v') + "\"}")),
            "invalid_value documents[1].metadata");
  EXPECT_EQ(param(doc("a", "x", "", std::string(5000, 't'))), "invalid_value documents[1].title");
  DocumentInput d;
  EXPECT_EQ(param(d), "invalid_value documents[1].text");
  d.chunks.emplace();
  EXPECT_EQ(param(d), "empty_document documents[1].chunks");
  d.chunks = {"a", ""};
  EXPECT_EQ(param(d), "empty_document documents[1].chunks[1]");
  d.chunks = {"a", "\xC0"};
  EXPECT_EQ(param(d), "invalid_value documents[1].chunks[1]");
  d.text = "both";
  EXPECT_EQ(param(d), "invalid_value documents[1].text");
}

JobRecord sample_job() {
  JobRecord job;
  job.id = "job_01ABC";
  job.ns = "team";
  job.status = JobStatus::kRunning;
  job.created_ms = 5;
  job.cancelled = true;
  job.num_packs = 3;
  job.settings.chunking = {ChunkStrategy::kSeparator, 77, 0, "\n\n"};
  job.settings.ttl_seconds = 9;
  job.settings.salt_digest = salt_digest_of("some salt");
  job.settings.if_match = "sha256:0";
  job.settings.kv = KvPolicy::kLazy;
  job.settings.chunking.related_tokens = 300;
  job.settings.chunking.lead_in = true;
  ItemRecord item;
  item.view.id = "a";
  item.view.result = ItemResult::kFailed;
  item.view.error = ItemError{"c", "m", "p"};
  item.content_hash = "sha256:1";
  item.pack = 2;
  job.items = {item, item};
  job.items[1].view.index = 1;
  return job;
}

TEST(JobRecordTest, ReadsBackWhatItWrote) {
  const JobRecord job = sample_job();
  auto back = decode_job(encode_job(job));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(encode_job(*back), encode_job(job));
  EXPECT_EQ(back->settings.chunking, job.settings.chunking);
  EXPECT_EQ(back->settings.kv, KvPolicy::kLazy);
  EXPECT_EQ(back->items[1].view.error->param, "p");
  for (const bool lead_in : {false, true}) {
    for (const bool by_default : {false, true}) {
      JobRecord one = job;
      one.settings.chunking.lead_in = lead_in;
      one.settings.lead_in_by_default = by_default;
      const auto read = decode_job(encode_job(one));
      ASSERT_TRUE(read.ok());
      EXPECT_EQ(read->settings.chunking.lead_in, lead_in);
      EXPECT_EQ(read->settings.lead_in_by_default, by_default);
    }
  }
}

TEST(JobRecordTest, RecordsFromBeforeLeftContextsAreReadWithoutThem) {
  const JobRecord job = sample_job();
  std::string bytes = encode_job(job);
  ASSERT_EQ(bytes.substr(0, 4), "QBJ4");
  JobRecord none = job;
  none.settings.chunking.context_tokens = 0x01020304;
  const std::size_t at = encode_job(none).find("\4\3\2\1");
  bytes.erase(at + 5, 5);  // "QBJ3": no related chunks, no lead-in
  bytes[3] = '3';
  auto alone = decode_job(bytes);
  ASSERT_TRUE(alone.ok()) << alone.status().to_string();
  EXPECT_EQ(alone->settings.chunking.related_tokens, 0);
  EXPECT_EQ(alone->settings.chunking.lead_in, false);
  EXPECT_EQ(alone->settings.kv, KvPolicy::kLazy);
  bytes.erase(at + 4, 1);  // "QBJ2": no policy of KV
  bytes[3] = '2';
  auto later = decode_job(bytes);
  ASSERT_TRUE(later.ok()) << later.status().to_string();
  EXPECT_EQ(later->settings.kv, KvPolicy::kEager);
  EXPECT_EQ(later->settings.chunking, alone->settings.chunking);
  bytes.erase(at, 4);
  bytes[3] = '1';
  auto back = decode_job(bytes);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->settings.chunking.context_tokens, 0);
  EXPECT_EQ(back->items.size(), job.items.size());
}

TEST(JobRecordTest, EveryCutAndManyFlipsAreRefusedOrWhole) {
  const std::string bytes = encode_job(sample_job());
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_EQ(decode_job(bytes.substr(0, n)).code(), Code::kCorruption) << n;
  std::mt19937_64 rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::string broken = bytes;
    broken[rng() % broken.size()] ^= static_cast<char>(1 << (rng() % 8));
    (void)decode_job(broken);  // must not read past the end (sanitizers) or allocate too much
  }
}

TEST(JobRecordTest, InputsComeBackByIndex) {
  DocumentInput a = doc("a", "text \xC3\xA9", "{}", "t"), b;
  a.marks = {{0, 1, "A"}, {5, 2, "A > B"}};
  b.chunks = {"one", "two"};
  const std::string bytes = encode_inputs({{3, &a}, {7, &b}});
  // The texts are kept apart, each once.
  EXPECT_EQ(bytes.find("text \xC3\xA9"), bytes.npos);
  const auto whole = [&](std::int32_t index, std::string text) {
    auto saved = decode_input(bytes, index);
    return saved.ok() ? attach_text(std::move(*saved), std::move(text)) : saved.status();
  };
  EXPECT_EQ(whole(3, "text \xC3\xA9")->text, a.text);
  EXPECT_EQ(whole(3, "text \xC3\xA9")->title, a.title);
  EXPECT_EQ(whole(3, "text \xC3\xA9")->marks, a.marks);
  EXPECT_TRUE(whole(7, "one\n\ntwo")->marks.empty());
  EXPECT_EQ(decode_input(bytes, 3)->text_bytes, 7u);
  EXPECT_EQ(whole(7, "one\n\ntwo")->chunks, b.chunks);
  EXPECT_EQ(decode_input(bytes, 7)->text_bytes, 8u);
  EXPECT_FALSE(decode_input(bytes, 7)->input.id);
  EXPECT_EQ(whole(3, "text").code(), Code::kCorruption);
  EXPECT_EQ(whole(7, "one\n two").code(), Code::kCorruption);
  EXPECT_EQ(take_document_text(b), "one\n\ntwo");
  EXPECT_EQ(decode_input(bytes, 4).code(), Code::kNotFound);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(decode_input(bytes.substr(0, n), 7).ok()) << n;
}

TEST(JobRecordTest, InputsOfEarlierVersionsHaveNoMarks) {
  DocumentInput a = doc("a", "text", R"({"k":1})", "t");
  std::string bytes = encode_inputs({{3, &a}});
  // "QBI2" ended with the metadata: take the number of marks away.
  bytes.resize(bytes.size() - 4);
  bytes[3] = '2';
  bytes[12] = static_cast<char>(bytes[12] - 4);
  const auto saved = decode_input(bytes, 3);
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  EXPECT_EQ(saved->input.metadata_json, a.metadata_json);
  EXPECT_TRUE(saved->input.marks.empty());
}

TEST(JobRecordTest, InputsOfEarlierVersionsHoldTheirTexts) {
  // "QBI1": one document with index 5, its id, title, text, no chunks, and metadata.
  const auto u32 = [](std::uint32_t n) {
    std::string out;
    for (int i = 0; i < 4; ++i) out += static_cast<char>(n >> (8 * i));
    return out;
  };
  const auto text = [&](const std::string& s) {
    return u32(static_cast<std::uint32_t>(s.size())) + s;
  };
  const std::string one = "\1" + text("a") + text("title") + "\1" + text("the text") +
                          std::string(1, '\0') + text("{}");
  const auto saved = decode_input("QBI1" + u32(1) + u32(5) + text(one), 5);
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  EXPECT_FALSE(saved->text_apart);
  EXPECT_EQ(saved->text_bytes, 8u);
  const auto input = attach_text(*saved, "not looked at");
  EXPECT_EQ(input->text, "the text");
  EXPECT_EQ(input->id, "a");
}

TEST(PreparedText, SizesOfTokenChunksAreReadBackFromTheSettings) {
  ChunkingOptions options;
  options.max_tokens = 800;
  options.overlap_tokens = 400;
  options.lead_in = false;
  const TextMark mark{.offset = 0, .page = 1, .heading = "One"};
  DocumentManifest m;
  m.title = "max=1 overlap=2";
  for (const auto kv : {KvPolicy::kEager, KvPolicy::kLazy}) {
    m.chunking = settings_text(options, false, m.title, {&mark, 1}, kv);
    EXPECT_EQ(token_chunking(m), options) << m.chunking;
    EXPECT_EQ(kv_policy(m), kv);
  }
  options.context_tokens = 0;
  m.chunking = settings_text(options, false, m.title, {}, KvPolicy::kEager);
  EXPECT_EQ(token_chunking(m), options);
  m.chunking = settings_text(options, true, m.title, {}, KvPolicy::kEager);
  EXPECT_FALSE(token_chunking(m)) << "cut by the caller";
  options.strategy = ChunkStrategy::kMarkdown;
  m.chunking = settings_text(options, false, m.title, {}, KvPolicy::kEager);
  EXPECT_FALSE(token_chunking(m)) << "cut at headings";
  m.chunking.clear();
  EXPECT_FALSE(token_chunking(m));
}

}  // namespace
}  // namespace quire
