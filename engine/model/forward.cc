#include "engine/model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "kernels/attention.h"
#include "kernels/kv.h"

namespace quire {
namespace {

template <class T>
void grow(std::vector<T>& v, std::int64_t n) {
  if (v.size() < static_cast<std::size_t>(n)) v.resize(static_cast<std::size_t>(n));
}

Status check_request(const Model& model, const ForwardRequest& r) {
  const auto n = static_cast<std::int64_t>(r.token_ids.size());
  if (!r.cache) return Status::invalid("cache", "a pass needs a cache");
  if (r.positions.size() != r.token_ids.size()) return Status::invalid("positions", "one position per token is needed");
  if (!r.cache_rows.empty() && r.cache_rows.size() != r.token_ids.size()) return Status::invalid("cache_rows", "one row per token is needed");
  if (r.cache->num_layers() != model.config().num_layers) return Status::invalid("cache", "the cache has another number of layers than the model");
  const std::int64_t window = model.rope().max_positions();
  for (std::int32_t p : r.positions) {
    if (p < 0 || p >= window) {
      return Status::invalid("positions", "position " + std::to_string(p) + " is outside the model's window of " + std::to_string(window));
    }
  }
  std::int64_t last = -1;
  for (std::int32_t row : r.logit_rows) {
    if (row <= last || row >= n) return Status::invalid("logit_rows", "must ascend and lie within the pass");
    last = row;
  }
  return {};
}

}  // namespace

/// What lives for all layers of a pass.
class ForwardPass::Impl {
 public:
  Impl(Model& model, const ForwardRequest& request, ForwardWorkspace& w)
      : model_(model), request_(request), w_(w), c_(model.config()), q_dim_(std::int64_t{c_.num_heads} * c_.head_dim),
        kv_dim_(std::int64_t{c_.num_kv_heads} * c_.head_dim) {}

  bool done() const { return done_; }
  Status step() {
    const Status status = step_unchecked();
    done_ = done_ || !status.ok();
    return status;
  }

 private:
  Status step_unchecked() {
    QUIRE_CHECK(!done_, "a pass goes on after its end");
    if (next_layer_ == 0) QUIRE_RETURN_IF_ERROR(begin());
    if (next_layer_ < c_.num_layers && !w_.rows.empty()) QUIRE_RETURN_IF_ERROR(run_layer(next_layer_++));
    if (next_layer_ < c_.num_layers && !w_.rows.empty()) return {};
    done_ = true;
    return finish();
  }

  Status begin() {
    QUIRE_RETURN_IF_ERROR(check_request(model_, request_));
    const auto n = static_cast<std::int64_t>(request_.token_ids.size());
    grow(w_.x, n * c_.hidden_size);
    QUIRE_RETURN_IF_ERROR(model_.embed(request_.token_ids, w_.x.data()));
    w_.rows.resize(static_cast<std::size_t>(n));
    std::iota(w_.rows.begin(), w_.rows.end(), 0);
    w_.positions.assign(request_.positions.begin(), request_.positions.end());
    return {};
  }

  Status run_layer(std::int32_t layer) {
    const auto m = static_cast<std::int64_t>(w_.rows.size());
    if (request_.tap != nullptr && std::ranges::find(request_.tap->layers(), layer) != request_.tap->layers().end()) request_.tap->take(layer, w_.rows, w_.x.data());
    QUIRE_ASSIGN_OR_RETURN(const QkvRows qkv, model_.project_qkv(layer, w_.x.data(), m));
    QUIRE_RETURN_IF_ERROR(plan_rows(layer));
    w_.write.assign(w_.rows.size(), 1);
    w_.carry_on.assign(w_.rows.size(), 1);
    const bool last = layer + 1 == c_.num_layers;
    // Nobody looks at what the last layer makes of the other rows.
    if (last && !request_.hook) keep_wanted();

    LayerPass pass{.layer = layer, .rows = w_.rows, .positions = w_.positions, .qkv = qkv, .lse = nullptr, .cache = request_.cache,
                   .write = &w_.write, .carry_on = &w_.carry_on, .cache_rows = &w_.cache_rows};
    if (request_.hook) {
      QUIRE_RETURN_IF_ERROR(request_.hook->after_projection(pass));
      QUIRE_RETURN_IF_ERROR(check_decisions());
    }
    QUIRE_RETURN_IF_ERROR(write_kv(layer, qkv));
    QUIRE_RETURN_IF_ERROR(attend(layer, qkv));
    if (request_.hook) {
      // Which rows attended is decided; dropping more of them is still possible.
      attended_.assign(w_.carry_on.begin(), w_.carry_on.end());
      pass.lse = w_.lse.data();
      QUIRE_RETURN_IF_ERROR(request_.hook->after_attention(pass));
      QUIRE_RETURN_IF_ERROR(check_decisions());
      if (last) keep_wanted();
      QUIRE_RETURN_IF_ERROR(drop_late());
    } else {
      compact_rows();
    }
    return model_.finish_layer(layer, w_.x.data(), w_.attention.data(), static_cast<std::int64_t>(w_.rows.size()));
  }

