#include "server/metrics/metrics.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

bool has_line(const MetricsSnapshot& snapshot, const std::string& line) {
  const std::string text = Metrics().text(snapshot);
  return text.find("\n" + line + "\n") != std::string::npos;
}

TEST(MetricsTest, SaysWhatAuditLogAndTracesLost) {
  MetricsSnapshot snapshot;
  for (const char* name : {"quire_audit", "quire_trace"})
    EXPECT_EQ(Metrics().text(snapshot).find(name), std::string::npos) << "it is off";
  snapshot.audit_lines_lost = 3;
  snapshot.spans = SpanCounts{.sent = 5, .dropped = 2};
  EXPECT_TRUE(has_line(snapshot, "quire_audit_lines_lost_total 3"));
  EXPECT_TRUE(has_line(snapshot, "quire_trace_spans_total{outcome=\"sent\"} 5"));
  EXPECT_TRUE(has_line(snapshot, "quire_trace_spans_total{outcome=\"dropped\"} 2"));
}

TEST(MetricsTest, PoolsNameTheirModelWhereThereAreSeveral) {
  MetricsSnapshot snapshot;
  snapshot.ready = true;
  snapshot.models = {{"own", "m-1", {{"working_cache", 5, 9}}}};
  EXPECT_TRUE(has_line(snapshot, R"(quire_model_info{model="own",fingerprint="m-1"} 1)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_memory_bytes{pool="working_cache"} 5)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_memory_limit_bytes{pool="working_cache"} 9)"));
  snapshot.models.push_back({"small", "m-2", {{"working_cache", 6, 7}}});
  EXPECT_TRUE(has_line(snapshot, R"(quire_model_info{model="small",fingerprint="m-2"} 1)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_memory_bytes{pool="working_cache",model="own"} 5)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_memory_bytes{pool="working_cache",model="small"} 6)"));
}

TEST(MetricsTest, AFullDiskIsATierThatIsNotUp) {
  MetricsSnapshot snapshot;
  snapshot.ready = true;
  EXPECT_TRUE(has_line(snapshot, R"(quire_tier_up{tier="disk"} 1)"));
  snapshot.disk_full = true;
  EXPECT_TRUE(has_line(snapshot, R"(quire_tier_up{tier="disk"} 0)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_tier_up{tier="dram"} 1)"));
}

TEST(MetricsTest, SaysWhatOfTheMemoryTierIsPageLocked) {
  MetricsSnapshot snapshot;
  snapshot.ready = true;
  EXPECT_EQ(Metrics().text(snapshot).find("page_locked"), std::string::npos) << "none may be";
  snapshot.store.dram_moves = true;
  snapshot.store.dram_moved_bytes = 7;
  snapshot.store.dram_unmoved_values = 8;
  EXPECT_TRUE(has_line(snapshot, "quire_dram_page_locked_bytes 7"));
  EXPECT_TRUE(has_line(snapshot, "quire_dram_values_not_page_locked_total 8"));
}

TEST(MetricsTest, SaysWhatTheIndexesForRetrievalTake) {
  MetricsSnapshot snapshot;
  snapshot.ready = true;
  EXPECT_EQ(Metrics().text(snapshot).find("quire_index"), std::string::npos) << "it is off";
  snapshot.retrieval.emplace();
  snapshot.retrieval->memory_bytes = 11;
  snapshot.retrieval->disk_bytes = 12;
  snapshot.retrieval->left_out = 13;
  EXPECT_TRUE(has_line(snapshot, R"(quire_index_bytes{index="words",place="memory"} 11)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_index_bytes{index="words",place="disk"} 12)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_index_left_out_documents{index="words"} 13)"));
  EXPECT_EQ(Metrics().text(snapshot).find("embeddings"), std::string::npos) << "they are off";
  snapshot.retrieval->embeddings.emplace();
  snapshot.retrieval->embeddings->memory_bytes = 21;
  snapshot.retrieval->embeddings->disk_bytes = 22;
  snapshot.retrieval->embeddings->left_out = 23;
  EXPECT_TRUE(has_line(snapshot, R"(quire_index_bytes{index="embeddings",place="memory"} 21)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_index_bytes{index="embeddings",place="disk"} 22)"));
  EXPECT_TRUE(has_line(snapshot, R"(quire_index_left_out_documents{index="embeddings"} 23)"));
  snapshot.ready = false;
  EXPECT_EQ(Metrics().text(snapshot).find("quire_index"), std::string::npos);
}

}  // namespace
}  // namespace quire
