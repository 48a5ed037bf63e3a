/// What a hub is asked: which files a repository holds, and their bytes.
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

  /// Every file of the repository. Errors: as get_model().
  Result<std::vector<HubFile>> files(const ModelReference& reference) const;

  /// The file's bytes from `from` on. `on_start` is told where the bytes begin: `from`, or 0 where
  /// the hub sends all of them again. `etag` is what an earlier call left there (empty: none) and
  /// is set to this one's. Errors: as transfer() and get_model().
  Status fetch(const ModelReference& reference, const HubFile& file, std::uint64_t from,
               std::string& etag, const std::function<Status(std::uint64_t)>& on_start,
               const std::function<Status(std::string_view)>& on_body) const;

 private:
  Status refusal(const TransferReply& reply, const ModelReference& reference,
                 const std::string& file) const;

  const HubOptions& options_;
};

}  // namespace quire::hub
