#include "engine/device/device_compute.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/index.h"
#include "engine/device/device_attention.h"
#include "engine/device/device_choice.h"
#include "engine/device/device_kv.h"
#include "engine/device/device_linear.h"
#include "engine/device/device_memory.h"
#include "engine/device/device_tables.h"
#include "engine/device/device_weights.h"
#include "engine/device/fetch_stream.h"

namespace quire {
namespace {

class DeviceCompute final : public Compute {
 public:
  /// Twins share `memory`, `shared` and `tables`.
  DeviceCompute(std::shared_ptr<DeviceMemory> memory, std::shared_ptr<const DeviceShares> shared,
                std::shared_ptr<DeviceTables> tables, std::string name)
      : name_(std::move(name)),
        memory_(std::move(memory)),
        shared_(std::move(shared)),
        tables_(std::move(tables)),
        stage_(memory_),
        pinned_(memory_, cuda::MemoryKind::kPinned),
        sampling_(memory_, cuda::MemoryKind::kDevice),
        linear_(memory_, stage_),
        attention_(memory_, tables_, stage_),
        kv_(memory_, tables_, stage_),
        choice_(memory_, tables_, stage_),
        fetch_(memory_) {
    if (shared_ == nullptr) return;
    shared_linear_ = shared_->linear(linear_);
    shared_attention_ = shared_->attention(attention_);
    shared_kv_ = shared_->kv(kv_, linear_);
  }

  std::string name() const override { return name_; }
  std::shared_ptr<ComputeMemory> memory() const override { return memory_; }
  std::shared_ptr<Compute> twin() const override {
    return std::make_shared<DeviceCompute>(memory_, shared_, tables_, name_);
  }
  std::int64_t devices() const override { return shared_ == nullptr ? 1 : shared_->devices(); }
  bool splits_kv() const override { return shared_ != nullptr && shared_->splits_kv(); }
  Result<std::shared_ptr<ComputeMemory>> page_memory(std::int32_t num_kv_heads,
                                                     std::int64_t head_bytes) override {
    return splits_kv() ? shared_->page_memory(num_kv_heads, head_bytes) : memory();
  }
  Result<std::int64_t> share_budget(const char* setting) override {
    return shared_ == nullptr ? Compute::share_budget(setting) : shared_->share_budget(setting);
  }

  Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts, std::int64_t k,
                                              DType dtype, WeightFormat format) override {
    return shared_ == nullptr ? upload_matrix(memory_, parts, k, dtype, format)
                              : shared_->pack(parts, k, dtype, format);
  }
  Result<std::unique_ptr<ComputeMatrix>> pack_gate_up(std::span<const WeightPart> parts,
                                                      std::int64_t k, DType dtype,
                                                      WeightFormat format,
                                                      std::span<const float> bias) override {
    return shared_ == nullptr ? upload_matrix(memory_, parts, k, dtype, format)
                              : shared_->pack_gate_up(parts, k, dtype, format, bias);
  }
  Result<ComputeValues> upload(std::span<const std::byte> values) override {
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const void> data, quire::upload(memory_, values));
    return ComputeValues{std::move(data), count_of(values)};
  }
  Result<std::shared_ptr<const void>> register_rope(const RopeTable& table) override {
    if (!splits_kv()) return tables_->add(table);
    using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
    Both both;
    QUIRE_ASSIGN_OR_RETURN(both.first, tables_->add(table));
    QUIRE_ASSIGN_OR_RETURN(both.second, shared_->register_rope(table));
    return std::shared_ptr<const void>(std::make_shared<const Both>(std::move(both)));
  }

  LinearOps& linear() override {
    if (shared_linear_ != nullptr) return *shared_linear_;
    return linear_;
  }
  AttentionOps& attention() override {
    if (shared_attention_ != nullptr) return *shared_attention_;
    return attention_;
  }
  KvOps& kv() override {
    if (shared_kv_ != nullptr) return *shared_kv_;
    return kv_;
  }
  ChoiceOps& choice() override { return choice_; }
  FetchOps& fetch() override { return fetch_; }

