/// Queries a hub for the files of a repository and for their bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/hub/model_cache.h"
#include "server/hub/transfer.h"

namespace quire::hub {

class HubClient {
 public:
  explicit HubClient(const HubOptions& options) : options_(options) {}

  /// Returns every file of the repository. Errors: those of get_model().
  Result<std::vector<HubFile>> files(const ModelReference& reference) const;

  /// Fetches the file's bytes from `from` on. `on_start` gets the offset where the bytes begin:
  /// `from`, or 0 if the hub sends the whole file again. `etag` holds the value of an earlier call
  /// (empty: none) and receives this call's. Errors: those of transfer() and get_model().
  Status fetch(const ModelReference& reference, const HubFile& file, std::uint64_t from,
               std::string& etag, const std::function<Status(std::uint64_t)>& on_start,
               const std::function<Status(std::string_view)>& on_body) const;

 private:
  Status refusal(const TransferReply& reply, const ModelReference& reference,
                 const std::string& file) const;

  const HubOptions& options_;
};

}  // namespace quire::hub
