/// StoredRowsFeed uploads stored rows: the copy stream brings them to the device, and a kernel
/// places or blends them. Rows in ordinary memory are packed into pinned memory before; rows in
/// PinnedValues are read where they lie.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/compute/kv_ops.h"
#include "engine/device/device_memory.h"
#include "engine/device/pinned_values.h"
#include "engine/device/side_thread.h"

namespace quire {

/// StoredRowsFeed has slots of pinned and device memory, used in turn. While a kernel reads the
/// rows of one, the next rows are packed and copied to another. A layer of a recomputing pass takes
/// up to three uploads, so with four slots those of the next layer never wait for kernels of this
/// one. Events alone keep the order; the host waits only before it overwrites a slot whose copy has
/// not run.
///
/// A slot holds the pinned values that its copies read, until it is used again. So a value may be
/// freed once upload() has returned, and up to four uploads keep memory of freed values.
class StoredRowsFeed {
 public:
  explicit StoredRowsFeed(const std::shared_ptr<DeviceMemory>& memory)
      : memory_(memory),
        copies_(memory, cuda::MemoryKind::kDevice),
        slots_{Slot(memory), Slot(memory), Slot(memory), Slot(memory)} {}
  /// Waits for copies that read pinned values.
  ~StoredRowsFeed();

  /// Begins to pack, on another thread, the rows that the next upload() will get; a hint, as other
  /// rows are packed by that call. These must not change before it or end_packing(). Errors: as
  /// upload(); nothing is packed then.
  Status pack_ahead(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                    std::int32_t head_dim);
  /// Joins the thread and forgets what it packed: equal addresses may hold other rows from now on.
  void end_packing() {
    packer_.wait();
    packed_.clear();
  }
  /// Uploads all rows, in order, into one contiguous device buffer that later enqueued work sees,
  /// until the fourth call from now; then call placed(). Errors: kInvalidArgument (pieces of
  /// different shapes), kResourceExhausted, kDeviceLost, kInternal.
  Result<RawKvView> upload(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                           std::int32_t head_dim);
  /// Marks that the work that reads the rows is enqueued.
  Status placed();

 private:
  struct Slot {
    explicit Slot(const std::shared_ptr<DeviceMemory>& memory)
        : pinned(memory, cuda::MemoryKind::kPinned),
          device(memory, cuda::MemoryKind::kDevice),
          pinned_lists(memory, cuda::MemoryKind::kPinned),
          lists(memory, cuda::MemoryKind::kDevice),
          arrived(memory),
          used(memory) {}
    DeviceBuffer pinned, device;
    DeviceBuffer pinned_lists, lists;    ///< pages and moves of gathers
    DeviceEvent arrived, used;           ///< events of the copy stream and of the computing one
    PinnedValues::Hold held;             ///< what copies before `arrived` read
    std::vector<std::uint8_t> in_place;  ///< [rows]: is read where it lies; empty: none is
  };
  /// Packing is where rows go in a slot.
  struct Packing {
    std::int64_t heads = 0, row_bytes = 0, total = 0, bytes = 0;
    DType dtype{};
    std::vector<std::int64_t> first;  ///< [rows.size()]
    std::int64_t bytes_of(const RawKvView& piece) const {
      return 2 * heads * piece.num_rows * row_bytes;
    }
  };
  /// Gather is a copy of pieces whose rows have equal strides.
  struct Gather;
  static Result<Packing> packing_of(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                                    std::int32_t head_dim);
  Status make_room(Slot& slot, std::span<const RawKvView> rows, const Packing& packing);
  void hold_in_place(Slot& slot, std::span<const RawKvView> rows, const Packing& packing) const;
  bool is_packed(std::span<const RawKvView> rows) const;
  Status copy(Slot& slot, std::span<const RawKvView> rows, const Packing& packing);
  Status gather(Slot& slot, std::span<const RawKvView> rows, const Packing& packing);

  const std::shared_ptr<DeviceMemory> memory_;
  std::vector<RawKvView> packed_;  ///< what pack_ahead() packs into the next slot; empty: nothing
  /// Pieces that came by copies of their own. The copy stream alone uses it, and so in order.
  DeviceBuffer copies_;
  std::array<Slot, 4> slots_;
  std::size_t next_ = 0;
  SideThread packer_;  ///< the last member: a task that runs when this ends writes to a slot
};

}  // namespace quire
