/// Turns texts into vectors, for search by meaning.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"

namespace quire {

enum class EmbedRole : std::uint8_t { kQuestion, kText };

/// Bounds one call.
struct EmbedLimits {
  std::stop_token stop;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

/// Threads: any, several calls at a time.
class Embedder {
 public:
  virtual ~Embedder() = default;

  /// Returns a digest of everything that vectors depend on beside the text. Vectors of another
  /// fingerprint are never compared with these.
  virtual Digest fingerprint() const = 0;
  /// Returns one vector of length 1 for each text, all with as many values. An empty vector: the
  /// text has none, and asking again gives none either. Errors: kUnavailable (stopped, or not to be
  /// reached), kDeadlineExceeded, kResourceExhausted (busy: try again later), and others for good.
  virtual Result<std::vector<std::vector<float>>> embed(std::span<const std::string> texts,
                                                        EmbedRole role,
                                                        const EmbedLimits& limits) = 0;
};

}  // namespace quire