  /// Where each active row goes in this layer: appended rows, or the caller's.
  Status plan_rows(std::int32_t layer) {
    w_.cache_rows.resize(w_.rows.size());
    if (request_.cache_rows.empty()) {
      QUIRE_ASSIGN_OR_RETURN(const std::int64_t first, request_.cache->add_rows(layer, w_.positions));
      std::iota(w_.cache_rows.begin(), w_.cache_rows.end(), first);
      return {};
    }
    for (std::size_t i = 0; i < w_.rows.size(); ++i) w_.cache_rows[i] = request_.cache_rows[static_cast<std::size_t>(w_.rows[i])];
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
    if (w_.write.size() != w_.rows.size() || w_.carry_on.size() != w_.rows.size() || w_.cache_rows.size() != w_.rows.size()) {
      return Status::invalid("hook", "a hook changed the number of decisions of a layer");
    }
    return {};
  }

  /// Rounds raw K and V to the KV dtype, then places them with K rotated.
  Status write_kv(std::int32_t layer, const QkvRows& qkv) {
    const std::span<const std::int32_t> held = request_.cache->positions(layer);
    write_rows_.clear();
    written_.clear();
    for (std::size_t i = 0; i < w_.rows.size(); ++i) {
      const std::int64_t row = w_.cache_rows[i];
      if (!w_.write[i] || row < 0) continue;
      if (row >= static_cast<std::int64_t>(held.size()) || held[static_cast<std::size_t>(row)] != w_.positions[i]) {
        return Status::invalid("cache_rows", "row " + std::to_string(row) + " of layer " + std::to_string(layer) + " does not hold position " +
                                                 std::to_string(w_.positions[i]));
      }
      written_.push_back(static_cast<std::int32_t>(i));
      write_rows_.push_back(static_cast<std::int32_t>(row));
    }
    const auto n = static_cast<std::int64_t>(written_.size());
    if (n == 0) return {};

    const float *k = qkv.k, *v = qkv.v;
    std::int64_t ld = qkv.ld;
    if (n < qkv.rows) {  // scattered: bring the written rows together
      grow(w_.kv_gather, n * 2 * kv_dim_);
      ld = 2 * kv_dim_;
      const auto bytes = static_cast<std::size_t>(kv_dim_) * sizeof(float);
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t from = written_[static_cast<std::size_t>(i)] * qkv.ld;
        std::memcpy(w_.kv_gather.data() + i * ld, qkv.k + from, bytes);
        std::memcpy(w_.kv_gather.data() + i * ld + kv_dim_, qkv.v + from, bytes);
      }
      k = w_.kv_gather.data();
      v = k + kv_dim_;
    }
    const DType dtype = model_.options().kv_dtype;
    const auto size = static_cast<std::int64_t>(dtype_bytes(dtype));
    grow(w_.kv_raw, n * 2 * kv_dim_ * size);
    QUIRE_RETURN_IF_ERROR(kv_pack({.k = k, .v = v, .rows = n, .ldk = ld, .ldv = ld, .num_kv_heads = c_.num_kv_heads,
                                   .head_dim = c_.head_dim, .dtype = dtype, .out = w_.kv_raw.data()}));
    const std::int64_t row_stride = c_.head_dim * size;
    const RawKvView raw{.data = w_.kv_raw.data(), .num_rows = n, .dtype = dtype, .head_stride = 2 * n * row_stride,
                        .kv_stride = n * row_stride, .row_stride = row_stride};
    return request_.cache->place_rows(layer, model_.rope(), raw, write_rows_);
  }

