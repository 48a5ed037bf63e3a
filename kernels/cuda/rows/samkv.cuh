/// This file holds the kernels of SamKV: scores of blocks by the means of their keys, and
/// recomputed rows that blend with stored ones.
///
/// Cost for w channels of all KV heads:
///   samkv_scores  of a block of keys: 4 * w bytes of means, 2 * w operations; for each 64 blocks
///                 the queries, from a cache, rotated. Bound by memory. Measured on an H100: 0.70
///                 of copy bandwidth, 512 documents of 32 blocks, w = 1,024
///   blend_rows    of a row: 2 * (8 + e) * w bytes with stored elements of e bytes, read again from
///                 a cache, and 18 * w operations. A block waits for three sums before it writes,
///                 for keys and then for values: 0.4 of copy bandwidth expected
#pragma once

#include "kernels/cuda/rows/kv.cuh"

namespace quire::cuda {

/// One thread block handles a range of kBlocks blocks of a document. The query is rotated into the
/// document's frame and averaged over groups in shared memory; then one warp scores each block of
/// keys.
struct SamkvScoresKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kBlocks = 64;
  DeviceRopeTable table;
  SamkvScoresArgs a;

  static std::int64_t shared_bytes(std::int64_t dim) { return (kWarps + dim) * 4; }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const SamkvDocument* document = a.documents + device.block_idx().x;
    const std::int64_t num_blocks = device.load(&document->num_blocks),
                       first = device.block_idx().y * kBlocks;
    if (first >= num_blocks) return;  // all threads of the block return
    const int width = a.num_kv_heads * a.head_dim;
    auto scratch = device.template shared<float>(0, kWarps);
    auto pooled = device.template shared<float>(kWarps * 4, width);
    const float* own = device.load(&document->query);
    pool(device, own != nullptr ? own : a.query, device.load(&document->distance), pooled);
    device.sync_threads();
    float squares = 0;
    for (int c = device.thread_idx(); c < width; c += kThreads) {
      const float x = pooled[c];
      squares += x * x;
    }
    const float length = sqrtf(block_sum(device, squares, scratch));
    const float* means = device.load(&document->means);
    for (std::int64_t b = first + device.warp(); b < num_blocks && b < first + kBlocks;
         b += kWarps) {
      float sum = 0;
      for (int c = device.lane(); c < width; c += 32) {
        const float x = pooled[c];
        sum += x * device.load(means + b * width + c);
      }
      sum = warp_sum(device, sum);
      if (device.lane() != 0) continue;
      device.store(device.load(&document->scores) + b, sum);
      device.store(device.load(&document->comparable) + b, length > 0 ? sum / length : 0.0f);
    }
  }

 private:
  template <class Device, class SharedFloats>
  QUIRE_DEVICE void pool(Device& device, const float* query, std::int32_t distance,
                         SharedFloats pooled) const {
    const std::int32_t items = rotary_items(table), group = a.num_heads / a.num_kv_heads;
    for (int i = device.thread_idx(); i < a.num_kv_heads * items; i += kThreads) {
      const int kv_head = i / items;
      const RotaryItem item = rotary_item(table, i % items);
      float sums[2] = {0, 0};
      for (int g = 0; g < group; ++g) {
        const float* head = query + (std::int64_t{kv_head} * group + g) * a.head_dim;
        float x = device.load(head + item.a), y = 0;
        if (!item.passes) {
          y = device.load(head + item.b);
          rotate_pair(device, table, distance, item.frequency, x, y);
        }
        sums[0] += x;
        sums[1] += y;
      }
      pooled[kv_head * a.head_dim + item.a] = sums[0] / static_cast<float>(group);
      if (!item.passes) pooled[kv_head * a.head_dim + item.b] = sums[1] / static_cast<float>(group);
    }
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; documents are not checked).
template <class Launcher>
Status launch_samkv_scores(Launcher& launcher, const DeviceRopeTable& table,
                           const SamkvScoresArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.num_kv_heads, a.head_dim));
  QUIRE_RETURN_IF_ERROR(check_device_table(table, a.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (a.num_documents < 0 || a.most_blocks < 0)
    return Status::invalid("num_documents", "documents and blocks must not be negative");
  using Kernel = SamkvScoresKernel;
  const std::int64_t shared = Kernel::shared_bytes(std::int64_t{a.num_kv_heads} * a.head_dim);
  if (shared > 96 * 1024)
    return Status::invalid("num_kv_heads",
                           "num_kv_heads * head_dim is more than shared memory holds");
  return launcher.launch(
      {{a.num_documents, (a.most_blocks + Kernel::kBlocks - 1) / Kernel::kBlocks, 1},
       Kernel::kThreads,
       static_cast<int>(shared)},
      Kernel{table, a});
}

/// One thread block per row.
template <class Raw>
struct BlendRowsKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / 32, kSharedBytes = 3 * kWarps * 4;
  BlendRowsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    const char* stored = static_cast<const char*>(a.stored.data) + row * a.stored.row_stride;
    blend(device, a.k + row * a.ld, stored);
    blend(device, a.v + row * a.ld, stored + a.stored.kv_stride);
  }

 private:
  template <class Device>
  QUIRE_DEVICE void blend(Device& device, float* fresh, const char* old) const {
    const float theta = weight(device, fresh, old);
    if (theta >= 1) return;  // all threads of the block return
    for (int i = device.thread_idx(); i < a.num_kv_heads * a.head_dim; i += kThreads) {
      const float before = stored(device, old, i);
      device.store(fresh + i,
                   theta > 0 ? before + theta * (device.load(fresh + i) - before) : before);
    }
  }

  /// Returns channel i of all heads' channels of a stored row.
  template <class Device>
  QUIRE_DEVICE float stored(Device& device, const char* old, int i) const {
    const char* head = old + i / a.head_dim * a.stored.head_stride;
    return device.to_float(device.load(reinterpret_cast<const Raw*>(head) + i % a.head_dim));
  }

  /// Returns the cosine of a fresh and a stored row, clamped to 0..1, or 0 if it is undefined.
  /// Every thread gets the same value.
  template <class Device>
  QUIRE_DEVICE float weight(Device& device, const float* fresh, const char* old) const {
    float dot = 0, fresh2 = 0, stored2 = 0;
    for (int i = device.thread_idx(); i < a.num_kv_heads * a.head_dim; i += kThreads) {
      const float x = device.load(fresh + i), y = stored(device, old, i);
      dot += x * y;
      fresh2 += x * x;
      stored2 += y * y;
    }
    device.sync_threads();  // earlier sums have been read
    dot = block_sum(device, dot, device.template shared<float>(0, kWarps));
    fresh2 = block_sum(device, fresh2, device.template shared<float>(kWarps * 4, kWarps));
    stored2 = block_sum(device, stored2, device.template shared<float>(2 * kWarps * 4, kWarps));
    const float cosine = dot / (sqrtf(fresh2) * sqrtf(stored2));
    return cosine > 0 ? fminf(cosine, 1.0f) : 0.0f;  // NaN compares false
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes).
template <class Launcher>
Status launch_blend_rows(Launcher& launcher, const BlendRowsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.num_kv_heads, a.head_dim));
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.rows > 0 && a.ld < std::int64_t{a.num_kv_heads} * a.head_dim)
    return Status::invalid("ld", "must be at least num_kv_heads * head_dim");
  if (a.stored.num_rows != a.rows)
    return Status::invalid("stored.num_rows", "must be the number of rows");
  return with_element(a.stored.dtype, "stored.dtype", [&]<class Raw>(Raw) {
    using Kernel = BlendRowsKernel<Raw>;
    return launcher.launch({{a.rows, 1, 1}, Kernel::kThreads, Kernel::kSharedBytes}, Kernel{a});
  });
}

}  // namespace quire::cuda
