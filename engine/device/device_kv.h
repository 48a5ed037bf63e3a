/// The KV operations of a device. Internal to engine/device.
#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "engine/compute/kv_ops.h"
#include "engine/device/device_memory.h"
#include "engine/device/device_tables.h"
#include "engine/device/stored_rows_feed.h"

namespace quire {

class DeviceKv final : public KvOps {
 public:
  /// `stage` must outlive this object.
  DeviceKv(const std::shared_ptr<DeviceMemory>& memory, std::shared_ptr<DeviceTables> tables,
           ArgumentStage& stage);

  Status write_rows(const RopeTable& table, const WriteRowsArgs& args) override {
    return rotate_and_write(table, {}, args);
  }
  Status rotate_and_write(const RopeTable& table, const RopeRotateArgs& queries,
                          const WriteRowsArgs& args) override;
  Status place(const RopeTable& table, const MutableKvView& dst,
               std::span<const StoredRows> rows) override;
  Status pack_ahead(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                    std::int32_t head_dim) override {
    return rows.empty() ? Status() : feed_.pack_ahead(rows, num_kv_heads, head_dim);
  }
  void end_packing() override { feed_.end_packing(); }
  Status blend_stored(const BlendStoredArgs& args) override;
  Status pack(const KvPackArgs& args) override { return memory_->run(args); }
  Status block_means(const RopeTable& table, const BlockMeansArgs& args) override;
  Status gather(const KvGatherArgs& args) override;
  Result<std::int64_t> gather_async(const KvGatherArgs& args) override;
  Status wait_for(std::int64_t copy) override;

 private:
  /// Target holds the destination of rows: pages, positions and rows as kernels read them. Only the
  /// pages that are written to are uploaded.
  struct Target {
    MutableKvView dst;
    const std::int32_t *positions, *dst_rows;
  };
  /// Uploads a target, between stage_.begin() and stage_.send().
  Result<Target> target(const MutableKvView& dst, std::span<const std::int32_t> positions,
                        std::span<const std::int32_t> dst_rows);
  /// Places raw rows on the device in dst_rows of dst.
  Status place_rows(const RopeTable& table, const RawKvView& raw, const MutableKvView& dst,
                    std::span<const std::int32_t> positions,
                    std::span<const std::int32_t> dst_rows);

  const std::shared_ptr<DeviceMemory> memory_;
  const std::shared_ptr<DeviceTables> tables_;
  ArgumentStage& stage_;
  StoredRowsFeed feed_;
  DeviceEvent ready_;  ///< event of the computing stream that an asynchronous copy waits for
  /// Events of the copy stream, used in turn by the number of the copy.
  static constexpr int kCopyEvents = 64;
  std::deque<DeviceEvent> copied_;
  std::int64_t copies_ = 0;
};

}  // namespace quire
