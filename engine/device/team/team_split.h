/// TeamSplit is what operations on KV need that is cut by head over several devices. Internal to
/// engine/device/team.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/index.h"
#include "engine/device/device_tables.h"
#include "engine/device/team/team_memory.h"
#include "engine/device/team/team_pages.h"

namespace quire {

/// Twins share it. Threads: any.
class TeamSplit {
 public:
  explicit TeamSplit(std::shared_ptr<TeamMemory> team)
      : team_(std::move(team)), pages_(std::make_shared<TeamPages>(team_)) {
    for (std::int64_t r = 1; r < team_->ranks(); ++r)
      tables_.push_back(std::make_shared<DeviceTables>(team_->rank(r)));
  }
  const std::shared_ptr<TeamMemory>& team() const { return team_; }
  const std::shared_ptr<TeamPages>& pages() const { return pages_; }
  /// Returns the rotary tables of a rank behind the leader.
  const std::shared_ptr<DeviceTables>& tables(std::int64_t rank) const {
    return tables_[at(rank - 1)];
  }

 private:
  const std::shared_ptr<TeamMemory> team_;
  const std::shared_ptr<TeamPages> pages_;
  std::vector<std::shared_ptr<DeviceTables>> tables_;
};

}  // namespace quire
