#include <cstring>
#include <utility>
#include <vector>

#include "base/index.h"
#include "engine/compute/compute.h"
#include "engine/compute/cpu_attention.h"
#include "engine/compute/cpu_choice.h"
#include "engine/compute/cpu_fetch.h"
#include "engine/compute/cpu_kv.h"
#include "engine/compute/cpu_linear.h"

namespace quire {
namespace {

class CpuCompute final : public Compute {
 public:
  std::string name() const override { return "cpu"; }
  std::shared_ptr<ComputeMemory> memory() const override { return nullptr; }
  std::shared_ptr<Compute> twin() const override { return make_cpu_compute(); }

  Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts, std::int64_t k,
                                              DType dtype, WeightFormat format) override {
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<PackedMatrix> packed,
                           pack_weights(parts, k, dtype, format));
    return std::unique_ptr<ComputeMatrix>(std::make_unique<CpuMatrix>(std::move(packed)));
  }
  Result<ComputeValues> upload(std::span<const std::byte> values) override {
    auto copy = std::make_shared<std::vector<std::byte>>(values.begin(), values.end());
    const auto* data = copy->data();
    return ComputeValues{std::shared_ptr<const void>(std::move(copy), data), count_of(values)};
  }
  Result<std::shared_ptr<const void>> register_rope(const RopeTable&) override {
    return std::shared_ptr<const void>();
  }

  LinearOps& linear() override { return linear_; }
  AttentionOps& attention() override { return attention_; }
  KvOps& kv() override { return kv_; }
  ChoiceOps& choice() override { return choice_; }
  FetchOps& fetch() override { return fetch_; }

  Status read_bytes(const void* x, std::int64_t bytes, void* out) override {
    if (bytes > 0) std::memcpy(out, x, to_size(bytes));
    return {};
  }

 private:
  CpuLinear linear_;
  CpuAttention attention_;
  CpuKv kv_;
  CpuChoice choice_;
  CpuFetch fetch_;
};

}  // namespace

Status Compute::sample(const float*, std::int64_t, std::span<const SampleRule>, std::int32_t*) {
  return Status::unimplemented("tokens are sampled where their logits are read");
}

std::shared_ptr<Compute> make_cpu_compute() { return std::make_shared<CpuCompute>(); }

}  // namespace quire
