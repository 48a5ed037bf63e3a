/// The retrievers with their options that bench/decode measures, and how their copies run.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace quire::bench {

/// A retriever with its options.
struct Variant {
  /// `resident` is auto or none; empty: there is no such option.
  std::string name, resident = "";
  /// The part of the method that this variant lacks or replaces; empty: none.
  std::string without = "";
  std::map<std::string, std::string, std::less<>> options = {};
  std::int32_t streams = 2;  ///< streams of asynchronous copies; 0: copies run synchronously
  /// The number of layers whose rows fit the device; 0: no limit.
  std::int32_t device_layers = 0;
};

/// Returns dense and every retriever of `wanted` (empty: all). Each has its layers on the device
/// and, if it distinguishes them, none.
std::vector<Variant> variants(const std::vector<std::string>& wanted);
/// Returns dense and those of FreeKV, CTkvr and SpeContext that are in `wanted`: whole, and without
/// one of their parts each.
std::vector<Variant> ablations(const std::vector<std::string>& wanted);

}  // namespace quire::bench
