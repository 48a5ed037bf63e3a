#include "server/service/explain_ring.h"

#include <algorithm>

namespace quire {

void ExplainRing::set_capacity(std::size_t capacity) {
  std::lock_guard lock(mu_);
  capacity_ = capacity;
  shrink();
}

void ExplainRing::shrink() {
  while (records_.size() > capacity_) {
    by_id_.erase(records_.front()->id);
    records_.pop_front();
  }
}

void ExplainRing::add(std::shared_ptr<const QueryRecord> record) {
  std::lock_guard lock(mu_);
  if (capacity_ == 0) return;
  by_id_[record->id] = record;
  records_.push_back(std::move(record));
  shrink();
}

std::shared_ptr<const QueryRecord> ExplainRing::find(const std::string& ns,
                                                     const std::string& id) const {
  std::lock_guard lock(mu_);
  const auto it = by_id_.find(id);
  return it == by_id_.end() || it->second->ns != ns ? nullptr : it->second;
}

ExplainRing::Page ExplainRing::list(const std::string& ns, const std::string& after,
                                    std::size_t limit, bool newest_first) const {
  std::lock_guard lock(mu_);
  Page page;
  bool begun = after.empty();
  const auto visit = [&](const std::shared_ptr<const QueryRecord>& r) {
    if (r->ns != ns) return true;
    if (!begun) {
      begun = r->id == after;
      return true;
    }
    if (page.records.size() == limit) {
      page.has_more = true;
      return false;
    }
    page.records.push_back(r);
    return true;
  };
  if (newest_first)
    (void)std::all_of(records_.rbegin(), records_.rend(), visit);
  else
    (void)std::all_of(records_.begin(), records_.end(), visit);
  page.after_known = begun;
  return page;
}

}  // namespace quire
