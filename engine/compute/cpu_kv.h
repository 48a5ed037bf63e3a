/// The KV operations of the CPU. Internal to engine/compute.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compute/kv_ops.h"

namespace quire {

class CpuKv final : public KvOps {
 public:
  Status write_rows(const RopeTable& table, const WriteRowsArgs& args) override;
  Status rotate_and_write(const RopeTable& table, const RopeRotateArgs& queries,
                          const WriteRowsArgs& args) override {
    QUIRE_RETURN_IF_ERROR(rope_rotate(table, queries));
    return write_rows(table, args);
  }
  Status place(const RopeTable& table, const MutableKvView& dst,
               std::span<const StoredRows> rows) override;
  Status blend_stored(const BlendStoredArgs& args) override;
  Status pack(const KvPackArgs& args) override { return kv_pack(args); }
  Status block_means(const RopeTable& table, const BlockMeansArgs& args) override;
  Status gather(const KvGatherArgs& args) override { return kv_gather(args); }
  Result<std::int64_t> gather_async(const KvGatherArgs& args) override {
    QUIRE_RETURN_IF_ERROR(kv_gather(args));
    return std::int64_t{0};
  }
  Status wait_for(std::int64_t) override { return {}; }

 private:
  /// New rows on their way to a cache, with the positions and destinations that go with them.
  struct NewRows {
    const float *k, *v;
    std::int64_t rows, ld;
    std::span<const std::int32_t> positions, dst_rows;
  };
  Status round_and_place(const RopeTable& table, const NewRows& rows, DType raw_dtype,
                         const MutableKvView& dst);
  void gather_new(const WriteRowsArgs& args, std::int64_t kv_dim);

  std::vector<float> gathered_;  // rows to write, [rows, K and V]
  std::vector<std::uint8_t> raw_;
};

}  // namespace quire
