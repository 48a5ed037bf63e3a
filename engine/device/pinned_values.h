/// PinnedValues is pinned memory for the values of a store's DRAM tier, which a device reads where
/// they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/format/value_memory_source.h"
#include "kernels/cuda/backend/ops.h"

namespace quire {

/// PinnedValues gives out runs of pages of fixed slabs. A slab is pinned when the first value needs
/// it and stays pinned until this object ends, which the store and the device's memory share: it
/// keeps the device's session alive. Once pinning fails no more is tried.
///
/// A run that enqueued work reads is held. Its value may be freed meanwhile, as the tier's budget
/// or a deletion wants, but the run is not given out again before the hold ends.
///
/// Threads: any. The store's threads take and give, the engine's hold. A slab is pinned without the
/// lock that the others need; but the device's calls come one after the other, so the engine's next
/// one waits for that.
class PinnedValues final : public ValueMemorySource {
 public:
  static constexpr std::int64_t kSlabBytes = std::int64_t{64} << 20;
  static constexpr std::size_t kPage = 4096;

  /// Takes at most `most_bytes` of the device's pinned memory.
  PinnedValues(std::shared_ptr<cuda::DeviceOps> ops, std::int64_t most_bytes,
               std::int64_t slab_bytes = kSlabBytes);
  /// All values must have been freed and all holds ended.
  ~PinnedValues() override;

  /// Pins a slab unless there is one. Errors: those of DeviceOps::allocate(), kResourceExhausted
  /// (fewer bytes than a page are allowed).
  Status pin_first();
  std::byte* take(std::size_t bytes) noexcept override;
  void give(std::byte* memory) noexcept override;

  /// Hold keeps runs from being given out again while it lives.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept { swap(other); }
    Hold& operator=(Hold&& other) noexcept {
      swap(other);
      return *this;
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { end(); }
    bool empty() const { return runs_.empty(); }
    void end();

   private:
    friend class PinnedValues;
    void swap(Hold& other) noexcept {
      std::swap(from_, other.from_);
      std::swap(runs_, other.runs_);
    }
    std::shared_ptr<PinnedValues> from_;
    std::vector<const std::byte*> runs_;
  };
  /// Bytes of memory of any kind; null: none.
  struct Range {
    const void* first;
    std::int64_t bytes;
  };
  /// Tells for each range whether it lies in the run of a value, and holds those that do. The
  /// values must live until this returns. `values` is this object.
  static std::vector<std::uint8_t> hold(const std::shared_ptr<PinnedValues>& values,
                                        const std::vector<Range>& ranges, Hold& hold);

  struct Use {
    std::int64_t pinned_bytes = 0;  ///< of all slabs
    std::int64_t given_bytes = 0;   ///< of runs that are given out, or held
    std::int64_t held_bytes = 0;    ///< of runs that are held
    bool failed = false;            ///< pinning was refused
  };
  Use use() const;

 private:
  struct Slab {
    std::byte* memory;
    std::size_t bytes;
    std::map<std::size_t, std::size_t> free;  ///< bytes by offset, no two of them adjacent
    std::size_t longest;                      ///< no free range is longer
  };
  struct Run {
    std::size_t slab, bytes;
    std::int64_t holds = 0;
    bool given = true;  ///< a value lies in it
  };
  using Runs = std::map<const std::byte*, Run, std::less<>>;
  std::byte* find(std::size_t bytes);        // mu_ held
  void free(Runs::iterator run);             // mu_ held
  std::size_t next_slab() const;             // mu_ held; 0: there is no more
  Status pin_slab(std::size_t least_bytes);  // grow_mu_ held
  void end_hold(const std::vector<const std::byte*>& runs);

  const std::shared_ptr<cuda::DeviceOps> ops_;
  const std::size_t most_bytes_, slab_bytes_;
  std::mutex grow_mu_;     // held while a slab is pinned; before mu_
  mutable std::mutex mu_;  // guards all below
  std::vector<Slab> slabs_;
  Runs runs_;  // by address
  std::size_t pinned_bytes_ = 0;
  bool failed_ = false;
};

}  // namespace quire
