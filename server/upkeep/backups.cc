#include "server/upkeep/backups.h"

#include <algorithm>
#include <charconv>

#include "base/log.h"
#include "cachestore/store_admin.h"
#include "server/service/services.h"

namespace quire {
namespace {

constexpr const char* kRecord = "server/last_backup";
constexpr std::chrono::minutes kAfterFailure{10};
constexpr std::chrono::seconds kBusy{10};  // until a worker may be free

}  // namespace

void Backups::start() {
  if (const auto saved = services_.store->get_meta(kRecord); saved.ok()) {
    std::int64_t ms = 0;
    (void)std::from_chars(saved->data(), saved->data() + saved->size(), ms);
    last_ms_ = ms;
  }
  if (options_.every.count() == 0) return;
  const std::chrono::milliseconds every = options_.every;
  const std::chrono::milliseconds age(unix_ms_now() - last_ms_);
  // A clock that was wrong does not put a backup off for longer than one period.
  wait(last_ms_ == 0 ? std::chrono::milliseconds(0)
                     : std::clamp(every - age, std::chrono::milliseconds(0), every));
}

void Backups::wait(std::chrono::milliseconds time) {
  services_.timers->at(std::chrono::steady_clock::now() + time, [self = shared_from_this()] {
    if (!self->services_.maintenance->post([self] { self->run(); })) self->wait(kBusy);
  });
}

void Backups::run() {
  const auto made = make();
  const bool failed = !made.ok() && made.code() != Code::kUnavailable;  // else one is made now
  if (failed)
    log_error("a backup of the store failed; it is tried again",
              {{"folder", options_.folder}, {"reason", made.status().to_string()}});
  wait(failed ? std::chrono::milliseconds(kAfterFailure)
              : std::chrono::milliseconds(options_.every));
}

Result<BackupReport> Backups::make() {
  const std::unique_lock lock(making_, std::try_to_lock);
  if (!lock.owns_lock()) return Status::unavailable("a backup is being made already");
  const auto begun = std::chrono::steady_clock::now();
  auto report = services_.store->backup(options_.folder, options_.keep);
  if (!report.ok()) {
    ++failed_;
    return report.status().field() == "to" ? report.status().with_field("backup.path")
                                           : report.status();
  }
  ++made_;
  last_ms_ = report->made_ms;
  if (const Status s = services_.store->put_meta(kRecord, std::to_string(report->made_ms)); !s.ok())
    log_warning("the time of a backup could not be written: the next start makes one at once",
                {{"reason", s.to_string()}});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  log_info("a backup of the store was made and read back",
           {{"folder", options_.folder},
            {"number", std::to_string(report->number)},
            {"bytes", std::to_string(report->bytes)},
            {"backups", std::to_string(report->backups)},
            {"seconds", std::to_string(took.count())}});
  return report;
}

BackupCounts Backups::counts() const { return {made_, failed_, last_ms_}; }

}  // namespace quire
