#include "engine/recompute/row_pass.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/index.h"
#include "engine/model/hook_chain.h"
#include "engine/recompute/fused_rows.h"
#include "engine/recompute/row_chunk.h"
#include "engine/recompute/stored_row.h"
#include "kernels/parallel.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/raw_rows.h"

namespace quire {
namespace {

class RowPass final : public RecomputePass, private ForwardHook {
 public:
  RowPass(const RecomputeInput& input, RowSet rows, WriteBack write_back, RowFinder finder)
      : input_(input.without_request()),
        rows_(std::move(rows)),
        write_back_(write_back),
        finder_(std::move(finder)),
        num_replaced_(write_back == WriteBack::kFusion ? count_replaced(rows_, input.num_layers)
                                                       : 0),
        fused_(*input.rope, input.num_kv_heads, input.head_dim) {
    report_.tokens = rows_.tokens();
  }

  bool done() const override { return done_; }

  bool ready() const override {
    return chunk_.running() ? chunk_.ready(gate_) : gate_ == nullptr || gate_->placed(0);
  }
  bool brings_layers() const override { return true; }

  Status step(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
              std::int64_t max_rows) override {
    Status status = run_chunk(model, cache, workspace, max_rows);
    if (status.ok() && (chunk_.running() || next_ < rows_.size())) return {};
    for (std::int32_t layer = 0; layer < input_.num_layers; ++layer)
      cache.truncate(layer, finder_.num_rows(layer));
    if (status.ok()) status = fused_.write(cache, model.compute());
    fused_.clear();
    done_ = true;
    return status;
  }

 private:
  Status run_chunk(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
                   std::int64_t max_rows) {
    if (!chunk_.running()) {
      hooks_.emplace(static_cast<ForwardHook*>(this), observer_);
      chunk_.begin(rows_, next_, max_rows, model, cache, *hooks_, workspace);
    }
    QUIRE_RETURN_IF_ERROR(chunk_.advance(gate_));
    if (chunk_.running()) return {};
    next_ += chunk_.num_rows();
    return std::exchange(checked_, Status());
  }

  /// Compares layer 0 with the stored KV; above it the pass relies on positions.
  bool needs_host(std::int32_t layer, HookPoint point, Compute& compute) const override {
    return layer == 0 && point == HookPoint::kProjection && compute.on_host();
  }

  Status after_projection(LayerPass& pass) override {
    if (pass.layer == 0)
      QUIRE_RETURN_IF_ERROR(pass.compute->on_host() ? check_stored(next_, pass.host_qkv)
                                                    : check_at_the_end(pass));
    report_.projected += count_of(pass.rows);
    padding_.clear();
    written_.clear();
    for (std::size_t i = 0; i < pass.rows.size(); ++i) {
      const std::size_t r = next_ + at(pass.rows[i]);
      const std::int64_t held = finder_.find(*pass.cache, pass.layer, pass.positions[i]);
      const bool replaced = rows_.replaced(r, pass.layer);
      if (replaced && held < 0) {
        return Status::internal("position " + std::to_string(pass.positions[i]) +
                                " has no row to recompute in layer " + std::to_string(pass.layer));
      }
      (*pass.cache_rows)[i] = held;
      (*pass.write)[i] = replaced;
      (*pass.carry_on)[i] = rows_[r].top > pass.layer;
      if (replaced) written_.push_back(static_cast<std::int32_t>(i));
      if (held < 0) padding_.push_back(r);
    }
    report_.replaced += count_of(written_);
    QUIRE_RETURN_IF_ERROR(add_padding(pass));
    return write_back_ == WriteBack::kFusion ? keep_fresh(pass) : Status();
  }

  Status check_stored(std::size_t first, const QkvRows& qkv) {
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t wrong, find_wrong_row(input_, rows_, first, qkv));
    if (wrong < 0) return {};
    report_.wrong_context = rows_[first + at(wrong)].context;
    return wrong_context_status(report_.wrong_context);
  }