  /// Attention of the rows that are carried on; their outputs and inputs x come to lie together in front.
  Status attend(std::int32_t layer, const QkvRows& qkv) {
    const auto m = static_cast<std::int64_t>(w_.rows.size());
    attending_.clear();
    for (std::int64_t i = 0; i < m; ++i) {
      if (w_.carry_on[static_cast<std::size_t>(i)]) attending_.push_back(static_cast<std::int32_t>(i));
    }
    const auto n = static_cast<std::int64_t>(attending_.size());
    grow(w_.attention, n * q_dim_);
    grow(w_.q_rotated, n * q_dim_);
    if (request_.hook) grow(w_.lse, m * c_.num_heads);
    if (n < m) {
      const std::int64_t h = c_.hidden_size;
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t from = attending_[static_cast<std::size_t>(i)];
        std::memcpy(w_.q_rotated.data() + i * q_dim_, qkv.q + from * qkv.ld, static_cast<std::size_t>(q_dim_) * sizeof(float));
        if (from != i) std::memcpy(w_.x.data() + i * h, w_.x.data() + from * h, static_cast<std::size_t>(h) * sizeof(float));
      }
    }
    query_positions_.resize(attending_.size());
    for (std::size_t i = 0; i < attending_.size(); ++i) query_positions_[i] = w_.positions[static_cast<std::size_t>(attending_[i])];
    if (n > 0) {
      const bool whole = n == m;
      QUIRE_RETURN_IF_ERROR(rope_rotate(model_.rope(), {.x = whole ? qkv.q : w_.q_rotated.data(), .out = w_.q_rotated.data(),
                                                       .positions = query_positions_.data(), .rows = n, .num_heads = c_.num_heads,
                                                       .ldx = whole ? qkv.ld : q_dim_, .ldo = q_dim_}));
      const float scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
      QUIRE_RETURN_IF_ERROR(attention({.q = w_.q_rotated.data(), .query_positions = query_positions_.data(), .rows = n, .ldq = q_dim_,
                                       .num_heads = c_.num_heads, .scale = scale, .kv = request_.cache->view(layer),
                                       .out = w_.attention.data(), .ldo = q_dim_, .lse = request_.hook ? w_.lse.data() : nullptr}));
    }
    if (request_.hook && n < m) spread_lse(m, n);
    return {};
  }

  /// lse was written for the attending rows; moves each to its own row and marks the others.
  void spread_lse(std::int64_t m, std::int64_t n) {
    const auto heads = static_cast<std::size_t>(c_.num_heads);
    std::int64_t from = n - 1;
    for (std::int64_t to = m - 1; to >= 0; --to) {
      float* out = w_.lse.data() + static_cast<std::size_t>(to) * heads;
      if (from >= 0 && attending_[static_cast<std::size_t>(from)] == to) {
        if (from != to) std::memcpy(out, w_.lse.data() + static_cast<std::size_t>(from) * heads, heads * sizeof(float));
        --from;
      } else {
        std::fill(out, out + heads, std::numeric_limits<float>::quiet_NaN());
      }
    }
  }

  /// After a hook: rows dropped since they attended leave x and attention as well.
  Status drop_late() {
    const std::int64_t h = c_.hidden_size;
    std::int64_t from = 0, to = 0;
    for (std::size_t i = 0; i < w_.rows.size(); ++i) {
      if (!attended_[i]) {
        if (w_.carry_on[i]) return Status::invalid("hook", "a hook carried on a row that it had dropped before attention");
        continue;
      }
      if (w_.carry_on[i]) {
        if (from != to) {
          std::memcpy(w_.x.data() + to * h, w_.x.data() + from * h, static_cast<std::size_t>(h) * sizeof(float));
          std::memcpy(w_.attention.data() + to * q_dim_, w_.attention.data() + from * q_dim_, static_cast<std::size_t>(q_dim_) * sizeof(float));
        }
        ++to;
      }
      ++from;
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

  /// The rows left over are the wanted ones.
  Status finish() {
    if (!std::equal(w_.rows.begin(), w_.rows.end(), request_.logit_rows.begin(), request_.logit_rows.end())) {
      return Status::invalid("logit_rows", "a hook dropped a row whose logits are wanted");
    }
    const auto n = static_cast<std::int64_t>(w_.rows.size());
    if (n == 0) return {};
    if (request_.hidden) std::memcpy(request_.hidden, w_.x.data(), static_cast<std::size_t>(n * c_.hidden_size) * sizeof(float));
    return request_.logits ? model_.logits(w_.x.data(), n, request_.logits) : Status();
  }

  Model& model_;
  const ForwardRequest request_;
  ForwardWorkspace& w_;
  const ModelConfig& c_;
  const std::int64_t q_dim_, kv_dim_;
  std::int32_t next_layer_ = 0;
  bool done_ = false;
  std::vector<std::int32_t> written_, write_rows_, attending_, query_positions_;
  std::vector<std::uint8_t> attended_;
};

ForwardPass::ForwardPass(Model& model, const ForwardRequest& request, ForwardWorkspace& workspace)
    : impl_(std::make_unique<Impl>(model, request, workspace)) {}
ForwardPass::~ForwardPass() = default;

Status ForwardPass::step() { return impl_->step(); }
bool ForwardPass::done() const { return impl_->done(); }

Status forward(Model& model, const ForwardRequest& request, ForwardWorkspace& workspace) {
  ForwardPass pass(model, request, workspace);
  while (!pass.done()) QUIRE_RETURN_IF_ERROR(pass.step());
  return {};
}

}  // namespace quire
