/// This file declares eviction orders over keys with sizes. They are not thread-safe; the owner's
/// mutex guards them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

namespace quire {

/// Chooses the next victim. It holds only keys and sizes; the owner removes the bytes.
template <class Key>
class EvictionPolicy {
 public:
  /// Returns true if this key may be evicted now (not pinned, not being read).
  using Evictable = std::function<bool(const Key&)>;

  virtual ~EvictionPolicy() = default;
  virtual void reserve(std::size_t keys) = 0;                    ///< makes room for so many
  virtual void insert(const Key& key, std::uint64_t bytes) = 0;  ///< the key must not be present
  virtual void touch(const Key& key) = 0;  ///< counts a use; unknown keys are ignored
  /// the key was removed otherwise; unknown keys are ignored
  virtual void erase(const Key& key) = 0;
  /// Removes and returns the next victim; empty if no key may be evicted.
  virtual std::optional<Key> evict(const Evictable& evictable) = 0;
};

/// Evicts the least recently used key first.
template <class Key, class Hash>
class LruPolicy final : public EvictionPolicy<Key> {
 public:
  void reserve(std::size_t keys) override { where_.reserve(keys); }
  void insert(const Key& key, std::uint64_t) override {
    order_.push_front(key);
    where_[key] = order_.begin();
  }
  void touch(const Key& key) override {
    if (auto it = where_.find(key); it != where_.end())
      order_.splice(order_.begin(), order_, it->second);
  }
  void erase(const Key& key) override {
    auto it = where_.find(key);
    if (it == where_.end()) return;
    order_.erase(it->second);
    where_.erase(it);
  }
  std::optional<Key> evict(const typename EvictionPolicy<Key>::Evictable& evictable) override {
    for (auto it = order_.end(); it != order_.begin();) {
      --it;
      if (!evictable(*it)) continue;
      Key key = *it;
      erase(key);
      return key;
    }
    return std::nullopt;
  }

 private:
  std::list<Key> order_;  // front: most recently used
  std::unordered_map<Key, typename std::list<Key>::iterator, Hash> where_;
};

/// S3-FIFO (Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023). New keys
/// enter a small queue of a tenth of the bytes. Keys used more than once there move to the main
/// queue (FIFO with reinsertion); the others are evicted and remembered in a ghost queue. A key
/// that returns while remembered enters the main queue. One-time scans pass through the small queue
/// without evicting keys in use.
template <class Key, class Hash>
class S3FifoPolicy final : public EvictionPolicy<Key> {
 public:
  void reserve(std::size_t keys) override { where_.reserve(keys); }
  void insert(const Key& key, std::uint64_t bytes) override {
    const bool remembered = forget_ghost(key);
    push(remembered ? kMain : kSmall, Node{key, bytes, 0, kSmall});
  }
  void touch(const Key& key) override {
    if (auto it = where_.find(key); it != where_.end() && it->second->uses < 3) ++it->second->uses;
  }
  void erase(const Key& key) override {
    if (auto it = where_.find(key); it != where_.end()) remove(it->second);
  }
  std::optional<Key> evict(const typename EvictionPolicy<Key>::Evictable& evictable) override {
    const bool small_first = bytes_[kSmall] * 10 >= bytes_[kSmall] + bytes_[kMain];
    if (auto key = small_first ? evict_small(evictable) : evict_main(evictable)) return key;
    // All keys in that queue are pinned or were moved, so try the other one.
    if (auto key = small_first ? evict_main(evictable) : evict_small(evictable)) return key;
    return small_first ? std::nullopt : evict_main(evictable);
  }

 private:
  enum Queue : unsigned char { kSmall = 0, kMain = 1 };
  struct Node {
    Key key;
    std::uint64_t bytes;
    unsigned char uses;
    Queue queue;
  };
  using List = std::list<Node>;
  using Iterator = typename List::iterator;

  void push(Queue q, Node node) {
    node.queue = q;
    bytes_[q] += node.bytes;
    queues_[q].push_front(std::move(node));
    where_[queues_[q].front().key] = queues_[q].begin();
  }
  void remove(Iterator it) {
    bytes_[it->queue] -= it->bytes;
    where_.erase(it->key);
    queues_[it->queue].erase(it);
  }
  std::optional<Key> evict_small(const typename EvictionPolicy<Key>::Evictable& evictable) {
    for (auto it = queues_[kSmall].end(); it != queues_[kSmall].begin();) {
      --it;
      if (it->uses > 1) {  // used repeatedly: move to the main queue
        Node node = *it;
        node.uses = 0;
        auto next = std::next(it);
        remove(it);
        push(kMain, std::move(node));
        it = next;
        continue;
      }
      if (!evictable(it->key)) continue;
      Key key = it->key;
      remember_ghost(key, it->bytes);
      remove(it);
      return key;
    }
    return std::nullopt;
  }
  std::optional<Key> evict_main(const typename EvictionPolicy<Key>::Evictable& evictable) {
    // A used key goes round with one use less, so at most four rounds pass; one more finds only
    // pinned keys.
    for (std::size_t steps = 5 * queues_[kMain].size(); steps > 0; --steps) {
      auto it = std::prev(queues_[kMain].end());
      const bool may_go = it->uses == 0 && evictable(it->key);
      if (may_go) {
        Key key = it->key;
        remove(it);
        return key;
      }
      if (it->uses > 0) --it->uses;
      queues_[kMain].splice(queues_[kMain].begin(), queues_[kMain], it);
    }
    return std::nullopt;
  }
  void remember_ghost(const Key& key, std::uint64_t bytes) {
    ghosts_.push_front({key, bytes});
    ghost_where_[key] = ghosts_.begin();
    ghost_bytes_ += bytes;
    while (!ghosts_.empty() && ghost_bytes_ > std::max(bytes_[kMain], bytes_[kSmall])) {
      ghost_bytes_ -= ghosts_.back().second;
      ghost_where_.erase(ghosts_.back().first);
      ghosts_.pop_back();
    }
  }
  bool forget_ghost(const Key& key) {
    auto it = ghost_where_.find(key);
    if (it == ghost_where_.end()) return false;
    ghost_bytes_ -= it->second->second;
    ghosts_.erase(it->second);
    ghost_where_.erase(it);
    return true;
  }

  List queues_[2];  // front: newest
  std::uint64_t bytes_[2] = {0, 0};
  std::unordered_map<Key, Iterator, Hash> where_;
  std::list<std::pair<Key, std::uint64_t>> ghosts_;
  std::unordered_map<Key, typename std::list<std::pair<Key, std::uint64_t>>::iterator, Hash>
      ghost_where_;
  std::uint64_t ghost_bytes_ = 0;
};

}  // namespace quire
