/// This file defines a queue that serves its tenants in proportion to the work each has caused,
/// however many items each has waiting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace quire {

/// Serves items of one tenant first come, first served, and next the tenant with the least work
/// (in tokens): work done and work charged in advance. Ties go to the one that waits longer.
///
/// A tenant that is new, or returns from idleness, starts at a level that rises with the work done,
/// shared out among all that wait. So idle time earns no credit, and a tenant that was served waits
/// behind newcomers only until the level has reached its work.
///
/// Only push() and order() take memory, and throw std::bad_alloc where there is none. Threads: one
/// at a time.
template <class T>
class FairQueue {
  static_assert(std::is_nothrow_move_assignable_v<T>);

 public:
  /// Where it throws the item stays as it was.
  void push(const std::string& name, T&& item) {
    forget();
    Tenant& tenant = of(name);
    if (tenant.items.empty()) tenant.done = std::max(tenant.done, level_);
    Entry& entry = tenant.items.emplace_back();
    entry.item = std::move(item);
    entry.arrival = arrivals_++;
    ++size_;
  }
  void push(const std::string& name, const T& item) { push(name, T(item)); }
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  /// Returns the tenants remembered: those that wait, those with work under way, and about as many
  /// with more work done than a newcomer starts with.
  std::size_t num_tenants() const { return tenants_.size(); }
  /// Returns the next item. The queue must not be empty.
  const T& front() const { return pick(tenants_)->second.items.front().item; }
  T pop() {
    Tenant& tenant = pick(tenants_)->second;
    // Only work done counts: what is charged in advance may prove far too high.
    level_ = std::max(level_, tenant.done);
    T item = std::move(tenant.items.front().item);
    tenant.items.pop_front();
    --size_;
    return item;
  }
  /// Charges the tenant of the item that was taken last in advance for its work. Each charge must
  /// be settled.
  void charge(const std::string& name, std::int64_t tokens) {
    Tenant& tenant = of(name);
    tenant.charged += static_cast<double>(tokens);
    ++tenant.charges;
  }
  /// Replaces a charge by the work done, which may be more or less.
  void settle(const std::string& name, std::int64_t charged, std::int64_t done) {
    Tenant& tenant = of(name);
    tenant.charged -= static_cast<double>(charged);
    --tenant.charges;
    tenant.done += static_cast<double>(done);
    const auto waiting = std::count_if(tenants_.begin(), tenants_.end(), [](const auto& entry) {
      return !entry.second.items.empty();
    });
    // The one more is the tenant whose work this was. With it the level never outruns the tenants
    // that always wait, so newcomers are not held up either.
    level_ += static_cast<double>(done) / static_cast<double>(1 + waiting);
    forget();
  }

  /// Removes and returns an item for which `leaves(item)` is true: the first of its tenant; empty:
  /// there is none.
  template <class Fn>
  std::optional<T> take_first(Fn&& leaves) {
    for (auto& [name, tenant] : tenants_) {
      const auto at = std::ranges::find_if(tenant.items, leaves, &Entry::item);
      if (at == tenant.items.end()) continue;
      std::optional<T> out(std::move(at->item));
      tenant.items.erase(at);
      --size_;
      return out;
    }
    return std::nullopt;
  }
  /// Returns whether `is(item)` is true for an item.
  template <class Fn>
  bool holds(Fn&& is) const {
    return std::ranges::any_of(tenants_, [&](const auto& entry) {
      return std::ranges::any_of(entry.second.items, is, &Entry::item);
    });
  }
  /// Returns the items in the order in which they will be served if each turn is charged
  /// `cost(item)`.
  template <class Cost>
  std::vector<const T*> order(Cost&& cost) const {
    struct Turn {
      double work;
      typename std::deque<Entry>::const_iterator at, end;
    };
    std::vector<Turn> turns;
    for (const auto& [name, tenant] : tenants_) {
      if (!tenant.items.empty())
        turns.push_back({tenant.work(), tenant.items.begin(), tenant.items.end()});
    }
    std::vector<const T*> out;
    out.reserve(size_);
    while (!turns.empty()) {
      const auto turn = std::min_element(
          turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
            return a.work != b.work ? a.work < b.work : a.at->arrival < b.at->arrival;
          });
      out.push_back(&turn->at->item);
      turn->work += static_cast<double>(cost(turn->at->item));
      if (++turn->at == turn->end) turns.erase(turn);
    }
    return out;
  }

 private:
  struct Entry {
    T item;
    std::uint64_t arrival = 0;
  };
  struct Tenant {
    std::deque<Entry> items;
    double done = 0;     ///< work done, in tokens
    double charged = 0;  ///< in tokens, for work under way
    int charges = 0;     ///< that are not settled yet

    double work() const { return done + charged; }
  };
  using Tenants = std::map<std::string, Tenant>;

  template <class Map>
  static auto pick(Map& tenants) {
    auto best = tenants.end();
    for (auto it = tenants.begin(); it != tenants.end(); ++it) {
      if (it->second.items.empty()) continue;
      const bool sooner = best == tenants.end() || it->second.work() < best->second.work() ||
                          (it->second.work() == best->second.work() &&
                           it->second.items.front().arrival < best->second.items.front().arrival);
      if (sooner) best = it;
    }
    return best;
  }

  Tenant& of(const std::string& name) {
    const auto [at, added] = tenants_.try_emplace(name);
    if (added) at->second.done = level_;
    return at->second;
  }
  /// Forgets tenants that would return as newcomers do. This bounds memory by the number of tenants
  /// that are active.
  void forget() {
    std::erase_if(tenants_, [this](const auto& entry) {
      const Tenant& tenant = entry.second;
      return tenant.items.empty() && tenant.charges == 0 && tenant.done <= level_;
    });
  }

  Tenants tenants_;
  std::size_t size_ = 0;
  std::uint64_t arrivals_ = 0;
  double level_ = 0;  ///< in tokens; a newcomer starts here
};

}  // namespace quire
