/// What bench/decode measures: retrievers with their options and how their copies run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace quire::bench {

/// A retriever with its options.
struct Variant {
  /// Resident: auto, none, or empty where there is no such option
  std::string name, resident = "";
  /// The part of the method that this variant lacks, or what it has instead; empty: nothing
  std::string without = "";
  std::map<std::string, std::string, std::less<>> options = {};
  std::int32_t streams = 2;  ///< of copies beside the computation; 0: copies are made at once
  /// The device has room for the rows of so many layers; 0: no limit
  std::int32_t device_layers = 0;
};

/// Dense, and every retriever of `wanted` (empty: all), with layers on the device and with none
/// where it knows the difference.
std::vector<Variant> variants(const std::vector<std::string>& wanted);
/// Dense, and FreeKV, CTkvr and SpeContext, those of `wanted`: whole, and without one of their
/// parts each.
std::vector<Variant> ablations(const std::vector<std::string>& wanted);

}  // namespace quire::bench
