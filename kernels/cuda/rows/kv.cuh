/// This file holds kernels that rotate, place and pack KV rows and summarize blocks of raw keys.
///
/// Cost of an element, r raw bytes or c cached ones each. A rotation is 3 operations and 4 bytes of
/// tables, which heads share in a cache; shares of an H100's copy bandwidth were measured for 8,192
/// rows of 32 query or 8 KV heads of 128 channels:
///   rope_rotate      8 bytes                     0.70
///   kv_place         r + c bytes                 0.27
///   kv_pack          4 + r bytes                 0.43
///   write_new_rows   8 bytes of queries, 4 + c of keys and values; 0.6 expected, and in a decode
///                    step the latency of its launch
///   block_summaries  r bytes, 12 written for a channel of a block: 0.39 with blocks of 64 rows
/// A thread moves one or two elements by accesses of 2 or 4 bytes and finds them by 64-bit
/// divisions (write_new_rows by 32-bit ones, block_summaries by none). So instructions bound small
/// elements.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// The part of a head that one thread rotates: channels a and b together, or only channel a, which
/// is not rotated.
struct RotaryItem {
  std::int32_t a, b, frequency;
  bool passes;
};
QUIRE_HOST_DEVICE std::int32_t rotary_items(const DeviceRopeTable& t) {
  return t.head_dim - t.rotary_dim / 2;
}
QUIRE_DEVICE RotaryItem rotary_item(const DeviceRopeTable& t, std::int32_t i) {
  const std::int32_t half = t.rotary_dim / 2;
  if (i >= half) return {i + half, 0, 0, true};
  return t.interleaved ? RotaryItem{2 * i, 2 * i + 1, i, false} : RotaryItem{i, i + half, i, false};
}
template <class Device>
QUIRE_DEVICE void rotate_pair(Device& device, const DeviceRopeTable& t, std::int64_t position,
                              std::int32_t frequency, float& x, float& y) {
  const std::int64_t at = position * (t.rotary_dim / 2) + frequency;
  const float c = device.load(t.cos + at), s = device.load(t.sin + at), before = x;
  x = before * c - y * s;
  y = y * c + before * s;
}

inline Status check_device_table(const DeviceRopeTable& t, std::int32_t head_dim) {
  if (t.head_dim != head_dim)
    return Status::invalid("table", "RoPE table is for head_dim " + std::to_string(t.head_dim) +
                                        ", not " + std::to_string(head_dim));
  return {};
}

/// Returns a launch with one thread per item, in blocks of `threads`.
inline LaunchShape one_thread_each(std::int64_t items, int threads) {
  return {{(items + threads - 1) / threads, 1, 1}, threads, 0};
}

/// Rotates one item of a head of a row.
template <class Device>
QUIRE_DEVICE void rotate_item(Device& device, const DeviceRopeTable& t, const RopeRotateArgs& a,
                              std::int64_t row, std::int64_t head, const RotaryItem& item) {
  const float* x = a.x + row * a.ldx + head * t.head_dim;
  float* out = a.out + row * a.ldo + head * t.head_dim;
  float first = device.load(x + item.a);
  if (!item.passes) {
    float second = device.load(x + item.b);
    rotate_pair(device, t, device.load(a.positions + row), item.frequency, first, second);
    device.store(out + item.b, second);
  }
  device.store(out + item.a, first);
}

struct RopeRotateKernel {
  static constexpr int kThreads = 256;
  DeviceRopeTable table;
  RopeRotateArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t at = device.block_idx().x * kThreads + device.thread_idx(),
                       items = rotary_items(table);
    if (at >= a.rows * a.num_heads * items) return;
    const std::int64_t head = at / items % a.num_heads, row = at / items / a.num_heads;
    rotate_item(device, table, a, row, head,
                rotary_item(table, static_cast<std::int32_t>(at % items)));
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; positions are not checked).
template <class Launcher>
Status launch_rope_rotate(Launcher& launcher, const DeviceRopeTable& table,
                          const RopeRotateArgs& a) {
  if (a.rows < 0 || a.num_heads < 0)
    return Status::invalid("rows", "rows and heads must not be negative");
  if (a.ldx < a.num_heads * table.head_dim || a.ldo < a.num_heads * table.head_dim)
    return Status::invalid("ldx", "row strides must be at least num_heads * head_dim");
  return launcher.launch(
      one_thread_each(a.rows * a.num_heads * rotary_items(table), RopeRotateKernel::kThreads),
      RopeRotateKernel{table, a});
}

