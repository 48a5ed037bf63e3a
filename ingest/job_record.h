/// A job in the store: a header (the request and the result of each item) and packs of inputs.
///
/// Job records of the store, by name (README.md has the byte layout):
///   "input/<job id>/<pack, 5 digits>"  the inputs of some items; deleted when the job ends
///   "job/<job id>"                     the header
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachestore/format/key.h"
#include "ingest/document/document_types.h"
#include "ingest/document/job.h"

namespace quire {

/// ItemRecord is one item of a job: what callers see of it, and what the work needs.
struct ItemRecord {
  JobItem view;
  std::string content_hash;
  std::uint64_t input_bytes = 0;
  std::uint32_t pack = 0;  ///< the input record that holds it
  bool given_id = false;   ///< the caller supplied the id
  std::uint64_t written_tokens = 0, deduplicated_tokens = 0;
};

/// JobSettings are BatchOptions without the salt itself.
struct JobSettings {
  IfExists if_exists = IfExists::kUpsert;
  ChunkingOptions chunking;
  std::optional<std::uint64_t> ttl_seconds;
  TtlAnchor ttl_anchor = TtlAnchor::kCreated;
  bool pinned = false;
  std::string tier;
  Digest salt_digest;
  std::optional<std::string> if_match;
  bool if_none_match_any = false;
  bool in_batch = true;
};

struct JobRecord {
  std::string id, ns;
  JobType type = JobType::kIngest;
  JobStatus status = JobStatus::kQueued;
  std::int64_t created_ms = 0, started_ms = 0, finished_ms = 0;
  bool cancelled = false;
  std::uint32_t num_packs = 0;
  JobSettings settings;
  std::vector<ItemRecord> items;
};

std::string encode_job(const JobRecord& job);
/// Decodes a header. Errors: kCorruption (cut short, unknown version, impossible values).
Result<JobRecord> decode_job(std::string_view bytes);

/// Inputs of some items, by index in the call.
using InputPack = std::vector<std::pair<std::int32_t, const DocumentInput*>>;
std::string encode_inputs(const InputPack& pack);
/// Decodes the input of item `index`. Errors: kNotFound (not in this pack), kCorruption.
Result<DocumentInput> decode_input(std::string_view bytes, std::int32_t index);

std::string job_record_name(std::string_view job_id);
std::string input_record_name(std::string_view job_id, std::uint32_t pack);
inline constexpr std::string_view kJobPrefix = "job/";
inline constexpr std::string_view kInputPrefix = "input/";

/// Returns an item's path in the caller's body: "documents[3]", or "" for a single document.
std::string item_path(const JobSettings& settings, std::int32_t index);

}  // namespace quire
