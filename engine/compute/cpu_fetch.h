/// Fetching where the host computes. Internal to engine/compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/index.h"
#include "engine/compute/fetch_ops.h"

namespace quire {

/// Each thread has a buffer of its own, which stays for the next fetch.
class CpuFetch final : public FetchOps {
 public:
  Result<std::byte*> place(std::int64_t bytes) override {
    const auto lines = to_size((bytes + kAlignment - 1) / kAlignment);
    if (buffer().size() < lines) buffer().resize(lines);
    return buffer().front().bytes;
  }
  Status fetch(std::int64_t, Fetched then) override {
    then(buffer().front().bytes);
    return {};
  }
  Status deliver() override { return {}; }

 private:
  static constexpr std::int64_t kAlignment = 64;
  struct alignas(kAlignment) Line {
    std::byte bytes[kAlignment];
  };
  static std::vector<Line>& buffer() {
    thread_local std::vector<Line> lines(1);
    return lines;
  }
};

}  // namespace quire
