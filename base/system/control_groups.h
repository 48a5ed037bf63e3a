/// What the limits of control groups (containers, systemd's MemoryMax and CPUQuota) leave a
/// process.
///
/// `groups` is the text of /proc/self/cgroup, `root` the folder where control groups are mounted,
/// as a rule /sys/fs/cgroup. Both versions of control groups are read, and so are the groups above
/// the process's own. What cannot be read limits nothing. Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

/// Returns the text of /proc/self/cgroup; empty: the system has none.
std::string own_control_groups();

/// Returns the bytes that are left, with the file cache that a group can give back; the largest
/// number: nothing limits them.
std::int64_t memory_left_in_groups(std::string_view groups, const std::string& root);

/// Returns how many cores' time the groups may use, rounded up; the largest number: nothing limits
/// it.
std::int64_t cores_in_groups(std::string_view groups, const std::string& root);

}  // namespace quire