  Status read_bytes(const void* x, std::int64_t bytes, void* out) override {
    if (bytes == 0) return {};
    QUIRE_RETURN_IF_ERROR(pinned_.reserve(bytes));
    QUIRE_RETURN_IF_ERROR(memory_->run(cuda::CopyArgs{pinned_.data(), x, bytes}));
    QUIRE_RETURN_IF_ERROR(memory_->synchronize());
    std::memcpy(out, pinned_.data(), to_size(bytes));
    return {};
  }
  bool samples() const override { return true; }
  Status sample(const float* logits, std::int64_t vocab, std::span<const SampleRule> rules,
                std::int32_t* tokens) override;
  void begin_step(std::int64_t rows, std::int64_t ahead) override {
    // A graph over several devices would need all their streams in one capture, and communicators
    // that allow it.
    if (shared_ == nullptr) memory_->begin_step(rows, ahead);
  }
  Status end_step() override { return memory_->end_step(); }

 private:
  const std::string name_;
  const std::shared_ptr<DeviceMemory> memory_;
  const std::shared_ptr<const DeviceShares> shared_;
  const std::shared_ptr<DeviceTables> tables_;
  /// All families share it: a stage starts over where it finds the device idle, which only the
  /// first operation of a step does, and equal steps must put their arguments at equal addresses.
  ArgumentStage stage_;
  DeviceBuffer pinned_;    ///< values being read
  DeviceBuffer sampling_;  ///< scratch memory of sample()
  DeviceLinear linear_;
  std::unique_ptr<LinearOps> shared_linear_;  ///< or null
  DeviceAttention attention_;
  std::unique_ptr<AttentionOps> shared_attention_;  ///< or null
  DeviceKv kv_;
  std::unique_ptr<KvOps> shared_kv_;  ///< or null
  DeviceChoice choice_;
  FetchStream fetch_;
};

Status DeviceCompute::sample(const float* logits, std::int64_t vocab,
                             std::span<const SampleRule> rules, std::int32_t* tokens) {
  const auto rows = count_of(rules);
  if (rows == 0) return {};
  if (std::ranges::all_of(rules, [](const SampleRule& r) { return !(r.temperature > 0); }))
    return memory_->run(cuda::ArgmaxArgs{logits, rows, vocab, tokens});
  std::vector<float> temperature, top_p, min_p;
  std::vector<double> uniform;
  std::vector<std::int32_t> top_k;
  for (const SampleRule& r : rules) {
    temperature.push_back(r.temperature);
    top_k.push_back(r.top_k);
    top_p.push_back(r.top_p);
    min_p.push_back(r.min_p);
    uniform.push_back(r.uniform);
  }
  cuda::SampleArgs args{.logits = logits,
                        .rows = rows,
                        .n = vocab,
                        .temperature = nullptr,
                        .top_k = nullptr,
                        .top_p = nullptr,
                        .min_p = nullptr,
                        .uniform = nullptr,
                        .out = tokens,
                        .parts = 0,
                        .scratch = nullptr};
  // With room, because memory that grows within a step makes the host wait.
  if (const std::int64_t bytes = cuda::sample_scratch_bytes(rows); bytes > 0) {
    if (bytes > sampling_.bytes()) QUIRE_RETURN_IF_ERROR(sampling_.reserve(bytes + bytes / 4));
    args.scratch = reinterpret_cast<cuda::SampleRowScratch*>(sampling_.data());
  }
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(args.temperature, stage_.put(std::span<const float>(temperature)));
  QUIRE_ASSIGN_OR_RETURN(args.top_k, stage_.put(std::span<const std::int32_t>(top_k)));
  QUIRE_ASSIGN_OR_RETURN(args.top_p, stage_.put(std::span<const float>(top_p)));
  QUIRE_ASSIGN_OR_RETURN(args.min_p, stage_.put(std::span<const float>(min_p)));
  QUIRE_ASSIGN_OR_RETURN(args.uniform, stage_.put(std::span<const double>(uniform)));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(args);
}

}  // namespace

std::shared_ptr<Compute> make_device_compute(std::shared_ptr<cuda::DeviceOps> ops, std::string name,
                                             std::shared_ptr<PinnedValues> values) {
  return make_device_compute(std::make_shared<DeviceMemory>(std::move(ops), std::move(values)),
                             std::move(name), nullptr);
}

std::shared_ptr<Compute> make_device_compute(std::shared_ptr<DeviceMemory> memory, std::string name,
                                             std::shared_ptr<const DeviceShares> shared) {
  auto tables = std::make_shared<DeviceTables>(memory);
  return std::make_shared<DeviceCompute>(std::move(memory), std::move(shared), std::move(tables),
                                         std::move(name));
}

}  // namespace quire
