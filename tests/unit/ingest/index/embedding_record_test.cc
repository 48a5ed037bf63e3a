#include "ingest/index/embedding_record.h"

#include <gtest/gtest.h>

#include "ingest/search/embed_text.h"

namespace quire {
namespace {

EmbeddingRecord sample() {
  EmbeddingRecord r;
  r.made_of = Sha256().update_field("text").finish();
  r.dimension = 3;
  r.values = {1, 2, 3, 0xffff, 0, 0x3c00};
  return r;
}

TEST(EmbeddingRecordTest, ReadsBackWhatWasWritten) {
  const auto again = decode_embeddings(encode_embeddings(sample()));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(*again, sample());
  EXPECT_EQ(again->num_chunks(), 2u);
  EmbeddingRecord none;
  none.made_of = sample().made_of;
  const auto empty = decode_embeddings(encode_embeddings(none));
  ASSERT_TRUE(empty.ok());
  EXPECT_EQ(*empty, none);
  EXPECT_EQ(empty->num_chunks(), 0u);
}

TEST(EmbeddingRecordTest, EveryOtherLengthIsRefused) {
  const std::string bytes = encode_embeddings(sample());
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_EQ(decode_embeddings(bytes.substr(0, n)).code(), Code::kCorruption) << n;
  EXPECT_EQ(decode_embeddings(bytes + '\0').code(), Code::kCorruption);
  std::string other = bytes;
  other[0] ^= 1;
  EXPECT_EQ(decode_embeddings(other).code(), Code::kCorruption);
}

TEST(EmbeddingRecordTest, CountsThatPromiseMoreThanThereIsAreRefused) {
  std::string bytes = encode_embeddings(sample());
  // Set both counts to their largest value.
  for (std::size_t i = 36; i < 44; ++i) bytes[i] = '\xff';
  EXPECT_EQ(decode_embeddings(bytes).code(), Code::kCorruption);
  bytes = encode_embeddings(sample());
  for (std::size_t i = 36; i < 40; ++i) bytes[i] = '\0';
  EXPECT_EQ(decode_embeddings(bytes).code(), Code::kCorruption);
}

TEST(EmbeddingRecordTest, AnotherModelTextOrBorderIsAnotherSource) {
  Digest model;
  DocumentManifest m;
  m.content_hash = "sha256:1";
  m.chunking = "tokens\nGuide";
  m.chunks.resize(2);
  m.chunks[1].byte_begin = 5;
  const Digest before = embedding_source(model, m);
  DocumentManifest other = m;
  other.metadata_json = "{\"a\":1}", other.version = 9, other.pinned = true;
  EXPECT_EQ(embedding_source(model, other), before) << "vectors do not depend on these";
  other = m, other.content_hash = "sha256:2";
  EXPECT_NE(embedding_source(model, other), before);
  other = m, other.chunks[1].byte_begin = 6;
  EXPECT_NE(embedding_source(model, other), before);
  other = m, other.title = "shown";
  EXPECT_EQ(embedding_source(model, other), before) << "the title of its KV stays";
  other = m, other.chunking = "tokens\nOther guide";
  EXPECT_NE(embedding_source(model, other), before);
  model.bytes[31] = std::byte{1};
  EXPECT_NE(embedding_source(model, m), before);
}

TEST(EmbeddingRecordTest, NamesDoNotRunTogether) {
  EXPECT_NE(embedding_record_name("a", "bc"), embedding_record_name("ab", "c"));
  EXPECT_NE(embedding_record_name("a", "b/c"), embedding_record_name("a/b", "c"));
}

}  // namespace
}  // namespace quire
