#include "bench/recall_layouts.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include "bench/machine_rates.h"
#include "engine/retrieve/device_pool.h"
#include "engine/retrieve/resident_pages.h"
#include "engine/retrieve/retrieval_pages.h"
#include "kernels/kv.h"

namespace quire::bench {
namespace {

constexpr std::int64_t kElementBytes = 2;

/// One layer's rows on the host in one of the layouts.
class HostRows {
 public:
  HostRows(const RecallShape& shape, bool head_major) : positions_(static_cast<std::size_t>(shape.context)) {
    const std::int64_t row = shape.head_dim * kElementBytes, page = 2 * kPageTokens * shape.num_kv_heads * row, num_pages = (shape.context + kPageTokens - 1) / kPageTokens;
    memory_.assign(static_cast<std::size_t>(num_pages * page), std::byte{1});
    for (std::int64_t p = 0; p < num_pages; ++p) pages_.push_back(memory_.data() + p * page);
    std::iota(positions_.begin(), positions_.end(), 0);
    view_ = {.pages = pages_.data(), .positions = positions_.data(), .num_rows = shape.context, .num_kv_heads = shape.num_kv_heads, .head_dim = shape.head_dim, .dtype = DType::kBF16,
             .kv_stride = head_major ? kPageTokens * row : page / 2, .head_stride = head_major ? 2 * kPageTokens * row : row, .token_stride = head_major ? row : shape.num_kv_heads * row, .sorted = true};
  }
  const KvView& view() const { return view_; }
  std::span<const std::int32_t> positions() const { return positions_; }

 private:
  std::vector<std::byte> memory_;
  std::vector<const void*> pages_;
  std::vector<std::int32_t> positions_;
  KvView view_{};
};

/// Every head wants other pages than before; slots are given out before the clock starts. Milliseconds of all layers, median.
double measure(const RecallShape& shape, const HostRows& host, std::int64_t& bytes) {
  DevicePool device(0);
  auto resident = std::move(*ResidentPages::create(device, shape.num_kv_heads, shape.head_dim, DType::kBF16, shape.page_tokens, shape.pages));
  RetrievalPages pages(shape.page_tokens, {});
  pages.extend(host.positions());
  std::vector<double> times;
  std::uint64_t seed = 1;
  for (std::int64_t n = 0; n < shape.repeats; ++n) {
    double ms = 0;
    bytes = 0;
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
      std::vector<PageCopy> copies;
      for (std::int32_t m = 0; m < shape.num_kv_heads; ++m) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        std::vector<std::int32_t> wanted(static_cast<std::size_t>(shape.pages));
        // Evenly spread from a random page on: distinct, and nowhere near each other.
        for (std::int32_t i = 0; i < shape.pages; ++i) wanted[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(((seed >> 33) + static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(pages.size()) / static_cast<std::uint64_t>(shape.pages)) % static_cast<std::uint64_t>(pages.size()));
        std::ranges::sort(wanted);
        resident.want(m, wanted, pages, host.positions(), copies);
      }
      std::vector<KvMove> moves;
      for (const PageCopy& copy : copies) moves.push_back(resident.move(copy, pages[copy.page]));
      const double start = now_seconds();
      (void)kv_gather({host.view(), resident.slots(), moves.data(), static_cast<std::int64_t>(moves.size()), shape.page_tokens});
      ms += (now_seconds() - start) * 1e3;
      for (const PageCopy& copy : copies) bytes += resident.copy_bytes(pages[copy.page]);
    }
    times.push_back(ms);
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

}  // namespace

std::string recall_layouts(const RecallShape& shape, const char* model) {
  std::string out;
  for (const bool head_major : {true, false}) {
    std::int64_t bytes = 0;
    const double ms = measure(shape, HostRows(shape, head_major), bytes);
    const std::int64_t piece = head_major ? 2 * kPageTokens * shape.head_dim * kElementBytes : shape.head_dim * kElementBytes;
    char text[400];
    std::snprintf(text, sizeof text, "%s{\"model\": \"%s\", \"context\": %ld, \"batch\": 1, \"decode\": \"recall\", \"resident\": \"none\", \"without\": \"%s\", \"step_ms_median\": %.3f, \"copied_bytes_per_step\": %ld, \"pieces_per_step\": %ld}",
                  out.empty() ? "" : ",\n  ", model, static_cast<long>(shape.context), head_major ? "" : "host pages by head", ms, static_cast<long>(bytes), static_cast<long>(bytes / piece));
    out += text;
  }
  return out;
}

}  // namespace quire::bench
