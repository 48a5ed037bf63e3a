/// What a retriever did for one answer, and the table that names each number once.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace quire {

/// Counts what a retriever did for one answer, summed over all layers. kRetrieveStats describes
/// each number.
struct RetrieveStats {
  std::int64_t sparse_steps = 0, selections = 0;
  std::int64_t heads_corrected = 0, heads_kept = 0;
  std::int64_t pages_wanted = 0, pages_copied = 0;
  std::int64_t rows_wanted = 0, rows_copied = 0;
  std::int64_t rows_scored = 0, rows_attended = 0;
  std::int64_t bytes_copied = 0, bytes_appended = 0, bytes_offloaded = 0;
  std::int64_t copies = 0, waits = 0;
  double copy_ms = 0, wait_ms = 0, choose_ms = 0;
  std::int64_t device_bytes = 0, choosing_bytes = 0;
  std::int64_t layers_offloaded = 0;
  std::string note;  ///< why it deviated from its method; empty: it did not

  /// Returns the share of copy time that no step waited for. None: nothing was copied
  /// asynchronously, or a device copied, whose copies are not timed.
  std::optional<double> overlap() const {
    if (copy_ms <= 0) return std::nullopt;
    return wait_ms >= copy_ms ? 0 : 1 - wait_ms / copy_ms;
  }
  /// Returns the share of wanted pages and rows that were copied. None: none was wanted.
  std::optional<double> copied_share() const {
    return share(pages_copied + rows_copied, pages_wanted + rows_wanted);
  }
  /// Returns the share of heads whose choice was redone. None: no head reused a choice.
  std::optional<double> corrected_share() const {
    return share(heads_corrected, heads_corrected + heads_kept);
  }

  /// Returns what was counted after `before`, an earlier state of the same statistics. Peaks are
  /// subtracted too, so a caller reads them from the later state.
  RetrieveStats since(const RetrieveStats& before) const;

 private:
  static std::optional<double> share(std::int64_t part, std::int64_t of) {
    if (of == 0) return std::nullopt;
    return static_cast<double>(part) / static_cast<double>(of);
  }
};

/// RetrieveStat describes one number of RetrieveStats.
struct RetrieveStat {
  std::string_view name;  ///< in replies
  /// Where the number is: a count, or milliseconds.
  std::variant<std::int64_t RetrieveStats::*, double RetrieveStats::*> member;
  std::string_view about;  ///< its meaning and unit
};

/// Every number of RetrieveStats, in the order of the reply.
inline constexpr auto kRetrieveStats = std::to_array<RetrieveStat>({
    {"steps", &RetrieveStats::sparse_steps, "Layer steps that attended to only some of the rows"},
    {"selections", &RetrieveStats::selections,
     "Times that rows or pages were scored; once per step if one choice serves all layers"},
    {"heads_corrected", &RetrieveStats::heads_corrected,
     "KV heads whose choice was redone before attention"},
    {"heads_kept", &RetrieveStats::heads_kept, "KV heads that used the previous query's choice"},
    {"pages_wanted", &RetrieveStats::pages_wanted, "Pages wanted, per KV head and layer step"},
    {"pages_copied", &RetrieveStats::pages_copied,
     "Pages copied, per KV head and layer step; the rest was on the device"},
    {"bytes_copied", &RetrieveStats::bytes_copied,
     "Bytes of retrieved pages or rows copied to the device"},
    {"rows_wanted", &RetrieveStats::rows_wanted,
     "Rows wanted, of retrievers that copy single rows"},
    {"rows_copied", &RetrieveStats::rows_copied,
     "Rows copied, of retrievers that copy single rows"},
    {"bytes_appended", &RetrieveStats::bytes_appended,
     "Bytes of new tokens' rows copied to the device"},
    {"bytes_offloaded", &RetrieveStats::bytes_offloaded,
     "Bytes copied to the host for layers offloaded from a device with memory of its own"},
    {"copies", &RetrieveStats::copies, "Asynchronous copies that were queued"},
    {"waits", &RetrieveStats::waits, "Queued copies that a layer step had to wait for"},
    {"choose_ms", &RetrieveStats::choose_ms,
     "Choosing rows or pages and having them copied, without attention to them"},
    {"copy_ms", &RetrieveStats::copy_ms, "Time that copies took"},
    {"wait_ms", &RetrieveStats::wait_ms, "Time that steps waited for copies"},
    {"layers_offloaded", &RetrieveStats::layers_offloaded,
     "Layers offloaded from the device by the end of the answer"},
    {"device_bytes", &RetrieveStats::device_bytes,
     "Peak device memory for rows and their representatives"},
    {"choosing_bytes", &RetrieveStats::choosing_bytes,
     "Peak memory of a device that computes, taken to choose by: centroids, keys of a retrieval "
     "head"},
    {"rows_scored", &RetrieveStats::rows_scored,
     "Rows scored against a step's query, per KV head, of retrievers that choose single rows"},
    {"rows_attended", &RetrieveStats::rows_attended,
     "Rows attended to, per KV head, of retrievers that choose single rows"},
});
static_assert(sizeof(RetrieveStats) ==
                  kRetrieveStats.size() * sizeof(std::int64_t) + sizeof(std::string),
              "the table describes every number");

/// Returns the line of this name, which must exist.
constexpr const RetrieveStat& retrieve_stat(std::string_view name) {
  for (const RetrieveStat& stat : kRetrieveStats)
    if (stat.name == name) return stat;
  std::abort();
}

inline RetrieveStats RetrieveStats::since(const RetrieveStats& before) const {
  RetrieveStats out = *this;
  for (const RetrieveStat& stat : kRetrieveStats)
    std::visit([&](auto member) { out.*member -= before.*member; }, stat.member);
  return out;
}

}  // namespace quire
