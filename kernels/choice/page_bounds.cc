#include "kernels/choice/page_bounds.h"

#include <string>

#include "kernels/choice/cpu/page_bounds_pages.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv_checks.h"

namespace quire {

Status page_bounds(const PageBoundsArgs& args) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(args.kv.num_kv_heads, args.kv.head_dim));
  if (!internal::is_kv_dtype(args.kv.dtype))
    return Status::invalid("kv.dtype", "KV is f32, f16, bf16 or f8");
  if (args.num_pages < 0) return Status::invalid("num_pages", "must not be negative");
  if (args.num_pages > 0 && (args.pages == nullptr || args.bounds == nullptr))
    return Status::invalid("pages", "pages and bounds must not be null");
  for (std::int64_t j = 0; j < args.num_pages; ++j) {
    const RowRange& page = args.pages[j];
    if (page.begin >= 0 && page.begin < page.end && page.end <= args.kv.num_rows) continue;
    return Status::invalid("pages", "page " + std::to_string(j) +
                                        " must have rows, and within the cache's " +
                                        std::to_string(args.kv.num_rows));
  }
  const std::int64_t per_page = std::int64_t{args.kv.num_kv_heads} * args.kv.head_dim * 16;
  parallel_for(args.num_pages, 1 + 65536 / per_page, [&](std::int64_t begin, std::int64_t end) {
    cpu::page_bounds_pages(args, begin, end);
  });
  return {};
}

Status page_scores(const PageScoresArgs& args) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(args.num_kv_heads, args.head_dim));
  if (args.num_heads <= 0 || args.num_heads % args.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (args.num_pages < 0 || args.ld_scores < args.num_pages)
    return Status::invalid("num_pages", "must not be negative, nor more than ld_scores");
  if (!(args.scale >= 0))
    return Status::invalid("scale", "must not be negative: bounds would change sides");
  if (args.num_pages == 0) return {};
  if (args.q == nullptr || args.bounds == nullptr || args.scores == nullptr)
    return Status::invalid("q", "page scores need non-null q, bounds and scores");
  const std::int64_t per_page = std::int64_t{args.num_heads} * args.head_dim;
  parallel_for(args.num_pages, 1 + 65536 / per_page, [&](std::int64_t begin, std::int64_t end) {
    cpu::page_scores_pages(args, begin, end);
  });
  return {};
}

}  // namespace quire