  /// Has the rows compared once the chunk has run, so that a device does not wait for the host.
  Status check_at_the_end(const LayerPass& pass) {
    const std::int64_t dim = std::int64_t{input_.num_kv_heads} * input_.head_dim,
                       rows = pass.qkv.rows, each = rows * dim,
                       bytes = 2 * each * static_cast<std::int64_t>(sizeof(float));
    FetchOps& fetch = pass.compute->fetch();
    LinearOps& linear = pass.compute->linear();
    QUIRE_ASSIGN_OR_RETURN(std::byte* const there, fetch.place(bytes));
    auto* const k = reinterpret_cast<float*>(there);
    QUIRE_RETURN_IF_ERROR(linear.copy_rows(pass.qkv.k, rows, dim, pass.qkv.ld, k));
    QUIRE_RETURN_IF_ERROR(linear.copy_rows(pass.qkv.v, rows, dim, pass.qkv.ld, k + each));
    return fetch.fetch(bytes, [this, first = next_, rows, dim, each](const std::byte* data) {
      const auto* keys = reinterpret_cast<const float*>(data);
      checked_ = check_stored(first, {nullptr, keys, keys + each, rows, dim});
    });
  }

  /// Appends stored KV of active rows that this layer does not keep, one range of neighbouring rows
  /// at a time.
  Status add_padding(LayerPass& pass) {
    if (padding_.empty()) return {};
    padding_positions_.clear();
    for (const std::size_t r : padding_) padding_positions_.push_back(rows_[r].position);
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t first_row,
                           pass.cache->add_rows(pass.layer, padding_positions_));
    padding_rows_.resize(padding_.size());
    std::iota(padding_rows_.begin(), padding_rows_.end(), static_cast<std::int32_t>(first_row));
    std::vector<StoredRows> pieces;
    for (std::size_t i = 0; i < padding_.size();) {
      const RecomputeRow& first = rows_[padding_[i]];
      std::size_t n = 1;
      while (i + n < padding_.size()) {
        const RecomputeRow& row = rows_[padding_[i + n]];
        if (row.context != first.context || row.block != first.block ||
            row.block_row != first.block_row + static_cast<std::int32_t>(n))
          break;
        ++n;
      }
      QUIRE_ASSIGN_OR_RETURN(const RawKvView block, stored(first, pass.layer));
      pieces.push_back({raw_rows(block, first.block_row, static_cast<std::int64_t>(n)),
                        std::span<const std::int32_t>(padding_positions_).subspan(i, n),
                        std::span<const std::int32_t>(padding_rows_).subspan(i, n)});
      i += n;
    }
    QUIRE_ASSIGN_OR_RETURN(const MutableKvView pages,
                           pass.cache->writable(pass.layer, padding_rows_));
    return pass.compute->kv().place(*input_.rope, pages, pieces);
  }

  /// Holds this layer's written rows, blended, until the end of the pass.
  Status keep_fresh(const LayerPass& pass) {
    std::vector<FusedRows::Row> rows;
    for (const std::int32_t i : written_) {
      const RecomputeRow& row = rows_[next_ + at(pass.rows[at(i)])];
      QUIRE_ASSIGN_OR_RETURN(const RawKvView block, stored(row, pass.layer));
      rows.push_back({block, row.block_row, i, static_cast<std::int32_t>((*pass.cache_rows)[at(i)]),
                      row.position});
    }
    return fused_.add(pass, num_replaced_, rows);
  }

