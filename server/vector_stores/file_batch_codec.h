/// Reads and writes batches of files on their way into a vector store: the bodies of calls and the
/// record of a batch.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "server/json/vector_store_codec.h"

namespace quire {

/// What has become of a file of a batch.
enum class BatchFileState : std::uint8_t { kInProgress, kCompleted, kFailed, kCancelled };
/// Returns "in_progress", "completed", ... as OpenAI spells them.
std::string_view batch_file_state_name(BatchFileState state);
std::optional<BatchFileState> parse_batch_file_state(std::string_view name);

/// One file of a batch. Its attributes and its way of cutting come before those of the batch.
struct BatchFile {
  std::string id = {};
  boost::json::object attributes = {};
  std::optional<StaticChunking> chunking = {};
  BatchFileState state = BatchFileState::kInProgress;
  std::string error_code = {}, error_message = {};  ///< of a file that failed
};

/// A batch of files that are attached to one vector store behind the call that asked for it.
struct FileBatch {
  std::string id, store_id;
  std::int64_t created_ms = 0;
  bool cancelled = false;
  boost::json::object attributes;  ///< of every file
  std::optional<StaticChunking> chunking;
  std::vector<BatchFile> files;

  std::size_t count(BatchFileState state) const;
  bool ended() const { return count(BatchFileState::kInProgress) == 0; }
};

inline constexpr std::size_t kMostBatchFiles = 2000;

/// Reads the body of a new batch: `file_ids` for all with the same attributes, or `files`.
std::optional<JsonError> read_file_batch(const boost::json::value& body, FileBatch& out);

/// Returns the record of a batch (docs/formats.md).
std::string file_batch_text(const FileBatch& batch);
/// Reads the record. Errors: kCorruption.
Result<FileBatch> read_file_batch_record(std::string_view text);

/// Names a batch in the record of those that have not ended.
struct UnfinishedBatch {
  std::string ns, id;
  friend bool operator==(const UnfinishedBatch&, const UnfinishedBatch&) = default;
};
/// Returns the record of unfinished batches: {"version":1,"batches":[{"namespace","id"}]}.
std::string unfinished_batches_text(const std::vector<UnfinishedBatch>& batches);
/// Reads the record. Errors: kCorruption.
Result<std::vector<UnfinishedBatch>> read_unfinished_batches(std::string_view text);

}  // namespace quire
