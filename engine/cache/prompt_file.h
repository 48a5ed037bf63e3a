/// PromptFile keeps pages of computed prompts on disk, so that conversations, system prompts and
/// tools are known again after a restart. docs/formats.md, "Kept prompts", gives the layout.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/waker.h"
#include "cachestore/format/key.h"
#include "engine/cache/page_pool.h"

namespace quire {

/// One page of a prompt in every layer.
struct PromptPage {
  Digest key;     ///< chain over the seed and all token ids up to the page's end
  Digest parent;  ///< key of the page before; all zero for a prompt's first page
  std::vector<std::int32_t> token_ids;  ///< [kPageTokens]
  std::vector<std::byte> rows;          ///< [num_layers][PageFormat::page_bytes()]
};

/// PromptFile is a file of slots of equal size, each with one page. A slot is overwritten in place
/// and never synced: a page that does not match its checksum is not there. The file belongs to one
/// model and one page format, and starts anew for another. A write that fails ends writing, which
/// the log says once. Threads: those of write(), ready() and flush() are one; the rest may be
/// called from any.
class PromptFile {
 public:
  struct Shape {
    Digest fingerprint;  ///< everything that changes KV of the model
    PageFormat page;
    std::int32_t num_layers = 0;
  };
  /// Most pages that wait to be written.
  static constexpr std::size_t kMaxWaiting = 8;

  /// Opens or creates the file and its folder, readable by the owner alone, with as many slots as
  /// fit into `max_bytes`. `waker` is woken after each write; it may be null. Errors:
  /// kInvalidArgument (not one slot fits), kIo.
  static Result<std::unique_ptr<PromptFile>> open(const std::string& path, const Shape& shape,
                                                  std::int64_t max_bytes,
                                                  std::shared_ptr<Waker> waker = nullptr);
  ~PromptFile();  ///< waits for pages that were passed to write()
  PromptFile(const PromptFile&) = delete;
  PromptFile& operator=(const PromptFile&) = delete;

  std::int32_t num_slots() const { return num_slots_; }
  /// Returns the length of the file.
  std::int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::int64_t max_bytes() const { return max_bytes_; }

  /// Reads the pages that follow one another from a prompt's first page on, a page before its
  /// continuations. Slots that are damaged or cannot be reached are left out. `take` returns
  /// whether it wants more; its pages' continuations are not read if it refused one. Call it before
  /// the first write().
  void load(const std::function<bool(std::int32_t slot, const PromptPage& page)>& take) const;

  /// Returns whether write() would take a page now without waiting.
  bool ready() const;
  /// Returns whether a write failed: nothing is written any more.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  /// Writes the page to the slot on another thread. Waits while kMaxWaiting pages are ahead.
  void write(std::int32_t slot, PromptPage page);
  /// Waits until everything is written.
  void flush();

 private:
  PromptFile(int fd, std::string path, const Shape& shape, std::int64_t max_bytes,
             std::shared_ptr<Waker> waker);
  Status start_anew();
  bool header_fits() const;
  std::int64_t offset(std::int32_t slot) const;
  Status write_slot(std::int32_t slot, const PromptPage& page);
  void save(std::int32_t slot, const PromptPage& page);
  void run();

  const int fd_;
  const std::string path_;
  const Shape shape_;
  const std::int64_t max_bytes_;
  const std::shared_ptr<Waker> waker_;
  std::int64_t rows_bytes_ = 0, slot_bytes_ = 0;
  std::int32_t num_slots_ = 0;
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<bool> failed_{false};
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::pair<std::int32_t, PromptPage>> waiting_;  // guarded by mu_
  bool writing_ = false, stopping_ = false;                  // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
