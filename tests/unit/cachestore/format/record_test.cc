#include "cachestore/format/record.h"

#include <gtest/gtest.h>

#include "cachestore/format/value_hash.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

using namespace record;  // NOLINT

DocumentManifest full_manifest() {
  DocumentManifest m = test::manifest_of("doc-1", {1, 2, 3}, 1000);
  m.version = 77;
  m.num_tokens = 60;
  for (auto& c : m.chunks) c.num_tokens = 20;
  m.chunks[1].token_ids = {0, -1, 2147483647, -2147483648, 128, 127};
  m.chunks[1].num_tokens = 6;
  m.status = DocumentStatus::kFailed;
  m.error_code = "out_of_memory";
  m.error_message = "the model's window is too small";
  m.pinned = true;
  m.ttl_seconds = 86400;
  m.ttl_anchor = TtlAnchor::kLastUsed;
  m.expires_at_ms = -5;
  m.created_ms = 1;
  m.updated_ms = 2;
  m.ttl_start_ms = 3;
  m.last_used_ms = 4;
  m.hits = UINT64_MAX;
  m.salt_digest = sha256("salt");
  m.job_id = "job_1";
  return m;
}

TEST(Record, DocumentRoundTrip) {
  const DocumentManifest m = full_manifest();
  auto back = decode_head(encode_head(m));
  ASSERT_OK(back);
  DocumentManifest head = m;
  for (auto& c : head.chunks) c.token_ids.clear();
  EXPECT_EQ(*back, head);
  ASSERT_OK(decode_tokens(encode_tokens(m), &*back));
  EXPECT_EQ(*back, m);
  DocumentManifest accompanied = m;
  accompanied.companions = {sha256("a"), sha256("b")};
  EXPECT_EQ(decode_head(encode_head(accompanied))->companions, accompanied.companions);
  EXPECT_EQ(encode_head(accompanied).size(), encode_head(m).size() + 1 + 64);
  DocumentManifest empty;
  empty.ns = empty.id = "x";
  EXPECT_EQ(*decode_head(encode_head(empty)), empty);
}

TEST(Record, LeftContextsRoundTripAndNeedANewerProgram) {
  DocumentManifest m = full_manifest();
  for (auto& c : m.chunks) c.token_ids.clear();
  const std::string plain = encode_head(m);
  EXPECT_EQ(plain[3], 1) << "heads without left contexts stay readable for older programs";
  m.chunks[2].left_chunks = 2;
  for (const bool accompanied : {false, true}) {
    if (accompanied) m.companions = {sha256("a")};
    const std::string bytes = encode_head(m);
    EXPECT_EQ(bytes[3], 2);
    auto back = decode_head(bytes);
    ASSERT_OK(back);
    EXPECT_EQ(*back, m);
  }
  m.chunks[0].left_chunks = 1;  // no chunk is before it
  EXPECT_FALSE(decode_head(encode_head(m)).ok());
  EXPECT_EQ(validate_manifest(m).field(), "chunks[0].left_chunks");
}

TEST(Record, MarksFollowTheTokensAndNeedANewerProgram) {
  DocumentManifest m = full_manifest();
  m.text_bytes = 1000;
  DocumentManifest head = m;
  for (auto& c : head.chunks) c.token_ids.clear();
  EXPECT_EQ(encode_tokens(m)[3], 1) << "tokens without marks stay readable for older programs";
  m.marks = {{0, 1, ""}, {0, 1, "A"}, {40, 2, "A"}, {999, 70000, "A > \xC3\xA9"}, {1000, 0, ""}};
  const std::string bytes = encode_tokens(m);
  EXPECT_EQ(bytes[3], 2);
  EXPECT_OK(check_envelope(bytes)) << "what verify looks at";
  ASSERT_OK(decode_tokens(bytes, &head));
  EXPECT_EQ(head.marks, m.marks);
  ASSERT_OK(decode_tokens(encode_tokens(full_manifest()), &head));
  EXPECT_TRUE(head.marks.empty()) << "those of before do not stay";
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_EQ(decode_tokens(bytes.substr(0, n), &head).code(), Code::kCorruption) << n;
  head.text_bytes = 999;
  EXPECT_EQ(decode_tokens(bytes, &head).code(), Code::kCorruption) << "past the end of the text";
}

