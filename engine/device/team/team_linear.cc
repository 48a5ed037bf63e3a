#include "engine/device/team/team_linear.h"

#include <utility>

namespace quire {
namespace {

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

std::int64_t bytes_of(DType dtype) { return static_cast<std::int64_t>(dtype_bytes(dtype)); }

}  // namespace

TeamLinear::TeamLinear(std::shared_ptr<TeamMemory> team, DeviceLinear& leader)
    : team_(std::move(team)),
      leader_(leader),
      gathered_(team_->rank(0), cuda::MemoryKind::kDevice),
      activated_(team_->rank(0), cuda::MemoryKind::kDevice) {
  for (std::int64_t r = 1; r < team_->ranks(); ++r)
    helpers_.push_back(std::make_unique<Helper>(team_->rank(r)));
}

Status TeamLinear::send_inputs(const void* x, std::int64_t bytes) {
  std::vector<void*> to = {nullptr};
  for (const auto& helper : helpers_) {
    QUIRE_RETURN_IF_ERROR(helper->x.reserve(bytes));
    to.push_back(helper->x.data());
  }
  return team_->broadcast(x, to, bytes);
}

Status TeamLinear::multiply(const ProductArgs& a, bool accumulate) {
  if (a.rows == 0) return {};
  ProductArgs whole = a;
  whole.weights = static_cast<const TeamMatrix&>(*a.weights).share(0);
  QUIRE_ASSIGN_OR_RETURN(const void* x, leader_.inputs(whole));
  const DType dtype = leader_.input_dtype(*whole.weights, a.rows);
  QUIRE_RETURN_IF_ERROR(send_inputs(x, a.rows * a.weights->k() * bytes_of(dtype)));
  std::vector<const void*> xs = {x};
  for (const auto& helper : helpers_) xs.push_back(helper->x.data());
  ProductArgs shares = a;
  shares.x_dtype = dtype;
  return multiply_shares(shares, xs, accumulate);
}

Status TeamLinear::multiply_shares(const ProductArgs& a, std::span<const void* const> xs,
                                   bool accumulate) {
  const auto& w = static_cast<const TeamMatrix&>(*a.weights);
  const OutputCut& cut = w.cut();
  const std::int64_t rest = cut.n - cut.size(0);
  QUIRE_RETURN_IF_ERROR(gathered_.reserve(std::max<std::int64_t>(1, a.rows * rest * kFloat)));
  std::vector<cuda::Communicator::Part> parts(to_size(team_->ranks()));
  ProductArgs one = a;
  one.ldx = w.k();
  for (std::int64_t r = 1; r < team_->ranks(); ++r) {
    if (w.share(r) == nullptr) continue;
    Helper& there = helper(r);
    const std::int64_t n = cut.size(r);
    QUIRE_RETURN_IF_ERROR(there.y.reserve(a.rows * n * kFloat));
    one.weights = w.share(r);
    one.x = xs[at(r)];
    one.bias = nullptr;  // the leader adds it to what it gathered
    one.y = reinterpret_cast<float*>(there.y.data());
    one.ldy = n;
    QUIRE_RETURN_IF_ERROR(there.linear.product(one));
    parts[at(r)] = {there.y.data(), gathered_.data() + a.rows * (cut.begin(r) - cut.width) * kFloat,
                    a.rows * n * kFloat};
  }
  one = a;
  one.ldx = w.k();
  one.weights = w.share(0);
  one.x = xs[0];
  QUIRE_RETURN_IF_ERROR(accumulate ? leader_.add_product(one, nullptr) : leader_.product(one));
  if (rest == 0) return {};
  QUIRE_RETURN_IF_ERROR(team_->gather(parts));
  return team_->rank(0)->run(
      cuda::JoinColumnsArgs{.parts = gathered_.data(),
                            .dtype = DType::kF32,
                            .rows = a.rows,
                            .n = cut.n,
                            .width = cut.width,
                            .first = cut.width,
                            .y = a.y,
                            .ldy = a.ldy,
                            .bias = a.bias,
                            .accumulate = accumulate,
                            .bias_last = !DeviceLinear::adds_bias_first(*w.share(0), a.rows)});
}

Status TeamLinear::feed_forward(const FeedForwardArgs& a) {
  if (a.rows == 0) return {};
  const auto& gate_up = static_cast<const TeamMatrix&>(*a.gate_up);
  const OutputCut& cut = gate_up.cut();
  const std::int64_t k = gate_up.k(), dim = cut.n;
  const DType up_dtype = input_dtype(gate_up, a.rows), down_dtype = input_dtype(*a.down, a.rows);
  QUIRE_ASSIGN_OR_RETURN(const void* x, leader_.inputs({.weights = gate_up.share(0),
                                                        .x = a.x,
                                                        .rows = a.rows,
                                                        .ldx = k,
                                                        .bias = nullptr,
                                                        .y = nullptr,
                                                        .ldy = 0,
                                                        .x_dtype = a.x_dtype}));
  QUIRE_RETURN_IF_ERROR(send_inputs(x, a.rows * k * bytes_of(up_dtype)));

  // The channels of a rank lie together, and one row's are in their places at once.
  const std::int64_t channel = a.rows * bytes_of(down_dtype);
  const bool in_place = a.rows == 1;
  std::vector<std::byte*> whole(to_size(team_->ranks()));
  std::vector<const void*> xs(whole.size());
  std::vector<std::int64_t> begin;
  for (std::int64_t r = 0; r < team_->ranks(); ++r) {
    const bool leads = r == 0;
    DeviceBuffer& activated = leads ? activated_ : helper(r).activated;
    if (leads && in_place) {
      whole[at(r)] = reinterpret_cast<std::byte*>(a.activated_scratch);
    } else {
      QUIRE_RETURN_IF_ERROR(activated.reserve(dim * channel));
      whole[at(r)] = activated.data();
    }
    xs[at(r)] = whole[at(r)];
    begin.push_back(cut.begin(r) * channel);
    if (gate_up.share(r) == nullptr) continue;
    float* outputs = a.gate_up_scratch;
    if (!leads) {
      QUIRE_RETURN_IF_ERROR(helper(r).gate_up.reserve(a.rows * 2 * cut.size(r) * kFloat));
      outputs = reinterpret_cast<float*>(helper(r).gate_up.data());
    }
    DeviceLinear& linear = leads ? leader_ : helper(r).linear;
    QUIRE_RETURN_IF_ERROR(linear.product({.weights = gate_up.share(r),
                                          .x = leads ? x : helper(r).x.data(),
                                          .rows = a.rows,
                                          .ldx = k,
                                          .bias = gate_up.bias(r),
                                          .y = outputs,
                                          .ldy = 2 * cut.size(r),
                                          .x_dtype = up_dtype}));
    QUIRE_RETURN_IF_ERROR(
        linear.swiglu({.gate_up = outputs,
                       .out = reinterpret_cast<float*>(whole[at(r)] + begin.back()),
                       .rows = a.rows,
                       .dim = cut.size(r)},
                      down_dtype));
  }
  begin.push_back(dim * channel);
  QUIRE_RETURN_IF_ERROR(team_->all_gather(whole, begin));

  for (std::int64_t r = 0; !in_place && r < team_->ranks(); ++r) {
    void* joined = a.activated_scratch;
    if (r > 0) {
      QUIRE_RETURN_IF_ERROR(helper(r).joined.reserve(dim * channel));
      joined = helper(r).joined.data();
    }
    QUIRE_RETURN_IF_ERROR(team_->rank(r)->run(cuda::JoinColumnsArgs{.parts = whole[at(r)],
                                                                    .dtype = down_dtype,
                                                                    .rows = a.rows,
                                                                    .n = dim,
                                                                    .width = cut.width,
                                                                    .first = 0,
                                                                    .y = joined,
                                                                    .ldy = dim}));
    xs[at(r)] = joined;
  }
  return multiply_shares({.weights = a.down,
                          .x = nullptr,
                          .rows = a.rows,
                          .ldx = dim,
                          .bias = a.down_bias,
                          .y = a.y,
                          .ldy = a.down->n(),
                          .x_dtype = down_dtype},
                         xs, true);
}

}  // namespace quire
