#include "server/json/document_request.h"

#include <gtest/gtest.h>

#include "base/json_parse.h"

namespace quire {
namespace {

std::optional<JsonError> batch(const std::string& text, DocumentBatch& out, std::size_t max = 4) {
  return read_batch(*parse_json(text), max, out);
}

TEST(DocumentRequest, ReadsABatch) {
  DocumentBatch b;
  const auto e = batch(
      R"({"documents":[{"id":"a","title":"T","text":"x","metadata":{"k":1}},{"chunks":["p","q"]}],)"
      R"("if_exists":"skip",
    "chunking":{"strategy":"separator","separator":"--","max_tokens":99,"overlap_tokens":0},)"
      R"("ttl_seconds":5,"ttl_anchor":"last_used","pinned":true,"tier":"dram","cache_salt":null})",
      b);
  ASSERT_FALSE(e) << e->message;
  ASSERT_EQ(b.documents.size(), 2u);
  EXPECT_EQ(b.documents[0].id, "a");
  EXPECT_EQ(b.documents[0].metadata_json, R"({"k":1})");
  EXPECT_EQ(b.documents[1].chunks->size(), 2u);
  EXPECT_FALSE(b.documents[1].id);
  EXPECT_EQ(b.options.if_exists, IfExists::kSkip);
  EXPECT_EQ(b.options.chunking.strategy, ChunkStrategy::kSeparator);
  EXPECT_EQ(b.options.chunking.max_tokens, 99);
  EXPECT_EQ(b.options.ttl_seconds, 5u);
  EXPECT_EQ(b.options.ttl_anchor, TtlAnchor::kLastUsed);
  EXPECT_TRUE(b.options.pinned && b.options.in_batch);
}

TEST(DocumentRequest, ReadsOneDocumentWithOptionsBeside) {
  DocumentBatch b;
  ASSERT_FALSE(batch(R"({"id":"a","text":"x","pinned":true})", b));
  EXPECT_FALSE(b.options.in_batch);
  EXPECT_TRUE(b.options.pinned);
  EXPECT_EQ(b.documents.at(0).text, "x");
}

TEST(DocumentRequest, TellsALeadInThatIsNotAskedForFromOneThatIsRefused) {
  const auto asked = [](const std::string& chunking) {
    DocumentBatch b;
    EXPECT_FALSE(batch(R"({"text":"x")" + chunking + "}", b));
    return b.options.chunking.lead_in;
  };
  EXPECT_EQ(asked(""), std::nullopt);
  EXPECT_EQ(asked(R"(,"chunking":{"max_tokens":64})"), std::nullopt);
  EXPECT_EQ(asked(R"(,"chunking":{"lead_in":null})"), std::nullopt);
  EXPECT_EQ(asked(R"(,"chunking":{"lead_in":true})"), true);
  EXPECT_EQ(asked(R"(,"chunking":{"lead_in":false})"), false);
  DocumentBatch b;
  EXPECT_EQ(batch(R"({"text":"x","chunking":{"lead_in":1}})", b)->path, "chunking.lead_in");
  std::optional<JsonError> error;
  EXPECT_TRUE(read_option("lead_in", "false", b.options, error) && !error);
  EXPECT_EQ(b.options.chunking.lead_in, false);
}

TEST(DocumentRequest, ErrorsNameThePath) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {R"([])", "invalid_value", ""},
      {R"({})", "invalid_value", "text"},
      {R"({"documents":[]})", "invalid_value", "documents"},
      {R"({"documents":null})", "invalid_value", "documents"},
      {R"({"documents":{}})", "invalid_value", "documents"},
      {R"({"documents":[{},{},{},{},{}]})", "invalid_value", "documents"},
      {R"({"documents":[{"text":"a"},{"text":5}]})", "invalid_value", "documents[1].text"},
      {R"({"documents":[{"text":"a","chunks":["b"]}]})", "invalid_value", "documents[0].chunks"},
      {R"({"documents":[{"chunks":["a",3]}]})", "invalid_value", "documents[0].chunks[1]"},
      {R"({"documents":[{"text":"a","titel":"b"}]})", "unknown_field", "documents[0].titel"},
      {R"({"documents":[{"text":"a","metadata":[]}]})", "invalid_value", "documents[0].metadata"},
      {R"({"documents":[1]})", "invalid_value", "documents[0]"},
      {R"({"documents":[{"text":"a"}],"text":"b"})", "unknown_field", "text"},
      {R"({"text":"a","if_exists":"maybe"})", "invalid_value", "if_exists"},
      {R"({"text":"a","chunking":{"strategy":"lines"}})", "invalid_value", "chunking.strategy"},
      {R"({"text":"a","chunking":{"size":4}})", "unknown_field", "chunking.size"},
      {R"({"text":"a","ttl_seconds":0})", "invalid_value", "ttl_seconds"},
      {R"({"text":"a","tier":"gpu"})", "invalid_value", "tier"},
  };
  for (const auto& [text, code, param] : cases) {
    DocumentBatch b;
    const auto e = batch(text, b);
    ASSERT_TRUE(e) << text;
    EXPECT_EQ(e->code, code) << text;
    EXPECT_EQ(e->path, param) << text << e->message;
  }
}

