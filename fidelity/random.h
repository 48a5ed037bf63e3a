/// A small random generator with the same numbers on every machine (std distributions differ
/// between libraries).
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

/// splitmix64 (Steele, Lea, Flood 2014). Threads: not shared.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /// Starts the stream named `name` under `seed`: FNV-1a of the name mixed into the seed.
  Random(std::uint64_t seed, std::string_view name) : state_(seed) {
    std::uint64_t hash = 0xcbf29ce484222325ull;
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    state_ ^= hash;
    (void)next();
  }
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /// Returns a uniform number in [0, n); n >= 1. It uses multiply-shift, whose bias of 2^-64 * n is
  /// negligible here.
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  /// Returns a uniform number in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  template <class T>
  void shuffle(std::vector<T>& v) {
    for (std::size_t i = v.size(); i > 1; --i) std::swap(v[i - 1], v[below(i)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace quire
