#include "ingest/document/document_types.h"

#include <array>

#include "base/index.h"
#include "ingest/document/job.h"

namespace quire {
namespace {

constexpr std::array<std::string_view, 4> kStrategies = {"tokens", "markdown", "separator", "none"};
constexpr std::array<std::string_view, 3> kIfExists = {"upsert", "skip", "error"};
constexpr std::array<std::string_view, 3> kKvPolicies = {"eager", "lazy", "text_only"};
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
std::string_view kv_policy_name(KvPolicy policy) { return name_of(policy, kKvPolicies); }
std::optional<KvPolicy> parse_kv_policy(std::string_view name) {
  return value_of<KvPolicy>(name, kKvPolicies);
}
std::string_view job_status_name(JobStatus status) { return name_of(status, kJobStatus); }
std::string_view job_type_name(JobType type) { return name_of(type, kJobTypes); }
std::string_view item_result_name(ItemResult result) { return name_of(result, kResults); }
std::optional<JobStatus> parse_job_status(std::string_view name) {
  return value_of<JobStatus>(name, kJobStatus);
}

std::string take_document_text(DocumentInput& input) {
  if (input.text) return std::move(*input.text);
  std::string text;
  if (!input.chunks) return text;
  text.reserve(to_size(document_text_bytes(input)));
  for (const std::string& chunk : *input.chunks) {
    if (&chunk != input.chunks->data()) text += kBetweenChunks;
    text += chunk;
  }
  return text;
}

std::uint64_t document_text_bytes(const DocumentInput& input) {
  if (input.text) return input.text->size();
  if (!input.chunks || input.chunks->empty()) return 0;
  std::uint64_t bytes = (input.chunks->size() - 1) * kBetweenChunks.size();
  for (const std::string& chunk : *input.chunks) bytes += chunk.size();
  return bytes;
}

std::optional<std::vector<std::string>> cut_document_text(
    std::string_view text, const std::vector<std::uint32_t>& chunk_bytes) {
  std::vector<std::string> chunks;
  for (const std::uint32_t bytes : chunk_bytes) {
    if (!chunks.empty()) {
      if (!text.starts_with(kBetweenChunks)) return std::nullopt;
      text.remove_prefix(kBetweenChunks.size());
    }
    if (bytes > text.size()) return std::nullopt;
    chunks.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  if (!text.empty()) return std::nullopt;
  return chunks;
}

}  // namespace quire
