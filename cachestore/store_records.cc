// Small records that the replicas of a shared catalog have in common.
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/log.h"
#include "cachestore/store_impl.h"

namespace quire {
namespace {

/// Other replicas that are this often first in a row are not at work on the same record by chance.
constexpr unsigned kTries = 20;

using Value = std::optional<std::string>;

/// Returns a value as the caller of a change sees it; an error other than kNotFound is one.
Result<Value> optional_value(Result<std::string> found) {
  if (found.ok()) return Value(std::move(*found));
  if (found.code() == Code::kNotFound) return Value();
  return found.status();
}

}  // namespace

/// The use of a record from before it is read in the catalog until a copy is kept. Of uses at the
/// same time the latest revision stays, whichever comes to keep its own first.
class StoreImpl::SharedMetaUse {
 public:
  SharedMetaUse(StoreImpl& store, std::string_view name) : store_(store), name_(name) {
    const std::lock_guard lock(store_.shared_copies_mu_);
    ++store_.shared_copies_[name_].users;
  }
  ~SharedMetaUse() {
    const std::lock_guard lock(store_.shared_copies_mu_);
    const auto it = store_.shared_copies_.find(name_);
    if (--it->second.users == 0) store_.shared_copies_.erase(it);
  }
  SharedMetaUse(const SharedMetaUse&) = delete;
  SharedMetaUse& operator=(const SharedMetaUse&) = delete;

  /// Keeps a copy for when the catalog is away. That it could not be written harms nobody now.
  void keep(std::uint64_t revision, const std::string& value) {
    if (!store_.check_writable().ok()) return;
    const std::lock_guard lock(store_.shared_copies_mu_);
    std::uint64_t& kept = store_.shared_copies_.at(name_).revision;
    if (revision <= kept) return;
    kept = revision;
    const auto copy = store_.get_meta(name_);
    Status s;
    if (value.empty()) {
      if (copy.ok()) s = store_.delete_meta(name_);
    } else if (!copy.ok() || *copy != value) {
      s = store_.put_derived(name_, value);
    }
    if (!s.ok())
      log_warning("the copy of a shared record could not be written",
                  {{"record", name_}, {"reason", s.to_string()}});
  }

 private:
  StoreImpl& store_;
  const std::string name_;
};

Result<std::string> Store::get_shared_meta(std::string_view name) { return get_meta(name); }

Status Store::update_shared_meta(std::string_view name, const RecordChange& change) {
  QUIRE_ASSIGN_OR_RETURN(const Value before, optional_value(get_meta(name)));
  QUIRE_ASSIGN_OR_RETURN(const Value after, change(before));
  if (after == before) return {};
  return after ? put_meta(name, *after) : delete_meta(name);
}

Result<std::string> StoreImpl::get_shared_meta(std::string_view name) {
  if (!catalog_) return get_meta(name);
  SharedMetaUse use(*this, name);
  auto shared = catalog_->records().get(name);
  if (catalog_is_away(shared.status())) {
    auto copy = get_meta(name);
    // Another replica may have made it since, so it is not known that there is none.
    return copy.code() == Code::kNotFound ? shared.status() : copy;
  }
  QUIRE_RETURN_IF_ERROR(shared.status());
  if (shared->revision == 0) return get_meta(name);
  use.keep(shared->revision, shared->value);
  if (shared->value.empty()) return Status::not_found("no record " + std::string(name));
  return std::move(shared->value);
}

Status StoreImpl::update_shared_meta(std::string_view name, const RecordChange& change) {
  const std::lock_guard lock(shared_meta_mu_);
  if (!catalog_) return Store::update_shared_meta(name, change);
  QUIRE_RETURN_IF_ERROR(check_writable());
  SharedMetaUse use(*this, name);
  for (unsigned i = 0; i < kTries; ++i) {
    QUIRE_ASSIGN_OR_RETURN(SharedRecord shared, catalog_->records().get(name));
    Value before;
    if (shared.revision == 0) {
      QUIRE_ASSIGN_OR_RETURN(before, optional_value(get_meta(name)));
    } else if (!shared.value.empty()) {
      before = std::move(shared.value);
    }
    QUIRE_ASSIGN_OR_RETURN(const Value after, change(before));
    if (after == before && (after.has_value() == (shared.revision > 0))) return {};
    // Nothing in its place tells the other replicas that it was deleted.
    const std::string value = after.value_or("");
    const Status put = catalog_->records().put(name, value, shared.revision);
    if (put.code() == Code::kFailedPrecondition) {
      thread_local std::mt19937 random{std::random_device{}()};
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % (2 * i + 1)));
      continue;
    }
    QUIRE_RETURN_IF_ERROR(put);
    use.keep(shared.revision + 1, value);
    return {};
  }
  return Status::exhausted("other replicas change the record " + std::string(name) +
                           " all the time; try again later");
}

}  // namespace quire