/// Each thread moves a rotary item of K or one channel of V.
template <class Source, class Target>
struct KvPlaceKernel {
  static constexpr int kThreads = 256;
  DeviceRopeTable table;
  KvPlaceArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t at = device.block_idx().x * kThreads + device.thread_idx();
    const std::int32_t key_items = rotary_items(table), items = key_items + table.head_dim;
    if (at >= a.src.num_rows * a.dst.num_kv_heads * items) return;
    const auto item_idx = static_cast<std::int32_t>(at % items);
    const std::int64_t row = at / items % a.src.num_rows, head = at / items / a.src.num_rows;
    const std::int64_t to = a.dst_rows != nullptr ? device.load(a.dst_rows + row)
                                                  : a.first_dst_row + row;
    const bool is_value = item_idx >= key_items;
    const auto* from = reinterpret_cast<const Source*>(
        static_cast<const char*>(a.src.data) + head * a.src.head_stride + row * a.src.row_stride +
        (is_value ? a.src.kv_stride : 0));
    auto* target = reinterpret_cast<Target*>(
        static_cast<char*>(device.load(a.dst.pages + to / kPageTokens)) + head * a.dst.head_stride +
        to % kPageTokens * a.dst.token_stride + (is_value ? a.dst.kv_stride : 0));
    const RotaryItem item = is_value ? RotaryItem{item_idx - key_items, 0, 0, true}
                                     : rotary_item(table, item_idx);
    float first = device.to_float(device.load(from + item.a));
    if (!item.passes) {
      float second = device.to_float(device.load(from + item.b));
      rotate_pair(device, table, device.load(a.positions + row), item.frequency, first, second);
      device.store(target + item.b, device.template from_float<Target>(second));
    }
    device.store(target + item.a, device.template from_float<Target>(first));
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; positions and rows are not checked).
template <class Launcher>
Status launch_kv_place(Launcher& launcher, const DeviceRopeTable& table, const KvPlaceArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.dst.num_kv_heads, a.dst.head_dim));
  QUIRE_RETURN_IF_ERROR(check_device_table(table, a.dst.head_dim));
  if (a.src.num_rows < 0) return Status::invalid("src.num_rows", "must not be negative");
  const std::int64_t items = a.src.num_rows * a.dst.num_kv_heads *
                             (rotary_items(table) + table.head_dim);
  return with_element(a.src.dtype, "src.dtype", [&]<class Source>(Source) {
    return with_kv_element(a.dst.dtype, a.dst.head_dim, "dst.dtype", [&]<class Target>(Target) {
      using Kernel = KvPlaceKernel<Source, Target>;
      return launcher.launch(one_thread_each(items, Kernel::kThreads), Kernel{table, a});
    });
  });
}

template <class E>
struct KvPackKernel {
  static constexpr int kThreads = 256;
  KvPackArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    // Threads follow the order of the output
    const std::int64_t at = device.block_idx().x * kThreads + device.thread_idx();
    if (at >= a.num_kv_heads * 2 * a.rows * a.head_dim) return;
    const std::int64_t c = at % a.head_dim, row = at / a.head_dim % a.rows,
                       part = at / a.head_dim / a.rows;
    const std::int64_t column = part / 2 * a.head_dim + c;
    const float x = part % 2 == 0 ? device.load(a.k + row * a.ldk + column)
                                  : device.load(a.v + row * a.ldv + column);
    device.store(static_cast<E*>(a.out) + at, device.template from_float<E>(x));
  }
};

