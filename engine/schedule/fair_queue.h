/// This file defines a queue that serves its tenants in proportion to the work each has caused,
/// however many items each has waiting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace quire {

/// Serves items of one tenant first come, first served, and next the tenant with the least work
/// done (in tokens); ties go to the one that waits longer. A tenant that returns from idleness
/// starts level with the least served of those that wait, so idle time earns no credit. Threads:
/// one at a time.
template <class T>
class FairQueue {
 public:
  void push(const std::string& tenant, T item) {
    Tenant& t = tenants_[tenant];
    if (t.items.empty()) t.served = std::max(t.served, floor_);
    t.items.push_back({std::move(item), arrivals_++});
    ++size_;
  }
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  /// Returns the next item. The queue must not be empty.
  const T& front() const { return pick(tenants_)->second.items.front().item; }
  T pop() {
    const auto at = pick(tenants_);
    floor_ = std::max(floor_, at->second.served);
    T item = std::move(at->second.items.front().item);
    at->second.items.pop_front();
    --size_;
    return item;
  }
  /// Charges the tenant for work done, or refunds (negative) work that was charged in advance but
  /// not done.
  void charge(const std::string& tenant, std::int64_t tokens) {
    tenants_[tenant].served += static_cast<double>(tokens);
  }

  /// Removes and returns every item for which `leaves(item)` is true.
  template <class Fn>
  std::vector<T> take_if(Fn&& leaves) {
    std::vector<T> out;
    for (auto& [name, tenant] : tenants_) {
      std::erase_if(tenant.items, [&](Entry& entry) {
        if (!leaves(entry.item)) return false;
        out.push_back(std::move(entry.item));
        return true;
      });
    }
    size_ -= out.size();
    forget();
    return out;
  }
  /// Returns the items in the order in which they will be served if each turn is charged
  /// `cost(item)`.
  template <class Cost>
  std::vector<const T*> order(Cost&& cost) const {
    struct Turn {
      double served;
      typename std::deque<Entry>::const_iterator at, end;
    };
    std::vector<Turn> turns;
    for (const auto& [name, tenant] : tenants_) {
      if (!tenant.items.empty())
        turns.push_back({tenant.served, tenant.items.begin(), tenant.items.end()});
    }
    std::vector<const T*> out;
    out.reserve(size_);
    while (!turns.empty()) {
      const auto turn = std::min_element(
          turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
            return a.served != b.served ? a.served < b.served : a.at->arrival < b.at->arrival;
          });
      out.push_back(&turn->at->item);
      turn->served += static_cast<double>(cost(turn->at->item));
      if (++turn->at == turn->end) turns.erase(turn);
    }
    return out;
  }
  /// Forgets tenants that have no items and no more work than the others. This bounds memory by the
  /// number of active tenants.
  void forget() {
    std::erase_if(tenants_, [this](const auto& entry) {
      return entry.second.items.empty() && entry.second.served <= floor_;
    });
  }

 private:
  struct Entry {
    T item;
    std::uint64_t arrival = 0;
  };
  struct Tenant {
    std::deque<Entry> items;
    double served = 0;  ///< work done, in tokens
  };
  using Tenants = std::map<std::string, Tenant>;

  template <class Map>
  static auto pick(Map& tenants) {
    auto best = tenants.end();
    for (auto it = tenants.begin(); it != tenants.end(); ++it) {
      if (it->second.items.empty()) continue;
      const bool sooner = best == tenants.end() || it->second.served < best->second.served ||
                          (it->second.served == best->second.served &&
                           it->second.items.front().arrival < best->second.items.front().arrival);
      if (sooner) best = it;
    }
    return best;
  }

  Tenants tenants_;
  std::size_t size_ = 0;
  std::uint64_t arrivals_ = 0;
  double floor_ = 0;  ///< least work of the tenants served; a newcomer starts here
};

}  // namespace quire
