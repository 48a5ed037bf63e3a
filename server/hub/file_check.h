/// Computes the hash that a hub promises for a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/hub/model_reference.h"

namespace quire::hub {

/// FileHash computes SHA-256 for a large file, and for a small one git's SHA-1, which includes a
/// header. Bytes must come in order.
class FileHash {
 public:
  explicit FileHash(const HubFile& file);
  void add(std::string_view bytes);
  /// Returns the hash in hexadecimal. It may be called once.
  std::string finish();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

/// Returns the hash that FileHash must give: sha256 if the hub names one, else git's SHA-1.
const std::string& promised_hash(const HubFile& file);

}  // namespace quire::hub