TEST(Record, RelatedChunksFollowTheMarksAndNeedANewerProgram) {
  DocumentManifest m = full_manifest();
  m.text_bytes = 1000;
  DocumentManifest head = m;
  for (auto& c : head.chunks) c.token_ids.clear();
  m.related = {{"", "", 0, {1}}, {"other", "sha256:1", 3, {7, 8, 9}}, {"another", "", 0, {}}};
  for (const bool marked : {false, true}) {
    if (marked) m.marks = {{0, 1, "A"}};
    const std::string bytes = encode_tokens(m);
    EXPECT_EQ(bytes[3], 3);
    EXPECT_OK(check_envelope(bytes));
    ASSERT_OK(decode_tokens(bytes, &head));
    EXPECT_EQ(head.related, m.related);
    EXPECT_EQ(head.marks, m.marks);
    for (std::size_t n = 0; n < bytes.size(); ++n)
      EXPECT_EQ(decode_tokens(bytes.substr(0, n), &head).code(), Code::kCorruption) << n;
  }
  ASSERT_OK(decode_tokens(encode_tokens(full_manifest()), &head));
  EXPECT_TRUE(head.related.empty()) << "those of before do not stay";
  EXPECT_OK(validate_manifest(m));
  m.related.resize(kMaxRelated + 1, m.related.front());
  EXPECT_EQ(validate_manifest(m).field(), "related");
  m.related.resize(1);
  m.related[0] = {"", "sha256:1", 0, {}};
  EXPECT_EQ(validate_manifest(m).field(), "related.document_id");
}

TEST(Record, RepeatedHeadingsOfAPackCannotFillTheMemory) {
  DocumentManifest m = full_manifest();
  m.text_bytes = 1000;
  m.marks.assign(kMaxMarkBytes / kMaxHeadingBytes + 1, {0, 1, std::string(kMaxHeadingBytes, 'x')});
  const std::string bytes = encode_tokens(m);
  EXPECT_LT(bytes.size(), 64u << 10);
  DocumentManifest head = m;
  EXPECT_EQ(decode_tokens(bytes, &head).code(), Code::kCorruption);
  EXPECT_EQ(validate_manifest(m).field(), "marks");
}

TEST(Document, MarksAreChecked) {
  EXPECT_OK(check_marks({}, 0));
  const std::vector<TextMark> back = {{5, 1, ""}, {4, 1, ""}}, past = {{6, 1, ""}};
  EXPECT_EQ(check_marks(back, 5).field(), "marks[1].start");
  EXPECT_EQ(check_marks(past, 5).field(), "marks[0].start");
  const std::vector<TextMark> wide = {{0, 1, std::string(kMaxHeadingBytes + 1, 'x')}};
  EXPECT_EQ(check_marks(wide, 5).field(), "marks[0].heading");
}

