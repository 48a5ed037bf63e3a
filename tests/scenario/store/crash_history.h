/// Says what the crash test's child writes and what its parent expects to find.
#pragma once

#include <unistd.h>

#include <atomic>

#include "tests/support/harness/test_store.h"

namespace quire::test {

inline const SegmentShape kCrashShape{{2, 2, 1}, 5000};

inline std::vector<std::uint64_t> keys_of_nonce(std::uint64_t nonce) {
  std::vector<std::uint64_t> keys;
  // Only 40 contexts exist, so that documents share many of them.
  for (std::uint64_t i = 0; i < 1 + nonce % 3; ++i) keys.push_back((nonce / 7 + i) % 40);
  return keys;
}
inline std::string text_of_nonce(const std::string& id, std::uint64_t nonce) {
  return text_of(id + "#" + std::to_string(nonce), 100 + nonce % 5000);
}
inline DocumentManifest manifest_of_nonce(const std::string& id, std::uint64_t nonce) {
  DocumentManifest m = manifest_of(id, keys_of_nonce(nonce), text_of_nonce(id, nonce).size());
  m.title = std::to_string(nonce);
  m.metadata_json = "{\"n\":" + std::to_string(nonce % 5) + "}";
  return m;
}

inline Status put_history(Store& store, const std::string& id, std::uint64_t nonce) {
  std::vector<SegmentHandle> handles;
  for (auto key : keys_of_nonce(nonce)) {
    auto found = store.find_segment(key_of(key));
    if (!found) {
      QUIRE_ASSIGN_OR_RETURN(found, put_segment(store, key, kCrashShape));
    }
    handles.push_back(*found);
  }
  const std::string text = text_of_nonce(id, nonce);
  if (nonce % 2 == 0)
    return store.commit_document(manifest_of_nonce(id, nonce), text, handles).status();
  // The text is stored first, as ingest does it, under a name that no other one has.
  static std::atomic<int> count{0};
  CommitOptions options;
  options.waiting_text = std::to_string(::getpid()) + "/" + id + "/" + std::to_string(++count);
  const NamedText waiting{options.waiting_text, text};
  QUIRE_RETURN_IF_ERROR(store.put_job_and_texts("input", "some input", {&waiting, 1}));
  return store.commit_document(manifest_of_nonce(id, nonce), std::nullopt, handles, options)
      .status();
}

}  // namespace quire::test
