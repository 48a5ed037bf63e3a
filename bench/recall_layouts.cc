#include "bench/recall_layouts.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <span>
#include <vector>

#include "bench/machine_rates.h"
#include "engine/residency/device_pool.h"
#include "engine/residency/resident_pages.h"
#include "engine/residency/retrieval_pages.h"
#include "kernels/rows/kv_gather.h"

namespace quire::bench {
namespace {

constexpr std::int64_t kElementBytes = 2;

enum class Layout { kHeadPages, kTokenPages, kGranules };

struct Case {
  const char *decode, *without;
  Layout layout;
  bool rows;  ///< true: single rows; false: pages
};
constexpr Case kCases[] = {{"recall", "", Layout::kHeadPages, false},
                           {"recall", "host pages by head", Layout::kTokenPages, false},
                           {"recall of rows", "", Layout::kGranules, true},
                           {"recall of rows", "granules of a token", Layout::kHeadPages, true}};

/// One layer's rows on the host in one of the layouts.
class HostRows {
 public:
  HostRows(const RecallShape& shape, Layout layout)
      : positions_(static_cast<std::size_t>(shape.context)) {
    const std::int64_t row = shape.head_dim * kElementBytes,
                       page = 2 * kPageTokens * shape.num_kv_heads * row,
                       num_pages = (shape.context + kPageTokens - 1) / kPageTokens;
    memory_.assign(static_cast<std::size_t>(num_pages * page), std::byte{1});
    for (std::int64_t p = 0; p < num_pages; ++p) pages_.push_back(memory_.data() + p * page);
    std::iota(positions_.begin(), positions_.end(), 0);
    view_ = {.pages = pages_.data(),
             .positions = positions_.data(),
             .num_rows = shape.context,
             .num_kv_heads = shape.num_kv_heads,
             .head_dim = shape.head_dim,
             .dtype = DType::kBF16,
             .kv_stride = layout == Layout::kHeadPages  ? kPageTokens * row
                          : layout == Layout::kGranules ? row
                                                        : page / 2,
             .head_stride = layout == Layout::kTokenPages ? row : 2 * kPageTokens * row,
             .token_stride = layout == Layout::kHeadPages  ? row
                             : layout == Layout::kGranules ? 2 * row
                                                           : shape.num_kv_heads * row,
             .sorted = true};
  }
  const KvView& view() const { return view_; }
  std::span<const std::int32_t> positions() const { return positions_; }

 private:
  std::vector<std::byte> memory_;
  std::vector<const void*> pages_;
  std::vector<std::int32_t> positions_;
  KvView view_{};
};

/// Returns evenly spaced numbers from a random start: distinct, far apart, ascending.
std::vector<std::int32_t> spread(std::int64_t count, std::int64_t of, std::uint64_t& seed) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  std::vector<std::int32_t> out(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    out[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(
        (static_cast<std::int64_t>(seed >> 33) + i * of / count) % of);
  std::ranges::sort(out);
  return out;
}

struct Recall {
  double ms = 0;  ///< median over all layers
  std::int64_t bytes = 0, pieces = 0;
};

/// Measures recalls in which every head wants other pages or rows than before. Slots are allocated
/// before the clock starts.
Recall measure(const RecallShape& shape, const Case& one) {
  const HostRows host(shape, one.layout);
  DevicePool device(0);
  auto resident = std::move(*ResidentPages::create(device, shape.num_kv_heads, shape.head_dim,
                                                   DType::kBF16, shape.page_tokens, shape.pages));
  RetrievalPages pages(shape.page_tokens, {});
  pages.extend(host.positions());
  Recall out;
  std::vector<double> times;
  std::uint64_t seed = 1;
  for (std::int64_t n = 0; n < shape.repeats; ++n) {
    double ms = 0;
    out.bytes = out.pieces = 0;
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
      std::vector<KvMove> moves;
      for (std::int32_t m = 0; m < shape.num_kv_heads; ++m) {
        if (one.rows) {
          std::int32_t slot = 0;
          for (const std::int32_t row :
               spread(std::int64_t{shape.pages} * shape.page_tokens, shape.context, seed))
            moves.push_back({m, row, slot++, 1});
          continue;
        }
        std::vector<PageCopy> copies;
        resident.want(m, spread(shape.pages, pages.size(), seed), pages, host.positions(), copies);
        for (const PageCopy& copy : copies) moves.push_back(resident.move(copy, pages[copy.page]));
      }
      const double start = now_seconds();
      (void)kv_gather({host.view(), resident.slots(), moves.data(),
                       static_cast<std::int64_t>(moves.size()), one.rows ? 1 : shape.page_tokens});
      ms += (now_seconds() - start) * 1e3;
      for (const KvMove& move : moves) {
        out.bytes += std::int64_t{2} * move.rows * shape.head_dim * kElementBytes;
        out.pieces += one.layout == Layout::kTokenPages ? 2 * move.rows
                      : one.layout == Layout::kGranules ? 1
                      : one.rows                        ? 2
                                 : (move.rows + kPageTokens - 1) / kPageTokens;
      }
    }
    times.push_back(ms);
  }
  std::ranges::sort(times);
  out.ms = times[times.size() / 2];
  return out;
}

}  // namespace

std::string recall_layouts(const RecallShape& shape, const char* model) {
  std::string out;
  for (const Case& one : kCases) {
    const Recall recall = measure(shape, one);
    char text[400];
    std::snprintf(text, sizeof text,
                  "%s{\"model\": \"%s\", \"context\": %ld, \"batch\": 1, \"decode\": \"%s\", "
                  "\"resident\": \"none\", \"without\": \"%s\", \"step_ms_median\": %.3f, "
                  "\"copied_bytes_per_step\": %ld, \"pieces_per_step\": %ld}",
                  out.empty() ? "" : ",\n  ", model, static_cast<long>(shape.context), one.decode,
                  one.without, recall.ms, static_cast<long>(recall.bytes),
                  static_cast<long>(recall.pieces));
    out += text;
  }
  return out;
}

}  // namespace quire::bench
