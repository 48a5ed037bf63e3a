/// The documents of a service as one of its models reads them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ingest/document/document_types.h"

namespace quire {

/// Threads: every method may be called from any thread. Every method may wait on disk: it belongs
/// on a worker thread, never on an I/O thread.
class ModelDocuments {
 public:
  virtual ~ModelDocuments() = default;

  /// Does the work of IngestService::resolve() in the tokens of this model. Further error:
  /// kInvalidArgument with the field "model", if a chunk is too long for it.
  virtual Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                                   const ResolveOptions& options) = 0;
  /// Returns the blocks of a document as this model has it. Errors: kNotFound, those of resolve().
  virtual Result<std::vector<BlockInfo>> blocks(std::string_view ns, std::string_view id) = 0;
};

}  // namespace quire
