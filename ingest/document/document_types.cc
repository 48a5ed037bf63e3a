#include "ingest/document/document_types.h"

#include <array>

#include "base/index.h"
#include "ingest/document/job.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 4> kStrategies = {"tokens", "markdown", "separator", "none"};
constexpr std::array<std::string_view, 3> kIfExists = {"upsert", "skip", "error"};
constexpr std::array<std::string_view, 6> kJobStatus = {"queued",  "running", "succeeded",
                                                        "partial", "failed",  "cancelled"};
constexpr std::array<std::string_view, 2> kJobTypes = {"ingest", "warm"};
constexpr std::array<std::string_view, 8> kResults = {
    "pending", "created", "updated", "unchanged", "skipped", "failed", "cancelled", "warmed"};

template <class Enum, std::size_t N>
std::string_view name_of(Enum value, const std::array<std::string_view, N>& names) {
  const auto i = at(value);
  return i < N ? names[i] : std::string_view("unknown");
}

template <class Enum, std::size_t N>
std::optional<Enum> value_of(std::string_view name, const std::array<std::string_view, N>& names) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view chunk_strategy_name(ChunkStrategy strategy) {
  return name_of(strategy, kStrategies);
}
std::optional<ChunkStrategy> parse_chunk_strategy(std::string_view name) {
  return value_of<ChunkStrategy>(name, kStrategies);
}
std::string_view if_exists_name(IfExists if_exists) { return name_of(if_exists, kIfExists); }
std::optional<IfExists> parse_if_exists(std::string_view name) {
  return value_of<IfExists>(name, kIfExists);
}
std::string_view job_status_name(JobStatus status) { return name_of(status, kJobStatus); }
std::string_view job_type_name(JobType type) { return name_of(type, kJobTypes); }
std::string_view item_result_name(ItemResult result) { return name_of(result, kResults); }
std::optional<JobStatus> parse_job_status(std::string_view name) {
  return value_of<JobStatus>(name, kJobStatus);
}

}  // namespace quire