  static std::int64_t count_replaced(const RowSet& rows, std::int32_t num_layers) {
    std::int64_t count = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::int32_t layer = 0; layer < num_layers; ++layer)
        count += rows.replaced(r, layer) ? 1 : 0;
    }
    return count;
  }

  Result<RawKvView> stored(const RecomputeRow& row, std::int32_t layer) const {
    return stored_block(*input_.stored, row, layer);
  }

  RecomputeInput input_;
  const RowSet rows_;
  const WriteBack write_back_;
  RowFinder finder_;
  const std::int64_t num_replaced_;  ///< (row, layer) pairs, with fusion
  std::size_t next_ = 0;             ///< first row of the current chunk
  bool done_ = false;
  FusedRows fused_;
  std::optional<HookChain> hooks_;
  Status checked_;  ///< of check_at_the_end(); written when chunk_ is destroyed, too
  RowChunk chunk_;
  std::vector<std::int32_t> written_, padding_positions_, padding_rows_;
  std::vector<std::size_t> padding_;  ///< rows that this layer does not keep
};

}  // namespace

Result<RowFinder> RowFinder::make(const WorkingCache& cache) {
  RowFinder finder;
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    if (!cache.view(layer).sorted)
      return Status::internal("rows of layer " + std::to_string(layer) +
                              " do not ascend, so none can be recomputed");
    finder.end_.push_back(cache.num_rows(layer));
  }
  finder.next_.resize(finder.end_.size());
  return finder;
}

std::int64_t RowFinder::find(const WorkingCache& cache, std::int32_t layer, std::int32_t position) {
  const auto held = cache.positions(layer).first(at(end_[at(layer)]));
  const auto found = std::lower_bound(held.begin() + next_[at(layer)], held.end(), position);
  next_[at(layer)] = found - held.begin();
  return found != held.end() && *found == position ? found - held.begin() : -1;
}

Result<std::unique_ptr<RecomputePass>> make_row_pass(const RecomputeInput& input, RowSet rows,
                                                     WriteBack write_back) {
  if (rows.empty()) return std::unique_ptr<RecomputePass>();
  QUIRE_ASSIGN_OR_RETURN(RowFinder finder, RowFinder::make(*input.cache));
  return std::unique_ptr<RecomputePass>(
      std::make_unique<RowPass>(input, std::move(rows), write_back, std::move(finder)));
}

Result<RawKvView> stored_block(const StoredKv& stored, const RecomputeRow& row,
                               std::int32_t layer) {
  Result<RawKvView> block = stored.block(row.context, row.block, layer);
  if (block.ok()) return block;
  return Status::internal("block " + std::to_string(row.block) + " of context " +
                          std::to_string(row.context) + " is needed in layer " +
                          std::to_string(layer) + ": " + block.status().message());
}

Result<std::int64_t> find_wrong_row(const RecomputeInput& input, const RowSet& rows,
                                    std::size_t first, const QkvRows& qkv) {
  constexpr std::int64_t kRowsEach = 16;  // of one core
  const std::int64_t kv_dim = std::int64_t{input.num_kv_heads} * input.head_dim;
  std::vector<RawKvView> blocks;
  blocks.reserve(at(qkv.rows));
  for (std::int64_t i = 0; i < qkv.rows; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const RawKvView block,
                           stored_block(*input.stored, rows[first + at(i)], 0));
    blocks.push_back(block);
  }
  std::atomic<std::int64_t> wrong{qkv.rows};
  parallel_for(qkv.rows, kRowsEach, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> old(at(2 * kv_dim));
    for (std::int64_t i = begin; i < end && i < wrong.load(std::memory_order_relaxed); ++i) {
      load_raw_row(blocks[at(i)], rows[first + at(i)].block_row, input.num_kv_heads, input.head_dim,
                   old.data(), old.data() + kv_dim);
      if (same_layer0(qkv.k + i * qkv.ld, qkv.v + i * qkv.ld, old.data(), old.data() + kv_dim,
                      kv_dim))
        continue;
      for (std::int64_t least = wrong.load();
           i < least && !wrong.compare_exchange_weak(least, i);) {
      }
    }
  });
  return wrong == qkv.rows ? -1 : wrong.load();
}

Status wrong_context_status(std::int32_t context) {
  return Status::corruption("stored KV of context " + std::to_string(context) +
                            " is not that of its tokens: layer 0 differs");
}

}  // namespace quire
