/// The hash a hub promises for a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/hub/model_reference.h"

namespace quire::hub {

/// SHA-256 of a large file; of a small one git's SHA-1, which counts a header in. Bytes come in
/// order.
class FileHash {
 public:
  explicit FileHash(const HubFile& file);
  void add(std::string_view bytes);
  /// Hexadecimal. Once.
  std::string finish();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

/// What FileHash must give: sha256 where the hub names one.
const std::string& promised_hash(const HubFile& file);

}  // namespace quire::hub