TEST(Document, LeftContextIsTheTokensOfTheChunksBefore) {
  DocumentManifest m = full_manifest();
  m.chunks[0].token_ids = {1, 2};
  m.chunks[1].token_ids = {3};
  m.chunks[2].token_ids = {4};
  m.chunks[2].left_chunks = 1;
  EXPECT_EQ(left_context(m, 2), (std::vector<std::int32_t>{3}));
  m.chunks[2].left_chunks = 2;
  EXPECT_EQ(left_context(m, 2), (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_TRUE(left_context(m, 0).empty());
  m.related = {{"b", "", 0, {8, 9}}, {"a", "", 2, {7}}};
  EXPECT_EQ(left_context(m, 0), (std::vector<std::int32_t>{8, 9, 7}));
  EXPECT_EQ(left_context(m, 2), (std::vector<std::int32_t>{8, 9, 7, 1, 2, 3}));
}

TEST(Record, SegmentTextAndOpaqueRoundTrip) {
  SegmentInfo s;
  s.key = sha256("k");
  s.id = 1ull << 60;
  s.layout = {5, 3, 2};
  s.value_bytes = 123456789012;
  s.created_ms = 42;
  s.tenant = "default";
  s.fingerprint = "m-1";
  auto back = decode_segment(encode_segment(s));
  ASSERT_OK(back);
  EXPECT_EQ(back->key, s.key);
  EXPECT_EQ(back->id, s.id);
  EXPECT_EQ(back->layout, s.layout);
  EXPECT_EQ(back->value_bytes, s.value_bytes);
  EXPECT_EQ(back->fingerprint, s.fingerprint);
  const std::string zeros("a\0b\xff", 4);
  EXPECT_EQ(*decode_text(encode_text(zeros)), zeros);
  EXPECT_EQ(*decode_opaque(encode_opaque("")), "");
  EXPECT_EQ(decode_text(encode_opaque("x")).code(), Code::kCorruption)
      << "kinds are not interchangeable";
}

TEST(Record, EverySingleBitFlipAndEveryTruncationIsCaught) {
  const DocumentManifest m = full_manifest();
  for (std::string bytes :
       {encode_head(m), encode_tokens(m), encode_segment({sha256("k"), 9, {1, 1, 0}})}) {
    const bool tokens = bytes[2] == 2;
    auto decode = [&](const std::string& b) {
      DocumentManifest copy = m;
      if (tokens) return decode_tokens(b, &copy);
      return bytes[2] == 1 ? decode_head(b).status() : decode_segment(b).status();
    };
    ASSERT_OK(decode(bytes));
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string flipped = bytes;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      EXPECT_EQ(decode(flipped).code(), Code::kCorruption) << "bit " << bit;
    }
    for (std::size_t n = 0; n < bytes.size(); ++n)
      EXPECT_EQ(decode(bytes.substr(0, n)).code(), Code::kCorruption) << n;
    EXPECT_EQ(decode(bytes + "x").code(), Code::kCorruption);
  }
}

TEST(Record, TokensOfAnotherManifestAreRefused) {
  DocumentManifest a = full_manifest(), b = full_manifest();
  b.chunks.pop_back();
  EXPECT_EQ(decode_tokens(encode_tokens(a), &b).code(), Code::kCorruption);
  b = full_manifest();
  b.chunks[0].num_tokens = 19;
  EXPECT_EQ(decode_tokens(encode_tokens(a), &b).code(), Code::kCorruption);
}

TEST(Record, AValueOnlyPassesUnderItsOwnName) {
  const ValueName name{7, Part::kValue, 3, 1};
  ValueBuffer buffer(100);
  const auto bytes = test::random_bytes(100, 1);
  std::memcpy(buffer.payload().data(), bytes.data(), 100);
  write_value_header(name, buffer.payload(), buffer.stored().data());
  EXPECT_OK(check_value(name, buffer.stored()));
  for (const ValueName& other :
       {ValueName{8, Part::kValue, 3, 1}, ValueName{7, Part::kSketch, 3, 1},
        ValueName{7, Part::kValue, 1, 3}, ValueName{7, Part::kValue, 3, 0}}) {
    EXPECT_EQ(check_value(other, buffer.stored()).code(), Code::kCorruption);
  }
  for (std::size_t bit = 0; bit < buffer.stored().size() * 8; ++bit) {
    buffer.stored()[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_EQ(check_value(name, buffer.stored()).code(), Code::kCorruption) << "bit " << bit;
    buffer.stored()[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  EXPECT_EQ(check_value(name, buffer.stored().first(131)).code(), Code::kCorruption);
  EXPECT_EQ(check_value(name, {}).code(), Code::kCorruption);
}

TEST(ValueHash, AllVariantsAgree) {
  const auto bytes = test::random_bytes(5000, 3);
  for (std::size_t n :
       {0u, 1u, 3u, 8u, 16u, 17u, 128u, 129u, 240u, 241u, 1023u, 1024u, 1025u, 4999u}) {
    for (std::uint64_t seed : {0ull, 1ull, 0x9e3779b97f4a7c15ull}) {
      const auto want = value_hash128_base(bytes.data() + 1, n, seed);  // unaligned on purpose
      EXPECT_EQ(value_hash128(bytes.data() + 1, n, seed), want) << n;
#if defined(__x86_64__)
      if (__builtin_cpu_supports("avx2")) {
        EXPECT_EQ(value_hash128_avx2(bytes.data() + 1, n, seed), want) << n;
      }
      if (__builtin_cpu_supports("avx512f")) {
        EXPECT_EQ(value_hash128_avx512(bytes.data() + 1, n, seed), want) << n;
      }
#endif
    }
  }
}

TEST(Document, BadManifestsNameTheField) {
  const auto field = [](auto change) {
    DocumentManifest m = full_manifest();
    change(m);
    return validate_manifest(m).field();
  };
  EXPECT_EQ(field([](auto& m) { m.id.clear(); }), "id");
  EXPECT_EQ(field([](auto& m) { m.id = std::string("a\0b", 3); }), "id");
  EXPECT_EQ(field([](auto& m) { m.ns = std::string(200, 'x'); }), "namespace");
  EXPECT_EQ(field([](auto& m) { m.metadata_json = std::string(2 << 20, 'x'); }), "metadata");
  EXPECT_EQ(field([](auto& m) { m.chunks[2].byte_end = 5000; }), "chunks[2]");
  EXPECT_EQ(field([](auto& m) { m.text_bytes = 1ull << 40; }), "text");
  EXPECT_OK(validate_manifest(full_manifest()));
}

TEST(Document, ExpiryFollowsItsAnchor) {
  DocumentManifest m;
  EXPECT_FALSE(m.effective_expiry_ms());
  m.ttl_seconds = 10;
  m.created_ms = 100;
  m.ttl_start_ms = 5000;
  m.last_used_ms = 9000;
  EXPECT_EQ(m.effective_expiry_ms(), 15000);
  m.ttl_anchor = TtlAnchor::kLastUsed;
  EXPECT_EQ(m.effective_expiry_ms(), 19000);
  m.expires_at_ms = 7;
  EXPECT_EQ(m.effective_expiry_ms(), 7);
  m.expires_at_ms.reset();
  m.ttl_seconds = UINT64_MAX;
  EXPECT_EQ(m.effective_expiry_ms(), INT64_MAX) << "no overflow";
}

TEST(Document, StatusNamesRoundTrip) {
  for (int i = 0; i <= 6; ++i) {
    const auto s = static_cast<DocumentStatus>(i);
    EXPECT_EQ(parse_document_status(document_status_name(s)), s);
  }
  EXPECT_FALSE(parse_document_status("done"));
}

}  // namespace
}  // namespace quire
