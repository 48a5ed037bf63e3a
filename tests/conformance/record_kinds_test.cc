// What holds for every kind of record of this build.
#include <algorithm>
#include <set>

#include "engine/retrieve/head/retrieval_head.h"
#include "tests/support/harness/ingest_harness.h"

namespace quire::testing {
namespace {

const RecordKind& kind_named(std::string_view name) {
  return **std::ranges::find(all_record_kinds(), name,
                             [](const auto& kind) { return kind->name(); });
}

class RecordKindConformance : public ::testing::TestWithParam<std::string> {
 protected:
  RecordKindConformance() : kind_(kind_named(GetParam())) {
    const ModelConfig& c = ingest_.model->config();
    RetrievalHeadConfig head;
    head.hidden_size = c.hidden_size;
    head.num_heads = 4;
    head.num_kv_heads = 2;
    head.head_dim = 8;
    head_ = std::move(*RetrievalHead::random(head, *ingest_.model, 2));
    ingest_.core.head = head_.get();
    ingest_.core.facts.selection_heads.heads = {{1, 1}, {2, 0}, {1, 0}};
    for (const auto& kind : all_record_kinds()) {
      if (!kind->always()) ingest_.core.more_records.emplace_back(kind->name());
    }
  }
  std::vector<std::byte> made(std::int32_t tokens, std::int32_t chunk = 32) {
    ingest_.core.chunk_tokens = chunk;
    const auto kv = ingest_.run(tokens);
    return std::move(*kind_.build(*kv, ingest_.core.facts.num_heads, ingest_.model->rope()));
  }
  Result<std::any> parse(std::span<const std::byte> record, std::int64_t tokens) {
    layout_ = kv_layout(ingest_.core.facts, tokens);
    return kind_.parse(record, {ingest_.core.facts, layout_, head_.get()});
  }
  const RecordKind& kind_;
  Ingest ingest_{nullptr, 3, DType::kF16};
  std::unique_ptr<RetrievalHead> head_;
  KvLayout layout_;
};

TEST_P(RecordKindConformance, WhatIngestMakesIsReadBack) {
  EXPECT_EQ(kind_.name(), GetParam());
  for (const std::int32_t tokens : {1, 16, 75}) {
    const auto record = made(tokens);
    if (record.empty()) continue;  // a context may be too short for one
    const auto view = parse(record, tokens);
    EXPECT_TRUE(view.ok()) << view.status().to_string();
    EXPECT_TRUE(view.ok() && view->has_value());
  }
  EXPECT_FALSE(made(103).empty());
}

TEST_P(RecordKindConformance, ChunksChangeNoBit) {
  const auto whole = made(103, 512);
  for (const std::int32_t chunk : {16, 48}) EXPECT_EQ(made(103, chunk), whole) << chunk;
}

TEST_P(RecordKindConformance, TheRecordOfAnotherContextIsRefused) {
  const auto view = parse(made(103), 104);
  EXPECT_EQ(view.status().code(), Code::kCorruption);
  EXPECT_FALSE(view.status().message().empty());
}

TEST_P(RecordKindConformance, NoBeginningOfARecordIsTakenForOne) {
  const auto record = made(103);
  for (std::size_t size = 0; size < record.size(); size += 1 + record.size() / 97) {
    const std::vector<std::byte> cut(record.begin(),
                                     record.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_EQ(parse(cut, 103).status().code(), Code::kCorruption) << size;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecordKindConformance, ::testing::ValuesIn(record_kinds().names()),
                         [](const auto& kind) { return kind.param; });

TEST(RecordKinds, HaveEachAnIndexOfItsOwn) {
  std::set<std::uint32_t> seen;
  for (const auto& kind : all_record_kinds()) {
    EXPECT_TRUE(seen.insert(kind->index()).second);
    EXPECT_EQ(&record_kind(kind->index()), kind.get());
  }
  EXPECT_TRUE(seen.contains(0)) << "the sketch comes first";
}

TEST(RecordKinds, AnUnknownNameIsRefused) {
  const std::vector<std::string> names = {"sketch"}, none;
  EXPECT_TRUE(check_record_names(none, "model.records").ok());
  EXPECT_EQ(check_record_names(names, "model.records").field(), "model.records")
      << "it is always made";
}

}  // namespace
}  // namespace quire::testing
