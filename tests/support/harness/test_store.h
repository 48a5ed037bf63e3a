/// Helpers of the store's tests for folders, documents and segments.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cachestore/disk/disk_tier.h"
#include "cachestore/store.h"
#include "cachestore/store_impl.h"
#include "tests/support/harness/memory_tier.h"
#include "tests/support/status_matchers.h"

namespace quire::test {

inline std::string text(const Status& s) { return s.to_string(); }
template <class T>
std::string text(const Result<T>& r) {
  return r.status().to_string();
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire_store_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path(const std::string& name = "store") const { return path_ + "/" + name; }
  const std::string& root() const { return path_; }

 private:
  std::string path_;
};

inline int env_int(const char* name, int fallback) {
  const char* v = std::getenv(name);
  return v ? std::atoi(v) : fallback;
}

inline std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<std::byte> out(n);
  for (std::size_t i = 0; i < n; i += 8) {
    const std::uint64_t v = rng();
    std::memcpy(out.data() + i, &v, std::min<std::size_t>(8, n - i));
  }
  return out;
}

inline ContextKey key_of(std::uint64_t n) { return sha256("context " + std::to_string(n)); }

/// The contents of a test segment are a function of its key number, so that any read can be
/// checked.
struct SegmentShape {
  SegmentLayout layout{3, 2, 1};
  std::size_t value_bytes = 1000;
  std::uint64_t total() const {
    return (std::uint64_t{layout.num_blocks} * layout.values_per_block + layout.num_sketches) *
           (value_bytes + 64);
  }
};
inline std::vector<std::byte> value_of(std::uint64_t key, std::uint32_t block, std::uint32_t group,
                                       std::size_t bytes) {
  return random_bytes(bytes + (block * 7 + group) % 64, key * 1000003 + block * 1009 + group);
}
inline std::vector<std::byte> sketch_of(std::uint64_t key, std::uint32_t index, std::size_t bytes) {
  return random_bytes(bytes / 2 + 1 + index % 16, ~key * 1000003 + index);
}

inline Result<SegmentHandle> put_segment(Store& store, std::uint64_t key,
                                         const SegmentShape& shape = {}) {
  QUIRE_ASSIGN_OR_RETURN(auto writer, store.begin_segment(key_of(key), shape.layout, shape.total(),
                                                          "default", "m-test"));
  for (std::uint32_t b = 0; b < shape.layout.num_blocks; ++b) {
    for (std::uint32_t g = 0; g < shape.layout.values_per_block; ++g) {
      QUIRE_RETURN_IF_ERROR(writer->put_value(b, g, value_of(key, b, g, shape.value_bytes)));
    }
  }
  for (std::uint32_t i = 0; i < shape.layout.num_sketches; ++i)
    QUIRE_RETURN_IF_ERROR(writer->put_sketch(i, sketch_of(key, i, shape.value_bytes)));
  return writer->finish();
}

inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

/// Reads every value and sketch. Wrong bytes are kInternal; otherwise the first failure is
/// returned.
inline Status check_segment(Store& store, const SegmentHandle& handle, std::uint64_t key,
                            const SegmentShape& shape = {}) {
  for (std::uint32_t b = 0; b < shape.layout.num_blocks; ++b) {
    for (std::uint32_t g = 0; g < shape.layout.values_per_block; ++g) {
      QUIRE_ASSIGN_OR_RETURN(const PinnedBytes bytes, store.read_value(handle, b, g));
      if (!same(bytes.bytes(), value_of(key, b, g, shape.value_bytes)))
        return Status::internal("wrong bytes in a value");
      if (reinterpret_cast<std::uintptr_t>(bytes.data()) % 64 != 0)
        return Status::internal("not aligned");
    }
  }
  for (std::uint32_t i = 0; i < shape.layout.num_sketches; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const PinnedBytes bytes, store.read_sketch(handle, i));
    if (!same(bytes.bytes(), sketch_of(key, i, shape.value_bytes)))
      return Status::internal("wrong bytes in a sketch");
  }
  return {};
}

/// Returns a document with one chunk for each key number.
inline DocumentManifest manifest_of(const std::string& id, const std::vector<std::uint64_t>& keys,
                                    std::size_t text_bytes = 90) {
  DocumentManifest m;
  m.ns = "default";
  m.id = id;
  m.title = "Title of " + id;
  m.metadata_json = R"({"source":"test"})";
  m.content_hash = "sha256:" + sha256(id).hex();
  m.status = DocumentStatus::kReady;
  m.chunking = "tokens:512";
  m.fingerprint = "m-test";
  m.text_bytes = text_bytes;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    DocumentChunk c;
    c.byte_begin = text_bytes * i / keys.size();
    c.byte_end = text_bytes * (i + 1) / keys.size();
    c.block_tokens = 16;
    c.key = key_of(keys[i]);
    for (int t = 0; t < 20; ++t)
      c.token_ids.push_back(
          static_cast<std::int32_t>(keys[i] * 100 + static_cast<std::uint64_t>(t)));
    m.chunks.push_back(std::move(c));
  }
  return m;
}
inline std::string text_of(const std::string& id, std::size_t bytes = 90) {
  std::string out;
  while (out.size() < bytes) out += id + " says hello. ";
  out.resize(bytes);
  return out;
}

/// Writes segments and document in one call; the handles are dropped at the end.
inline Status put_document(Store& store, const std::string& id,
                           const std::vector<std::uint64_t>& keys, const SegmentShape& shape = {},
                           bool pinned = false,
                           const std::function<void(DocumentManifest&)>& edit = {}) {
  std::vector<SegmentHandle> handles;
  for (auto key : keys) {
    auto found = store.find_segment(key_of(key));
    if (!found) {
      QUIRE_ASSIGN_OR_RETURN(found, put_segment(store, key, shape));
    }
    handles.push_back(*found);
  }
  DocumentManifest m = manifest_of(id, keys);
  m.pinned = pinned;
  if (edit) edit(m);
  return store.commit_document(m, text_of(id), handles).status();
}

}  // namespace quire::test