template <class Launcher>
Status launch_kv_pack(Launcher& launcher, const KvPackArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.num_kv_heads, a.head_dim));
  const std::int64_t width = std::int64_t{a.num_kv_heads} * a.head_dim;
  if (a.rows > 0 && (a.ldk < width || a.ldv < width))
    return Status::invalid("ldk", "row strides must be at least num_kv_heads * head_dim");
  return with_element(a.dtype, "dtype", [&]<class E>(E) {
    return launcher.launch(one_thread_each(2 * a.rows * width, KvPackKernel<E>::kThreads),
                           KvPackKernel<E>{a});
  });
}

/// A block has a part of a row of queries, keys and values, of which each thread moves one item:
/// values are moved in pairs of channels, too. Rows lie along the grid, so nothing but the item is
/// found by a division.
template <class Raw, class Target>
struct WriteNewRowsKernel {
  static constexpr int kThreads = 256;
  DeviceRopeTable table;
  NewRowsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    const auto at = static_cast<std::int32_t>(device.block_idx().y) * kThreads +
                    device.thread_idx();
    const std::int32_t items = rotary_items(table), head = at / items,
                       queries = static_cast<std::int32_t>(a.q.num_heads);
    const RotaryItem item = rotary_item(table, at % items);
    if (head < queries) {
      if (row < a.q.rows) rotate_item(device, table, a.q, row, head, item);
    } else if (row < a.num_rows && head < queries + 2 * a.dst.num_kv_heads) {
      write(device, row, (head - queries) % a.dst.num_kv_heads,
            head - queries >= a.dst.num_kv_heads, item);
    }
  }

  template <class Device>
  QUIRE_DEVICE void write(Device& device, std::int64_t row, std::int32_t head, bool is_value,
                          const RotaryItem& item) const {
    const std::int64_t from = a.from != nullptr ? device.load(a.from + row) : row,
                       to = device.load(a.dst_rows + row);
    const float* x = (is_value ? a.v : a.k) + from * a.ld + head * table.head_dim;
    auto* target = reinterpret_cast<Target*>(
        static_cast<char*>(device.load(a.dst.pages + to / kPageTokens)) + head * a.dst.head_stride +
        to % kPageTokens * a.dst.token_stride + (is_value ? a.dst.kv_stride : 0));
    float first = rounded(device, x + item.a);
    if (!item.passes) {
      float second = rounded(device, x + item.b);
      if (!is_value)
        rotate_pair(device, table, device.load(a.positions + row), item.frequency, first, second);
      device.store(target + item.b, device.template from_float<Target>(second));
    }
    device.store(target + item.a, device.template from_float<Target>(first));
  }

  template <class Device>
  QUIRE_DEVICE static float rounded(Device& device, const float* x) {
    return device.to_float(device.template from_float<Raw>(device.load(x)));
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; positions and rows are not checked).
template <class Launcher>
Status launch_write_new_rows(Launcher& launcher, const DeviceRopeTable& table,
                             const NewRowsArgs& a) {
  if (a.q.rows < 0 || a.q.num_heads < 0 || a.num_rows < 0)
    return Status::invalid("rows", "rows and heads must not be negative");
  const std::int64_t queries = a.q.num_heads * table.head_dim;
  if (a.q.rows > 0 && (a.q.ldx < queries || a.q.ldo < queries))
    return Status::invalid("ldx", "row strides must be at least num_heads * head_dim");
  NewRowsArgs rows = a;
  if (a.num_rows > 0) {
    QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.dst.num_kv_heads, a.dst.head_dim));
    QUIRE_RETURN_IF_ERROR(check_device_table(table, a.dst.head_dim));
    if (a.ld < std::int64_t{a.dst.num_kv_heads} * a.dst.head_dim)
      return Status::invalid("ld", "the row stride must be at least num_kv_heads * head_dim");
  } else {
    rows.dst.num_kv_heads = 0;
  }
  if (a.q.rows == 0) rows.q.num_heads = 0;
  const std::int64_t items = (rows.q.num_heads + 2 * rows.dst.num_kv_heads) * rotary_items(table);
  return with_element(a.raw_dtype, "raw_dtype", [&]<class Raw>(Raw) {
    return with_kv_element(a.dst.dtype, a.dst.head_dim, "dst.dtype", [&]<class Target>(Target) {
      using Kernel = WriteNewRowsKernel<Raw, Target>;
      LaunchShape shape = one_thread_each(items, Kernel::kThreads);
      shape.grid = {a.q.rows > a.num_rows ? a.q.rows : a.num_rows, shape.grid.x, 1};
      return launcher.launch(shape, Kernel{table, rows});
    });
  });
}

