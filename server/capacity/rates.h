/// How fast one replica is, as `quire bench rates` measures it (docs/capacity.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::capacity {

/// A point of a measured curve. Between points it is linear; beyond the last it goes on as between
/// the last two, and below the first in proportion to it.
struct RatePoint {
  double at = 0, ms = 0;
  bool operator==(const RatePoint&) const = default;
};

/// What it costs until a cached context is in place.
struct PlaceRate {
  double ms_per_context = 0, ms_per_token = 0;
  bool operator==(const PlaceRate&) const = default;
  double ms(double contexts, double tokens) const {
    return contexts * ms_per_context + tokens * ms_per_token;
  }
};

/// Rates of a replica that has its machine to itself.
struct Rates {
  std::string model, strategy;
  double bytes_per_token = 0;  ///< KV of a token, which a question reads
  /// What a context takes where it is stored whole, sketches included: for a token, and besides.
  double stored_bytes_per_token = 0, stored_bytes_per_context = 0;
  double disk_bytes_beside = 0;  ///< what the folder of a store takes besides contexts
  double request_ms = 0;         ///< of a question, whatever it is over
  /// What a question costs besides that comes after so many seconds without work: caches have the
  /// data of others, and cores sleep. It rises from 0, and ends to rise with the last point.
  std::vector<RatePoint> idle;
  double question_ms_per_token = 0;
  std::vector<RatePoint> prefill;  ///< computing a context of so many tokens
  PlaceRate dram, disk, remote;    ///< all until it is in place, from that tier
  std::vector<RatePoint> decode;   ///< a step of so many answers at once
  /// What such a step adds to a chunk of a prompt that it runs beside, as a share of the step.
  /// Above 1 where the chunks, which are short then, cost more than their part of a prompt alone.
  double step_beside = 1;
  /// Speed of each of 1, 2, ... busy replicas of one host, as a share of that of one alone. Empty:
  /// one replica alone uses the whole host.
  std::vector<double> host_speed;
  bool operator==(const Rates&) const = default;

  double prefill_ms(double tokens) const;
  double decode_ms(double answers) const;
  double idle_ms(double seconds) const;
  double host_share(int busy) const;
};

/// Writes what parse_rates() reads.
std::string rates_json(const Rates& rates);
/// Errors: kInvalidArgument; the field names the member.
Result<Rates> parse_rates(std::string_view text);
/// Errors: those of parse_rates(), with the path; kNotFound, kIo.
Result<Rates> read_rates(const std::string& path);

}  // namespace quire::capacity
