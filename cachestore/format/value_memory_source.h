/// This file declares where a DRAM tier may keep values other than in ordinary memory, such as in
/// memory that a device reads by itself.
#pragma once

#include <cstddef>

namespace quire {

/// Gives memory for the values of a DRAM tier, as long as it has some. A value keeps its source
/// alive. Threads: any.
class ValueMemorySource {
 public:
  virtual ~ValueMemorySource() = default;
  /// Returns at least `bytes` > 0, aligned to 64, with undefined contents; null: there is none, and
  /// the value stays in ordinary memory. It may take long, so no lock is held that readers need.
  virtual std::byte* take(std::size_t bytes) noexcept = 0;
  /// Takes back what take() returned; nobody on the host reads it any more. It must be quick.
  virtual void give(std::byte* memory) noexcept = 0;
};

}  // namespace quire