/// One thread block per (KV head, block of rows); a thread keeps the sums and bounds of its rotary
/// items over the rows.
template <class E>
struct BlockSummariesKernel {
  static constexpr int kThreads = 128;
  DeviceRopeTable table;
  BlockSummariesArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t head = device.block_idx().y, block = device.block_idx().x;
    const std::int64_t begin = block * a.block_tokens, end = begin + a.block_tokens < a.raw.num_rows
                                                                 ? begin + a.block_tokens
                                                                 : a.raw.num_rows;
    for (std::int32_t i = device.thread_idx(); i < rotary_items(table); i += kThreads) {
      const RotaryItem item = rotary_item(table, i);
      float sum[2] = {0, 0}, low[2] = {kInfinity, kInfinity}, high[2] = {-kInfinity, -kInfinity};
      for (std::int64_t row = begin; row < end; ++row) {
        const auto* key = reinterpret_cast<const E*>(static_cast<const char*>(a.raw.data) +
                                                     head * a.raw.head_stride +
                                                     row * a.raw.row_stride);
        float x[2] = {device.to_float(device.load(key + item.a)), 0};
        if (!item.passes) {
          x[1] = device.to_float(device.load(key + item.b));
          rotate_pair(device, table, a.first_position + row, item.frequency, x[0], x[1]);
        }
        for (int n = 0; n < 2; ++n) {
          sum[n] += x[n];
          low[n] = fminf(low[n], x[n]);
          high[n] = fmaxf(high[n], x[n]);
        }
      }
      for (int n = 0; n < (item.passes ? 1 : 2); ++n) {
        const std::int64_t at = (block * a.num_kv_heads + head) * a.head_dim +
                                (n == 0 ? item.a : item.b);
        if (a.mean != nullptr) device.store(a.mean + at, sum[n] / static_cast<float>(end - begin));
        if (a.min != nullptr) device.store(a.min + at, low[n]);
        if (a.max != nullptr) device.store(a.max + at, high[n]);
      }
    }
  }
};

template <class Launcher>
Status launch_block_summaries(Launcher& launcher, const DeviceRopeTable& table,
                              const BlockSummariesArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.num_kv_heads, a.head_dim));
  QUIRE_RETURN_IF_ERROR(check_device_table(table, a.head_dim));
  if (a.raw.num_rows <= 0 || a.block_tokens <= 0)
    return Status::invalid("raw.num_rows", "a summary needs rows, and blocks of at least one");
  if (a.first_position < 0 || a.first_position + a.raw.num_rows > table.max_positions) {
    return Status::invalid("first_position", "the rows' positions are outside the RoPE table of " +
                                                 std::to_string(table.max_positions) +
                                                 " positions");
  }
  const std::int64_t blocks = (a.raw.num_rows + a.block_tokens - 1) / a.block_tokens;
  return with_element(a.raw.dtype, "raw.dtype", [&]<class E>(E) {
    return launcher.launch({{blocks, a.num_kv_heads, 1}, BlockSummariesKernel<E>::kThreads, 0},
                           BlockSummariesKernel<E>{table, a});
  });
}

}  // namespace quire::cuda