TEST(DocumentRequest, AnIdThatIsFarTooLongIsToldTheLimit) {
  DocumentBatch b;
  const auto e = batch(R"({"text":"a","id":")" + std::string(5000, 'x') + "\"}", b);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->path, "id");
  EXPECT_EQ(e->message, "id has 5000 bytes; at most 200 are taken");
}

TEST(DocumentRequest, PutTakesItsIdFromThePath) {
  DocumentBatch b;
  ASSERT_FALSE(read_put(*parse_json(R"({"text":"x"})"), "a", b));
  EXPECT_EQ(b.documents[0].id, "a");
  DocumentBatch c;
  EXPECT_TRUE(read_put(*parse_json(R"({"text":"x","id":"b"})"), "a", c));
}

TEST(DocumentRequest, OptionsGivenAsTextAreReadAsThoseInJson) {
  BatchOptions given;
  given.chunking.strategy = ChunkStrategy::kMarkdown;
  std::optional<JsonError> error;
  const std::pair<const char*, const char*> options[] = {
      {"if_exists", "skip"}, {"ttl_seconds", "5"},    {"ttl_anchor", "last_used"},
      {"pinned", "true"},    {"tier", "dram"},        {"cache_salt", "12345678"},
      {"max_tokens", "99"},  {"overlap_tokens", "7"}, {"separator", "--"}};
  for (const auto& [name, value] : options)
    EXPECT_TRUE(read_option(name, value, given, error) && !error) << name;
  EXPECT_EQ(given.if_exists, IfExists::kSkip) << "later options leave it";
  EXPECT_EQ(given.ttl_seconds, 5u);
  EXPECT_EQ(given.ttl_anchor, TtlAnchor::kLastUsed);
  EXPECT_TRUE(given.pinned);
  EXPECT_EQ(given.tier, "dram");
  EXPECT_EQ(given.cache_salt, "12345678");
  EXPECT_EQ(given.chunking.strategy, ChunkStrategy::kMarkdown);
  EXPECT_EQ(given.chunking.max_tokens, 99);
  EXPECT_EQ(given.chunking.overlap_tokens, 7);
  EXPECT_EQ(given.chunking.separator, "--");
  const std::pair<const char*, const char*> wrong[] = {
      {"if_exists", "maybe"}, {"ttl_seconds", "0"},  {"ttl_seconds", "x"},  {"ttl_anchor", "never"},
      {"pinned", "1"},        {"tier", "gpu"},       {"strategy", "lines"}, {"max_tokens", "0"},
      {"max_tokens", "9x"},   {"overlap_tokens", ""}};
  for (const auto& [name, value] : wrong) {
    BatchOptions out;
    error.reset();
    EXPECT_TRUE(read_option(name, value, out, error)) << name;
    ASSERT_TRUE(error) << name << " " << value;
    EXPECT_EQ(error->code, "invalid_value");
    EXPECT_EQ(error->path, name);
  }
  EXPECT_FALSE(read_option("metadata", "{}", given, error));
}

TEST(Patch, NullTakesAwayAndAbsentStays) {
  DocumentPatch p;
  ASSERT_FALSE(read_patch(
      *parse_json(
          R"({"ttl_seconds":null,"metadata":{"a":null,"b":2},"expires_at":"2030-01-01T00:00:00Z",)"
          R"("pinned":true})"),
      p));
  ASSERT_TRUE(p.ttl_seconds);
  EXPECT_FALSE(*p.ttl_seconds);
  EXPECT_EQ(p.metadata_json, R"({"a":null,"b":2})");
  EXPECT_EQ(**p.expires_at_ms, 1893456000000);
  EXPECT_FALSE(p.title);
  for (const auto* bad : {"{}", R"({"text":"x"})", R"({"expires_at":"soon"})",
                          R"({"ttl_seconds":-1})", R"({"pinned":"yes"})"}) {
    DocumentPatch q;
    EXPECT_TRUE(read_patch(*parse_json(bad), q)) << bad;
  }
}

TEST(BulkDelete, NeedsExactlyOneOfIdsAndFilter) {
  BulkDelete a;
  ASSERT_FALSE(read_bulk_delete(
      *parse_json(R"({"filter":{"status":"failed","metadata.source":"x","metadata":{"year":2025}},)"
                  R"("dry_run":true})"),
      a));
  EXPECT_TRUE(a.dry_run);
  EXPECT_EQ(a.filter->metadata.size(), 2u);
  EXPECT_EQ(a.filter->metadata[1].any_of.at(0), "2025");
  for (const auto* bad :
       {"{}", R"({"ids":["a"],"filter":{"status":"ready"}})", R"({"filter":{}})",
        R"({"filter":{"status":"odd"}})", R"({"filter":{"color":"x"}})", R"({"ids":[1]})"}) {
    BulkDelete b;
    EXPECT_TRUE(read_bulk_delete(*parse_json(bad), b)) << bad;
  }
}

}  // namespace
}  // namespace quire
