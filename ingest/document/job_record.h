/// A job in the store: a header (the request and the result of each item) and packs of inputs.
///
/// Job records of the store, by name (README.md has the byte layout):
///   "input/<job id>/<pack, 5 digits>"  the inputs of some items; deleted when the job ends
///   "job/<job id>"                     the header
/// Texts of inputs are texts of the store that wait for their document (Store::put_job_and_texts).
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
  KvPolicy kv = KvPolicy::kEager;
  /// chunking.lead_in, which a job always has, is the service's default and not the caller's wish.
  bool lead_in_by_default = false;
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
using InputPack = std::vector<std::pair<std::int32_t, DocumentInput*>>;
/// Encodes everything but the texts.
std::string encode_inputs(const InputPack& pack);

/// SavedPack is what is stored of some inputs: their record, and their texts by index in the call.
struct SavedPack {
  std::string inputs;
  std::vector<std::pair<std::int32_t, std::string>> texts;
};

/// SavedInput is the input of one item. Its text is kept apart, except in records of earlier
/// versions.
struct SavedInput {
  DocumentInput input;      ///< without text and chunks if `text_apart`
  bool text_apart = false;  ///< attach_text() completes it
  std::uint64_t text_bytes = 0;
  std::optional<std::vector<std::uint32_t>> chunk_bytes;  ///< lengths of chunks that were given
};
/// Decodes the input of item `index`. Errors: kNotFound (not in this pack), kCorruption.
Result<SavedInput> decode_input(std::string_view bytes, std::int32_t index);
/// Returns the input with its text, which is that of the document. Errors: kCorruption (another
/// length).
Result<DocumentInput> attach_text(SavedInput saved, std::string text);

std::string job_record_name(std::string_view job_id);
std::string input_record_name(std::string_view job_id, std::uint32_t pack);
/// Returns the name under which the text of an item waits.
std::string input_text_name(std::string_view job_id, std::int32_t index);
inline constexpr std::string_view kJobPrefix = "job/";
inline constexpr std::string_view kInputPrefix = "input/";

/// Returns an item's path in the caller's body: "documents[3]", or "" for a single document.
std::string item_path(const JobSettings& settings, std::int32_t index);

}  // namespace quire
