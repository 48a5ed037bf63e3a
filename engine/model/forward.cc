#include "engine/model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/index.h"
#include "engine/compute/compute.h"

namespace quire {
namespace {

/// The rows whose logits pass through device memory at once.
constexpr std::int64_t kLogitRows = 64;

Status check_request(const Model& model, const ForwardRequest& r) {
  const auto n = count_of(r.token_ids);
  if (!r.cache) return Status::invalid("cache", "a pass needs a cache");
  if (r.positions.size() != r.token_ids.size())
    return Status::invalid("positions", "one position per token is needed");
  if (!r.cache_rows.empty() && r.cache_rows.size() != r.token_ids.size())
    return Status::invalid("cache_rows", "one row per token is needed");
  if (r.cache->num_layers() != model.config().num_layers)
    return Status::invalid("cache", "the cache has another number of layers than the model");
  const std::int64_t window = model.rope().max_positions();
  for (std::int32_t p : r.positions) {
    if (p < 0 || p >= window) {
      return Status::invalid("positions", "position " + std::to_string(p) +
                                              " is outside the model's window of " +
                                              std::to_string(window));
    }
  }
  std::int64_t last = -1;
  for (std::int32_t row : r.logit_rows) {
    if (row <= last || row >= n)
      return Status::invalid("logit_rows", "must ascend and lie within the pass");
    last = row;
  }
  return {};
}

}  // namespace

/// Impl holds the state of a pass across layers.
class ForwardPass::Impl {
 public:
  Impl(Model& model, const ForwardRequest& request, ForwardWorkspace& w)
      : model_(model),
        compute_(model.compute()),
        memory_(compute_.memory()),
        request_(request),
        w_(w),
        c_(model.config()),
        q_dim_(std::int64_t{c_.num_heads} * c_.head_dim) {}
  /// Synchronizes, because enqueued work uses the cache and the workspace.
  ~Impl() {
    if (begun_ && !done_) (void)finish_enqueued();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool done() const { return done_; }
  std::int32_t layer() const { return next_layer_; }
  Status step() {
    Status status = step_unchecked();
    if (!done_ && status.ok()) return status;
    done_ = true;
    const Status settled = finish_enqueued();
    return status.ok() ? settled : status;
  }

 private:
  /// Waits for the enqueued work while the hooks live, and hands them what they fetched.
  Status finish_enqueued() {
    QUIRE_RETURN_IF_ERROR(compute_.fetch().deliver());
    return compute_.fetch().discarded() == discarded_
               ? Status()
               : Status::internal("what a pass had fetched was lost in another one's failure");
  }
  Status step_unchecked() {
    QUIRE_CHECK(!done_, "a pass goes on after its end");
    if (!std::exchange(begun_, true)) discarded_ = compute_.fetch().discarded();
    if (next_layer_ == 0) QUIRE_RETURN_IF_ERROR(begin());
    if (next_layer_ < c_.num_layers && !w_.rows.empty())
      QUIRE_RETURN_IF_ERROR(run_layer(next_layer_++));
    if (next_layer_ < c_.num_layers && !w_.rows.empty()) return {};
    done_ = true;
    return finish();
  }

  Status begin() {
    QUIRE_RETURN_IF_ERROR(check_request(model_, request_));
    const auto n = count_of(request_.token_ids);
    QUIRE_RETURN_IF_ERROR(w_.x.reserve(memory_, (n + room_beside()) * c_.hidden_size));
    QUIRE_RETURN_IF_ERROR(model_.embed(request_.token_ids, w_.x.data()));
    w_.rows.resize(to_size(n));
    std::iota(w_.rows.begin(), w_.rows.end(), 0);
    w_.positions.assign(request_.positions.begin(), request_.positions.end());
    return {};
  }

  Status run_layer(std::int32_t layer) {
    const auto m = count_of(w_.rows);
    if (request_.tap != nullptr &&
        std::ranges::find(request_.tap->layers(), layer) != request_.tap->layers().end()) {
      QUIRE_ASSIGN_OR_RETURN(const float* x,
                             on_host(w_.x.data(), m * c_.hidden_size, w_.host_rows));
      request_.tap->take(layer, w_.rows, x);
    }
    let_in(layer);
    QUIRE_ASSIGN_OR_RETURN(const QkvRows all, model_.project_qkv(layer, w_.x.data(), m + beside_));
    const QkvRows qkv = rows_of(all, 0, m), theirs = rows_of(all, m, beside_);
    QUIRE_RETURN_IF_ERROR(plan_rows(layer));
    w_.write.assign(w_.rows.size(), 1);
    w_.carry_on.assign(w_.rows.size(), 1);
    const bool last = layer + 1 == c_.num_layers;
    // Nothing reads the last layer's output of the other rows.
    if (last && !request_.hook) keep_wanted();

    LayerPass pass{.layer = layer,
                   .rows = w_.rows,
                   .positions = w_.positions,
                   .qkv = qkv,
                   .lse = nullptr,
                   .cache = request_.cache,
                   .write = &w_.write,
                   .carry_on = &w_.carry_on,
                   .cache_rows = &w_.cache_rows,
                   .compute = &compute_};
    if (request_.hook) {
      if (looks(layer, HookPoint::kProjection)) QUIRE_RETURN_IF_ERROR(bring_projections(pass));
      QUIRE_RETURN_IF_ERROR(request_.hook->after_projection(pass));
      QUIRE_RETURN_IF_ERROR(check_decisions());
    }
    QUIRE_ASSIGN_OR_RETURN(const RopeRotateArgs queries, take_queries(qkv));
    QUIRE_RETURN_IF_ERROR(write_kv(layer, qkv, queries));
    QUIRE_RETURN_IF_ERROR(attend(pass));
    if (request_.hook) {
      // The attending rows are fixed now; more of them may still be dropped.
      attended_.assign(w_.carry_on.begin(), w_.carry_on.end());
      const bool looked_at = looks(layer, HookPoint::kAttention);
      if (looked_at || request_.hook->wants_lse(layer)) {
        if (attending_.size() < w_.rows.size()) QUIRE_RETURN_IF_ERROR(spread_lse());
        pass.lse = w_.lse.data();
        if (looked_at) {
          QUIRE_ASSIGN_OR_RETURN(pass.host_lse,
                                 on_host(pass.lse, count_of(w_.rows) * c_.num_heads, w_.host_lse));
        }
      }
      QUIRE_RETURN_IF_ERROR(request_.hook->after_attention(pass));
      QUIRE_RETURN_IF_ERROR(check_decisions());
      if (last) keep_wanted();
      QUIRE_RETURN_IF_ERROR(drop_late());
    } else {
      compact_rows();
    }
    QUIRE_RETURN_IF_ERROR(attend_beside(theirs));
    QUIRE_RETURN_IF_ERROR(model_.finish_layer(layer, w_.x.data(), w_.attention.data(),
                                              attention_dtype_, count_of(w_.rows) + beside_));
    if (beside_ > 0) w_.beside->leave(w_.x.data() + count_of(w_.rows) * c_.hidden_size);
    return {};
  }

  std::int64_t room_beside() const { return w_.beside != nullptr ? w_.beside->most() : 0; }
  static QkvRows rows_of(const QkvRows& all, std::int64_t first, std::int64_t rows) {
    const std::int64_t skip = first * all.ld;
    return {all.q + skip, all.k + skip, all.v + skip, rows, all.ld};
  }
  /// Lets the rows that wait for this layer in, behind those of the pass.
  void let_in(std::int32_t layer) {
    beside_ = w_.beside != nullptr ? w_.beside->waiting(model_, layer) : 0;
    if (beside_ > 0 && !w_.beside->enter(w_.x.data() + count_of(w_.rows) * c_.hidden_size))
      beside_ = 0;
  }
  /// Has them attend behind everything of the pass that may fail, so that they can go on alone.
  Status attend_beside(const QkvRows& theirs) {
    if (beside_ == 0) return {};
    const std::int64_t before = count_of(w_.rows) * q_dim_;
    if (before == 0) QUIRE_RETURN_IF_ERROR(w_.attention.reserve(memory_, beside_ * q_dim_));
    if (!w_.beside->attend(theirs, result_at(w_.attention.data(), attention_dtype_, before),
                           attention_dtype_))
      beside_ = 0;
    return {};
  }

  bool looks(std::int32_t layer, HookPoint point) const {
    return request_.hook != nullptr && request_.hook->needs_host(layer, point, compute_);
  }
  /// Returns n values in host memory, a copy in `room` where a device computes.
  Result<const float*> on_host(const float* values, std::int64_t n, std::vector<float>& room) {
    if (memory_ == nullptr) return values;
    room.resize(to_size(n));
    QUIRE_RETURN_IF_ERROR(compute_.read(values, n, room.data()));
    return room.data();
  }
  Status bring_projections(LayerPass& pass) {
    const QkvRows& there = pass.qkv;
    if (memory_ == nullptr) {
      pass.host_qkv = {nullptr, there.k, there.v, there.rows, there.ld};
      return {};
    }
    // Queries, of which there are several for each key, stay on the device.
    const std::int64_t dim = std::int64_t{c_.num_kv_heads} * c_.head_dim, each = there.rows * dim;
    QUIRE_RETURN_IF_ERROR(w_.kept.reserve(memory_, std::max<std::int64_t>(1, 2 * each)));
    QUIRE_RETURN_IF_ERROR(
        compute_.linear().copy_rows(there.k, there.rows, dim, there.ld, w_.kept.data()));
    QUIRE_RETURN_IF_ERROR(
        compute_.linear().copy_rows(there.v, there.rows, dim, there.ld, w_.kept.data() + each));
    QUIRE_ASSIGN_OR_RETURN(const float* k, on_host(w_.kept.data(), 2 * each, w_.host_rows));
    pass.host_qkv = {nullptr, k, k + each, there.rows, dim};
    return {};
  }
  /// Lets the hook attend on the host: to copies on a device.
  Result<bool> attend_on_host(LayerPass& pass, const AttentionArgs& dense) {
    if (memory_ == nullptr) return request_.hook->attend(pass, dense);
    AttentionArgs host = dense;
    QUIRE_ASSIGN_OR_RETURN(host.q, on_host(dense.q, dense.rows * dense.ldq, w_.host_rows));
    w_.host_kv.clear();
    QUIRE_ASSIGN_OR_RETURN(host.kv, request_.cache->host_view(pass.layer, w_.host_kv));
    w_.host_out.resize(to_size(dense.rows * dense.ldo));
    w_.host_lse.resize(to_size(dense.rows * dense.num_heads));
    host.out = w_.host_out.data();
    host.lse = w_.host_lse.data();
    QUIRE_RETURN_IF_ERROR(compute_.synchronize());  // pages may lie in host memory
    QUIRE_ASSIGN_OR_RETURN(const bool attended, request_.hook->attend(pass, host));
    if (!attended) return false;
    const auto bytes = [](const auto& values) { return count_of(values) * std::int64_t{4}; };
    QUIRE_RETURN_IF_ERROR(memory_->write(dense.out, host.out, bytes(w_.host_out)));
    QUIRE_RETURN_IF_ERROR(memory_->write(dense.lse, host.lse, bytes(w_.host_lse)));
    return true;
  }

  /// Plans the destination of each active row in this layer: appended rows, or the caller's.
  Status plan_rows(std::int32_t layer) {
    w_.cache_rows.resize(w_.rows.size());
    if (request_.cache_rows.empty()) {
      QUIRE_ASSIGN_OR_RETURN(const std::int64_t first,
                             request_.cache->add_rows(layer, w_.positions));
      std::iota(w_.cache_rows.begin(), w_.cache_rows.end(), first);
      return {};
    }
    for (std::size_t i = 0; i < w_.rows.size(); ++i)
      w_.cache_rows[i] = request_.cache_rows[at(w_.rows[i])];
    return {};
  }

  void keep_wanted() {
    auto wanted = request_.logit_rows.begin();
    for (std::size_t i = 0; i < w_.rows.size(); ++i) {
      while (wanted != request_.logit_rows.end() && *wanted < w_.rows[i]) ++wanted;
      if (wanted == request_.logit_rows.end() || *wanted != w_.rows[i]) w_.carry_on[i] = 0;
    }
  }

  Status check_decisions() const {
    if (w_.write.size() != w_.rows.size() || w_.carry_on.size() != w_.rows.size() ||
        w_.cache_rows.size() != w_.rows.size()) {
      return Status::invalid("hook", "a hook changed the number of decisions of a layer");
    }
    return {};
  }

  /// Finds the rows that attend, and moves their inputs x to the front, contiguously. Returns the
  /// rotation of their queries to w_.q.
  Result<RopeRotateArgs> take_queries(const QkvRows& qkv) {
    const auto m = count_of(w_.rows);
    attending_.clear();
    for (std::int64_t i = 0; i < m; ++i) {
      if (w_.carry_on[at(i)]) attending_.push_back(static_cast<std::int32_t>(i));
    }
    const auto n = count_of(attending_);
    if (n < m) QUIRE_RETURN_IF_ERROR(keep(w_.x, c_.hidden_size, attending_, m));
    if (n == 0) return RopeRotateArgs{};
    QUIRE_RETURN_IF_ERROR(w_.q.reserve(memory_, m * q_dim_));
    query_positions_.resize(attending_.size());
    for (std::size_t i = 0; i < attending_.size(); ++i)
      query_positions_[i] = w_.positions[at(attending_[i])];
    const bool whole = n == m;
    if (!whole)
      QUIRE_RETURN_IF_ERROR(
          compute_.linear().take_rows(qkv.q, qkv.ld, attending_, q_dim_, w_.q.data()));
    return RopeRotateArgs{.x = whole ? qkv.q : w_.q.data(),
                          .out = w_.q.data(),
                          .positions = query_positions_.data(),
                          .rows = n,
                          .num_heads = c_.num_heads,
                          .ldx = whole ? qkv.ld : q_dim_,
                          .ldo = q_dim_};
  }

  /// Rotates the queries, rounds raw K and V to the KV dtype, then places them with K rotated.
  Status write_kv(std::int32_t layer, const QkvRows& qkv, const RopeRotateArgs& queries) {
    const std::span<const std::int32_t> held = request_.cache->positions(layer);
    write_rows_.clear();
    written_.clear();
    for (std::size_t i = 0; i < w_.rows.size(); ++i) {
      const std::int64_t row = w_.cache_rows[i];
      if (!w_.write[i] || row < 0) continue;
      if (row >= count_of(held) || held[at(row)] != w_.positions[i]) {
        return Status::invalid("cache_rows",
                               "row " + std::to_string(row) + " of layer " + std::to_string(layer) +
                                   " does not hold position " + std::to_string(w_.positions[i]));
      }
      written_.push_back(static_cast<std::int32_t>(i));
      write_rows_.push_back(static_cast<std::int32_t>(row));
    }
    if (written_.empty())
      return queries.rows == 0 ? Status() : compute_.attention().rotate(model_.rope(), queries);
    written_positions_.resize(written_.size());
    for (std::size_t i = 0; i < written_.size(); ++i)
      written_positions_[i] = w_.positions[at(written_[i])];
    QUIRE_ASSIGN_OR_RETURN(const MutableKvView pages, request_.cache->writable(layer, write_rows_));
    return compute_.kv().rotate_and_write(model_.rope(), queries,
                                          {.k = qkv.k,
                                           .v = qkv.v,
                                           .ld = qkv.ld,
                                           .from = written_,
                                           .positions = written_positions_,
                                           .dst_rows = write_rows_,
                                           .raw_dtype = model_.options().kv_dtype,
                                           .dst = pages});
  }

  /// Computes attention of the rows that attend.
  Status attend(LayerPass& pass) {
    const auto m = count_of(w_.rows), n = count_of(attending_);
    attention_dtype_ = DType::kF32;
    const bool wants_lse = looks(pass.layer, HookPoint::kAttend) ||
                           looks(pass.layer, HookPoint::kAttention) ||
                           (request_.hook != nullptr && request_.hook->wants_lse(pass.layer));
    if (wants_lse) QUIRE_RETURN_IF_ERROR(w_.lse.reserve(memory_, m * c_.num_heads));
    if (n == 0) return {};
    QUIRE_RETURN_IF_ERROR(w_.attention.reserve(memory_, (m + beside_) * q_dim_));
    const float scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
    const AttentionArgs dense{.q = w_.q.data(),
                              .query_positions = query_positions_.data(),
                              .rows = n,
                              .ldq = q_dim_,
                              .num_heads = c_.num_heads,
                              .scale = scale,
                              .kv = request_.cache->view(pass.layer),
                              .out = w_.attention.data(),
                              .ldo = q_dim_,
                              .lse = wants_lse ? w_.lse.data() : nullptr};
    if (request_.hook) {
      QUIRE_ASSIGN_OR_RETURN(const bool attended, looks(pass.layer, HookPoint::kAttend)
                                                      ? attend_on_host(pass, dense)
                                                      : request_.hook->attend(pass, dense));
      if (attended) return {};
    }
    attention_dtype_ = model_.attention_dtype(pass.layer, n + beside_);
    // Rows may yet be dropped, and the product of those left may read another dtype.
    const bool may_shrink = request_.hook != nullptr || beside_ > 0;
    if (may_shrink && model_.attention_dtype(pass.layer, 1) != attention_dtype_)
      attention_dtype_ = DType::kF32;
    if (beside_ > 0 && !w_.beside->attends_in(attention_dtype_)) attention_dtype_ = DType::kF32;
    return compute_.attention().attend(dense, attention_dtype_);
  }

  /// Keeps only these rows of `values`, contiguously at the front, and behind them the rows beside
  /// the pass, which begin at row `end`.
  Status keep(ComputeBuffer<float>& values, std::int64_t dim, std::span<const std::int32_t> rows,
              std::int64_t end) {
    kept_rows_.assign(rows.begin(), rows.end());
    for (std::int64_t i = 0; i < beside_; ++i)
      kept_rows_.push_back(static_cast<std::int32_t>(end + i));
    // There is room for rows that enter a later layer.
    const std::int64_t room = count_of(rows) + std::max(beside_, room_beside());
    QUIRE_RETURN_IF_ERROR(w_.kept.reserve(memory_, std::max<std::int64_t>(1, room) * dim));
    QUIRE_RETURN_IF_ERROR(
        compute_.linear().take_rows(values.data(), dim, kept_rows_, dim, w_.kept.data()));
    values.swap(w_.kept);
    return {};
  }

  /// Moves each attending row's lse to its own row: all others take a row of NaNs appended to those
  /// that attended.
  Status spread_lse() {
    const auto m = count_of(w_.rows);
    const std::int64_t heads = c_.num_heads;
    const auto n = static_cast<std::int32_t>(attending_.size());
    if (w_.no_lse.data() == nullptr) {
      QUIRE_RETURN_IF_ERROR(w_.no_lse.reserve(memory_, heads));
      const std::vector<float> none(to_size(heads), std::numeric_limits<float>::quiet_NaN());
      QUIRE_RETURN_IF_ERROR(write_memory(memory_.get(), w_.no_lse.data(), none.data(), heads * 4));
    }
    std::vector<std::int32_t> from(to_size(m), n);
    for (std::int32_t i = 0; i < n; ++i) from[at(attending_[at(i)])] = i;
    const std::int32_t first = 0;
    QUIRE_RETURN_IF_ERROR(compute_.linear().take_rows(w_.no_lse.data(), heads, std::span(&first, 1),
                                                      heads, w_.lse.data() + n * heads));
    QUIRE_RETURN_IF_ERROR(w_.spread_lse.reserve(memory_, m * heads));
    QUIRE_RETURN_IF_ERROR(
        compute_.linear().take_rows(w_.lse.data(), heads, from, heads, w_.spread_lse.data()));
    w_.lse.swap(w_.spread_lse);
    return {};
  }

  /// Removes rows that a hook dropped after they attended from x and attention.
  Status drop_late() {
    std::vector<std::int32_t> kept;
    std::int32_t attended = 0;
    for (std::size_t i = 0; i < w_.rows.size(); ++i) {
      if (!attended_[i]) {
        if (w_.carry_on[i])
          return Status::invalid("hook",
                                 "a hook carried on a row that it had dropped before attention");
        continue;
      }
      if (w_.carry_on[i]) kept.push_back(attended);
      ++attended;
    }
    if (static_cast<std::int32_t>(kept.size()) < attended) {
      QUIRE_RETURN_IF_ERROR(keep(w_.x, c_.hidden_size, kept, attended));
      // Rows are copied as words of four bytes, whatever their dtype.
      QUIRE_RETURN_IF_ERROR(
          keep(w_.attention, q_dim_ * static_cast<std::int64_t>(dtype_bytes(attention_dtype_)) / 4,
               kept, attended));
    }
    compact_rows();
    return {};
  }

  void compact_rows() {
    std::size_t to = 0;
    for (std::size_t i = 0; i < w_.rows.size(); ++i) {
      if (!w_.carry_on[i]) continue;
      w_.rows[to] = w_.rows[i];
      w_.positions[to] = w_.positions[i];
      ++to;
    }
    w_.rows.resize(to);
    w_.positions.resize(to);
  }

  /// Finishes the pass, whose remaining rows are the wanted ones.
  Status finish() {
    if (!std::equal(w_.rows.begin(), w_.rows.end(), request_.logit_rows.begin(),
                    request_.logit_rows.end())) {
      return Status::invalid("logit_rows", "a hook dropped a row whose logits are wanted");
    }
    const auto n = count_of(w_.rows);
    if (n == 0) return {};
    if (request_.hidden)
      QUIRE_RETURN_IF_ERROR(compute_.read(w_.x.data(), n * c_.hidden_size, request_.hidden));
    return request_.logits ? write_logits(n) : Status();
  }

  Status write_logits(std::int64_t n) {
    if (memory_ == nullptr) return model_.logits(w_.x.data(), n, request_.logits);
    for (std::int64_t begin = 0; begin < n; begin += kLogitRows) {
      const std::int64_t rows = std::min(kLogitRows, n - begin);
      QUIRE_RETURN_IF_ERROR(w_.logits.reserve(memory_, std::min(n, kLogitRows) * c_.vocab_size));
      QUIRE_RETURN_IF_ERROR(
          model_.logits(w_.x.data() + begin * c_.hidden_size, rows, w_.logits.data()));
      QUIRE_RETURN_IF_ERROR(compute_.read(w_.logits.data(), rows * c_.vocab_size,
                                          request_.logits + begin * c_.vocab_size));
    }
    return {};
  }

  Model& model_;
  Compute& compute_;
  const std::shared_ptr<ComputeMemory> memory_;
  const ForwardRequest request_;
  ForwardWorkspace& w_;
  const ModelConfig& c_;
  const std::int64_t q_dim_;
  std::int32_t next_layer_ = 0;
  std::int64_t beside_ = 0;  ///< rows beside the pass in the current layer, behind its own
  bool begun_ = false, done_ = false;
  std::uint64_t discarded_ = 0;          ///< FetchOps::discarded() when the pass began
  DType attention_dtype_ = DType::kF32;  ///< of w_.attention, in the current layer
  std::vector<std::int32_t> written_, write_rows_, written_positions_, attending_, query_positions_,
      kept_rows_;
  std::vector<std::uint8_t> attended_;
};

ForwardPass::ForwardPass(Model& model, const ForwardRequest& request, ForwardWorkspace& workspace)
    : impl_(std::make_unique<Impl>(model, request, workspace)) {}
ForwardPass::~ForwardPass() = default;

Status ForwardPass::step() { return impl_->step(); }
bool ForwardPass::done() const { return impl_->done(); }
std::int32_t ForwardPass::layer() const { return impl_->layer(); }

Status forward(Model& model, const ForwardRequest& request, ForwardWorkspace& workspace) {
  ForwardPass pass(model, request, workspace);
  while (!pass.done()) QUIRE_RETURN_IF_ERROR(pass.step());
  return {};
}

}  // namespace quire
